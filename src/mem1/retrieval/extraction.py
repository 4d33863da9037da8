"""Text out of pages and PDFs, in a process with a deadline and a memory limit.

    extract("pdf", content, seconds=60)     ->  (None, "The mill was built in 1823 ...")
                                                Unreadable("not read within 60 seconds")

trafilatura and pypdf parse whatever anybody wrote, so they run in a child process that may be killed at any moment. It
starts with the first document, reads one document after another and ends with ours. A process that is too slow, or that
crashes on a document, is replaced for the next one.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

MEMORY_BYTES = 2 << 30
"""Address space of a process, including its libraries."""
_AT_A_TIME = 2
"""Largest number of processes."""
_LONGEST_TEXT = 50_000_000
"""Most characters of one document."""
_TAG = re.compile(rb"<[a-zA-Z][^<>]*>")
_LIBRARIES = ("trafilatura", "pypdf")

Kind = Literal["html", "page", "pdf"]
"""html: a file; page: from the open web, as UTF-8, to be read without its menus."""


class Unreadable(Exception):
    """The reason why a document yields no text; other documents are not affected."""


class LibraryMissing(Exception):
    """The library for this kind of document cannot be imported."""


def extract(kind: Kind, content: bytes, *, seconds: float) -> tuple[str, str]:
    """(title, text); either may be empty. Thread-safe. Raises Unreadable for this document, or LibraryMissing."""
    with _free:
        try:
            process = _idle.pop()
        except IndexError:
            process = _Process()
        try:
            answer = process.ask(kind, content, seconds)
        except BaseException:
            process.end()
            raise
        if answer.get("spent"):  # its memory is fragmented
            process.end()
        else:
            _idle.append(process)
    if "missing" in answer:
        raise LibraryMissing(answer["missing"])
    if "refused" in answer:
        raise Unreadable(answer["refused"])
    return answer["title"], answer["text"]


class _Process:
    """A child process that runs `serve`."""

    def __init__(self) -> None:
        # not -m, which would import modules from the current folder, possibly that of the documents
        path = [folder for folder in sys.path if folder]
        code = f"import sys; sys.path[:] = {path!r}; from mem1.retrieval.extraction import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # wait until it is ready: the deadline is for reading only

    def ask(self, kind: Kind, content: bytes, seconds: float) -> dict[str, Any]:
        """Raises Unreadable where there is no answer in time, or the process dies."""
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        deadline = threading.Timer(seconds, give_up)
        deadline.daemon = True
        deadline.start()
        try:
            self._process.stdin.write(f"{kind} {len(content)}\n".encode())
            self._process.stdin.write(content)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        finally:
            deadline.cancel()
        if late.is_set():
            raise Unreadable(f"not read within {seconds:g} seconds")
        if not line:
            raise Unreadable("the process that read it died; it may need too much memory")
        return json.loads(line)

    def end(self) -> None:
        """Kill it and wait for it."""
        self._process.kill()
        self._process.communicate()


_free = threading.BoundedSemaphore(_AT_A_TIME)
_idle: list[_Process] = []


def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _forget_all() -> None:
    """After a fork, the processes and those waiting for them belong to our parent."""
    global _free
    _idle.clear()
    _free = threading.BoundedSemaphore(_AT_A_TIME)


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def serve() -> None:
    """In the child process: print "ready", then answer requests from stdin on stdout until stdin ends.

    A request is a line with kind and number of bytes, then the bytes; an answer is a line of JSON.
    """
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # output of a library must not look like an answer
    os.dup2(silence, 2)
    _limit_memory(int(sys.argv[1]))
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.CRITICAL)
        with suppress(ImportError):  # reported when a document needs it
            import_module(library)  # now, since it takes longer than reading most documents
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
        return  # a system without such limits still has the deadline


def _answered(kind: str, content: bytes) -> dict[str, Any]:
    try:
        title, text = _READERS[kind](content)
        if len(text) > _LONGEST_TEXT:
            raise Unreadable(f"more than {_LONGEST_TEXT:,} characters of text")
        return {"title": title or "", "text": text or ""}
    except Unreadable as refused:
        return {"refused": str(refused)}
    except ImportError as error:
        return {"missing": str(error)}
    except MemoryError:
        return {"refused": "too large to be read: it needs too much memory", "spent": True}
    except Exception as error:  # any failure of the library, about this document only
        return {"refused": f"damaged ({type(error).__name__}: {str(error)[:200]})"}


def _html(content: bytes) -> tuple[str | None, str]:
    import trafilatura

    tree = trafilatura.load_html(content)
    if tree is None and _TAG.search(content):  # a fragment of one element, which the library takes for no HTML
        content = b"<html><body>" + content + b"</body></html>"
        tree = trafilatura.load_html(content)
    if tree is None:
        raise Unreadable("not HTML")
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
            raise Unreadable("encrypted")
        pages: list[str] = []
        room = _LONGEST_TEXT
        for page in reader.pages:
            pages.append(page.extract_text())
            room -= len(pages[-1])
            if room < 0:
                raise Unreadable(f"more than {_LONGEST_TEXT:,} characters of text")
    except (DependencyError, FileNotDecryptedError) as error:
        raise Unreadable("encrypted") from error
    text = "\n".join(pages)
    if not text.strip():
        raise Unreadable("no text in it; scanned pages need text recognition first")
    return None, text


_READERS: dict[str, Callable[[bytes], tuple[str | None, str]]] = {"html": _html, "page": _page, "pdf": _pdf}
