"""An index, or another folder of ours, put in place by a rename, with a manifest that tells whether it is whole.

save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed

Only a folder of the same kind is ever replaced, and only the files that its manifest lists and that are as they were
written: a folder that holds anything else is refused. While a new one takes its place, the old one waits beside it
under a name that begins with a dot; `restore` puts it back where a process was killed at that moment.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mem1.errors import UserError, read_as_written

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""
_INDEXES = ("bm25", "dense")
CLOZES = "cloze"
"""Kind of a folder of clozes, which holds an index as a folder in it."""
_MANIFEST_OF = {CLOZES: "statistics.json"}
"""Kind -> name of the manifest, where it is another."""
_LEFTOVER_AGE_S = 24 * 3600.0
"""A half-written folder this old has no living writer and is swept."""
_CHUNK_BYTES = 1 << 20
_TRIES = 5
"""Of putting an index in place while readers put the old one back."""


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What a manifest says, in the types that it has to have."""

    kind: str
    format: int
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, int]]
    """Path in the folder, with slashes -> (bytes, CRC-32)."""


def save_folder(
    path: str | os.PathLike[str], *, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None]
) -> None:
    """Let `write` fill a new folder beside `path`, add the manifest, then rename it to `path`.

    A folder of this kind that stood at `path` is replaced; an index also by one of another kind. Raises UserError,
    leaving nothing half-written, where `path` holds anything that is no part of such a folder, or where writing fails
    (full disk, no permission).
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    try:
        restore(target)
        _check_replaceable(target, kind)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        partial.mkdir()
        write(partial)
        written = (p for p in sorted(partial.rglob("*")) if p.is_file())
        files = {p.relative_to(partial).as_posix(): [p.stat().st_size, _checksum(p)] for p in written}
        manifest = {"kind": kind, "format": FORMAT_VERSION, "facts": dict(facts), "files": files}
        (partial / _name(kind)).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _check_replaceable(target, kind)  # again: building takes hours
        _put(partial, target)
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
    manifest = _manifest(folder, _name(kind))
    if manifest is None or manifest.kind != kind:
        what = f"is not a {_called(kind)}, or its {_name(kind)} is damaged" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {what}; {_again(kind)}")
    if manifest.format != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format {manifest.format!r}; this mem1 reads format {FORMAT_VERSION}: {_again(kind)}"
        )
    try:
        for name in manifest.files:
            if not _as_written(folder, name, manifest):
                raise UserError(f"{folder / name} is damaged; delete {folder} and {_again(kind)}")
    except OSError as error:
        raise UserError(f"cannot read the {_called(kind)} {folder}: {error.strerror}: {error.filename}") from error
    return dict(manifest.facts)


def understood(path: str | os.PathLike[str], *, kind: str) -> AbstractContextManager[None]:
    """Raises UserError in place of whatever files that are whole, but hand-made, make a loader raise."""
    return read_as_written(f"{path} is no {_called(kind)}", _again(kind))


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    restore(path)
    manifest = _manifest(Path(path))
    return None if manifest is None else manifest.kind


def holds(path: str | os.PathLike[str], *, kind: str) -> bool:
    """Whether a folder of this kind is at `path`; its files are not looked at."""
    restore(path)
    manifest = _manifest(Path(path), _name(kind))
    return manifest is not None and manifest.kind == kind


def file_checksum(path: str | os.PathLike[str], name: str) -> tuple[int, int] | None:
    """Size and checksum that the index at `path` was saved with of one of its files; None: it has no such file."""
    manifest = _manifest(Path(path))
    return None if manifest is None else manifest.files.get(name)


def restore(path: str | os.PathLike[str]) -> None:
    """Put the old folder back at `path` where a writer was killed between the two renames that replace it."""
    target = Path(path)
    if os.path.lexists(target) and not _is_empty(target):  # a lock makes an empty one
        return
    for old in _beside(target, "old"):
        if _manifest_of_any_kind(old) is not None:
            try:
                old.rename(target)
            except OSError:  # another process was quicker, or it cannot be written here: as if it were not there
                continue
            return


def restore_within(folder: Path) -> None:
    """`restore` for every index that was in this folder."""
    for name in sorted({match[1] for inner in folder.iterdir() if (match := _OLD.fullmatch(inner.name))}):
        restore(folder / name)


def discard(path: str | os.PathLike[str], names: Collection[str]) -> None:
    """Remove the files of these names, and the folders that are empty then; what is left `save_folder` will name."""
    folder = Path(path)
    files = [folder / name for name in names]
    parents = {parent for file in files for parent in file.parents if folder in (parent, *parent.parents)}
    with suppress(OSError):
        for file in files:
            if file.is_file() and not file.is_symlink():
                file.unlink()
        for parent in sorted(parents, key=lambda path: -len(path.parts)):
            parent.rmdir()


def stays_inside(name: str) -> bool:
    """Whether a manifest's name of a file, with slashes, can lie nowhere but below its folder."""
    return all(part not in ("", ".", "..") and not set("\\:\0") & set(part) for part in name.split("/"))


