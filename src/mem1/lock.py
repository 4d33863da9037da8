"""Blocks around a run: one command at a time in a folder, and Ctrl-C between two steps instead of in one.

    with alone_in(Path("runs/a")): ...      a second command: UserError that names the process holding the folder

    with interruptible("finishing this step; press again to stop at once") as stop:
        for step in range(steps):
            train(step)
            if stop.requested: ...

The lock is the system's (flock), on the folder itself: it ends with the process, however that ends, and leaves no file.
A folder that is replaced by a rename can be locked like any other. The filelock package locks files of its own, which
stay in the folder or beside it, so it is not used here.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mem1.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

log = logging.getLogger(__name__)
_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_LOCKS = Path("/proc/locks")
"""Linux lists there which process holds which lock."""


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder, which is made if it is missing, and removed if it is still empty at the end.

    wait    wait until the other command has ended instead of raising an error

    Raises UserError where another process holds it, or it cannot be made. Where the system has no such lock (Windows,
    some network drives), a warning says so and nothing is refused.
    """
    made = not folder.exists()
    place = _locked(folder, wait)
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # it holds files, as intended
                folder.rmdir()
        if place is not None:
            os.close(place)


def _locked(folder: Path, wait: bool) -> int | None:
    """A descriptor that holds the lock; None: the system has no locks."""
    while True:  # until its last holder, who removes an empty folder, does not do so in between
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            if not os.path.lexists(folder):
                continue
            raise UserError(f"{folder} is a file; give a folder, or the name of a new one") from error
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror or error}; give another folder") from error
        if fcntl is None:
            log.warning("this system has no locks: make sure that no other command writes into %s", folder)
            return None
        try:
            place = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_still(folder, place):
                return place
        except OSError as error:
            inode = os.fstat(place).st_ino
            if error.errno in _HELD:
                os.close(place)
                raise UserError(
                    f"another command is writing into {folder}{_holder(inode)}; wait until it has ended, or give "
                    "another folder"
                ) from error
            log.warning("%s has no locks (%s): make sure that no other command writes into it", folder, error.strerror)
            return place
        except BaseException:  # Ctrl-C while waiting
            os.close(place)
            raise
        os.close(place)  # its holder has removed or replaced the folder meanwhile


def _is_still(folder: Path, place: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(place))
    except FileNotFoundError:
        return False


def _holder(inode: int) -> str:
    """The process that holds the lock, if it is on this machine."""
    with suppress(OSError):
        for line in _LOCKS.read_text(encoding="ascii", errors="replace").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fe:00:2146321 0 EOF
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return f" (process {fields[4]} on this machine)"
    return ""


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


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; the message says what is saved."""


@contextmanager
def saying_what_is_saved(saved: Callable[[], str], notice: str) -> Iterator[Stop]:
    """`interruptible`, but Ctrl-C ends with `Interrupted`, and a UserError says what is saved, too."""
    try:
        with interruptible(notice) as stop:
            yield stop
    except UserError as error:
        raise UserError(f"{error}\n{saved()}") from error
    except KeyboardInterrupt as interrupt:
        raise Interrupted(saved()) from interrupt
    if stop.requested:
        raise Interrupted(saved())
