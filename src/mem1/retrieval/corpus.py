"""A corpus of passages in a JSONL file, plain or gzipped, or a Parquet file, and its index, built once and kept.

{"id": "p0", "title": "Oslo", "text": "Oslo is the capital of Norway."}        our own form
{"id": "0", "contents": "\\"Oslo\\"\\nOslo is the capital of Norway."}             Search-R1's

open_bm25("corpus.jsonl.gz")      first time: builds, and keeps the index under ~/.cache/mem1
                                  afterwards: opens it memory-mapped

Passages as JSONL on disk, read one at a time through a memory map.

passages.jsonl   {"id": "p0", "title": "Oslo", "text": "Oslo is the capital of Norway."}
offsets.npy      0, 75                 byte at which each passage starts, and the end of the file

StoredPassages(folder)[0]  ->  Passage("p0", "Oslo", "Oslo is the capital of Norway.")
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mem1.errors import UserError, printable
from mem1.jsonl import encode_object, read_objects
from mem1.parquet import is_parquet, read_rows
from mem1.records import Passage
from mem1.retrieval.digests import sha256_of

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.retrieval.bm25 import BM25


CACHE_VARIABLE = "MEM1_CACHE"
"""Environment variable that names the cache folder; without it ~/.cache/mem1."""
_COLUMNS = ("id", "title", "text", "contents")
_NO_TEXT = "passage {!r} has no text; give it as text, or title and text as contents"


def read_passages(path: str | os.PathLike[str]) -> list[Passage]:
    """Every passage of the file, in its order.

    Raises UserError, with file and line (in Parquet: row), for a missing or cut file, a passage without id or text,
    or an id that stands twice.
    """
    passages: list[Passage] = []
    line_of: dict[str, int] = {}
    records = read_rows(path, _COLUMNS) if is_parquet(path) else read_objects(path)
    for line, record in records:
        try:
            passage = _passage(record)
        except ValueError as error:
            raise UserError(f"{path}:{line}: {error}") from error
        if passage.id in line_of:
            raise UserError(f"{path}:{line}: passage id {passage.id!r} stands on line {line_of[passage.id]} already")
        line_of[passage.id] = line
        passages.append(passage)
    if not passages:
        raise UserError(f"{path} holds no passage; each line must be an object with id, title and text")
    return passages


def _passage(record: Mapping[str, Any]) -> Passage:
    """Raises ValueError saying what is missing."""
    identifier = record.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        raise ValueError("a passage needs an id, a string or a whole number")
    title, text = title_and_text(record)
    if not text.strip():
        raise ValueError(_NO_TEXT.format(record["id"]))
    return Passage(str(identifier), title, text)


def title_and_text(record: Mapping[str, Any]) -> tuple[str, str]:
    """Of a passage in either form; either may be empty. Raises ValueError where there is no text, or no title."""
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
    """Search-R1's `contents`, which `title_and_text` takes apart again; line ends within a title become spaces."""
    title = passage.title.replace("\n", " ")
    return f'"{title}"\n{passage.text}'


def _unquoted(title: str) -> str:
    # one pair only: a title such as "Heroes" (song) has quotes of its own
    return title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title


def open_bm25(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> BM25:
    """The BM25 index of a corpus file, from the cache where the same content was indexed before.

    The cache is `cache_dir`, else $MEM1_CACHE, else ~/.cache/mem1; an index is known there by the SHA-256 of the
    corpus file. A damaged one is built anew. What is built, and where, is said on stderr. Raises UserError for a
    faulty corpus and where the index cannot be written; a half-written index is never used.
    """
    from rich.console import Console

    from mem1.retrieval.bm25 import BM25
    from mem1.retrieval.bm25 import FILES as BM25_FILES
    from mem1.retrieval.index_folder import MANIFEST, discard

    console = Console(stderr=True, highlight=False, markup=False)
    folder = bm25_folder(corpus_path, cache_dir)
    if folder.exists():
        try:
            return BM25.load(folder)
        except UserError as error:
            console.print(printable(f"{error}; building it anew"))
            discard(folder, (*BM25_FILES, MANIFEST))
    _build(corpus_path, folder, console)
    return BM25.load(folder)


def bm25_folder(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where `open_bm25` keeps the index of a corpus file. Raises UserError where the file cannot be read."""
    return cache_folder(cache_dir) / f"bm25-{_sha256(corpus_path)[:32]}"


def _build(corpus_path: str | os.PathLike[str], folder: Path, console: Console) -> None:
    from mem1.retrieval.bm25 import BM25

    start = time.perf_counter()
    with console.status(printable(f"Indexing {corpus_path} (once)")):
        passages = read_passages(corpus_path)
        BM25.build(passages).save(folder)
    seconds = time.perf_counter() - start
    said = f"Indexed {len(passages):,} passages of {corpus_path} in {seconds:.1f} s; kept in {folder}"
    console.print(printable(said))


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """`cache_dir`, else $MEM1_CACHE, else ~/.cache/mem1."""
    if cache_dir is not None:
        return Path(cache_dir)
    from_environment = os.environ.get(CACHE_VARIABLE)
    return Path(from_environment) if from_environment else Path.home() / ".cache" / "mem1"


def _sha256(path: str | os.PathLike[str]) -> str:
    try:
        return sha256_of(path)
    except FileNotFoundError as error:
        raise UserError(f"no corpus file {path}; check the path") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


PASSAGES = "passages.jsonl"
"""The same bytes for the same passages."""
OFFSETS = "offsets.npy"


def store_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Write the two files above into `folder`. Raises OSError where that fails."""
    import numpy as np

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
