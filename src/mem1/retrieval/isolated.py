"""Text out of pages and PDFs, in a process that has a deadline and a bound on its memory.

    extract("pdf", content, seconds=60)     ->  (None, "The mill was built in 1823 ...")
                                                Unreadable("not read within 60 seconds")

A process starts with the first document, reads one after the other and ends with ours. One that is too slow, or that
dies of a document, is replaced by another for the next document.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from typing import Any, Literal

MEMORY_BYTES = 2 << 30
"""Address space of a process, its libraries included."""
_AT_A_TIME = 2
"""Processes."""

Kind = Literal["html", "page", "pdf"]
"""html: a file; page: of the open web, without menus, as UTF-8."""


class Unreadable(Exception):
    """Why a document gives no text; others are read all the same."""


class LibraryMissing(Exception):
    """The library that reads this kind of document cannot be imported."""


def extract(kind: Kind, content: bytes, *, seconds: float) -> tuple[str, str]:
    """(title, text); either may be empty. Safe for threads. Raises Unreadable for this document, and LibraryMissing."""
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
        if answer.get("spent"):  # its memory is full of pieces
            process.end()
        else:
            _idle.append(process)
    if "missing" in answer:
        raise LibraryMissing(answer["missing"])
    if "refused" in answer:
        raise Unreadable(answer["refused"])
    return answer["title"], answer["text"]


class _Process:
    """One that reads documents (`extraction.py`)."""

    def __init__(self) -> None:
        # not -m: it would look for modules in the folder that we were started in, which may be that of the documents
        path = [folder for folder in sys.path if folder]
        code = f"import sys; sys.path[:] = {path!r}; from mem1.retrieval.extraction import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready: the deadline is for reading alone

    def ask(self, kind: Kind, content: bytes, seconds: float) -> dict[str, Any]:
        """Raises Unreadable where it is not answered in time, or the process dies of it."""
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
    """In a fork: the processes, and whoever waits for them, are our parent's."""
    global _free
    _idle.clear()
    _free = threading.BoundedSemaphore(_AT_A_TIME)


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
