"""A whole quickstart that is killed at random moments and resumed, against one that is not.

    python benchmarks/killed.py --kills 4 --out runs/benchmark-killed             15 minutes on two cores
    python benchmarks/killed.py --unbroken runs/quickstart-seed0 --seed 0         compares with a run that is there
    python benchmarks/killed.py --memory 4                                        in a control group of 4 GiB (as root)

`kill -9`, each time after a random while, evaluation and training alike; then `--resume`, until it has finished. The
metrics of every step, every evaluated trajectory and the result must be the same; what a run measures of time is left
out. Exit code 1 if they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from machine import commit, hardware

from mem1.evaluation.metrics import OF_TIME as ROW_TIMES

CGROUP = Path("/sys/fs/cgroup/memory/mem1-killed")
OF_TIME = ROW_TIMES | {"wall_seconds"}
"""Keys that hold a duration."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--longest", type=float, default=100, help="seconds to the next kill, at most")
    parser.add_argument("--unbroken", type=Path, help="folder of a finished quickstart; made if not given")
    parser.add_argument("--memory", type=float, help="GiB that all processes of a run may use together")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-killed"))
    given = parser.parse_args()
    unbroken = given.unbroken or given.out / "unbroken"
    if not (unbroken / "result.json").is_file():
        start(given, unbroken).wait()
    broken, rng = given.out / "broken", random.Random(given.seed)
    moments = []
    for _ in range(given.kills):
        moments.append(rng.uniform(5, given.longest))
        run = start(given, broken)
        try:
            run.wait(moments[-1])
            break
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    start(given, broken).wait()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}")
    print(f"killed after {', '.join(f'{m:.0f}' for m in moments)} seconds")
    if given.memory:
        print(f"largest memory in use: {int((CGROUP / 'memory.max_usage_in_bytes').read_text()) / 2**30:.2f} GiB")
    different = [name for name, one, other in compared(unbroken, broken) if one != other]
    print(f"different: {', '.join(different)}" if different else "the same: metrics, trajectories and result")
    sys.exit(bool(different))


def start(given: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """A quickstart in a process group of its own, so that its helpers can be killed with it."""
    command = [sys.executable, "-m", "mem1", "quickstart", "--seed", str(given.seed), "--out", str(folder), "--json"]
    command += ["--resume"] if folder.exists() else []
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=(lambda: _limit(given.memory)) if given.memory else None,
    )


def _limit(gigabytes: float) -> None:
    """Put this process into a control group with so much memory (Linux, version 1, root)."""
    CGROUP.mkdir(exist_ok=True)
    (CGROUP / "memory.limit_in_bytes").write_text(str(int(gigabytes * 2**30)))
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))


def compared(one: Path, other: Path) -> Iterator[tuple[str, Any, Any]]:
    """(file, its contents in both)."""
    trajectories = sorted(path.relative_to(one) for path in one.glob("evaluation/*.jsonl"))
    for name in (Path("result.json"), Path("train/metrics.jsonl"), *trajectories):
        yield str(name), _read(one / name), _read(other / name)


def _read(path: Path) -> Sequence[Any]:
    text = path.read_text(encoding="utf-8")
    parts = [text] if path.suffix == ".json" else text.splitlines()
    return [_timeless(json.loads(part)) for part in parts]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(x) for key, x in value.items() if key not in OF_TIME}
    return [_timeless(x) for x in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
