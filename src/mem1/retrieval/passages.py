"""Passages as JSONL on disk, read one at a time through a memory map.

passages.jsonl   {"id": "p0", "title": "Oslo", "text": "Oslo is the capital of Norway."}
offsets.npy      0, 75                 byte at which each passage starts, and the end of the file

StoredPassages(folder)[0]  ->  Passage("p0", "Oslo", "Oslo is the capital of Norway.")
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.records import Passage

PASSAGES = "passages.jsonl"
"""The same bytes for the same passages."""
OFFSETS = "offsets.npy"


def store_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Write the two files above into `folder`. Raises OSError where that fails."""
    offsets = [0]
    with open(folder / PASSAGES, "wb") as file:
        for passage in passages:
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + file.write(encode_object(record)))
    np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))


class StoredPassages(Sequence[Passage]):
    """The passages of a folder; only those asked for are parsed. Safe to read from many threads."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError where the files cannot be read, or offsets point outside of the passages."""
        offsets = np.load(folder / OFFSETS)
        with open(folder / PASSAGES, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = offsets.dtype == np.int64 and offsets.ndim == 1 and len(offsets) > 1
        if not whole or offsets[0] != 0 or offsets[-1] != len(self._bytes) or (np.diff(offsets) <= 0).any():
            raise ValueError(f"{OFFSETS} does not fit {PASSAGES}")
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start, stop = self._offsets[position : position + 2]
        try:
            record = json.loads(self._bytes[start:stop])
            return Passage(record["id"], record["title"], record["text"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"passage {position} of an index is damaged ({error}); build the index again") from error
