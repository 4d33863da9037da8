"""A folder that holds an index, or clozes, with a manifest that shows whether it is whole.

save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed

Only a folder of the same kind is ever replaced (an index also by an index of another kind), and only if it holds
nothing but the files that its manifest lists, as they were written. How it is put in place is in `mem1.durable`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mem1.durable import MANIFEST, partial_of, put_folder, read_manifest, restore, seal, sweep
from mem1.errors import UserError, read_as_written

FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""
_INDEXES = ("bm25", "dense")
CLOZES = "cloze"
"""Kind of a folder of clozes, which holds an index as a folder in it."""


def save_folder(
    path: str | os.PathLike[str], *, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None]
) -> None:
    """Let `write` fill a new folder beside `path`, add the manifest, then rename it to `path`.

    Raises UserError, leaving nothing half-written, where `path` holds anything that is not part of a folder that may be
    replaced, or where writing fails (full disk, no permission).
    """
    target = Path(path)
    partial = partial_of(target)
    try:
        restore(target)
        _check_replaceable(target, kind)
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target)
        partial.mkdir()
        write(partial)
        seal(partial, kind=kind, format=FORMAT_VERSION, facts=facts, name=_manifest_name(kind))
        _check_replaceable(target, kind)  # again: building takes hours
        put_folder(partial, target)
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
    restore(folder)
    manifest = read_manifest(folder)
    if manifest is None or manifest.kind != kind:
        damaged = f"is not a {_called(kind)}, or its {_manifest_name(kind)} is damaged"
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


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    restore(path)
    manifest = read_manifest(Path(path))
    return None if manifest is None or manifest.kind == CLOZES else manifest.kind


def holds(path: str | os.PathLike[str], *, kind: str) -> bool:
    """Whether a folder of this kind is at `path`; its files are not checked."""
    restore(path)
    manifest = read_manifest(Path(path))
    return manifest is not None and manifest.kind == kind


def file_checksum(path: str | os.PathLike[str], name: str) -> tuple[int, int] | None:
    """(Bytes, CRC-32) of a file of the index at `path`, from its manifest; None: it has no such file."""
    manifest = read_manifest(Path(path))
    return None if manifest is None else manifest.files.get(name)


def _manifest_name(kind: str) -> str:
    return "statistics.json" if kind == CLOZES else MANIFEST


def _called(kind: str) -> str:
    return "folder of clozes" if kind == CLOZES else f"{kind} index"


def _again(kind: str) -> str:
    return "make it with mem1 data cloze" if kind == CLOZES else "build the index again"


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
    manifest = read_manifest(target)
    if manifest is None or manifest.kind not in (_INDEXES if kind in _INDEXES else (kind,)):
        raise UserError(f"{target} exists and is not a {_called(kind)}: it holds {content[0].name}; {elsewhere}")
    for name in manifest.foreign(target):
        raise UserError(f"{target} holds {name}, which is no part of a {_called(kind)}; {elsewhere}")
    for name in manifest.files:
        if (target / name).exists() and not manifest.intact(target, name):
            raise UserError(f"{target / name} is not as mem1 wrote it and is not replaced; {elsewhere}")
