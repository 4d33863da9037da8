"""How long threads should spin while they wait for each other: steps of SmolLM2's shape, alone and two at a time.

    python benchmarks/waiting.py [--steps 4]

A step is the forward and backward pass of some 1,600 tokens in bf16, one pack that two threads compute (as in
bfloat16.py): thousands of short computations, after each of which a thread waits for the other. Prints tokens per
second of one process, and of each of two that share the cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping

WAYS: Mapping[str, Mapping[str, str]] = {
    "sleep at once": {"OMP_WAIT_POLICY": "passive"},
    "spin for some microseconds, as mem1 does": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"},
    "spin for milliseconds, as OpenMP does": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        measured(given.steps)
        return
    from machine import commit, hardware

    print(f"commit {commit()}; {hardware()}\n\n| threads that wait | alone | each of two |\n|---|--:|--:|", flush=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    for name, added in WAYS.items():
        found = [together(number, {**clean, **added, "OMP_NUM_THREADS": "2"}, given.steps) for number in (1, 2)]
        print(f"| {name} | {found[0]:.0f} | {found[1]:.0f} |", flush=True)


def together(number: int, environment: Mapping[str, str], steps: int) -> float:
    """Tokens per second of each of so many processes, the mean."""
    command = [sys.executable, __file__, "--child", "--steps", str(steps)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    return sum(float(one.communicate()[0].splitlines()[-1]) for one in running) / number


def measured(steps: int) -> None:
    import torch
    from bfloat16 import step
    from gpu_parts import SMOLLM2
    from transformers import LlamaForCausalLM

    from mem1.heap import keep_freed

    keep_freed()
    torch.manual_seed(0)
    print(step(LlamaForCausalLM(SMOLLM2), 2_048, True, steps))


if __name__ == "__main__":
    main()
