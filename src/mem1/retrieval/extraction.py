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
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

from mem1.retrieval.web.transport import declared

MEMORY_BYTES = 2 << 30
"""Address space of a process, including its libraries."""
_AT_A_TIME = 2
"""Largest number of processes."""
_LONGEST_TEXT = 50_000_000
"""Most characters of one document."""
_TAG = re.compile(r"<[a-zA-Z][^<>]*>")
_LIBRARIES = ("trafilatura", "pypdf")

Kind = Literal["html", "page", "pdf"]
"""html: a file, of which all is kept but marked menus; page: from the open web, as UTF-8, to be read without any."""


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
        # not -m, which would import modules from the current folder, possibly that of the documents; the folder of a
        # script comes last, or one called html.py would be imported, which reads documents in a process, which ...
        script = os.path.dirname(os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or ""))
        path = sorted(filter(None, sys.path), key=lambda folder: os.path.abspath(folder) == script)
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

    html = _decoded(content)
    tree = trafilatura.load_html(html)
    if tree is None and _TAG.search(html):  # a fragment of one element, which the library takes for no HTML
        tree = trafilatura.load_html(f"<html><body>{html}</body></html>")
    if tree is None:
        raise Unreadable("not HTML")
    title = tree.findtext(".//title") or next((h.text_content() for h in tree.iter("h1", "h2")), None)
    blocks = (" ".join(block.split()).strip(" |") for block in "".join(_visible(tree)).split(_BREAK))
    return title, _BREAK.join(filter(None, blocks))


def _decoded(content: bytes) -> str:
    """The text of a file: as UTF-8 where it is that, as a page that was saved anew often declares what it was before;
    else as it declares, else by a guess."""
    from trafilatura.utils import decode_file

    with suppress(UnicodeDecodeError):
        text = content.decode("utf-8-sig")
        if not content.isascii():  # which other encodings are, too
            return text
    text = declared(content)
    return decode_file(content) if text is None else text


def _visible(tree: Any) -> Iterator[str]:
    """The text of a page in its order, without what HTML itself marks as a menu or a footer.

    All else stays, lists of links and definitions too: an index has no other copy of it.
    """
    waiting: list[Any] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item.tag, str) and item.tag not in _UNSEEN and item.get("role") not in _ROLES_UNSEEN:
            before, after = ("", _BEHIND[item.tag]) if item.tag in _BEHIND else (_BREAK, _BREAK)
            waiting.append(after)
            for child in reversed(item):
                waiting += [_BLANKS.sub(" ", child.tail or ""), child]
            waiting += [_BLANKS.sub(" ", item.text or ""), before]


_UNSEEN = frozenset({"head", "title", "script", "style", "template", "noscript", "nav", "footer"})
_ROLES_UNSEEN = frozenset({"navigation", "contentinfo"})
_INLINE = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark meter output progress q rb rp rt "
    "ruby s samp small span strike strong sub sup time tt u var wbr"
)
_BEHIND = {**dict.fromkeys(_INLINE.split(), ""), **dict.fromkeys(("br", "img", "input", "option"), " ")}
_BEHIND |= {"td": " | ", "th": " | "}
"""What separates an element from the next one where that is no empty line."""
_BREAK = "\n\n"
_BLANKS = re.compile(r"\s+")


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
