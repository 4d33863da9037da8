"""A folder of an index, or of clozes, with a manifest that shows whether it is whole.

    save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
    read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed

Only a folder of the same kind is ever replaced, and only if it holds nothing but the files that its manifest lists, as
they were written. How it is put in place is in `mem1.durable`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mem1 import durable
from mem1.errors import Damaged, UserError, read_as_written

FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""


_INDEXES = ("bm25", "dense")
_NO_INDEXES = ("cloze", "policy", "checkpoint")
"""Kinds of mem1's other folders."""


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
        check_replaceable(target, kind)
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.sweep(target)
        partial.mkdir()
        write(partial)
        durable.seal(
            partial, kind=kind, format=FORMAT_VERSION, facts=facts, name=_MANIFESTS.get(kind, durable.MANIFEST)
        )
        check_replaceable(target, kind)  # again: building takes hours
        durable.put_folder(partial, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write the {_called(kind)} {target}: {reason}; free some space or choose a folder on another disk"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_folder(path: str | os.PathLike[str], *, kind: str) -> dict[str, Any]:
    """The facts that `save_folder` wrote. Raises Damaged where the folder is missing, foreign or damaged, and UserError
    where the system cannot read it."""
    folder = Path(path)
    durable.restore(folder)
    manifest = durable.read_manifest(folder)
    try:
        if manifest is None or manifest.kind != kind:
            name = _MANIFESTS.get(kind, durable.MANIFEST)
            if (folder / name).is_file():
                (folder / name).read_bytes()  # what cannot be read is not known to be damaged
            damaged = f"is not a {_called(kind)}, or its {name} is damaged"
            raise Damaged(f"{folder} {damaged if folder.is_dir() else 'is not a folder'}", _again(kind))
        if manifest.format != FORMAT_VERSION:
            why = f"{folder} has format {manifest.format!r}; this mem1 reads format {FORMAT_VERSION}"
            raise Damaged(why, _again(kind))
        for name in manifest.files:
            if not manifest.intact(folder, name):
                raise Damaged(f"{folder / name} is damaged", f"delete {folder} and {_again(kind)}")
    except OSError as error:
        raise UserError(f"cannot read the {_called(kind)} {folder}: {error.strerror}: {error.filename}") from error
    return dict(manifest.facts)


def understood(path: str | os.PathLike[str], *, kind: str) -> AbstractContextManager[None]:
    """Raises Damaged in place of whatever a loader raises on hand-made files with a fitting manifest."""
    return read_as_written(f"{path} is no {_called(kind)}", _again(kind))


def folder_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the folder at `path`, whose files are not checked; None: it is not one of ours."""
    durable.restore(path)
    manifest = durable.read_manifest(Path(path))
    return None if manifest is None else manifest.kind


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    kind = folder_kind(path)
    return None if kind in _NO_INDEXES else kind


def _called(kind: str) -> str:
    return "folder of clozes" if kind == CLOZES else f"{kind} index"


def _again(kind: str) -> str:
    return "make it with mem1 data" if kind == CLOZES else "build the index again"


def check_replaceable(target: Path, kind: str) -> None:
    """Raises UserError unless there is nothing, an empty folder, or a folder of ours and nothing besides."""
    if not os.path.lexists(target):
        return
    durable.check_put(target)
    elsewhere = "move it away or choose another folder"
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a {_called(kind)}; {elsewhere}")
    content = sorted(target.iterdir())
    if not content:
        return
    manifest = durable.read_manifest(target)
    if manifest is not None and manifest.kind in _INDEXES and manifest.kind != kind:
        raise UserError(f"{target} holds a {_called(manifest.kind)}; delete it, or give another folder")
    if manifest is None or manifest.kind != kind:
        raise UserError(f"{target} exists and is not a {_called(kind)}: it holds {content[0].name}; {elsewhere}")
    for name in manifest.foreign(target):
        raise UserError(f"{target} holds {name}, which is no part of a {_called(kind)}; {elsewhere}")
    for name in manifest.files:
        if (target / name).exists() and not manifest.intact(target, name):
            raise UserError(f"{target / name} is not as mem1 wrote it and is not replaced; {elsewhere}")
