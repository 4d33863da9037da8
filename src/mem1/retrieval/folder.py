"""An index on disk: a folder put in place by one rename, with a manifest that tells whether it is whole.

save_folder("world.bm25", kind="bm25", facts={"passages": 900}, write=write_files)
read_folder("world.bm25", kind="bm25")  ->  {"passages": 900}     after every file's size and checksum agreed
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mem1.errors import UserError

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
"""Version of the folder's layout; `read_folder` refuses any other."""
_LEFTOVER_AGE_S = 24 * 3600.0
"""A half-written folder this old has no living writer and is swept."""
_CHUNK_BYTES = 1 << 20


def save_folder(
    path: str | os.PathLike[str], *, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None]
) -> None:
    """Let `write` fill a new folder beside `path`, add the manifest, then rename it to `path`.

    An index that stood at `path` is replaced. Raises UserError, leaving nothing half-written, where `path` holds
    something that is not such an index or where writing fails (full disk, no permission).
    """
    target = Path(path)
    if target.exists() and not _replaceable(target):
        raise UserError(f"{target} exists and is not a {kind} index; move it away or choose another folder")
    partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        partial.mkdir()
        write(partial)
        files = {p.name: [p.stat().st_size, _checksum(p)] for p in sorted(partial.iterdir())}
        manifest = {"kind": kind, "format": FORMAT_VERSION, "facts": dict(facts), "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
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
    manifest = _manifest(folder)
    if manifest is None or manifest.get("kind") != kind:
        what = "is not a folder" if not folder.is_dir() else f"is not a {kind} index, or its {MANIFEST} is damaged"
        raise UserError(f"{folder} {what}; build the index and save it there")
    if manifest.get("format") != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format {manifest.get('format')!r}; this mem1 reads format {FORMAT_VERSION}: build it again"
        )
    try:
        for name, (size, checksum) in manifest["files"].items():
            file = folder / name
            if file.stat().st_size != size or _checksum(file) != checksum:
                raise UserError(f"{file} is damaged; delete {folder} and build the index again")
    except OSError as error:
        raise UserError(f"cannot read the {kind} index {folder}: {error.strerror}: {error.filename}") from error
    return manifest["facts"]


def index_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of the index at `path`; None: there is no index."""
    manifest = _manifest(Path(path))
    kind = None if manifest is None else manifest.get("kind")
    return kind if isinstance(kind, str) else None


def file_checksum(path: str | os.PathLike[str], name: str) -> tuple[int, int] | None:
    """Size and checksum that the index at `path` was saved with of one of its files; None: it has no such file."""
    size_and_checksum = ((_manifest(Path(path)) or {}).get("files") or {}).get(name)
    return tuple(size_and_checksum) if size_and_checksum else None


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _replaceable(target: Path) -> bool:
    """An index of ours or an empty folder."""
    return target.is_dir() and (_manifest(target) is not None or not any(target.iterdir()))


def _put(partial: Path, target: Path) -> None:
    # a folder cannot be renamed over one that holds files, so the old index steps aside first
    old = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what writers that were killed left beside `target`."""
    for pattern in (f".{target.name}.partial-*", f".{target.name}.old-*"):
        for leftover in target.parent.glob(pattern):
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
