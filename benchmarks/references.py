"""How often a policy, sampled, gets each kind of reference right: what reinforcement learning has to build on.

    python benchmarks/references.py POLICY [--memory notes] [--set tasks.labels=128 ...]

Tasks are chains of two questions, shuffled. A kind is the places of the two questions: "3 to 1" is a third question
that asks about the answer to the first. Right: the exact answer to the question that refers. Also printed: the share
given that the answer which it refers to is right; and, for memories with notes, how often the other answer is recalled,
by whether its note is in sight. Intervals (95 %, Wilson) take references as independent.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from machine import commit, hardware
from run_results import mean_cell

from mem1.configuration import load_toml
from mem1.evaluation.runner import evaluate
from mem1.memory import Kept, MemoryPolicy, memory_policy, notebook
from mem1.memory.notes import read_note
from mem1.memory.recall import notes_out_of_sight
from mem1.policy.policy import load_policy
from mem1.policy.protocol import resolve
from mem1.protocol import RECALL
from mem1.recipe.recipe import Recipe
from mem1.records import Trajectory, Turn
from mem1.tasks.atlas.expert import UNKNOWN
from mem1.training.train import make_rollout

_BEGUN = re.compile(r"now Q(\d+) (?:unknown )?answer Q(\d+)")
RECIPE = Path(__file__).parents[1] / "recipes" / "compare-atlas" / "train.toml"


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    settings = ["tasks.composition=chain", f"memory={given.memory}", "workers=1"]
    config = load_toml(RECIPE, Recipe, [*settings, f"evaluation.temperature={given.temperature}", *given.set])
    tags = resolve(config).tags
    source = config.tasks.source("train", tags)
    rollout = make_rollout(config, load_policy(given.policy), source)
    print(f"commit {commit()}; {hardware()}; {given.policy}, {given.tasks} tasks of N = {given.objectives}\n")
    asked = config.evaluation.model_copy(update={"objectives": (given.objectives,), "tasks": given.tasks})
    _, attempts = evaluate(rollout, source, asked, policy=given.policy)
    right: dict[tuple[int, int], list[float]] = defaultdict(list)
    known: dict[tuple[int, int], list[float]] = defaultdict(list)
    for attempt in attempts[given.objectives]:
        assert attempt.task is not None
        em = attempt.per_objective("em") or (0.0,) * given.objectives
        for place, question in enumerate(attempt.task.questions, start=1):
            for other in question.depends_on:
                right[place, other].append(em[place - 1])
                if em[other - 1] == 1:
                    known[place, other].append(em[place - 1])
    print("| reference | tasks | right | right, if the other answer is |\n|---|--:|--:|--:|")
    for kind in sorted(right):
        given_other = mean_cell([known[kind]]) if known[kind] else "none"
        print(f"| {kind[0]} to {kind[1]} | {len(right[kind])} | {mean_cell([right[kind]])} | {given_other} |")
    if tags.note is not None:
        print_by_note(attempts[given.objectives], memory_policy(config.memory))


def print_by_note(attempts: Sequence[Trajectory], memory: MemoryPolicy) -> None:
    """By where the note of the other answer is when a question is begun: how often it is recalled, and right."""
    found: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for attempt in attempts:
        assert attempt.task is not None
        em = attempt.per_objective("em") or (0.0,) * attempt.task.objectives
        labels = attempt.task.numbers
        needs = {labels[i]: labels[q.depends_on[0] - 1] for i, q in enumerate(attempt.task.questions) if q.depends_on}
        for position, turn in enumerate(attempt.turns):
            begun = _BEGUN.search(turn.state)
            if begun is None or needs.get(int(begun[1])) != int(begun[2]):
                continue
            label = int(begun[1])
            other = f"Q{needs.pop(label)}"  # the first time alone
            recalled = turn.action == RECALL and turn.content == other
            found[place_of(other, attempt.turns[: position + 1], memory)][recalled].append(em[labels.index(label)])
    print("\n| the note | references | recalled | right, if recalled | right, if not |\n|---|--:|--:|--:|--:|")
    for place, by_recall in sorted(found.items()):
        asked, kept = by_recall[True], by_recall[False]
        share = mean_cell([[1.0] * len(asked) + [0.0] * len(kept)])
        cells = [mean_cell([of_kind]) if of_kind else "none" for of_kind in (asked, kept)]
        print(f"| {place} | {len(asked) + len(kept)} | {share} | {' | '.join(cells)} |")


def place_of(key: str, turns: Sequence[Turn], memory: MemoryPolicy) -> str:
    """Where the note with this key is in the context of the last turn, or in that turn itself."""
    value = next((note.value for note in notebook(turns) if note.key == key), None)
    if value in (None, UNKNOWN):
        return "never written" if value is None else "says that it is unknown"
    *earlier, newest = turns
    seen = [*(memory.select(earlier).kept if earlier else ()), Kept(turn=newest)]
    hidden = {read_note(note.text).key for note in notes_out_of_sight(turns, seen)}
    return "out of sight" if key in hidden else "in sight"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("policy", help="folder of a policy")
    made.add_argument("--memory", default="notes")
    made.add_argument("--objectives", type=int, default=4)
    made.add_argument("--tasks", type=int, default=400)
    made.add_argument("--temperature", type=float, default=1.0)
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the recipe to change")
    return made


if __name__ == "__main__":
    main()
