"""Title and readable text of one file: plain text, Markdown, HTML or PDF.

    read_document(Path("notes/oslo.md"))  ->  ("Oslo", "# Oslo\\n\\nThe capital of Norway.")

The title is that of the page (HTML), the first heading (Markdown, HTML), else the file's name without its ending.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable
from pathlib import Path

from mem1.errors import UserError
from mem1.retrieval.isolated import Kind, LibraryMissing, Unreadable, extract

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


LARGEST_BYTES = 100_000_000
"""Of a file; a larger one is passed over."""
SECONDS = 60.0
"""For the text of one page or PDF."""


def read_document(path: Path) -> tuple[str, str]:
    """(title, text). Raises Unreadable for this file alone, and UserError where a library is missing."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise Unreadable(f"not a kind of file that is read ({', '.join(_READERS)})")
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
    title, text = reader(content, path)
    if not text.strip():
        raise Unreadable("no text in it")
    return " ".join((title or "").split()) or path.stem, text


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
    # a comment in a block of code looks like a heading
    heading = _HEADING.search(_FENCE.sub("", text))
    return heading[1].rstrip(" \t#") if heading else None, text


def _html(content: bytes, path: Path) -> tuple[str | None, str]:
    return _isolated("html", "trafilatura", content, path)


def _pdf(content: bytes, path: Path) -> tuple[str | None, str]:
    return _isolated("pdf", "pypdf", content, path)


def _isolated(kind: Kind, library: str, content: bytes, path: Path) -> tuple[str | None, str]:
    try:
        return extract(kind, content, seconds=SECONDS)
    except LibraryMissing as error:
        raise UserError(f"{path} needs {library} to be read ({error}): pip install 'mem1[documents]'") from error


_READERS: dict[str, Callable[[bytes, Path], tuple[str | None, str]]] = {
    ".txt": _plain,
    ".text": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
