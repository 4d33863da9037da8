"""The user's cache folder: what takes long to make is made once, by one process at a time.

cache_folder()                                              ~/.cache/mem1
open_cached(cache_folder() / "bm25-9f1c", load=BM25.load, make=build_and_save)
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mem1.errors import Damaged, printable
from mem1.lock import alone_in

CACHE_VARIABLE = "MEM1_CACHE"
"""Environment variable that names the cache folder; unset: ~/.cache/mem1."""

Opened = TypeVar("Opened")


def open_cached(folder: Path, *, load: Callable[[Path], Opened], make: Callable[[], None]) -> Opened:
    """`load(folder)`, where one process at a time makes a folder of the cache that is missing or damaged.

    load    raises Damaged where the folder is missing or damaged; the folder stays where it raises something else, as
            where this process may open no more files
    make    writes the folder whole or not at all, as `save_folder` does

    Others wait for the process that makes it, then load what it has made; if it is killed, the next one makes it.
    """
    with suppress(Damaged):
        return load(folder)
    lock = folder.with_name(f".{folder.name}.lock")  # a folder of its own: the one that is made is replaced meanwhile
    with alone_in(lock, wait=True):
        try:
            return load(folder)  # another process has just made it
        except Damaged as error:
            if folder.exists():
                print(printable(f"{error.why}; rebuilding it"), file=sys.stderr)
                shutil.rmtree(folder, ignore_errors=True)  # its name is a digest: nobody else keeps anything there
            make()
            return load(folder)
        finally:
            with suppress(OSError):  # also where it is the leftover of a killed process
                lock.rmdir()


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """`cache_dir`, else $MEM1_CACHE, else ~/.cache/mem1."""
    return Path(cache_dir or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "mem1")
