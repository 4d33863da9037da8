"""What a server says on stderr: little, however often clients repeat a mistake, and nothing that a terminal obeys."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from mem1.errors import printable

_LOGGERS = ("uvicorn.error", "asyncio")
_MOST = 5
"""Records of one kind in a period."""
_PERIOD_S = 60.0


class Sparing(logging.Filter):
    """Lets a few records of a kind through in each minute, and says how many of them were left out."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[object, tuple[float, int]] = {}
        """Kind -> when its period began, records since."""

    def filter(self, record: logging.LogRecord) -> bool:
        # the template, without what a client could vary
        kind = record.name, record.msg, record.exc_info and record.exc_info[0]
        began, seen = self._kinds.get(kind, (self._now(), 0))
        if self._now() - began >= _PERIOD_S:
            if seen > _MOST:
                record.msg = f"{record.msg} ({seen - _MOST:,} more like it in the last minute)"
            began, seen = self._now(), 0
        self._kinds[kind] = began, seen + 1
        return seen < _MOST


class _Plain(logging.Formatter):
    """One that escapes what a terminal would obey; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Warnings and errors of the server and of asyncio go to stderr, each a few times a minute at most."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain("%(levelname)s: %(message)s"))
    handler.addFilter(Sparing())
    handler.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
