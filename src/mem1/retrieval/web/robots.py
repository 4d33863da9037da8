"""robots.txt: whether a site lets programs read a page, as RFC 9309 has it.

Robots(fetcher).check(parse_address("https://example.org/private/x"))
->  FetchFailed: robots.txt of example.org asks programs to stay away

A site without the file (status 4xx) allows everything; one whose file cannot be read at the moment (5xx, 429, no
connection) allows nothing. The rules are read by Python's own parser: the first that fits counts, and `*` within a
path has no special meaning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.robotparser import RobotFileParser

from mem1.retrieval.web.addresses import Address
from mem1.retrieval.web.failures import FetchFailed, Why
from mem1.retrieval.web.fetch import AGENT, Fetcher

_LONGEST = 500 * 1024
"""Characters that are read, RFC 9309's least."""
_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules of every site asked so far, kept for a day. Safe for threads."""

    fetcher: Fetcher
    clock: Callable[[], float] = time.monotonic
    _rules: dict[str, tuple[float, RobotFileParser]] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def check(self, address: Address, *, before: Callable[[Address], None] = lambda address: None) -> None:
        """Raises FetchFailed (ROBOTS) where the site asks programs not to read `address`.

        `before` is called before robots.txt itself is asked for, as by `Fetcher.fetch`.
        """
        with self._lock:
            read_at, rules = self._rules.get(address.origin, (0.0, None))
        if rules is None or self.clock() - read_at > _AGE_S:
            rules = self._read(address, before)
            with self._lock:
                self._rules[address.origin] = (self.clock(), rules)
        if not rules.can_fetch(AGENT, str(address)):
            raise FetchFailed(Why.ROBOTS, f"robots.txt of {address.host} asks programs to stay away")

    def _read(self, address: Address, before: Callable[[Address], None]) -> RobotFileParser:
        lines = []
        try:
            fetched = self.fetcher.fetch(f"{address.origin}/robots.txt", content_types={"text/plain"}, before=before)
            lines = fetched.text[:_LONGEST].splitlines()
        except FetchFailed as error:
            missing = error.why is Why.CONTENT_TYPE or (error.status is not None and 400 <= error.status < 500)
            if not missing or error.status == 429:
                lines = ["User-agent: *", "Disallow: /"]
        rules = RobotFileParser()
        try:
            rules.parse(lines)
        except ValueError:  # of a number in it, which the parser takes for one and cannot read
            rules = RobotFileParser()
            rules.parse(["User-agent: *", "Disallow: /"])
        return rules
