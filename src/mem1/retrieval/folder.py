"""An index on disk: a folder put in place by a rename, with a manifest that tells whether it is whole.

save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed

Only an index of mem1 is ever replaced, and only the files that its manifest lists and that are as they were written:
a folder that holds anything else is refused. While a new index takes its place, the old one waits beside it under a
name that begins with a dot; `restore` puts it back where a process was killed at that moment.
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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.errors import UserError

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""
_KINDS = ("bm25", "dense")
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
    """Name -> (bytes, CRC-32)."""


def save_folder(
    path: str | os.PathLike[str], *, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None]
) -> None:
    """Let `write` fill a new folder beside `path`, add the manifest, then rename it to `path`.

    An index that stood at `path` is replaced. Raises UserError, leaving nothing half-written, where `path` holds
    anything that is no part of such an index, or where writing fails (full disk, no permission).
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
        files = {p.name: [p.stat().st_size, _checksum(p)] for p in sorted(partial.iterdir())}
        manifest = {"kind": kind, "format": FORMAT_VERSION, "facts": dict(facts), "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _check_replaceable(target, kind)  # again: building takes hours
        _put(partial, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write the {kind} index {target}: {reason}; free some space or choose a folder on another disk"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_folder(path: str | os.PathLike[str], *, kind: str) -> dict[str, Any]:
    """The facts that `save_folder` wrote. Raises UserError where the folder is missing, foreign or damaged."""
    folder = Path(path)
    restore(folder)
    manifest = _manifest(folder)
    if manifest is None or manifest.kind != kind:
        what = "is not a folder" if not folder.is_dir() else f"is not a {kind} index, or its {MANIFEST} is damaged"
        raise UserError(f"{folder} {what}; build the index and save it there")
    if manifest.format != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format {manifest.format!r}; this mem1 reads format {FORMAT_VERSION}: build it again"
        )
    try:
        for name in manifest.files:
            if not _as_written(folder, name, manifest):
                raise UserError(f"{folder / name} is damaged; delete {folder} and build the index again")
    except OSError as error:
        raise UserError(f"cannot read the {kind} index {folder}: {error.strerror}: {error.filename}") from error
    return dict(manifest.facts)


@contextmanager
def understood(path: str | os.PathLike[str], *, kind: str) -> Iterator[None]:
    """Raises UserError in place of whatever files that are whole, but hand-made, make a loader raise."""
    try:
        yield
    except UserError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no {kind} index as mem1 writes them ({what}); build it again") from error


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    restore(path)
    manifest = _manifest(Path(path))
    return None if manifest is None else manifest.kind


def file_checksum(path: str | os.PathLike[str], name: str) -> tuple[int, int] | None:
    """Size and checksum that the index at `path` was saved with of one of its files; None: it has no such file."""
    manifest = _manifest(Path(path))
    return None if manifest is None else manifest.files.get(name)


def restore(path: str | os.PathLike[str]) -> None:
    """Put the old index back at `path` where a writer was killed between the two renames that replace it."""
    target = Path(path)
    if os.path.lexists(target):
        return
    for old in _beside(target, "old"):
        if _manifest(old) is not None:
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
    """Remove the files of these names, and the manifest, from a damaged index; then the folder, if it is empty."""
    folder = Path(path)
    try:
        for name in (*names, MANIFEST):
            if (folder / name).is_file() and not (folder / name).is_symlink():
                (folder / name).unlink()
        folder.rmdir()
    except OSError:  # what is left is named by `save_folder`
        return


def _manifest(folder: Path) -> _Manifest | None:
    """None where there is none, or none that `save_folder` could have written."""
    try:
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {name: (size, crc) for name, (size, crc) in said["files"].items()}
        manifest = _Manifest(said["kind"], said["format"], said["facts"], files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    numbers = [manifest.format, *(number for pair in files.values() for number in pair)]
    names = [name for name in files if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name]
    typed = isinstance(manifest.kind, str) and isinstance(manifest.facts, dict) and all(type(n) is int for n in numbers)
    return manifest if typed and not names else None


def _as_written(folder: Path, name: str, manifest: _Manifest) -> bool:
    file = folder / name
    size, checksum = manifest.files[name]
    return not file.is_symlink() and file.is_file() and file.stat().st_size == size and _checksum(file) == checksum


def _check_replaceable(target: Path, kind: str) -> None:
    """Raises UserError unless there is nothing, an empty folder, or an index and no file besides."""
    if not os.path.lexists(target):
        return
    elsewhere = "move it away or choose another folder"
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a {kind} index; {elsewhere}")
    held = sorted(target.iterdir())
    if not held:
        return
    manifest = _manifest(target)
    if manifest is None or manifest.kind not in _KINDS:
        raise UserError(f"{target} exists and is not a {kind} index: it holds {held[0].name}; {elsewhere}")
    for inner in held:
        if inner.name != MANIFEST and inner.name not in manifest.files:
            raise UserError(f"{target} holds {inner.name}, which is no part of an index; {elsewhere}")
        if inner.name != MANIFEST and not _as_written(target, inner.name, manifest):
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
    """The files that the manifest of a replaced index lists, and its folder."""
    manifest = _manifest(old)
    if manifest is not None:
        discard(old, manifest.files)


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
