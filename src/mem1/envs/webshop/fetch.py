"""Downloads the original's files from Google Drive, as its setup.sh does, or from a mirror.

    fetch(SMALL, "shop")  ->  shop/items_shuffle_1000.json, shop/items_ins_v2_1000.json, shop/items_human_ins.json

A file is renamed once it is complete; a download that broke off is resumed. Product texts have no licence of their own:
they are for research and must not be redistributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mem1.errors import UserError
from mem1.lock import alone_in

if TYPE_CHECKING:
    import httpx

_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
_CONNECT_S, _SILENCE_S = 10.0, 60.0

Seen = Callable[[str, int, "int | None"], None]
"""Called with a file's name, the bytes downloaded so far and in total (None: unknown)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One of the original's files."""

    name: str
    drive_id: str
    limit: int
    """Maximum size in bytes; a larger file is the wrong one."""

    def address(self, mirror: str | None) -> str:
        """URL on Google Drive, or below the mirror's."""
        return f"{mirror.rstrip('/')}/{self.name}" if mirror else f"{_DRIVE}{self.drive_id}"


_HUMAN = Source("items_human_ins.json", "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O", 50 << 20)
SMALL = (
    Source("items_shuffle_1000.json", "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib", 50 << 20),
    Source("items_ins_v2_1000.json", "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu", 50 << 20),
    _HUMAN,
)
"""1,000 products (4.4 MB) and all instructions by people."""
ALL = (
    Source("items_shuffle.json", "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB", 8 << 30),
    Source("items_ins_v2.json", "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi", 1 << 30),
    _HUMAN,
)
"""1.18 million products (5.5 GB)."""


def fetch(
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    seen: Seen = lambda name, done, total: None,
) -> dict[str, Literal["fetched", "kept"]]:
    """Download the files; returns whether each was fetched or was there already.

    Raises UserError if a server fails, refuses or returns the wrong content, or the disk is full.
    """
    import httpx

    target = Path(folder)
    done: dict[str, Literal["fetched", "kept"]] = {}
    with (
        alone_in(target),
        httpx.Client(follow_redirects=True, timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)) as client,
    ):
        for source in sources:
            whole = target / source.name
            done[source.name] = "kept" if whole.exists() else "fetched"
            if not whole.exists():
                _fetch(client, source, source.address(mirror), whole, seen)
    return done


def _fetch(client: httpx.Client, source: Source, address: str, whole: Path, seen: Seen) -> None:
    import httpx

    partial = whole.with_name(f".{whole.name}.partial")
    by_hand = f"open {address} in a browser and put the file at {whole}"
    try:
        have = partial.stat().st_size if partial.exists() else 0
        # without compression, so that the bytes counted are those of the file
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with client.stream("GET", address, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                partial.unlink()
                raise UserError(
                    f"{source.name}: the partial download did not match this file and was removed; try again"
                )
            if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                raise UserError(f"{source.name}: {address} answered {response.status_code}; {by_hand}")
            if response.headers.get("content-type", "").startswith("text/html"):
                raise UserError(
                    f"{source.name}: the server returned a web page, perhaps because its quota is used up; {by_hand}"
                )
            _write(response, source, partial, have, seen)
        partial.replace(whole)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(
            f"{source.name}: the connection to {address} failed ({error}); call again to resume, or {by_hand}"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write {whole}: {error.strerror or error}; call again to resume") from error


def _write(response: httpx.Response, source: Source, partial: Path, have: int, seen: Seen) -> None:
    """Append if the server resumes, else start again."""
    done = have if response.status_code == 206 else 0
    rest = response.headers.get("content-length")
    total = done + int(rest) if rest is not None else None
    with open(partial, "ab" if done else "wb") as file:
        for chunk in response.iter_raw():
            done += len(chunk)
            if done > source.limit:
                file.truncate(0)
                raise UserError(f"{source.name}: more than {source.limit:,} bytes; this is not WebShop's file")
            file.write(chunk)
            seen(source.name, done, total)
