"""Every reply of a model, on the disk before it is used, so that nothing that was answered is asked twice.

journal = Journal(folder / "journal.jsonl")
call = Call(task="independent-1-n4-seed0-2", memory="full", number=3, request=digest_of(request))
journal.find(call)          the reply that an earlier process got, or None
journal.add(call, reply)    one line of JSON, forced to the disk
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mem1.errors import UserError
from mem1.jsonl import append_objects, drop_cut_line, read_objects


class Call(NamedTuple):
    """One call of the model."""

    task: str
    memory: str
    number: int
    """Of the attempt's calls, states included, from 1."""
    request: str
    """Digest of everything that the request holds: what a changed memory or prompt asks is asked anew."""


def digest_of(request: Any) -> str:
    """SHA-256 (hexadecimal, shortened) of a request, or a record, as JSON."""
    written = json.dumps(request, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Journal:
    """The replies of one run of the benchmark. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Reads what is there, without a last line that was cut off. None: nothing is kept.

        Raises UserError for a damaged file.
        """
        self._path, self._lock = path, threading.Lock()
        self._replies: dict[Call, Mapping[str, Any]] = {}
        self.money = 0.0
        """Cost of all its replies."""
        if path is not None and path.exists():
            drop_cut_line(path)
            for number, line in read_objects(path):
                if line.pop("digest", None) != digest_of(line):
                    raise UserError(
                        f"{path}:{number}: this reply is not as it was recorded; remove the line, and it is asked again"
                    )
                call = Call(line["task"], line["memory"], line["number"], line["request"])
                self._replies[call] = line["reply"]
                self.money += line["money"]

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, call: Call) -> Mapping[str, Any] | None:
        """The reply to this call; None: there is none."""
        return self._replies.get(call)

    def add(self, call: Call, reply: Mapping[str, Any], *, money: float = 0.0) -> None:
        """Keeps a reply. Raises UserError where it cannot be written."""
        if self._path is not None:
            with self._lock:
                line = {**call._asdict(), "money": money, "reply": reply}
                append_objects(self._path, [{**line, "digest": digest_of(line)}])
                self.money += money
                self._replies[call] = reply
