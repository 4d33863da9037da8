"""States that survive a restart: a SQLite file behind a dictionary in memory.

    states = StateFile(Path("states.sqlite"))
    states["4f1c..."] = "Done: ..."           in the file at once
    StateFile(Path("states.sqlite")).get("4f1c...")

States repeat what agents read, so only the owner of the file may read it. Keys are hashes, with a salt of the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from mem1.errors import UserError
from mem1.messages.private import keep_private
from mem1.messages.sessions import Latest

_LOG = logging.getLogger(__name__)
_BUSY_S = 1.0


class StateFile(MutableMapping[str, str]):
    """The latest `most` states, and a `salt`. What the file does not take is kept in memory, and said."""

    def __init__(self, path: Path, *, most: int = 10_000) -> None:
        """Raises UserError where the file is none of ours or cannot be written."""
        self._most = most
        self._known: Latest[str] = Latest(most)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            self._file = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA schema_version")  # raises for a file of somebody else's, which stays as it is
            keep_private(path)
            for end in ("-wal", "-shm"):  # of a process that was killed; SQLite makes new ones with the file's rights
                with contextlib.suppress(FileNotFoundError):
                    keep_private(f"{path}{end}")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, state TEXT NOT NULL)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS salt (one INTEGER PRIMARY KEY CHECK (one), salt BLOB NOT NULL)"
            )
            self._file.execute("INSERT OR IGNORE INTO salt VALUES (1, ?)", (secrets.token_bytes(),))
            (self.salt,) = self._file.execute("SELECT salt FROM salt").fetchone()
            for key, state in self._file.execute("SELECT key, state FROM states ORDER BY rowid"):
                self._known[str(key)] = str(state)
            self._trim()
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"cannot keep states in {path}: {reason}; give another --states") from error

    def __getitem__(self, key: str) -> str:
        return self._known[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known[key] = value
        try:
            self._file.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (key, value))
            self._trim()
        except (sqlite3.Error, UnicodeError) as error:
            _LOG.warning("a state is kept in memory only: %s", error)

    def __delitem__(self, key: str) -> None:
        del self._known[key]
        self._file.execute("DELETE FROM states WHERE key = ?", (key,))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        self._file.close()

    def _trim(self) -> None:
        """The oldest rows above the limit go; a state that is written again counts as new."""
        self._file.execute("DELETE FROM states WHERE rowid <= (SELECT MAX(rowid) FROM states) - ?", (self._most,))
