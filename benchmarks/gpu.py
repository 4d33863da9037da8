"""Everything to know of a GPU in ten minutes: one command, one summary.

    PYTHONPATH=src python benchmarks/gpu.py all --out OUT         all parts on cuda
    python benchmarks/gpu.py flex sampling --out OUT              these parts, after the ceiling
    python benchmarks/gpu.py all --out OUT --tiny                 every part at tiny size on the CPU, in a minute

    ceiling             rate of a product of bf16 matrices; the shares below are shares of it
    verify-flex         mem1 verify with FlexAttention, under constant and full contexts
    verify-blocks       the same with attention by blocks
    flex-0.5B, -1.5B, -7B   forward and backward pass over a group of attempts in Qwen2.5's shapes: the token tree by
                        FlexAttention, by blocks, and one turn at a time
    step-0.5B, -1.5B, -7B, -SmolLM2     whole optimiser steps on eight-turn attempts: bf16 over fp32 weights, AdamW;
                        layers as they are, and compiled
    sampling            the local engine in Qwen2.5's shapes, 64 attempts at a time
    rl                  whole steps of reinforcement learning in the shape of Qwen2.5-0.5B
    tests               the tests marked gpu
    resume              a run resumed from a checkpoint, on this device and on the CPU, against the unbroken one
    evaluation          the same tasks on the CPU, on this device, and there in bf16
    quickstart          mem1 quickstart
    torchrun            PPO in a process of torchrun

Parts run in this order, each in a process of its own and with a limit of its own; those that time nothing run beside
one another. One that fails or takes too long stops no other, and what `--minutes` leaves no time for is recorded as not
run. Nothing is downloaded, weights are random or shipped.

OUT/summary.json is written again after every part, OUT/rows.jsonl by the parts as they measure, OUT/log.txt holds what
they printed. A row has what was computed of: tokens, of contexts and completions as a model without sharing would read
them, so that all variants count the same work; tflops, as `mem1 plan` counts them, recomputation included; share, of
the ceiling; peak_gb, the most that torch had allocated; counted_gb, the same by counting a step on fake tensors.

At the end it prints what must be reached beside what was measured; "not measured" is what this machine or the chosen
parts could not say. Loss and synchronisations are held by tests (`tests/training/test_head.py`,
`test_synchronisations.py`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # Python 3.10 only

# a process that has asked CUDA itself for its devices cannot fork others that use it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
ROOT = Path(__file__).parents[1]
VERSIONS = ("torch", "triton", "transformers", "numpy", "bm25s", "pydantic", "jax")
_SERVERS = {"fastapi", "uvicorn"}
_GRACE_S = 5.0
"""Seconds that a part has to end after it was asked to."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    seconds: float
    beside: bool = False
    """Whether it times nothing, and runs beside its neighbours that do not either."""


PARTS = {
    "ceiling": Limits(seconds=60),
    "verify-flex": Limits(seconds=120, beside=True),
    "verify-blocks": Limits(seconds=120, beside=True),
    "flex-0.5B": Limits(seconds=100),
    "flex-1.5B": Limits(seconds=100),
    "flex-7B": Limits(seconds=150),
    "step-0.5B": Limits(seconds=120),
    "step-1.5B": Limits(seconds=120),
    "step-7B": Limits(seconds=180),
    "step-SmolLM2": Limits(seconds=120),
    "sampling": Limits(seconds=100),
    "rl": Limits(seconds=150),
    "tests": Limits(seconds=240, beside=True),
    "resume": Limits(seconds=240, beside=True),
    "evaluation": Limits(seconds=240, beside=True),
    "quickstart": Limits(seconds=400, beside=True),
    "torchrun": Limits(seconds=120, beside=True),
}


@dataclass
class Result:
    """A part as summary.json has it."""

    part: str
    outcome: str = "not run"
    """ok, failed, timed out or not run."""
    exit_code: int | None = None
    """None: it was stopped, or not run."""
    seconds: float = 0.0
    peak_gb: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)
    """Of what it printed, where it did not end well."""


@dataclass(kw_only=True)
class Running:
    result: Result
    process: BaseProcess
    log: Path
    started: float
    until: float


def lacking() -> list[str]:
    """The dependencies of pyproject.toml and its extra "train" that are not installed, or in another version.

    Those of servers are not asked for: no part serves, and a machine with a GPU often lacks them.
    """
    from packaging.requirements import Requirement

    found = []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for one in map(Requirement, (*project["dependencies"], *project["optional-dependencies"]["train"])):
        if one.name in _SERVERS or (one.marker is not None and not one.marker.evaluate()):
            continue
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            found.append(str(one))
            continue
        if not one.specifier.contains(version, prereleases=True):
            found.append(f"{one} (not {version})")
    return found


