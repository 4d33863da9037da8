"""What keeping attempts and asking for a validation that is off cost a step of the quickstart.

    OMP_NUM_THREADS=1 python benchmarks/watching.py --steps 6

Both are timed inside one run, step by step, so that the load of the machine falls on both sides of the ratio:
(step + keeping its attempts) / step. Without `evaluation.every` a step has no part of a validation at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.api import load_recipe
from mem1.engines.device import flushed_denormals
from mem1.protocol import vocabulary
from mem1.training.loop.kept_attempts import KeptAttempts, kept_steps
from mem1.training.loop.train import make_stages
from mem1.training.weights.policy import make_policy


@flushed_denormals()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = load_recipe("atlas-quick", f"rl.curriculum=[{{steps={given.steps}, objectives=[2]}}]")
    policy = make_policy(config, vocabulary(config.vocabulary))
    (make,) = make_stages(config, policy)
    stage = make()
    steps = keeping = 0.0
    with tempfile.TemporaryDirectory() as folder:
        kept = KeptAttempts(Path(folder), config.trajectories, policy.codec)
        for index in range(given.steps):
            started = time.perf_counter()
            stage.step(index)
            done = time.perf_counter()
            kept.keep(index + 1, stage.groups)  # type: ignore[attr-defined]  # of the stage of [rl]
            steps, keeping = steps + done - started, keeping + time.perf_counter() - done
        size = sum(path.stat().st_size for _, path in kept_steps(Path(folder))) / given.steps
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}")
    print(f"ratio {(steps + keeping) / steps:.4f}: {steps / given.steps:.2f} s per step,")
    print(f"{keeping / given.steps:.4f} s and {size / 1e3:.0f} kB to keep its attempts")


if __name__ == "__main__":
    main()
