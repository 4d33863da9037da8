"""What is freed stays in the process, and goes back once it is much."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from mem1 import heap
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def fill(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block
heap.keep_freed()
heap.give_back()
before = heap._held()
blocks, gaps = [], []
for _ in range({gigabytes} * 16):  # what stays between the large blocks keeps the heap from shrinking by itself
    blocks.append(fill(64 << 20))
    gaps.append(fill(1 << 16))
for block in blocks:
    libc.free(block)
kept = heap._held() - before
heap.give_back()
print(kept >> 20, (heap._held() - before) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the heap of glibc")
@pytest.mark.parametrize("gigabytes", [0.5, 1.5])
def test_free_memory_goes_back_once_it_is_more_than_a_gigabyte(gigabytes: float):
    program = PROGRAM.replace("{gigabytes} * 16", str(int(gigabytes * 16)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept >= gigabytes * 1024 - 1, "a large block that is freed stays for the next one"
    assert left < 50 if gigabytes > 1 else left >= kept - 1
