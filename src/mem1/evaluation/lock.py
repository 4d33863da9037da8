"""One evaluation at a time in a folder.

with alone_in(Path("runs/a/evaluation")): ...      a second one in the meantime is a UserError

The lock is the system's and lies on the folder itself: it goes when the process does, however that ends, and leaves no
file behind. Where there is no such lock (Windows, some network drives) nothing is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mem1.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_HELD = frozenset({errno.EWOULDBLOCK, errno.EACCES})


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if there is none. Raises UserError where it is held, or cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror or error}; give another folder") from error
    if fcntl is None:
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise UserError(
                    f"another evaluation is writing into {folder}; wait until it has ended, or give another folder"
                ) from error
        yield
    finally:
        os.close(place)
