"""A folder of documents (plain text, Markdown, HTML, PDF) as passages of 100 words, cut between sentences.

    notes/oslo.md, notes/scan.pdf     found = read_documents("notes")
    found.passages                    (Passage("oslo.md#1", "Oslo", "..."), Passage("oslo.md#2", "Oslo", "..."))
    found.skipped                     (("scan.pdf", "no text in it; scanned pages need text recognition first"),)

    read_document(Path("notes/oslo.md"))                     ->  ("Oslo", "# Oslo\\n\\nThe capital of Norway.")
    cut_text("One two. Three four five. Six.", words=4)      ->  ["One two.", "Three four five. Six."]

Hidden files and folders are skipped, and symbolic links are never followed, so nothing outside the folder is read.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mem1 import durable
from mem1.errors import UserError
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval.extraction import Kind, LibraryMissing, Unreadable, extract
from mem1.words import COUNTED

PASSAGE_WORDS = 100
LARGEST_BYTES = 100_000_000
"""Largest file that is read."""
SECONDS = 60.0
"""Time limit for extracting the text of one page or PDF."""
_NAMED = 5
"""Most files named in a message."""
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_END = re.compile("[.!?\u2026]['\"\u201d\u2019\u00bb)\\]]*$")
_WIDE_END = re.compile("[\u3002\uff01\uff1f][^\\w\\s]*$")
_EMPTY_LINE = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The contents of a folder."""

    passages: tuple[Passage, ...]
    files: int
    """Number of files that became passages."""
    skipped: tuple[tuple[str, str], ...]
    """(path in the folder, reason) of every other file."""


def read_documents(folder: str | os.PathLike[str], *, on_file: Callable[[int], None] | None = None) -> Documents:
    """All documents below `folder`, ordered by path; `on_file` receives the number of files seen so far.

    Raises UserError where no file yields a passage, or the library for a type of file is not installed.
    """
    passages: list[Passage] = []
    skipped: list[tuple[str, str]] = []
    read = 0
    endings = register.document.names()
    for seen, (path, refused) in enumerate(sorted(_files(Path(folder))), start=1):
        name = path.relative_to(folder).as_posix()
        try:
            if refused:
                raise Unreadable(refused)
            title, text = read_document(path, endings)
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
    """(path, reason not to open it, else empty) of everything that is not hidden, and of folders of mem1's."""
    refused: list[OSError] = []
    for where, folders, names in os.walk(folder, onerror=refused.append):
        if Path(where) != folder and _is_ours(Path(where)):
            folders.clear()
            yield Path(where), "made by mem1, not a document"
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        inner = set(folders)
        for name in (*names, *folders):
            path = Path(where, name)
            if name.startswith("."):
                continue
            if path.is_symlink():
                yield path, "a symbolic link, which is not followed"
            elif name not in inner:
                yield path, "" if path.is_file() else "not an ordinary file"
    for error in refused:
        yield Path(error.filename), error.strerror or str(error)


def _is_ours(folder: Path) -> bool:
    """Whether mem1 has written this folder: what it holds, as questions with answers, is about documents."""
    runs = (folder / "resolved.json", folder / "train" / "resolved.json")
    return durable.read_manifest(folder) is not None or any(map(_is_of_a_run, runs))


