"""A folder of an index, or of clozes, with a manifest that shows whether it is whole; opening what `--corpus` names.

save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed
open_retriever("corpus.jsonl.gz")       BM25 over the file, built once and cached under ~/.cache/mem1
open_retriever("wiki.dense")            the index in this folder, of the kind that its manifest names
open_retriever("wiki")                  wiki/words and wiki/vectors, two indexes of the same passages, as one hybrid

Only a folder of the same kind is ever replaced (an index also by an index of another kind), and only if it holds
nothing but the files that its manifest lists, as they were written. How it is put in place is in `mem1.durable`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mem1 import durable
from mem1.errors import UserError, printable, read_as_written
from mem1.interrupts import stopped_while
from mem1.lock import alone_in
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval import Retriever
from mem1.retrieval.corpus import PASSAGES, StoredPassages, passages_in, read_passages

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25


FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""
_INDEXES = ("bm25", "dense")
CLOZES = "cloze"
"""Kind of a folder of clozes, which holds an index as a folder in it."""
_MANIFESTS = {CLOZES: "statistics.json"}
"""Names of manifests other than `MANIFEST`."""


def save_folder(
    path: str | os.PathLike[str], *, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None]
) -> None:
    """Let `write` fill a new folder beside `path`, add the manifest, then rename it to `path`.

    Raises UserError, leaving nothing half-written, where `path` holds anything that is not part of a folder that may be
    replaced, or where writing fails (full disk, no permission).
    """
    target = Path(path)
    partial = durable.partial_of(target)
    try:
        durable.restore(target)
        _check_replaceable(target, kind)
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.sweep(target)
        partial.mkdir()
        write(partial)
        durable.seal(
            partial, kind=kind, format=FORMAT_VERSION, facts=facts, name=_MANIFESTS.get(kind, durable.MANIFEST)
        )
        _check_replaceable(target, kind)  # again: building takes hours
        durable.put_folder(partial, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write the {_called(kind)} {target}: {reason}; free some space or choose a folder on another disk"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_folder(path: str | os.PathLike[str], *, kind: str) -> dict[str, Any]:
    """The facts that `save_folder` wrote. Raises UserError where the folder is missing, foreign or damaged."""
    folder = Path(path)
    durable.restore(folder)
    manifest = durable.read_manifest(folder)
    if manifest is None or manifest.kind != kind:
        damaged = f"is not a {_called(kind)}, or its {_MANIFESTS.get(kind, durable.MANIFEST)} is damaged"
        raise UserError(f"{folder} {damaged if folder.is_dir() else 'is not a folder'}; {_again(kind)}")
    if manifest.format != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format {manifest.format!r}; this mem1 reads format {FORMAT_VERSION}: {_again(kind)}"
        )
    try:
        for name in manifest.files:
            if not manifest.intact(folder, name):
                raise UserError(f"{folder / name} is damaged; delete {folder} and {_again(kind)}")
    except OSError as error:
        raise UserError(f"cannot read the {_called(kind)} {folder}: {error.strerror}: {error.filename}") from error
    return dict(manifest.facts)


def understood(path: str | os.PathLike[str], *, kind: str) -> AbstractContextManager[None]:
    """Raises UserError in place of whatever a loader raises on hand-made files with a fitting manifest."""
    return read_as_written(f"{path} is no {_called(kind)}", _again(kind))


def folder_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the folder at `path`, whose files are not checked; None: it is not one of ours."""
    durable.restore(path)
    manifest = durable.read_manifest(Path(path))
    return None if manifest is None else manifest.kind


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    kind = folder_kind(path)
    return None if kind == CLOZES else kind


def _called(kind: str) -> str:
    return "folder of clozes" if kind == CLOZES else f"{kind} index"


def _again(kind: str) -> str:
    return "make it with mem1 data" if kind == CLOZES else "build the index again"


def _check_replaceable(target: Path, kind: str) -> None:
    """Raises UserError unless there is nothing, an empty folder, or a folder of ours and nothing besides."""
    if not os.path.lexists(target):
        return
    elsewhere = "move it away or choose another folder"
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a {_called(kind)}; {elsewhere}")
    content = sorted(target.iterdir())
    if not content:
        return
    manifest = durable.read_manifest(target)
    if manifest is None or manifest.kind not in (_INDEXES if kind in _INDEXES else (kind,)):
        raise UserError(f"{target} exists and is not a {_called(kind)}: it holds {content[0].name}; {elsewhere}")
    for name in manifest.foreign(target):
        raise UserError(f"{target} holds {name}, which is no part of a {_called(kind)}; {elsewhere}")
    for name in manifest.files:
        if (target / name).exists() and not manifest.intact(target, name):
            raise UserError(f"{target / name} is not as mem1 wrote it and is not replaced; {elsewhere}")


CACHE_VARIABLE = "MEM1_CACHE"
"""Environment variable that names the cache folder; unset: ~/.cache/mem1."""


