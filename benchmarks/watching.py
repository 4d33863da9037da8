"""What watching costs a step of the quickstart: keeping attempts, looking for what goes wrong, and each writer.

    OMP_NUM_THREADS=1 python benchmarks/watching.py --steps 6 --writers tensorboard,wandb,trackio,mlflow

Everything is timed inside one run, step by step, so that the load of the machine falls on both sides of the ratio:
(step + part) / step. Opening and closing a writer is paid once a run; "in all" spreads it over the 28 steps of the
quickstart.
Services write offline. Without `evaluation.every` a step has no part of a validation at all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.api import load_recipe
from mem1.configuration import plain
from mem1.engines.device import flushed_denormals
from mem1.policy.policy import make_policy
from mem1.run_folder import kept_steps
from mem1.training.monitoring.metrics_log import KeptAttempts, MetricsLog
from mem1.training.monitoring.run_warnings import Watch
from mem1.training.monitoring.writers import Writers, check_writers
from mem1.training.train import make_stages

STEPS = 28
"""Of the quickstart."""


@contextmanager
def timed(seconds: Counter[str], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started  # type: ignore[assignment]


@flushed_denormals()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--writers", type=lambda names: names.split(","), default=["tensorboard"])
    given = parser.parse_args()
    check_writers(given.writers)
    torch.set_num_threads(1)
    config = load_recipe("atlas-quick", f"rl.curriculum=[{{steps={given.steps}, objectives=[2]}}]")
    policy = make_policy(config)
    (make,) = make_stages(config, policy)
    stage = make()
    each, once = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": f"{folder}/trackio"}
        os.environ |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        kept, watch = KeptAttempts(folder, config.trajectories, policy.codec), Watch(config, folder)
        watch.begin("rl", 0)
        logs = {name: opened(name, folder / "run", plain(config), once) for name in given.writers}
        for index in range(given.steps):
            with timed(each, "step"):
                metrics = stage.step(index)
            with timed(each, "keeping attempts"):
                kept.keep(index + 1, stage.groups)  # type: ignore[attr-defined]  # of the stage of [rl]
            with timed(each, "warnings"):
                watch.look(index + 1, metrics)
            for name, log in logs.items():
                with timed(each, name):
                    log.append(index + 1, metrics, timings=stage.timings)  # type: ignore[attr-defined]  # likewise
        size = sum(path.stat().st_size for _, path in kept_steps(folder)) / given.steps
        for name, log in logs.items():
            with timed(once, name):
                log.__exit__(None, None, None)
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}")
    step = each.pop("step") / given.steps
    print(f"{step:.2f} s per step; attempts: {size / 1e3:.0f} kB per step")
    for part, seconds in each.items():
        ratio, whole = (1 + x / step for x in (seconds / given.steps, seconds / given.steps + once[part] / STEPS))
        print(f"{part}: ratio {ratio:.4f}" + (f", in all {whole:.4f}" if part in once else ""))


def opened(name: str, folder: Path, config: dict[str, object], seconds: Counter[str]) -> MetricsLog:
    """The log of a run with this one writer."""
    folder = folder / name
    folder.mkdir(parents=True)
    log = MetricsLog(folder, Writers([name], folder, config=config, tell=lambda step, name, text: sys.exit(text)))
    with timed(seconds, name):
        log.open_writers()
    return log


if __name__ == "__main__":
    main()
