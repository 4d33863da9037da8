"""Ctrl-C and SIGTERM: work is asked to stop at its next border, and broken off where it reaches none in time.

    with interruptible("stopping after this step; press again to stop at once") as stop:
        for step in range(steps):
            train(step)                         KeyboardInterrupt in it, GRACE_S after the signal
            with stop.unbroken():
                save(step)                      however long that takes
            if stop.requested: ...

    with stopped_while("making clozes", lambda: "begin again with the same command"): ...
    ->  Interrupted: while making clozes; begin again with the same command

Outside of `interruptible`, Ctrl-C breaks work off at once, as in any Python program.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

GRACE_S = 2.0
"""Seconds from the signal until work that has reached no border is broken off."""
_AGAIN_S = 1.0
"""Seconds until it is tried again: an exception that is raised in a destructor or a callback is lost."""
_SAME_S = 1.0
"""Signals this soon after the first count as the same: torchrun forwards what the terminal sent to all processes."""


@dataclass(slots=True)
class Stop:
    """The request of a signal."""

    requested: bool = False
    """Checked at the borders of the work."""
    breakable: bool = True
    """Whether work may be broken off in the middle; a second signal does that in any case."""

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """What is done inside is finished, unless a second signal comes."""
        before, self.breakable = self.breakable, False
        try:
            yield
        finally:
            self.breakable = before


@contextmanager
def interruptible(notice: str = "", *, breakable: bool = True) -> Iterator[Stop]:
    """The first SIGINT or SIGTERM sets `stop.requested`; `GRACE_S` later KeyboardInterrupt is raised in the block.

    Another signal, after a second or more, raises it at once.

    notice      printed to standard error at the first signal; empty: nothing
    breakable   False: only another signal raises KeyboardInterrupt

    A signal that was ignored before (a job under nohup) stays ignored; outside the main thread, where Python
    delivers no signals, nothing is caught. The previous handlers are restored at the end of the block, and so is a
    timer of somebody else.
    """
    stop = Stop(breakable=breakable)
    first = 0.0

    def handle(signum: int, _frame: FrameType | None) -> None:
        nonlocal first
        if signum == signal.SIGALRM:
            if stop.breakable and not _under_way():
                raise KeyboardInterrupt
            return
        if stop.requested:
            if time.monotonic() - first >= _SAME_S:
                raise KeyboardInterrupt
            return
        stop.requested, first = True, time.monotonic()
        alarm = signal.signal(signal.SIGALRM, handle)
        replaced.append((alarm, signal.setitimer(signal.ITIMER_REAL, GRACE_S, _AGAIN_S)))
        if notice:
            # not print(): a signal may arrive inside a print of the main program
            os.write(2, f"\n{notice}\n".encode())

    main_thread = threading.current_thread() is threading.main_thread()
    caught = [s for s in (signal.SIGINT, signal.SIGTERM) if main_thread and signal.getsignal(s) != signal.SIG_IGN]
    former = {s: signal.signal(s, handle) for s in caught}
    replaced: list[tuple[Any, tuple[float, float]]] = []
    try:
        yield stop
    finally:
        for alarm, timer in replaced:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, alarm)
        for signum, handler in former.items():
            # None: not installed by Python code, so it cannot be restored
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _under_way() -> bool:
    """Whether a KeyboardInterrupt is being handled: what cleans up after it is not to be broken off, too."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class Interrupted(KeyboardInterrupt):
    """The user stopped a command."""

    def __init__(self, where: str, then: str = "") -> None:
        """where: "while making clozes"; then: what is saved and how to go on, "" where that is known further out."""
        super().__init__("; ".join(filter(None, (where, then))))
        self.where, self.then = where, then


@contextmanager
def stopped_while(doing: str, then: Callable[[], str] | None = None) -> Iterator[None]:
    """Ctrl-C inside is raised as `Interrupted`; of nested blocks the innermost says where, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        where, known = f"while {doing}", ""
        if isinstance(interrupt, Interrupted):
            where, known = interrupt.where, interrupt.then
        raise Interrupted(where, known or (then() if then is not None else "")) from interrupt
