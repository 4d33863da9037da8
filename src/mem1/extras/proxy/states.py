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
import time
from collections.abc import Iterator, MutableMapping
from itertools import chain
from pathlib import Path

from mem1.errors import UserError
from mem1.messages.private import keep_private
from mem1.messages.sessions import Latest
from mem1.messages.writing import PAGE

_LOG = logging.getLogger(__name__)
_BUSY_S, _PAUSE_S = 1.0, 10.0
"""Seconds that a write waits for others, and for which nothing is written after one that failed."""


class StateFile(MutableMapping[str, str]):
    """The latest `most` states, the latest `pages` of a writer's notes, and a `salt`. What the file does not take is
    kept in memory, said, and written when the file takes it again."""

    def __init__(self, path: Path, *, most: int = 10_000, pages: int = 100_000) -> None:
        """Raises UserError where the file is none of ours or cannot be written."""
        self._busy_until = 0.0
        self._unsaved: Latest[None] = Latest(most + pages)
        """Keys of what is not in the file."""
        self._most = {"states": most, "pages": pages}
        self._known: dict[str, Latest[str]] = {table: Latest(number) for table, number in self._most.items()}
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
            for table in self._known:
                self._file.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, state TEXT NOT NULL)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS salt (one INTEGER PRIMARY KEY CHECK (one), salt BLOB NOT NULL)"
            )
            self._file.execute("INSERT OR IGNORE INTO salt VALUES (1, ?)", (secrets.token_bytes(),))
            (self.salt,) = self._file.execute("SELECT salt FROM salt").fetchone()
            for table in self._known:
                for key, state in self._file.execute(f"SELECT key, state FROM {table} ORDER BY rowid"):
                    self._known[_table(str(key))][str(key)] = str(state)
                self._trim(table)
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"cannot keep states in {path}: {reason}; give another --states") from error

    def __getitem__(self, key: str) -> str:
        return self._known[_table(key)][key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known[_table(key)][key] = value
        self._unsaved[key] = None
        if time.monotonic() >= self._busy_until:
            self._save()

    def _save(self) -> None:
        """Writes what is not in the file, oldest first, as far as the file takes it."""
        for key in list(self._unsaved):
            table = _table(key)
            try:
                if (value := self._known[table].get(key)) is not None:  # not gone meanwhile
                    self._file.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))
                    self._trim(table)
            except UnicodeError as error:  # no text that a file can hold, now or later
                _LOG.warning("a state is kept in memory only: %s", error)
            except sqlite3.Error as error:
                _LOG.warning("states are kept in memory only, %d so far: %s", len(self._unsaved), error)
                self._busy_until = time.monotonic() + _PAUSE_S
                return
            self._unsaved.pop(key, None)

    def __delitem__(self, key: str) -> None:
        del self._known[_table(key)][key]
        self._unsaved.pop(key, None)
        with contextlib.suppress(sqlite3.Error):
            self._file.execute(f"DELETE FROM {_table(key)} WHERE key = ?", (key,))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(list, self._known.values()))

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def close(self) -> None:
        """Writes what is not in the file, if it takes it now."""
        self._save()
        self._file.close()

    def _trim(self, table: str) -> None:
        """The oldest rows above the limit go; one that is written again counts as new."""
        limit = f"(SELECT MAX(rowid) FROM {table}) - ?"
        self._file.execute(f"DELETE FROM {table} WHERE rowid <= {limit}", (self._most[table],))


def _table(key: str) -> str:
    return "pages" if key.endswith(PAGE) else "states"
