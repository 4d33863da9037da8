"""Files and folders that are written whole or not at all, with checksums that show damage.

    write_file(path, b"...")                            the old file or the whole new one
    with replacing(path) as partial: ...                the same, for anything that writes to a path
    seal(folder, kind="bm25", format=2, facts={})       manifest.json: size and CRC-32 of every file in the folder
    put_folder(partial, target)                         a folder takes the place of another by a rename

Whatever is being written has a name beside its target that begins with a dot, is forced to the disk and then renamed,
so that a kill or a power cut at any moment leaves the old one or the new one, never half of one. A folder that is
replaced waits as `.name.old-…` meanwhile; `restore` puts it back where a process was killed just then. A manifest tells
our files from other people's, which are never removed. CRC-32 finds accidents (a cut file, a flipped bit), not forgery.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError

from mem1.errors import UserError

MANIFEST = "manifest.json"
_MANIFESTS = (MANIFEST, "statistics.json")
"""Names of manifests; the second is that of a folder of clozes."""
_CHUNK_BYTES = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OS_ERROR = re.compile(r"(?:os error |\[Errno )(\d+)")
_LEFTOVER_AGE_S = 24 * 3600.0
"""Age from which a half-written file or folder has no living writer."""
_LARGEST_RECORD = 10_000_000
"""Bytes."""
_TRIES = 5
"""Attempts to put a folder in place while readers put the old one back."""
_OLD = re.compile(r"\.(.+)\.old-[0-9a-f]{8}")
_PARTIAL = re.compile(r"\.(.+)\.partial-[0-9a-f]{8}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path beside `path`; the file written there replaces `path` when the block ends without an error."""
    partial = partial_of(path)
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # a read-only disk refuses even this
            partial.unlink()
    sync(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Replace the file by one with these bytes, or leave it as it was."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def partial_of(target: Path) -> Path:
    """A new name beside the target for what is half-written."""
    target = target.absolute()  # the name of "." is empty
    return target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")


def is_partial(path: Path) -> bool:
    """Whether the name is one that `partial_of` gives."""
    return _PARTIAL.fullmatch(path.name) is not None


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explain_full_disk(what: str, kept: str, then: str = "free some space and continue with --resume") -> Iterator[None]:
    """Turn "no space", "over quota" and "file too large" into a UserError; any other error rises as it is.

        with explain_full_disk("metrics of step 12", "the last checkpoint is intact"): ...
            ->  UserError: no space left on the disk while writing metrics of step 12 (No space left on device);
                the last checkpoint is intact: free some space and continue with --resume

    what    what was being written
    kept    what is still there
    then    the next step
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _errno(error) not in _FULL:
            raise
        reason = os.strerror(_errno(error))
        raise UserError(f"no space left on the disk while writing {what} ({reason}); {kept}: {then}") from error


def _errno(error: Exception) -> int:
    """safetensors reports the system's error as text: "... I/O error: No space left on device (os error 28)"; shutil
    lists several as "[Errno 28] ..."."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = _OS_ERROR.search(str(error))
    return int(match.group(1)) if match else 0


def crc32(path: Path) -> int:
    """CRC-32 of a file's bytes. Raises OSError."""
    checksum = 0
    for chunk in chunks(path):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 (hexadecimal) of a file's bytes. Raises OSError."""
    digest = hashlib.sha256()
    for chunk in chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def chunks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """A file's bytes, piece by piece. Raises OSError."""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a folder of ours."""

    name: str
    """Name of its file in the folder."""
    kind: str
    """Kind of folder, such as "bm25" or "checkpoint"."""
    format: int
    """Version of the folder's layout."""
    facts: Mapping[str, Any]
    """Anything JSON can hold."""
    files: Mapping[str, tuple[int, int]]
    """Path in the folder, with slashes -> (bytes, CRC-32), the manifest itself aside."""

    def intact(self, folder: Path, name: str) -> bool:
        """Whether the listed file is there as it was written."""
        file = folder / name
        size, checksum = self.files[name]
        return not file.is_symlink() and file.is_file() and file.stat().st_size == size and crc32(file) == checksum

    def foreign(self, folder: Path) -> list[str]:
        """Files, links and folders below `folder` that are no part of it."""
        files = {self.name, *self.files}
        folders = {parent.as_posix() for name in self.files for parent in PurePosixPath(name).parents}
        found = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name not in (folders if path.is_dir() and not path.is_symlink() else files):
                found.append(name)
        return found


def seal(folder: Path, *, kind: str, format: int, facts: Mapping[str, Any] | None = None, name: str = MANIFEST) -> None:
    """Write the manifest, called `name`, and force the folder and everything in it to the disk."""
    paths = sorted(folder.rglob("*"))
    files = {p.relative_to(folder).as_posix(): [p.stat().st_size, crc32(p)] for p in paths if p.is_file()}
    manifest = {"kind": kind, "format": format, "facts": dict(facts or {}), "files": files}
    (folder / name).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in (*paths, folder / name, folder):
        sync(path)


def read_record(path: Path) -> bytes:
    """The bytes of a small file that may be anybody's. Raises OSError for a pipe, a device and a large one too."""
    if not path.is_file() or path.stat().st_size > _LARGEST_RECORD:
        raise OSError(errno.EFBIG, "not a small file", str(path))
    return path.read_bytes()


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None: there is none, or none that `seal` could have written."""
    for name in _MANIFESTS:
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            content = json.loads(read_record(folder / name))
            files = {file: (size, crc) for file, (size, crc) in content["files"].items()}
            manifest = Manifest(name, content["kind"], content["format"], content["facts"], files)
            numbers = [manifest.format, *(number for pair in files.values() for number in pair)]
            typed = isinstance(manifest.kind, str) and isinstance(manifest.facts, dict)
            if typed and all(type(n) is int for n in numbers) and all(map(_stays_inside, files)):
                return manifest
    return None


def _stays_inside(name: str) -> bool:
    """Whether a manifest's name of a file, with slashes, can lie nowhere but below its folder."""
    return all(part not in ("", ".", "..") and not set("\\:\0") & set(part) for part in name.split("/"))


def put_folder(partial: Path, target: Path) -> None:
    """Rename a sealed folder to `target`; of a folder of ours that was there, the listed files are removed.

    Raises OSError where it cannot be renamed; then the old folder is back.
    """
    # a folder cannot be renamed over one that holds files, so the old one steps aside first
    for tries_left in reversed(range(_TRIES)):
        if target.exists():
            target.rename(target.with_name(f".{target.name}.old-{secrets.token_hex(4)}"))
        try:
            partial.rename(target)
            break
        except OSError as error:  # a reader took the old one for the leftover of a kill and put it back
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                restore(target)
                raise
    sync(target.parent)
    for old in _beside(target, _OLD):  # those of writers that were killed too, as `restore` takes one back
        remove_listed(old)


def check_put(target: Path) -> None:
    """Raises UserError where `target` is the current folder: one that takes its place leaves the shell in the old."""
    if target.exists() and target.samefile(Path.cwd()):
        raise UserError(f"{target} is the folder that you are in, which cannot be replaced; name one in it, as ./NAME")


def restore(path: str | os.PathLike[str]) -> None:
    """Put the old folder back at `path` where a writer was killed between the two renames of `put_folder`."""
    target = Path(path)
    if os.path.lexists(target) and not _is_empty(target):  # a lock makes an empty one
        return
    for old in sorted(_beside(target, _OLD), key=_sealed_at, reverse=True):
        if read_manifest(old) is not None:
            try:
                old.rename(target)
            except OSError:  # another process was quicker, or it cannot be written here: as if it were not there
                continue
            return


def _sealed_at(folder: Path) -> int:
    """When its manifest was written, in nanoseconds; 0: it has none."""
    manifests = [folder / name for name in _MANIFESTS]
    return max((path.stat().st_mtime_ns for path in manifests if path.is_file()), default=0)


def restore_within(folder: Path) -> None:
    """`restore` for every folder that was in this one."""
    for _, target in set_aside(folder):
        restore(target)


def set_aside(folder: Path) -> list[tuple[Path, Path]]:
    """(replaced folder, the path it had) of each one in `folder` that a killed process has left."""
    return [(p, folder / match[1]) for p in sorted(folder.iterdir()) if (match := _OLD.fullmatch(p.name))]


def sweep(target: Path) -> None:
    """Remove what writers that were killed a day ago left beside `target`."""
    for partial in _beside(target, _PARTIAL):
        if _is_leftover(partial):
            shutil.rmtree(partial, ignore_errors=True)
    for old in _beside(target, _OLD):
        if _is_leftover(old):
            remove_listed(old)


def _is_leftover(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S


def _beside(target: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Folders beside `target` whose names, by this pattern, are made from its own."""
    try:
        inner = sorted(target.parent.iterdir())
    except OSError:
        return []
    return [p for p in inner if (match := pattern.fullmatch(p.name)) and match[1] == target.name and p.is_dir()]


def remove_listed(folder: Path) -> None:
    """Remove the files that the folder's manifest lists, then the folder if nothing else is in it."""
    manifest = read_manifest(folder)
    remove_files(folder, () if manifest is None else (*manifest.files, manifest.name))
    with suppress(OSError):
        folder.rmdir()


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of these names below the folder, and the folders that are empty then."""
    files = [folder / name for name in names]
    parents = {parent for file in files for parent in file.parents if folder in (parent, *parent.parents)}
    with suppress(OSError):
        for file in files:
            # a link to another folder is nobody's who wrote the list
            linked = any(parent.is_symlink() for parent in file.parents if folder in parent.parents)
            if file.is_file() and not file.is_symlink() and not linked:
                file.unlink()
        for parent in sorted(parents, key=lambda path: -len(path.parts)):
            parent.rmdir()


def _is_empty(folder: Path) -> bool:
    try:
        return not folder.is_symlink() and not any(folder.iterdir())
    except OSError:
        return False
