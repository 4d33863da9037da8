"""Files with texts of conversations, which only their owner may read: mode 600, also where they had another before."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mem1.errors import UserError

_LOG = logging.getLogger(__name__)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(file: int | str | Path) -> None:
    """Takes the rights to a regular file from all but its owner. Raises OSError."""
    mode = os.stat(file).st_mode
    if stat.S_ISREG(mode) and mode & _OTHERS:
        os.chmod(file, 0o600)


class PrivateLog:
    """A file with one JSON line per record, which is made if it is missing. It ends no work that it tells of: a record
    that cannot be written, as on a full disk, is lost with a warning, and those right after it without."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where the file cannot be appended to."""
        self._path, self._failing = path, False
        try:
            self._append("")
        except OSError as error:
            raise UserError(f"cannot append to {path}: {error.strerror}; give another file") from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a line."""
        try:
            self._append(f"{json.dumps(record, ensure_ascii=False)}\n")
            self._failing = False
        except OSError as error:
            if not self._failing:
                _LOG.warning("events are lost: cannot append to %s: %s", self._path, error.strerror)
            self._failing = True

    def _append(self, line: str) -> None:
        with open(self._path, "a", encoding="utf-8", errors="replace", opener=_opened) as file:
            keep_private(file.fileno())
            file.write(line)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
