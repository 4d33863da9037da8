"""Runs the tests marked `numeric` as lesser processors would, and with two threads: `make test-cpus`

    default, 1 thread: 310 passed in 41.20s
    avx2, 2 threads: 310 passed in 40.12s
    avx512: skipped, this processor has AVX2

`make test` runs them with all that the processor has and one thread.

Each set of instructions is a limit for torch's own kernels (ATEN_CPU_CAPABILITY), oneDNN and MKL; MKL heeds
MKL_ENABLE_INSTRUCTIONS on processors of Intel alone, MKL_CBWR on all. Where torch's kernels have other names (arm64),
all that is left are the threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
LIMITS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}
"""From the least to the most that a processor may have."""


def available(capability: str) -> list[str]:
    """The names in `LIMITS` of what a processor can, given torch's name for it.   AVX2  ->  [default, avx2]"""
    names = list(LIMITS)
    found = capability.lower()
    return names[: names.index(found) + 1] if found in names else names[:1]


def numeric_files() -> list[str]:
    """Reading the others takes longer than many of these tests."""
    files = sorted(str(path) for path in TESTS.rglob("test_*.py") if "pytest.mark.numeric" in path.read_text())
    assert files, "no test is marked numeric"
    return files


def run(name: str, threads: int, arguments: list[str]) -> bool:
    """Whether all tests pass under these limits; prints the summary, and everything where one fails."""
    marks = "numeric and not gpu and not slow"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", marks, *numeric_files(), *arguments]
    environment = {**os.environ, **LIMITS[name], "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    passed = done.returncode == 0
    said = done.stdout.rstrip().splitlines()
    print(f"{name}, {threads} thread{'s'[: threads - 1]}: {said[-1] if said else done.stderr}", flush=True)
    if not passed:
        print(done.stdout, done.stderr, flush=True)
    return passed


def main(arguments: list[str]) -> int:
    capability = torch.backends.cpu.get_cpu_capability()
    names = available(capability)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, name, 2 if name == names[-1] else 1, arguments) for name in reversed(names)]
    for name in LIMITS.keys() - set(names):
        print(f"{name}: skipped, this processor has {capability}")
    return 0 if all(found.result() for found in runs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
