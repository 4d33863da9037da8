"""The readable text of a page or a PDF, by libraries that parse what anybody may have written.

Runs in a process of its own (`isolated.py`), which may be killed at any moment; nothing else imports it.

    serve()     reads requests from stdin and writes answers to stdout until stdin ends
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

_LONGEST_TEXT = 50_000_000
"""Characters of one document."""
_LIBRARIES = ("trafilatura", "pypdf")


class _Refused(Exception):
    """Why a document gives no text."""


def serve() -> None:
    """Say "ready" on a line, then answer one request after the other.

    A request is a line with kind and number of bytes, then the bytes; an answer is a line of JSON.
    """
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what a library prints is no answer
    os.dup2(silence, 2)
    _limit_memory(int(sys.argv[1]))
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.CRITICAL)
        with suppress(ImportError):  # it is missing when it is asked for
            import_module(library)  # now, as it takes longer than many a document
    answers.write(b"ready\n")
    answers.flush()
    requests = sys.stdin.buffer
    while line := requests.readline():
        kind, size = line.split()
        answer = _answered(kind.decode(), requests.read(int(size)))
        answers.write(json.dumps(answer).encode("ascii") + b"\n")
        answers.flush()


def _limit_memory(most: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return  # a system without such limits: the deadline remains


def _answered(kind: str, content: bytes) -> dict[str, Any]:
    try:
        title, text = _READERS[kind](content)
        if len(text) > _LONGEST_TEXT:
            raise _Refused(f"more than {_LONGEST_TEXT:,} characters of text")
        return {"title": title or "", "text": text or ""}
    except _Refused as refused:
        return {"refused": str(refused)}
    except ImportError as error:
        return {"missing": str(error)}
    except MemoryError:
        return {"refused": "too large to be read: it needs too much memory", "spent": True}
    except Exception as error:  # of somebody else's library, about this document alone
        return {"refused": f"damaged ({type(error).__name__}: {str(error)[:200]})"}


def _html(content: bytes) -> tuple[str | None, str]:
    import trafilatura

    tree = trafilatura.load_html(content)
    if tree is None:
        raise _Refused("not HTML")
    title = tree.findtext(".//title") or next((h.text_content() for h in tree.iter("h1", "h2")), None)
    text = trafilatura.extract(tree, include_comments=False)
    return title, text or trafilatura.html2txt(content)


def _page(content: bytes) -> tuple[str | None, str]:
    import trafilatura

    html = content.decode("utf-8").replace("\0", "")
    found = trafilatura.bare_extraction(html, include_comments=False, with_metadata=True)
    return getattr(found, "title", None), getattr(found, "text", None) or ""


def _pdf(content: bytes) -> tuple[str | None, str]:
    import pypdf
    from pypdf.errors import DependencyError, FileNotDecryptedError

    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise _Refused("encrypted")
        pages: list[str] = []
        room = _LONGEST_TEXT
        for page in reader.pages:
            pages.append(page.extract_text())
            room -= len(pages[-1])
            if room < 0:
                raise _Refused(f"more than {_LONGEST_TEXT:,} characters of text")
    except (DependencyError, FileNotDecryptedError) as error:
        raise _Refused("encrypted") from error
    text = "\n".join(pages)
    if not text.strip():
        raise _Refused("no text in it; scanned pages need text recognition first")
    return None, text


_READERS: dict[str, Callable[[bytes], tuple[str | None, str]]] = {"html": _html, "page": _page, "pdf": _pdf}
