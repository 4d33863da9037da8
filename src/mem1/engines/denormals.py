"""Denormal numbers as zeros.

A sharp softmax is full of numbers too small for float32's normal range, and a CPU computes with those so slowly that
they can cost a small model half its speed (`benchmarks/denormals.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, this thread, and threads that it starts there, take denormal numbers for zero; afterwards as before.

    Not for the whole process, because that would change other libraries' arithmetic too.
    """
    before = _flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushed() -> bool:
    """Whether they are taken for zero now; torch has no function that tells."""
    return sys.float_info.min / 2 == 0.0
