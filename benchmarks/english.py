"""How fast worlds in English are made: tasks a second, passages a second, and a digest that every machine must print.

    python benchmarks/english.py
    python benchmarks/english.py --passages 50 > passages.md        passages to read

Tasks are those of the standard suite of `mem1 bench` without the shop, worlds included; passages are what the search of
a world needs besides. One thread.
"""

from __future__ import annotations

import argparse
import hashlib
import textwrap
import time
from collections.abc import Sequence

from machine import commit, hardware

from mem1.bench.suites import suite_of
from mem1.protocol import PAPER
from mem1.tasks.english.wording import notice_text, write
from mem1.tasks.english.world import make_english_world


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    if given.passages:
        print(sample(given.passages))
        return
    suite = suite_of("standard")
    cells = [cell for cell in suite.cells if cell.family != "errand"]
    digest, count, began = hashlib.sha256(), 0, time.process_time()
    for cell in cells:
        source = suite.config(cell, 0, False).source("evaluation", PAPER)
        for task in source.tasks(objectives=cell.objectives, count=cell.tasks, seed=0):
            digest.update(f"{task.prompt}{[question.answers for question in task.questions]}".encode())
            count += 1
    used = time.process_time() - began
    began = time.process_time()
    written = sum(len(write(make_english_world(seed))) for seed in range(4))
    passages = written / (time.process_time() - began)
    print(f"{count:,} tasks, {count / used:,.0f} a second; {passages:,.0f} passages a second")
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
