"""One command at a time in a folder.

    with alone_in(Path("runs/a")): ...      a second command: UserError that names the process holding the folder

The lock is the system's (flock), on the folder itself: it ends with the process, however that ends, and leaves no file.
A folder that is replaced by a rename can be locked like any other. The filelock package locks files of its own, which
stay in the folder or beside it, so it is not used here.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
