"""Ctrl-C between two steps instead of in the middle of one.

with interruptible("finishing this step; press again to stop at once") as stop:
    for step in range(steps):
        train(step)
        if stop.requested:
            save_checkpoint(...)
            break
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SAME_S = 1.0
"""Signals this soon after the first count as the same: torchrun forwards what the terminal sent to all processes."""


@dataclass(slots=True)
class Stop:
    """Whether a stop was requested; checked between steps."""

    requested: bool = False


@contextmanager
def interruptible(notice: str = "") -> Iterator[Stop]:
    """The first SIGINT or SIGTERM sets `stop.requested`; another, after a second or more, raises KeyboardInterrupt.

    notice      printed to standard error at the first signal; empty: nothing

    A signal that was ignored before (a job under nohup) stays ignored; outside the main thread, where Python
    delivers no signals, nothing is caught. The previous handlers are restored at the end of the block.
    """
    stop = Stop()
    first = 0.0

    def handle(_signum: int, _frame: FrameType | None) -> None:
        nonlocal first
        if stop.requested:
            if time.monotonic() - first >= _SAME_S:
                raise KeyboardInterrupt
            return
        stop.requested, first = True, time.monotonic()
        if notice:
            # not print(): a signal may arrive inside a print of the main program
            os.write(2, f"\n{notice}\n".encode())

    main_thread = threading.current_thread() is threading.main_thread()
    caught = [s for s in (signal.SIGINT, signal.SIGTERM) if main_thread and signal.getsignal(s) != signal.SIG_IGN]
    former = {s: signal.signal(s, handle) for s in caught}
    try:
        yield stop
    finally:
        for signum, handler in former.items():
            # None: not installed by Python code, so it cannot be restored
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
