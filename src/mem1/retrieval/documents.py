"""A folder of documents as passages of 100 words, cut on the borders of sentences.

    notes/oslo.md, notes/scan.pdf     found = read_documents("notes")
    found.passages                    (Passage("oslo.md#1", "Oslo", "..."), Passage("oslo.md#2", "Oslo", "..."))
    found.skipped                     (("scan.pdf", "no text in it; scanned pages need text recognition first"),)

Hidden files and folders are passed over; a symbolic link is never followed, so nothing outside the folder is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.cutting import cut_text
from mem1.retrieval.document_text import read_document
from mem1.retrieval.isolated import Unreadable

PASSAGE_WORDS = 100
_NAMED = 5
"""Files named in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What a folder holds."""

    passages: tuple[Passage, ...]
    files: int
    """Files that gave passages."""
    skipped: tuple[tuple[str, str], ...]
    """(path in the folder, reason) of every other file."""


def read_documents(folder: str | os.PathLike[str], *, on_file: Callable[[int], None] | None = None) -> Documents:
    """Every document below `folder`, by path; `on_file` gets the number of files seen so far.

    Raises UserError where not one gives a passage, or a library for a kind of file is not installed.
    """
    passages: list[Passage] = []
    skipped: list[tuple[str, str]] = []
    read = 0
    for seen, (path, refused) in enumerate(sorted(_files(Path(folder))), start=1):
        name = path.relative_to(folder).as_posix()
        try:
            if refused:
                raise Unreadable(refused)
            title, text = read_document(path)
        except Unreadable as error:
            skipped.append((name, str(error)))
        else:
            read += 1
            pieces = cut_text(text, words=PASSAGE_WORDS)
            passages += [Passage(f"{name}#{number}", title, piece) for number, piece in enumerate(pieces, start=1)]
        if on_file is not None:
            on_file(seen)
    if not passages:
        raise UserError(_nothing(folder, skipped))
    return Documents(passages=tuple(passages), files=read, skipped=tuple(skipped))


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """(path, why it is not to be opened, or nothing) of what is not hidden."""
    refused: list[OSError] = []
    for where, folders, names in os.walk(folder, onerror=refused.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*names, *folders):
            path = Path(where, name)
            if name.startswith("."):
                continue
            if path.is_symlink():
                yield path, "a symbolic link, which is not followed"
            elif name in names:
                yield path, "" if path.is_file() else "not an ordinary file"
    for error in refused:
        yield Path(error.filename), error.strerror or str(error)


def _nothing(folder: str | os.PathLike[str], skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return f"{folder} holds no file; hidden ones are not read"
    named = "; ".join(f"{name}: {reason}" for name, reason in skipped[:_NAMED])
    more = f"; and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return f"none of the {len(skipped)} files in {folder} gives a passage. {named}{more}"
