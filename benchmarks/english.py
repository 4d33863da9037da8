"""How fast worlds in English are made: tasks a second, passages a second, and a digest that every machine must print.

    python benchmarks/english.py
    python benchmarks/english.py --passages 50 > passages.md        passages to read

The tasks are those of the standard suite of `mem1 bench` without the shop, with their worlds; then many independent
ones in the same worlds. Passages are what the search of a world needs besides. One thread, modules imported before.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import textwrap
import time
from collections.abc import Sequence

from machine import commit, hardware

from mem1.bench.suites import suite_of
from mem1.protocol import PAPER
from mem1.tasks.english.frames import notice_text, write
from mem1.tasks.english.world import make_english_world

ENGLISH = ("independent", "chain", "shared", "constraint", "update", "budget")
"""The families that have worlds in English."""
SIZES = range(1, 9)
EACH = 1_200
"""Independent tasks of each size."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    if given.passages:
        print(sample(given.passages))
        return
    suite = suite_of("standard")
    sources = [(cell, suite.config(cell, 0, False).source("evaluation", PAPER)) for cell in suite.only(ENGLISH).cells]
    gc.freeze()  # else the first collection looks at all of torch, which only `hardware` needs
    began = time.process_time()
    tasks = [t for cell, source in sources for t in source.tasks(objectives=cell.objectives, count=cell.tasks, seed=0)]
    used = time.process_time() - began
    independent = sources[0][1]
    began = time.process_time()
    many = sum(len(independent.tasks(objectives=n, count=EACH, seed=1)) for n in SIZES)
    used_many = time.process_time() - began
    began = time.process_time()
    written = sum(len(write(make_english_world(seed))) for seed in range(4))
    passages = written / (time.process_time() - began)
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.prompt}{[question.answers for question in task.questions]}".encode())
    print(f"{len(tasks):,} tasks with {len({task.corpus for task in tasks})} worlds, {len(tasks) / used:,.0f} a second")
    print(f"{many:,} more tasks of the family independent, {many / used_many:,.0f} a second")
    print(f"{written:,} passages, {passages:,.0f} a second")
    print(f"digest {digest.hexdigest()[:16]}; commit {commit()}; {hardware()}")


def sample(count: int) -> str:
    """Passages of one world, as Markdown, with the corrections below them."""
    world = make_english_world(0, updates=1)
    shown = []
    for written in write(world)[:count]:
        title = written.passage.title
        notice = f" *{notice_text(world.notices[title])}*" if title in world.notices else ""
        shown.append(textwrap.fill(f"**{title}.** {written.passage.text}{notice}", 118, break_on_hyphens=False))
    return "\n\n".join(shown)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--passages", type=int, default=0, metavar="N", help="only print N passages of one world")
    return made


if __name__ == "__main__":
    main()
