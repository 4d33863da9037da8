"""What the process needs before torch is loaded; called by the command line, never on import."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def prepare() -> None:
    """Waiting threads sleep, large tensors are recycled, and nothing is fetched from a hub.

    OpenMP's spinning costs several times on a shared machine. glibc gives every large block back to the kernel
    at once; keeping it about doubles the speed of training a small model on a CPU.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL("libc.so.6").mallopt
        except (OSError, AttributeError):
            return  # another C library: slower, otherwise the same
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
