"""Runs the tests marked `numeric` as the least of processors would, with two threads: `make test-cpus`

    default, 2 threads: 310 passed in 41.20s

`make test` runs them with all that the processor has, which differs from machine to machine, and one thread.

The set of instructions is a limit for torch's own kernels (ATEN_CPU_CAPABILITY), oneDNN and MKL; MKL heeds
MKL_ENABLE_INSTRUCTIONS on processors of Intel alone, MKL_CBWR on all. Where torch's kernels have other names (arm64),
all that is left are the threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
LEAST = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
}


def numeric_files() -> list[str]:
    """Reading the others takes longer than many of these tests."""
    files = sorted(str(path) for path in TESTS.rglob("test_*.py") if "pytest.mark.numeric" in path.read_text())
    assert files, "no test is marked numeric"
    return files


def main(arguments: list[str]) -> int:
    marks = "numeric and not gpu and not slow"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", marks, *numeric_files(), *arguments]
    done = subprocess.run(command, env={**os.environ, **LEAST}, capture_output=True, text=True, check=False)
    said = done.stdout.rstrip().splitlines()
    print(f"default, 2 threads: {said[-1] if said else done.stderr}", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
