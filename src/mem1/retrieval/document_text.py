"""Title and readable text of one file: plain text, Markdown, HTML or PDF.

    read_document(Path("notes/oslo.md"))  ->  ("Oslo", "# Oslo\\n\\nThe capital of Norway.")

The title is that of the page (HTML), the first heading (Markdown, HTML), else the file's name without its ending.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Callable
from pathlib import Path

from mem1.errors import UserError

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Unreadable(Exception):
    """Why a file gives no text; other files are read all the same."""


def read_document(path: Path) -> tuple[str, str]:
    """(title, text). Raises Unreadable for this file alone, and UserError where a library is missing."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise Unreadable(f"not a kind of file that is read ({', '.join(_READERS)})")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    if not content.strip():
        raise Unreadable("empty")
    title, text = reader(content, path)
    if not text.strip():
        raise Unreadable("no text in it")
    return " ".join((title or "").split()) or path.stem, text


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
    try:
        import trafilatura
    except ImportError as error:
        raise _missing(path, "trafilatura", error) from error
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

    def read() -> tuple[str | None, str]:
        tree = trafilatura.load_html(content)
        if tree is None:
            raise Unreadable("not HTML")
        title = tree.findtext(".//title") or next((h.text_content() for h in tree.iter("h1", "h2")), None)
        text = trafilatura.extract(tree, include_comments=False)
        return title, text or trafilatura.html2txt(content)

    return _guarded(read)


def _pdf(content: bytes, path: Path) -> tuple[str | None, str]:
    try:
        import pypdf
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError as error:
        raise _missing(path, "pypdf", error) from error
    import io

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)

    def read() -> tuple[str | None, str]:
        try:
            reader = pypdf.PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise Unreadable("encrypted")
            text = "\n".join(page.extract_text() for page in reader.pages)
        except (DependencyError, FileNotDecryptedError) as error:
            raise Unreadable("encrypted") from error
        if not text.strip():
            raise Unreadable("no text in it; scanned pages need text recognition first")
        return None, text

    return _guarded(read)


def _guarded(read: Callable[[], tuple[str | None, str]]) -> tuple[str | None, str]:
    """What the parser of somebody else's library gives; whatever it raises concerns this file alone."""
    try:
        return read()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"damaged ({type(error).__name__}: {error})") from error


def _missing(path: Path, library: str, error: ImportError) -> UserError:
    return UserError(f"{path} needs {library} to be read ({error}): pip install 'mem1[documents]'")


_READERS: dict[str, Callable[[bytes, Path], tuple[str | None, str]]] = {
    ".txt": _plain,
    ".text": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
