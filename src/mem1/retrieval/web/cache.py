"""Answers of searches and pages on disk (SQLite), so that a run can be repeated without a network.

cache = WebCache("web.sqlite", mode="live")
cache.load("search", {"query": "Oslo"})                 ->  None: missing, or too old
cache.store("search", {"query": "Oslo"}, [...])
WebCache("web.sqlite", mode="replay").load("search", {"query": "Bergen"})     ->  CacheMiss

live      uses fresh answers from the cache, requests the others and stores them
offline   uses fresh answers from the cache, fails for the others, never connects
replay    as offline, but uses answers of any age, so a run stays repeatable
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from mem1.errors import UserError
from mem1.retrieval.base import RetrievalFailed

Mode = Literal["live", "replay", "offline"]
_APPLICATION = 0x6D656D31
"""Marks the file as ours (SQLite's application_id)."""
_WAIT_S = 60.0
"""Longest wait for another process to finish writing."""


class CacheMiss(RetrievalFailed):
    """A mode without a network needs an answer that is not in the cache."""


@dataclass(frozen=True, slots=True)
class WebCache:
    """Safe for threads and processes: every call opens its own connection."""

    path: str | os.PathLike[str]
    _: KW_ONLY
    mode: Mode = "live"
    max_age_s: float = 30 * 24 * 3600.0
    """Age beyond which an answer is requested again (live) or missing (offline); ignored in replay mode."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if self.mode != "live" and not Path(self.path).is_file():
            raise UserError(f"no web cache {self.path}: {self.mode} mode needs one that a live run has filled")
        with self._file() as file:
            # in this order: another process that creates the file sets application_id before it creates the table
            (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = file.execute("PRAGMA application_id").fetchone()
            if tables and application != _APPLICATION:
                raise UserError(f"{self.path} is not a web cache of mem1; give another file")
            if self.mode == "live":
                file.execute(f"PRAGMA application_id={_APPLICATION}")
                file.execute(
                    "CREATE TABLE IF NOT EXISTS answers "
                    "(kind TEXT, key TEXT, value TEXT, stored REAL, PRIMARY KEY (kind, key))"
                )

    def load(self, kind: str, key: Mapping[str, Any]) -> Any:
        """The value stored under `key`; None: request it. Raises CacheMiss in a mode without a network."""
        with self._file() as file:
            query = "SELECT value, stored FROM answers WHERE kind = ? AND key = ?"
            found = file.execute(query, (kind, _text(key))).fetchone()
        if found and (self.mode == "replay" or self.clock() - found[1] <= self.max_age_s):
            return json.loads(found[0])
        if self.mode == "live":
            return None
        shown = ", ".join(f"{name} {value!r}" for name, value in key.items())
        raise CacheMiss(f"{self.mode} mode: the cache {self.path} has no {kind} {shown}")

    def kept(self, kind: str, key: Mapping[str, Any]) -> Any:
        """The value stored under `key`, however old; None: there is none."""
        with self._file() as file:
            query = "SELECT value FROM answers WHERE kind = ? AND key = ?"
            found = file.execute(query, (kind, _text(key))).fetchone()
        return json.loads(found[0]) if found else None

    def store(self, kind: str, key: Mapping[str, Any], value: Any) -> None:
        """Store a value that JSON can represent, replacing an earlier one."""
        with self._file() as file:
            file.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                (kind, _text(key), json.dumps(value), self.clock()),
            )

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """Raises UserError for every failure of SQLite: missing folder, full disk, damaged file."""
        try:
            if self.mode == "live":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as file:
                yield file
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"the web cache {self.path} cannot be used: {error}; give another file") from error


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