def chosen(names: Sequence[str]) -> list[str]:
    """Parts by their names, or by what stands before the hyphen; the ceiling always comes first."""
    known = {*PARTS, *(name.partition("-")[0] for name in PARTS), "all"}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown part {', '.join(unknown)}; known: all, {', '.join(PARTS)}")
    wanted = {"ceiling", *names}
    return [name for name in PARTS if {"all", name, name.partition("-")[0]} & wanted]


def groups(names: Sequence[str]) -> list[list[str]]:
    """Neighbours that may run beside one another are together."""
    found: list[list[str]] = []
    for name in names:
        if found and PARTS[name].beside and PARTS[found[-1][0]].beside:
            found[-1].append(name)
        else:
            found.append([name])
    return found


class Runner:
    """Runs the parts and keeps the summary."""

    def __init__(self, given: argparse.Namespace, scratch: Path) -> None:
        self.given, self.scratch = given, scratch
        self.until = time.monotonic() + 60 * given.minutes
        self.results = {name: Result(part=name) for name in chosen(given.parts)}

    @property
    def rows(self) -> Path:
        return self.given.out / "rows.jsonl"

    def run(self) -> bool:
        """Whether every part ended well."""
        for group in groups(list(self.results)):
            left = self.until - time.monotonic()
            if left < _GRACE_S:
                continue
            # tiny sizes are for machines of any speed
            limits = {name: left if self.given.tiny else min(PARTS[name].seconds, left) for name in group}
            running = [self._start(name, seconds, len(group)) for name, seconds in limits.items()]
            try:
                self._await(running)
            finally:
                for one in running:
                    stop(one.process)
        self._write()
        print(table(self.results, "at tiny size" if self.given.tiny else "measured"), flush=True)
        return all(result.outcome == "ok" for result in self.results.values())

    def _start(self, name: str, seconds: float, together: int) -> Running:
        log = self.scratch / f"{name}.txt"
        process = multiprocessing.get_context("fork").Process(target=child, args=(name, self, log, together))
        process.start()
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        now = time.monotonic()
        return Running(result=self.results[name], process=process, log=log, started=now, until=now + seconds)

    def _await(self, running: Sequence[Running]) -> None:
        """Until each has ended or was stopped; the summary is written after each."""
        open_ = list(running)
        while open_:
            left = min(one.until for one in open_) - time.monotonic()
            wait([one.process.sentinel for one in open_], timeout=max(0.0, left))
            ended = [one for one in open_ if not one.process.is_alive() or time.monotonic() >= one.until]
            for one in ended:
                open_.remove(one)
                self._end(one)
                self._write()

    def _end(self, one: Running) -> None:
        result = one.result
        stopped = stop(one.process)
        result.exit_code = None if stopped else one.process.exitcode
        result.outcome = "timed out" if stopped else "failed" if result.exit_code else "ok"
        result.seconds = round(time.monotonic() - one.started, 1)
        result.rows = [row for row in read_rows(self.rows) if row["part"] == result.part]
        result.peak_gb = max((row["peak_gb"] for row in result.rows if row.get("peak_gb")), default=None)
        text = one.log.read_text(encoding="utf-8", errors="replace") if one.log.exists() else ""
        if result.outcome != "ok":
            result.last_lines = text.splitlines()[-15:]
        with (self.given.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"==== {result.part}: {result.outcome}, {result.seconds} s\n{text}\n")
        print(f"{result.part}: {result.outcome}, {result.seconds} s", flush=True)
        for row in result.rows:
            print(f"    {shown(row)}", flush=True)
        for line in result.last_lines:
            print(f"    | {line}", flush=True)

    def _write(self) -> None:
        from machine import commit

        from mem1.durable import write_file

        first = next((row for row in self.results["ceiling"].rows if "gpu" in row), {})
        summary = {
            "command": f"python {' '.join(sys.argv)}",
            "commit": commit(),
            "gpu": first.get("gpu"),
            "gpu_gb": first.get("gpu_gb"),
            "ceiling_tflops": first.get("tflops"),
            "versions": {"python": sys.version.split()[0], **installed()},
            "parts": [vars(result) for result in self.results.values()],
        }
        write_file(self.given.out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())


@dataclass(frozen=True, kw_only=True)
class Target:
    """A number that must be reached on an H100 or H200."""

    what: str
    part: str
    name: str
    """Name of the row, or of the one above and the one below a ratio: "flex/turns"."""
    column: str
    least: float


TARGETS = (
    Target(what="share of the bf16 ceiling, training 0.5B", part="step-0.5B", name="step", column="share", least=0.40),
    Target(what="share of the bf16 ceiling, training 1.5B", part="step-1.5B", name="step", column="share", least=0.50),
    Target(what="share of the bf16 ceiling, training 7B", part="step-7B", name="step", column="share", least=0.55),
    Target(
        what="the tree over one turn at a time, 0.5B",
        part="flex-0.5B",
        name="flex/turns",
        column="tokens_per_second",
        least=7.0,
    ),
    Target(
        what="SmolLM2-135M, training, tokens/s",
        part="step-SmolLM2",
        name="step",
        column="tokens_per_second",
        least=150_000.0,
    ),
    Target(
        what="sampling 0.5B, 64 attempts, tokens/s",
        part="sampling",
        name="0.5B",
        column="tokens_per_second",
        least=10_000.0,
    ),
)


