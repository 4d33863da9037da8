"""Files with texts of conversations, which only their owner may read: mode 600, also where they had another before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mem1.errors import UserError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(file: int | str | Path) -> None:
    """Takes the rights to a regular file from all but its owner. Raises OSError."""
    mode = os.stat(file).st_mode
    if stat.S_ISREG(mode) and mode & _OTHERS:
        os.chmod(file, 0o600)


def append_private(path: Path, *lines: str) -> None:
    """Appends lines to a file, which is made if it is missing. Raises UserError where that cannot be."""
    try:
        with open(path, "a", encoding="utf-8", errors="replace", opener=_opened) as file:
            keep_private(file.fileno())
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise UserError(f"cannot append to {path}: {error.strerror}; give another file") from error


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
