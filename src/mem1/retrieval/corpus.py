"""Passages in files: a corpus that somebody wrote, and the copy inside an index, read one passage at a time.

{"id": "p0", "title": "Oslo", "text": "Oslo is the capital of Norway."}        mem1's form, as JSONL or Parquet
{"id": "0", "contents": "\\"Oslo\\"\\nOslo is the capital of Norway."}             Search-R1's form
{"docid": "41", "text": "Oslo is ...", "url": "https://..."}                   BrowseComp-Plus's form

read_passages("corpus.jsonl.gz")  ->  [Passage("p0", "Oslo", "Oslo is the capital of Norway."), ...]
StoredPassages(folder)[0]         ->  Passage("p0", "Oslo", "Oslo is the capital of Norway.")

    passages.jsonl   mem1's form; equal passages give equal bytes
    offsets.npy      0, 75             byte at which each passage starts, and the end of the file
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from mem1.errors import UserError
from mem1.jsonl import encode_object, read_objects
from mem1.parquet import is_parquet, read_rows
from mem1.records import Passage

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
Place = TypeVar("Place")
_COLUMNS = ("id", "docid", "title", "text", "contents")
_NO_TEXT = "passage {!r} has no text; give it as text, or title and text as contents"


def read_passages(path: str | os.PathLike[str]) -> list[Passage]:
    """All passages of a corpus file, in its order.

    Raises UserError, with file and line (Parquet: row), for a missing or truncated file, a passage without id or
    text, or a repeated id.
    """
    passages = list(passages_in(path))
    if not passages:
        raise UserError(f"{path} holds no passage; each line must be an object with id, title and text")
    return passages


def passages_in(path: str | os.PathLike[str]) -> Iterator[Passage]:
    """The passages of a corpus file one after the other. Raises UserError as `read_passages` does, for those read."""
    records = read_rows(path, _COLUMNS) if is_parquet(path) else read_objects(path)
    return passages_of(records, where=lambda line: f"{path}:{line}", before=lambda line: f"on line {line}")


def passages_of(
    records: Iterable[tuple[Place, Mapping[str, Any]]], *, where: Callable[[Place], str], before: Callable[[Place], str]
) -> Iterator[Passage]:
    """The passages of records with their places, one after the other.

    `where` and `before` name the place of a record, and of an earlier one with its id, in the UserError for a passage
    without id or text, or a repeated id.
    """
    place_of: dict[str, Place] = {}
    for place, record in records:
        try:
            passage = passage_of(record)
        except ValueError as error:
            raise UserError(f"{where(place)}: {error}") from error
        if passage.id in place_of:
            used = before(place_of[passage.id])
            raise UserError(f"{where(place)}: passage id {passage.id!r} is already used {used}")
        place_of[passage.id] = place
        yield passage


def passage_of(record: Mapping[str, Any]) -> Passage:
    """The passage of a record. Raises ValueError naming what is missing."""
    identifier = record.get("id", record.get("docid"))
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        raise ValueError("a passage needs an id, a string or a whole number")
    title, text = title_and_text(record)
    if not text.strip():
        raise ValueError(_NO_TEXT.format(identifier))
    return Passage(str(identifier), title, text)


def title_and_text(record: Mapping[str, Any]) -> tuple[str, str]:
    """Title and text of a passage in either form; both may be empty.

    Raises ValueError where the text is missing, or where title or text is not a string.
    """
    title, text, contents = (record.get(name) for name in ("title", "text", "contents"))
    if text is None and isinstance(contents, str):
        first, line_end, rest = contents.partition("\n")
        title, text = (_unquoted(first.strip()), rest) if line_end else ("", contents)
    if not isinstance(text, str):
        raise ValueError(_NO_TEXT.format(record.get("id")))
    if not isinstance(title or "", str):
        raise ValueError(f"the title of passage {record.get('id')!r} is not a string")
    return title or "", text


def joined_contents(passage: Passage) -> str:
    """Search-R1's `contents`, which `title_and_text` splits again; line ends within a title become spaces."""
    title = passage.title.replace("\n", " ")
    return f'"{title}"\n{passage.text}'


def _unquoted(title: str) -> str:
    # one pair only: a title such as "Heroes" (song) has quotes of its own
    return title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title


def store_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Write passages.jsonl and offsets.npy into `folder`. Raises OSError where that fails."""
    import numpy as np

    offsets = [0]
    with open(folder / PASSAGES, "wb") as file:
        for passage in passages:
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + file.write(encode_object(record)))
    np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))


class StoredPassages(Sequence[Passage]):
    """The passages in a folder, memory-mapped and parsed on access. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError where the files cannot be read, or the offsets do not match the passages."""
        import numpy as np

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
