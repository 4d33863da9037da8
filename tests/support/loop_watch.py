"""What blocks the event loops of this process, by the CPU time of their own threads.

with watched() as blocked:
    ...
assert blocked() == []
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator

LIMIT_S = 0.02


@contextlib.contextmanager
def watched(limit_s: float = LIMIT_S) -> Iterator[Callable[[], list[str]]]:
    """Gives the callbacks that have run longer than the limit in any event loop, on one line each."""
    run = asyncio.Handle._run
    blocked: list[str] = []
    counted = 0

    def timed(self: asyncio.Handle) -> None:
        nonlocal counted
        counted += 1
        began = time.thread_time()
        run(self)
        if (taken := time.thread_time() - began) > limit_s:
            blocked.append(f"{taken * 1000:.0f} ms: {self!r}")

    def found() -> list[str]:
        assert counted, "no loop has run"
        return blocked

    gc.disable()  # garbage of others is collected in whichever thread comes by
    asyncio.Handle._run = timed
    try:
        yield found
    finally:
        asyncio.Handle._run = run
        gc.enable()
