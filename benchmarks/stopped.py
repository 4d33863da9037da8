"""Ctrl-C in every phase of every long command: how long until it has ended, and what it says then.

    python benchmarks/stopped.py                        10 minutes on two cores
    python benchmarks/stopped.py --phases evaluation --times 10

Each phase of a shipped recipe is entered, and the process group gets a SIGINT a random while later, as from a terminal.
The table has the longest time to the end of the process over all signals, the same in CPU seconds, which do not
depend on what else the machine does, and the last line of the first.
Exit code 1 if a phase took more than 5 seconds, ended with another code than 130, or said nothing of how to go on.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from machine import commit, hardware

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "qa" / "corpus.jsonl.gz"
"""64,047 passages."""
LIMIT_S = 5.0
EXIT_CODE = 130

ENTERED = """
import importlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where this script runs in the background
place, told, *arguments = sys.argv[1:]
module, _, name = place.partition(":")
*outer, last = name.split(".")
owner = importlib.import_module(module)
for part in outer:
    owner = getattr(owner, part)
called = getattr(owner, last)

def entered(*given, **named):
    setattr(owner, last, called)
    os.write(int(told), b"!")
    return called(*given, **named)

setattr(owner, last, entered)
from mem1.cli.main import main
main(arguments)
"""
"""Runs a command of mem1, and writes a byte where a function is called for the first time."""


class Phase(NamedTuple):
    """A part of a command that takes long."""

    name: str
    entered: str
    """Function that is called when it begins."""
    command: str


CLOZES, WARM_START = "train own-documents corpus={corpus} --out {out}", "train atlas-warm-start --out {out}"
QUICK, LONG = "train atlas-quick --out {out}", "rl.tasks_per_step=64 budget.completion_extra=200"
VALIDATED = "evaluation.every=1 evaluation.validation_objectives=[16] rl.tasks_per_step=2"
SUPERVISED, RL = "mem1.training.supervised", "mem1.training.rl:RlStage"
PHASES = (
    Phase("making clozes", "mem1.envs.cloze:make_clozes", "data tasks.kind=cloze corpus={corpus} --out {out}"),
    Phase("indexing", "mem1.retrieval.bm25:BM25.build", "index {corpus} --out {out}"),
    Phase("training a tokenizer", "mem1.policy.policy:bpe_tokenizer", CLOZES),
    Phase("[recall]", f"{SUPERVISED}:RecallStage.step", WARM_START),
    Phase("demonstrations", "mem1.training.train:demonstrate", f"{WARM_START} recall=null"),
    Phase("[sft]", "mem1.training.gradients.pack_workers:PackWorkers.backward", f"{WARM_START} recall=null"),
    Phase("[rl], sampling", f"{RL}.sample", f"{QUICK} {LONG}"),
    Phase("[rl], training", f"{RL}.update", f"{QUICK} {LONG}"),
    Phase("[rl], validation", f"{RL}.validate", f"{QUICK} {VALIDATED}"),
    Phase("evaluation", "mem1.rollout:Rollout.__call__", "eval --out {out}"),
    Phase("bench", "mem1.bench.running:attempt_all", "bench --policy shipped --suite standard --out {out}"),
    Phase("probe", "mem1.extras.probe.exam:examine", "probe --count 50 --exchanges 400"),
    Phase("verify", "mem1.training.verify:verify", "verify --limit 32"),
    Phase("quickstart, evaluation", "mem1.rollout:Rollout.__call__", "quickstart --out {out}"),
    Phase("quickstart, training", f"{RL}.sample", "quickstart --out {out}"),
)


class Stopped(NamedTuple):
    """What became of a command after its signal."""

    seconds: float
    cpu_seconds: float
    """Of all its processes that have ended."""
    code: int
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", nargs="+", metavar="NAME", help="those whose names begin so; all if not given")
    parser.add_argument("--times", type=int, default=2, help="signals per phase")
    parser.add_argument("--longest", type=float, default=4.0, help="seconds from the beginning of a phase, at most")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="passages for clozes, index and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-stopped"))
    given = parser.parse_args()
    draw = random.Random(given.seed)
    chosen = [p for p in PHASES if given.phases is None or p.name.startswith(tuple(given.phases))]
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| phase | seconds | CPU seconds | exit code | last line |\n|---|--:|--:|--:|---|")
    good = True
    for phase in chosen:
        found = [stopped(phase, draw.uniform(0, given.longest), given.corpus, given.out) for _ in range(given.times)]
        seconds, cpu = max(one.seconds for one in found), max(one.cpu_seconds for one in found)
        codes = sorted({one.code for one in found})
        good &= (
            seconds <= LIMIT_S
            and codes == [EXIT_CODE]
            and all(one.said.startswith("Stopped ") and ";" in one.said for one in found)
        )
        print(
            f"| {phase.name} | {seconds:.1f} | {cpu:.1f} | {', '.join(map(str, codes))} | {found[0].said} |", flush=True
        )
    sys.exit(not good)


def stopped(phase: Phase, after: float, corpus: Path, out: Path) -> Stopped:
    """Enter the phase in a folder of its own, send Ctrl-C `after` seconds, and wait for the end."""
    shutil.rmtree(out, ignore_errors=True)
    heard, told = os.pipe()
    command = phase.command.format(corpus=corpus, out=out / "run").split(" ")
    environment = {**os.environ, "MEM1_CACHE": str(out / "cache")}
    cpu = cpu_of_ended()
    with subprocess.Popen(
        [sys.executable, "-c", ENTERED, phase.entered, str(told), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        pass_fds=(told,),
        start_new_session=True,
    ) as process:
        os.close(told)
        entered = os.read(heard, 1)
        os.close(heard)
        time.sleep(after)
        begun = time.monotonic()
        if process.poll() is None:
            cpu += cpu_of(process.pid)
            os.killpg(process.pid, signal.SIGINT)
        process.wait()
        seconds = time.monotonic() - begun
        said = process.communicate()[1]  # its helpers may end a little later
    if not entered:
        raise SystemExit(f"{phase.name}: {' '.join(command)} never got there:\n{said[-2000:]}")
    return Stopped(seconds, cpu_of_ended() - cpu, process.returncode, last_line(said.splitlines()))


def cpu_of_ended() -> float:
    """CPU seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


if __name__ == "__main__":
    main()