def open_retriever(path: str | os.PathLike[str]) -> Retriever:
    """A retriever over the passages at `path`; several indexes in a folder are combined by reciprocal rank fusion.

    Raises UserError where nothing there can be opened, or the indexes of a folder hold different passages.
    """
    durable.restore(path)
    if not os.path.isdir(path):
        return open_bm25(path)
    folders = _indexes(path)
    if len(folders) == 1:
        return _loader(folders[0])(folders[0])
    from mem1.retrieval.combine import Hybrid

    if len({m.files.get(PASSAGES) for m in map(durable.read_manifest, folders) if m is not None}) > 1:
        raise UserError(
            f"{path}: {' and '.join(f.name for f in folders)} hold different passages; index the same ones in each"
        )
    return Hybrid([_loader(folder)(folder) for folder in folders])


def open_passages(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """Only the passages at `path`. Raises UserError where nothing there can be opened."""
    durable.restore(path)
    if not os.path.isdir(path):
        return read_passages(path)
    folder = _indexes(path)[0]
    _loader(folder)
    with understood(folder, kind=str(index_kind(folder))):
        return StoredPassages(folder)


def first_passages(path: str | os.PathLike[str], count: int) -> list[Passage]:
    """The first `count` of them, without reading the rest of a file."""
    return list(open_passages(path)[:count]) if os.path.isdir(path) else list(islice(passages_in(path), count))


def read_corpus(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """The passages of a file, an index or a folder of documents. Raises UserError where there are none."""
    durable.restore(path)
    if os.path.isdir(path) and not holds_index(path):
        from mem1.retrieval.documents import read_documents

        return read_documents(path).passages
    return open_passages(path)


def holds_index(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is an index or directly contains one."""
    folder = Path(path)
    durable.restore_within(folder)
    return any(index_kind(inner) is not None for inner in (folder, *folder.iterdir()))


def _indexes(path: str | os.PathLike[str]) -> list[Path]:
    """The index at this folder, or those in its subfolders."""
    folder = Path(path)
    if index_kind(folder) is not None:
        return [folder]
    durable.restore_within(folder)
    held = sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    found = [inner for inner in held if index_kind(inner) is not None]
    if not found:
        raise UserError(f"{path} is a folder without an index; make one with: mem1 index {path} --out FOLDER")
    if found != held:
        other = (set(held) - set(found)).pop().name
        raise UserError(f"{path} holds indexes and {other}, which is not an index; move it away")
    return found


def _loader(path: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Retriever]:
    kind = index_kind(path)
    known = register.index.names()
    if kind not in known:  # never a dotted path, since a manifest must not choose which code to import
        raise UserError(f"{path} holds an index of the unknown kind {kind!r}; known: {', '.join(known)}")
    return register.index.get(kind).load


def open_bm25(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> BM25:
    """The BM25 index of a corpus file, from the cache where the same content was indexed before.

    The cache identifies an index by the SHA-256 of the corpus file. A damaged index is rebuilt; what is built, and
    where, is printed to stderr. Raises UserError for an invalid corpus and where the index cannot be written; a
    half-written index is never used, and processes that open it at once build it once.
    """
    from rich.console import Console

    from mem1.retrieval.bm25 import BM25

    console = Console(stderr=True, highlight=False, markup=False)
    folder = bm25_folder(corpus_path, cache_dir)

    def make() -> None:
        start = time.perf_counter()
        with stopped_while("indexing"), console.status(printable(f"Indexing {corpus_path} (once)")):
            passages = read_passages(corpus_path)
            BM25.build(passages).save(folder)
        seconds = time.perf_counter() - start
        console.print(
            printable(f"Indexed {len(passages):,} passages of {corpus_path} in {seconds:.1f} s; cached in {folder}")
        )

    return open_cached(folder, load=BM25.load, make=make)


def bm25_folder(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where `open_bm25` caches the index of a corpus file. Raises UserError where the file cannot be read."""
    try:
        return cache_folder(cache_dir) / f"bm25-{durable.sha256_of(corpus_path)[:32]}"
    except FileNotFoundError as error:
        raise UserError(f"no corpus file {corpus_path}; check the path") from error
    except OSError as error:
        raise UserError(f"cannot read {corpus_path}: {error.strerror or error}") from error


Opened = TypeVar("Opened")


def open_cached(folder: Path, *, load: Callable[[Path], Opened], make: Callable[[], None]) -> Opened:
    """`load(folder)`, where one process at a time makes a folder of the cache that is missing or damaged.

    load    raises UserError where the folder is missing or damaged
    make    writes the folder whole or not at all, as `save_folder` does

    Others wait for the process that makes it, then load what it has made; if it is killed, the next one makes it.
    """
    with suppress(UserError):
        return load(folder)
    lock = folder.with_name(f".{folder.name}.lock")  # a folder of its own: the one that is made is replaced meanwhile
    with alone_in(lock, wait=True):
        try:
            return load(folder)  # another process has just made it
        except UserError as error:
            if folder.exists():
                print(printable(f"{error}; rebuilding it"), file=sys.stderr)
                shutil.rmtree(folder, ignore_errors=True)  # its name is a digest: nobody else keeps anything there
            make()
            return load(folder)
        finally:
            with suppress(OSError):  # also where it is the leftover of a killed process
                lock.rmdir()


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """`cache_dir`, else $MEM1_CACHE, else ~/.cache/mem1."""
    return Path(cache_dir or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "mem1")
