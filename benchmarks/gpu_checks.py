"""The parts of `benchmarks/gpu.py` that check and run whole commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mem1.cli.main
import mem1.cli.train
from mem1.api import load_recipe
from mem1.configuration.model import to_toml
from mem1.records import Trajectory
from mem1.trajectory_files import read_trajectories

if TYPE_CHECKING:
    from gpu_parts import Here

CLOSE = 1e-3
"""Largest relative difference of a number of a resumed step from the unbroken run's."""
EQUAL_SHARE = 0.9
"""Least share of greedy attempts that two devices make alike; a tie of two tokens parts them."""


def called(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a command of mem1, run in this process."""
    print("mem1", *arguments, flush=True)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            mem1.cli.main.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0), said.getvalue()
    return 0, said.getvalue()


def done(*arguments: str) -> str:
    """Standard output of a command that ended well; ends the part otherwise."""
    code, said = called(*arguments)
    if code:
        raise SystemExit(f"mem1 {' '.join(arguments)} ended with exit code {code}: {said}")
    return said


def verify(attention: str, *contexts: str) -> Callable[[Here], None]:
    def part(here: Here) -> None:
        few = ["--limit", "1", "--attempts", "6"] if here.tiny else []
        codes = []
        for context in contexts:
            keys = [f"model.device={here.device}", f"model.attention={attention}", f"memory={context}"]
            with here.peak() as peak:
                start = here.clock()
                code, said = called("verify", "atlas-quick", *keys, *few, "--json")
                seconds = here.clock() - start
                codes.append(code)
                if not said:
                    continue
                found = json.loads(said)
                checks = {c["name"]: c for c in found["checks"]}
                failed = {name: c["measured"] for name, c in checks.items() if c["verdict"] != "passed"}
                about = {key: found[key] for key in ("device", "dtype", "attention", "sampled_tokens", "steered")}
                measured = {name: c["measured"] for name, c in checks.items()}
                here.row(context, seconds=seconds, **about, **peak(), not_passed=failed, measured=measured)
        if any(codes):
            raise SystemExit(max(codes))

    return part


def tests(here: Here) -> None:
    """The files that have tests marked gpu; without a GPU they are skipped."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plug-ins of this machine are none of ours
    import pytest

    root = Path(__file__).parents[1]
    files = [str(file) for file in sorted((root / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in file.read_text()]
    reports: list[pytest.TestReport] = []

    class Kept:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or not report.passed:
                reports.append(report)

    code = pytest.main(["-q", "-m", "gpu", "-p", "pytest_timeout", "-p", "no:cacheprovider", *files], plugins=[Kept()])
    for report in reports:  # while tests run, a row would be a file outside their folders
        if report.outcome != "skipped":
            name = report.nodeid.rpartition("/")[2]
            here.row(name, outcome=report.outcome, seconds=report.duration, why=report.longreprtext[-600:])
    here.row("all", **Counter(report.outcome for report in reports))
    if code:
        raise SystemExit(int(code))


def resume(here: Here) -> None:
    """Four steps with a checkpoint after two, from which another run goes on."""
    few = ["rl.tasks_per_step=2", "rl.group_size=2"] if here.tiny else []
    curriculum = f"rl.curriculum=[{{steps=4,objectives=[{1 if here.tiny else 2}]}}]"
    keys = ["atlas-quick", "workers=1", "checkpoint_every=2", curriculum, *few]
    unbroken = here.scratch / "unbroken"

    def run(folder: Path, device: str, *more: str) -> list[dict[str, Any]]:
        start = here.clock()
        done("train", *keys, f"model.device={device}", "--out", str(folder), "--no-evaluate", *more)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        here.row(folder.name, device=device, run_seconds=here.clock() - start)
        return [json.loads(line) for line in lines]

    with here.peak() as peak:
        wanted = run(unbroken, here.device)
        largest = {}
        for device in dict.fromkeys((here.device, "cpu")):
            folder = here.scratch / f"resumed-{device.replace(':', '')}"
            shutil.copytree(unbroken, folder)
            shutil.rmtree(max((folder / "checkpoints").glob("checkpoint-*")))
            found = run(folder, device, "--resume")
            if len(found) != len(wanted):
                raise SystemExit(f"{len(found)} steps instead of {len(wanted)}")
            by_step = [difference(a, b) for a, b in zip(wanted[2:], found[2:], strict=True)]
            largest[device] = by_step[0]
            here.row(f"resumed on {device}", differences_by_step=by_step, **peak())
    # the weights are the checkpoint's on either device, but only one of them samples as before, bit for bit
    if largest[here.device] > CLOSE:
        raise SystemExit(f"the first resumed step differs by {largest[here.device]:.1e}")


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The largest relative difference of the numbers that two steps have, timings left out."""
    names = [n for n, v in a.items() if isinstance(v, float) and not n.startswith(("time", "sampler_trainer"))]
    assert names
    return max(abs(a[n] - b[n]) / max(abs(a[n]), 1e-3) for n in names)


def evaluation(here: Here) -> None:
    """The shipped policy on the same tasks, greedily."""
    limit, objectives = ("2", "1") if here.tiny else ("24", "1,2,4")
    keys = ["--limit", limit, "--objectives", objectives, "--json"]
    attempts: dict[str, list[Trajectory]] = {}
    ways = {"cpu": ("cpu", "float32"), here.device: (here.device, "float32"), "bf16": (here.device, "bfloat16")}
    for name, (device, dtype) in ways.items():
        folder = here.scratch / name
        with here.peak() as peak:
            start = here.clock()
            said = done("eval", *keys, f"model.device={device}", f"model.dtype={dtype}", "--out", str(folder))
            seconds = here.clock() - start
            rows = json.loads(said)["rows"]
            tokens = sum(row["total_tokens"] * row["tasks"] for row in rows)
            flops = sum(row["flops"] * row["tasks"] for row in rows)
            em = {f"em_{row['objectives']}": row["em"] for row in rows}
            here.row(name, **here.rates(tokens=tokens, flops=flops, seconds=seconds), **em, **peak())
        attempts[name] = [t for file in sorted(folder.glob("*.jsonl")) for t in read_trajectories(file)]
    shares = {name: alike(attempts["cpu"], found) for name, found in attempts.items()}
    here.row("attempts as on the CPU", **shares)
    if shares[here.device] < EQUAL_SHARE:
        raise SystemExit(f"only {shares[here.device]:.0%} of the attempts are as on the CPU")


def alike(ours: Sequence[Trajectory], others: Sequence[Trajectory]) -> float:
    """The share of attempts that sampled the same tokens."""
    pairs = list(zip(ours, others, strict=True))
    return sum([t.completion_ids for t in a.turns] == [t.completion_ids for t in b.turns] for a, b in pairs) / len(
        pairs
    )


def quickstart(here: Here) -> None:
    if here.tiny:  # the command has no option for less
        few = ["rl.tasks_per_step=2", "rl.group_size=2", "rl.curriculum=[{steps=1,objectives=[1]}]", "workers=1"]
        recipe = load_recipe(mem1.cli.train.QUICKSTART, *few, "evaluation.tasks=1", "evaluation.objectives=[1]")
        mem1.cli.train.QUICKSTART = str(here.scratch / "tiny.toml")
        Path(mem1.cli.train.QUICKSTART).write_text(to_toml(recipe), encoding="utf-8")
    with here.peak() as peak:
        start = here.clock()
        said = done("quickstart", "--device", here.device, "--out", str(here.scratch / "run"), "--json")
        em = {f"{row['policy']}_em_{row['objectives']}": row["em"] for row in json.loads(said)["rows"]}
        here.row("quickstart", run_seconds=here.clock() - start, **em, **peak())


def torchrun(here: Here) -> None:
    """torchrun's own main; it raises where its process fails."""
    from torch.distributed.run import main as run

    few = ["rl.tasks_per_step=2", "rl.group_size=2"] if here.tiny else []
    phases = f"rl.curriculum=[{{steps={1 if here.tiny else 2},objectives=[1]}}]"
    options = ["--out", str(here.scratch / "run"), "--no-evaluate"]
    command = ["--nproc-per-node", "1", "-m", "mem1", "train", "atlas-ppo", f"model.device={here.device}", phases]
    start = here.clock()
    run([*command, *few, *options])
    here.row("one rank", run_seconds=here.clock() - start)
