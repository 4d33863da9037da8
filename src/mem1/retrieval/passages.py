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

from mem1.jsonl import encode_object
from mem1.records import Passage

PASSAGES = "passages.jsonl"
"""The same bytes for the same passages."""
_OFFSETS = "offsets.npy"


def store_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Write the two files above into `folder`. Raises OSError where that fails."""
    offsets = [0]
    with open(folder / PASSAGES, "wb") as file:
        for passage in passages:
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + file.write(encode_object(record)))
    np.save(folder / _OFFSETS, np.asarray(offsets, dtype=np.int64))


class StoredPassages(Sequence[Passage]):
    """The passages of a folder; only those asked for are parsed. Safe to read from many threads."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / _OFFSETS)
        with open(folder / PASSAGES, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

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
        return Passage(**json.loads(self._bytes[start:stop]))