def table(results: Mapping[str, Result], measured: str = "measured") -> str:
    """What must be reached beside what was measured, as markdown."""
    lines = [f"| must reach | target | {measured} |", "|---|--:|--:|"]
    for target in TARGETS:
        result = results.get(target.part)
        found = None if result is None else reached(result.rows, target)
        lines.append(
            f"| {target.what} | {target.least:,.6g} | {'not measured' if found is None else f'{found:,.3g}'} |"
        )
    rows = results["step-7B"].rows if "step-7B" in results else []
    fits = [f"{'no, ' * ('out_of_memory' in row)}{row.get('peak_gb', row['counted_gb'])} GB" for row in rows[-1:]]
    lines.append(f"| 7B, a whole step on one GPU | fits | {fits[0] if fits else 'not measured'} |")
    return "\n".join(lines)


def reached(rows: Sequence[Mapping[str, Any]], target: Target) -> float | None:
    """The best that was measured of it; None: nothing was, or not on a GPU of the size."""
    best = []
    for name in target.name.split("/"):
        values = [row[target.column] for row in rows if row["name"] == name and row.get(target.column) is not None]
        if not values:
            return None
        best.append(max(values))
    return best[0] if len(best) == 1 else best[0] / best[1]


def installed() -> dict[str, str]:
    """Versions of what is there."""
    found = {}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def shown(row: dict[str, Any]) -> str:
    values = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "part")
    return values[:400]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What the parts have measured; a line that was cut off with its part is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def stop(process: BaseProcess) -> bool:
    """End the process and those that it started; whether it was still running."""
    alive = process.is_alive()
    for signum in (signal.SIGTERM, signal.SIGKILL) if alive else ():
        try:
            os.killpg(process.pid or 0, signum)
        except ProcessLookupError:  # it has not become the head of a group yet
            process.kill()
        process.join(_GRACE_S)
    process.join()
    return alive


def child(name: str, runner: Runner, log: Path, together: int) -> None:
    """The process of a part."""
    os.setsid()
    sys.stdout = sys.stderr = log.open("a", encoding="utf-8", buffering=1)
    for standard in (1, 2):
        os.dup2(sys.stdout.fileno(), standard)
    import torch

    given = runner.given
    if given.device != "cpu" and torch.cuda._is_in_bad_fork():  # something did ask CUDA: begin anew, more slowly
        options = ["--out", str(given.out), "--device", given.device, *(["--tiny"] * given.tiny)]
        os.execv(sys.executable, [sys.executable, __file__, name, *options, "--here", str(runner.scratch)])
    if together > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // together))
    play(name, given, runner.scratch)


def play(name: str, given: argparse.Namespace, scratch: Path) -> None:
    """Run a part in this process and leave it."""
    from gpu_parts import Here, part

    code = 1
    try:
        rows = given.out / "rows.jsonl"
        ceiling = next((row["tflops"] for row in read_rows(rows) if row["part"] == "ceiling"), None)
        folder = scratch / name
        folder.mkdir()
        here = Here(part=name, rows=rows, scratch=folder, device=given.device, tiny=given.tiny, ceiling=ceiling)
        part(name)(here)
        code = 0
        if "jax" in sys.modules:
            print("jax was imported, which takes most of a GPU's memory", flush=True)
            code = 1
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            print(ended.code)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # neither the parent's own handlers nor threads of libraries delay the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", help="all, or names of parts; what stands before a hyphen names several")
    parser.add_argument("--out", type=Path, required=True, help="folder; parts already in it are measured anew")
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; on the CPU unless --device says otherwise")
    parser.add_argument("--device", help="default: cuda; cpu with --tiny")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.device = given.device or ("cpu" if given.tiny else "cuda")
    given.tiny = given.tiny or given.device == "cpu"
    given.out = given.out.absolute()
    if missing := lacking():
        raise SystemExit(f"mem1 needs {', '.join(missing)}, which this Python lacks: {sys.executable}")
    try:
        import mem1.cli.main
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; run it with PYTHONPATH=src, or in the environment that make made") from error
    mem1.cli.main.prepare()
    if given.here is not None:
        play(given.parts[0], given, given.here)
    import gpu_parts  # noqa: F401  # torch and transformers once, not in every part

    given.out.mkdir(parents=True, exist_ok=True)
    for name in ("rows.jsonl", "log.txt", "summary.json"):
        (given.out / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="mem1-gpu-", ignore_cleanup_errors=True) as scratch:
        well = Runner(given, Path(scratch)).run()
    print(f"everything is in {given.out / 'summary.json'}")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
