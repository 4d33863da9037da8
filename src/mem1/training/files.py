"""Writing that survives a kill and says what was lost when the disk is full.

with explain_full_disk("metrics of step 12", "the last checkpoint is intact"): ...
    ->  UserError: no space left on the disk while writing metrics of step 12 (No space left on device);
        the last checkpoint is intact: free some space and go on with --resume
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from mem1.errors import UserError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def explain_full_disk(what: str, kept: str) -> Iterator[None]:
    """Turn "no space", "over quota" and "file too large" into a UserError; any other error rises as it is.

    what    what was being written
    kept    what is still there
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _errno(error) not in _FULL:
            raise
        reason = os.strerror(_errno(error))
        raise UserError(
            f"no space left on the disk while writing {what} ({reason}); "
            f"{kept}: free some space and go on with --resume"
        ) from error


def _errno(error: Exception) -> int:
    """safetensors reports the system's error as text: "... I/O error: No space left on device (os error 28)"."""
    if isinstance(error, OSError):
        return error.errno or 0
    match = _OS_ERROR.search(str(error))
    return int(match.group(1)) if match else 0


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by one with these bytes, or leave it as it was; on the disk when this returns."""
    partial = path.with_name(f".tmp-{path.name}")
    try:
        partial.write_bytes(data)
        sync(partial)
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # a read-only disk refuses even this
            partial.unlink()
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
