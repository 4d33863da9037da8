"""What chance allows in errands, and how fast they are made.

python benchmarks/errand.py                  # a table: level, goods, exact match of a shopper without memory, in theory
python benchmarks/errand.py --shoppers 200   # and what the scripted shoppers score on 200 tasks of each cell
python benchmarks/errand.py --forgets 2000   # 2,000 tasks per level and one or two goods: score against chance
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import mean, stdev

from machine import commit

from mem1.envs.base import Action
from mem1.envs.webshop.errand import SLACKS, ErrandEnvironment, ErrandTasks
from mem1.envs.webshop.thrift import Shopper
from mem1.protocol import ACT, PAPER, extended
from mem1.records import Task

OBJECTIVES = (1, 2, 4, 8, 16)
FEW = (1, 2)
"""Goods of the tasks on which a score is compared with chance; with more, chance is little and a task takes long."""
TIMED = 4000
"""Tasks that are made for the last column."""


def shop(environment: ErrandEnvironment, task: Task, shopper: Shopper) -> float:
    """The share of the goods that a shopper buys right."""
    notes, page, answer, history = "", "", "", list[tuple[str, str]]()
    for left in range(task.turn_limit, 0, -1):
        move = shopper.move(f"{task.prompt}\n{notes}\n{left} turns left {page}")
        (seen,) = environment.observe([Action(task, ACT, move.act, tuple(history))])
        notes, page, answer = move.notes, seen.text, seen.answer or answer
        history.append((ACT, move.act))
        if seen.ended:
            break
    em = environment.score(task, answer).metrics["em"]
    assert isinstance(em, tuple)
    return mean(em)


def cells(level: int, objectives: int, shoppers: int) -> Sequence[str]:
    source = ErrandTasks(level=level).source("evaluation", extended(PAPER, ACT))
    environment = source.environment  # the shop is built before the clock starts
    start = time.perf_counter()
    tasks = source.tasks(objectives=objectives, count=TIMED, seed=0)
    speed = TIMED / (time.perf_counter() - start)
    scored = [
        f"{mean(shop(environment, task, shopper(n)) for n, task in enumerate(tasks[:shoppers])):.2f}"
        for shopper in (lambda n: Shopper(), lambda n: Shopper(memory=0, seed=n))
        if shoppers
    ]
    return [str(level), str(objectives), f"{mean(map(environment.chance, tasks[:500])):.2f}", *scored, f"{speed:,.0f}"]


def forgetting(level: int, objectives: int, count: int) -> list[tuple[float, float]]:
    """Per task, the score of a shopper without memory, and what chance allows."""
    source = ErrandTasks(level=level).source("evaluation", extended(PAPER, ACT))
    environment, tasks = source.environment, source.tasks(objectives=objectives, count=count, seed=0)
    return [
        (shop(environment, task, Shopper(memory=0, seed=n)), environment.chance(task)) for n, task in enumerate(tasks)
    ]


def compared(level: str, objectives: str, played: Sequence[tuple[float, float]]) -> str:
    """A row of the table."""
    scores, chances = zip(*played, strict=True)
    error = stdev(score - chance for score, chance in played) / len(played) ** 0.5
    numbers = (mean(scores), mean(chances), mean(scores) - mean(chances), error)
    return " | ".join([level, objectives, f"{len(played):,}", *(f"{number:.4f}" for number in numbers)])


def compare(count: int) -> None:
    """Print how far the score of a shopper without memory is from chance, per cell and over all tasks."""
    print(" | ".join(["level", "goods", "tasks", "score", "chance", "difference", "standard error"]))
    everything: list[tuple[float, float]] = []
    for level in SLACKS:
        for objectives in FEW:
            played = forgetting(level, objectives, count)
            print(compared(str(level), str(objectives), played), flush=True)
            everything += played
    print(compared("all", "", everything))
    print(f"commit {commit()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shoppers", type=int, default=0, metavar="TASKS", help="tasks per cell for scripted shoppers")
    parser.add_argument("--forgets", type=int, default=0, metavar="TASKS", help="only compare a score with chance")
    arguments = parser.parse_args()
    if arguments.forgets:
        compare(arguments.forgets)
        return
    played = ["remembers", "forgets"] if arguments.shoppers else []
    print(" | ".join(["level", "goods", "chance", *played, "tasks per second"]))
    for level in SLACKS:
        for objectives in OBJECTIVES:
            print(" | ".join(cells(level, objectives, arguments.shoppers)), flush=True)


if __name__ == "__main__":
    main()
