"""The visitors: all pages that each one has visited, so that the browser's Back button works.

    trails = Trails()
    id = trails.open(shop.start([goal]))       "hXv0…"            the visitor's address is /shop/hXv0…/0
    trails.walk(id, 0, searched)               1                  and after a search /shop/hXv0…/1
    trails.at(id, 0)                           the session before the search

A step from an earlier page discards the pages after it. Repeating a step, as by a double click, counts once.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from mem1.envs.webshop.session import Session


class TrailLost(Exception):
    """There is no such visitor or page, or it has been discarded."""


class TrailTooLong(Exception):
    """The visitor has reached the maximum number of pages."""


@dataclass(slots=True)
class _Trail:
    sessions: list[Session]
    seen: float
    """Time of the last request, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trails:
    """At most `most` visitors; the one away longest is discarded first."""

    most: int = 1000
    steps: int = 500
    """Maximum number of pages per visitor."""
    idle_s: float = 12 * 3600.0
    now: Callable[[], float] = time.monotonic
    _by_id: OrderedDict[str, _Trail] = field(default_factory=OrderedDict)
    """Visitors by id, longest away first."""

    def open(self, session: Session) -> str:
        """Add a visitor, and return an id that cannot be guessed."""
        self._forget()
        while len(self._by_id) >= self.most:
            self._by_id.popitem(last=False)
        id = secrets.token_urlsafe(16)
        self._by_id[id] = _Trail([session], self.now())
        return id

    def at(self, id: str, step: int) -> Session:
        """The session at this step. Raises TrailLost."""
        sessions = self._trail(id).sessions
        if not 0 <= step < len(sessions):
            raise TrailLost
        return sessions[step]

    def walk(self, id: str, step: int, session: Session) -> int:
        """Store `session` after `step`, and return its step. Raises TrailLost and TrailTooLong."""
        self.at(id, step)
        if step + 1 >= self.steps:
            raise TrailTooLong
        self._trail(id).sessions[step + 1 :] = [session]
        return step + 1

    def _trail(self, id: str) -> _Trail:
        self._forget()
        trail = self._by_id.get(id)
        if trail is None:
            raise TrailLost
        trail.seen = self.now()
        self._by_id.move_to_end(id)
        return trail

    def _forget(self) -> None:
        while self._by_id:
            oldest = next(iter(self._by_id.values()))
            if self.now() - oldest.seen <= self.idle_s:
                return
            self._by_id.popitem(last=False)