def _is_of_a_run(path: Path) -> bool:
    """Whether this is what a training or an evaluation writes of itself, and no other file of that name."""
    try:
        found = json.loads(durable.read_record(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and ({"command", "versions"} <= found.keys() or "evaluations" in found)


def _nothing(folder: str | os.PathLike[str], skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return f"{folder} holds no file; hidden files are not read"
    named = "; ".join(f"{name}: {reason}" for name, reason in skipped[:_NAMED])
    more = f"; and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    return f"none of the {len(skipped)} files in {folder} yields a passage. {named}{more}"


def read_document(path: Path, endings: Sequence[str] = ()) -> tuple[str, str]:
    """(title, text): the title of the page (HTML), else the first heading (Markdown, HTML), else the file's name.

    `endings` of files that can be read; empty: those registered now. Raises Unreadable for a problem with this file,
    UserError where a library is not installed or a reader returns something else.
    """
    endings = endings or register.document.names()
    if path.suffix.lower() not in endings:
        raise Unreadable(f"not a supported type of file ({', '.join(endings)})")
    reader: Reader = register.document.get(path.suffix.lower())
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
                raise _too_large()
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    if len(content) > LARGEST_BYTES:
        raise _too_large()
    if not content.strip():
        raise Unreadable("empty")
    title, text = _read(reader, content, path)
    if not text.strip():
        raise Unreadable("no text in it")
    return " ".join((title or "").split()) or path.stem, text


def _read(reader: Reader, content: bytes, path: Path) -> tuple[str | None, str]:
    try:
        found: Any = reader(content, path)
    except (Unreadable, UserError):
        raise
    except Exception as error:  # whatever a stranger's reader raises
        raise Unreadable(f"its reader fails: {' '.join(f'{type(error).__name__}: {error}'.split())}") from error
    match found:
        case (str() | None as title, str() as text):
            return title, text
        case _:
            raise UserError(f"the reader of {path} returned {found!r:.80}; it must return (title or None, text)")


def _too_large() -> Unreadable:
    return Unreadable(f"larger than {LARGEST_BYTES / 1e6:g} MB; split it")


def _plain(content: bytes, path: Path) -> tuple[str | None, str]:
    encoding = "utf-16" if content.startswith(_UTF16) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable("binary" if b"\0" in content else "not UTF-8 text; save it as UTF-8") from error
    if "\0" in text:
        raise Unreadable("binary")
    return None, text


def _markdown(content: bytes, path: Path) -> tuple[str | None, str]:
    _, text = _plain(content, path)
    # a comment in a code block looks like a heading
    heading = _HEADING.search(_FENCE.sub("", text))
    return heading[1].rstrip(" \t#") if heading else None, text


def _isolated(kind: Kind, library: str, content: bytes, path: Path) -> tuple[str | None, str]:
    try:
        return extract(kind, content, seconds=SECONDS)
    except LibraryMissing as error:
        raise UserError(f"{path} needs {library} to be read ({error}): pip install 'mem1-agents[documents]'") from error


Reader = Callable[[bytes, Path], tuple[str | None, str]]
"""(content, path) -> (title or None, text). Raises Unreadable where the file has none."""
READERS: dict[str, Reader] = {
    ".txt": _plain,
    ".text": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": partial(_isolated, "html", "trafilatura"),
    ".htm": partial(_isolated, "html", "trafilatura"),
    ".pdf": partial(_isolated, "pdf", "pypdf"),
}


def cut_text(text: str, *, words: int) -> list[str]:
    """Passages of at most `words` words in order, white space folded, cut between sentences.

    A sentence ends at . ! ? … before a space and a possible beginning of a sentence, at their full-width forms, and at
    an empty line; so "Dr. Toll" is split, which does no harm. A sentence longer than a passage is cut between words.
    Of scripts without spaces, a Chinese or Japanese character counts as a word, and so do four letters of Thai, Lao,
    Burmese or Khmer; and every 200 characters of something that is not text.
    """
    passages: list[str] = []
    start = stop = count = 0
    for sentence in _sentences(text, words):
        if count and count + len(sentence) > words:
            passages.append(text[start:stop])
            count = 0
        if not count:
            start = sentence[0].start()
        stop = sentence[-1].end()
        count += len(sentence)
    if count:
        passages.append(text[start:stop])
    return [" ".join(passage.split()) for passage in passages]


def _sentences(text: str, longest: int) -> Iterator[list[re.Match[str]]]:
    """The words of each sentence; a sentence longer than `longest` comes in pieces."""
    sentence: list[re.Match[str]] = []
    for word in COUNTED.finditer(text):
        if sentence and (len(sentence) == longest or _ends(text, sentence[-1], word)):
            yield sentence
            sentence = []
        sentence.append(word)
    if sentence:
        yield sentence


def _ends(text: str, word: re.Match[str], following: re.Match[str]) -> bool:
    """Whether a sentence ends between these two."""
    between = text[word.end() : following.start()]
    if _WIDE_END.search(word[0]) or _EMPTY_LINE.search(between):
        return True
    first_letter = next((letter for letter in following[0] if letter.isalnum()), "")
    return bool(between and _END.search(word[0])) and not first_letter.islower()
