"""Programs that this process starts, and that end with it however it ends.

    process = subprocess.Popen(command, start_new_session=True)
    watcher = watch(process)        where this process is killed (kill -9), kills it and all that it has started
    kill(process)                   does so now
    watcher.communicate(b".")       it has nothing to watch any more

Not covered are programs that leave their process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

_WATCH = "import os, signal, sys\nif not sys.stdin.buffer.read(1): os.killpg(int(sys.argv[1]), signal.SIGKILL)"


def watch(process: subprocess.Popen[Any]) -> subprocess.Popen[bytes]:
    """A process that sees the end of its own input when this process has ended, and kills the program then.

    Where it cannot be started, the program is killed, and the error raised.
    """
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH, str(process.pid)],
            stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        kill(process)
        raise


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a program that leads a process group, and what it has started; waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