def _name(kind: str) -> str:
    return _MANIFEST_OF.get(kind, MANIFEST)


def _is_empty(folder: Path) -> bool:
    try:
        return not folder.is_symlink() and not any(folder.iterdir())
    except OSError:
        return False


def _called(kind: str) -> str:
    return "folder of clozes" if kind == CLOZES else f"{kind} index"


def _again(kind: str) -> str:
    return "make it with mem1 data cloze" if kind == CLOZES else "build the index again"


def _manifest_of_any_kind(folder: Path) -> _Manifest | None:
    return _manifest(folder) or _manifest(folder, _name(CLOZES))


def _manifest(folder: Path, name: str = MANIFEST) -> _Manifest | None:
    """None where there is none, or none that `save_folder` could have written."""
    try:
        said = json.loads((folder / name).read_text(encoding="utf-8"))
        files = {name: (size, crc) for name, (size, crc) in said["files"].items()}
        manifest = _Manifest(said["kind"], said["format"], said["facts"], files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    numbers = [manifest.format, *(number for pair in files.values() for number in pair)]
    inside = all(map(stays_inside, files))
    typed = isinstance(manifest.kind, str) and isinstance(manifest.facts, dict) and all(type(n) is int for n in numbers)
    return manifest if typed and inside else None


def _as_written(folder: Path, name: str, manifest: _Manifest) -> bool:
    file = folder / name
    size, checksum = manifest.files[name]
    return not file.is_symlink() and file.is_file() and file.stat().st_size == size and _checksum(file) == checksum


def _check_replaceable(target: Path, kind: str) -> None:
    """Raises UserError unless there is nothing, an empty folder, or a folder of ours and no file besides."""
    if not os.path.lexists(target):
        return
    elsewhere = "move it away or choose another folder"
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a {_called(kind)}; {elsewhere}")
    held = sorted(target.iterdir())
    if not held:
        return
    manifest = _manifest(target, _name(kind))
    if manifest is None or manifest.kind not in (_INDEXES if kind in _INDEXES else (kind,)):
        raise UserError(f"{target} exists and is not a {_called(kind)}: it holds {held[0].name}; {elsewhere}")
    listed = {_name(kind), *manifest.files}
    folders = {parent.as_posix() for name in manifest.files for parent in PurePosixPath(name).parents}
    for inner in sorted(target.rglob("*")):
        name = inner.relative_to(target).as_posix()
        if not (name in folders and inner.is_dir() and not inner.is_symlink()) and name not in listed:
            raise UserError(f"{target} holds {name}, which is no part of a {_called(kind)}; {elsewhere}")
        if name in manifest.files and not _as_written(target, name, manifest):
            raise UserError(f"{inner} is not as mem1 wrote it and is not replaced; {elsewhere}")


def _put(partial: Path, target: Path) -> None:
    # a folder cannot be renamed over one that holds files, so the old index steps aside first
    old = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    for tries_left in reversed(range(_TRIES)):
        if target.exists():
            target.rename(old)
        try:
            partial.rename(target)
            break
        except OSError as error:  # a reader took the old one for the leftover of a kill and put it back
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                restore(target)
                raise
    _remove(old)


def _remove(old: Path) -> None:
    """The files that the manifest of a replaced folder lists, and the folder."""
    manifest = _manifest_of_any_kind(old)
    discard(old, [] if manifest is None else [*manifest.files, _name(manifest.kind)])
    with suppress(OSError):  # an empty one
        old.rmdir()


_OLD = re.compile(r"\.(.+)\.old-[0-9a-f]{8}")


def _beside(target: Path, what: str) -> list[Path]:
    """What writers that were killed left beside `target`: "partial" or "old"."""
    name = re.compile(rf"\.{re.escape(target.name)}\.{what}-[0-9a-f]{{8}}")
    try:
        return sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name) and path.is_dir())
    except OSError:
        return []


def _sweep(target: Path) -> None:
    """Remove what writers that were killed a day ago left beside `target`."""
    for leftover in (*_beside(target, "partial"), *_beside(target, "old")):
        if time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE_S:
            if f".{target.name}.partial-" in leftover.name:
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                _remove(leftover)


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
