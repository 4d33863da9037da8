"""The suites that ship: tasks of English worlds, solved by the script with a memory, and cheap enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mem1.bench.policies import script_player
from mem1.bench.running import run
from mem1.bench.scripted import estimates, scripted_player
from mem1.bench.suites import SUITES, Cell, Drawing, Suite

QUICK = SUITES["quick"]
ENGLISH = tuple(family for family in QUICK.families if family != "errand")
MOST_TOKENS = 2_000_000


def cell_of(family: str, objectives: int, tasks: int = 2) -> Suite:
    cell = Cell(family=family, objectives=objectives, tasks=tasks)
    return replace(QUICK, cells=(cell,))


def test_another_seed_has_other_worlds():
    suite = cell_of("chain", 2)
    worlds = [{task.corpus for task in Drawing(suite, seed=seed).of(suite.cells[0]).tasks} for seed in (0, 1, 2)]
    assert not worlds[0] & worlds[1] and not worlds[1] & worlds[2]


@pytest.mark.parametrize("family", QUICK.families)
def test_the_script_is_right_under_every_memory_of_a_chat_agent(family: str):
    suite = cell_of(family, 2 if family == "errand" else 4)
    drawn = Drawing(suite, seed=0, native=True).of(suite.cells[0])
    player = scripted_player("script", state=None)
    for memory in ("full", "masked(2)", "window(1)", "fold(2)", "notes"):
        found = [played.attempt for played in player.attempts(drawn, drawn.tasks, memory, lambda: False)]
        assert [(one.accuracy, one.ended) for one in found] == [(1.0, "answered")] * 2, (family, memory)


def test_in_tags_a_memory_of_some_tokens_keeps_what_none_forgets(tmp_path: Path):
    suite = cell_of("independent", 8, tasks=4)
    accuracies = []
    for state in (0, 50, None):
        made = script_player("script", state=state)
        result = run(lambda _, made=made: made, suite, ["constant"], seed=0, folder=tmp_path / str(state))
        accuracies.append(sum(one.accuracy for one in result.attempts) / 4)
    none, fifty, unlimited = accuracies
    assert none < 0.5 < fifty <= unlimited == 1.0


@pytest.mark.parametrize("family", ENGLISH)
def test_the_largest_cells_can_be_drawn(family: str):
    largest = max((cell for cell in SUITES["full"].cells if cell.family == family), key=lambda cell: cell.objectives)
    suite = replace(QUICK, cells=(replace(largest, tasks=1),))
    (task,) = Drawing(suite, seed=0).of(suite.cells[0]).tasks
    assert task.objectives == largest.objectives >= 64


def test_quick_reads_at_most_two_million_tokens_where_everything_is_kept():
    """Estimated for all families but errands, which are a seventh of it."""
    (found,) = estimates(QUICK.only(ENGLISH), ["full"], seed=0)
    assert 1_000_000 < found.input < 0.85 * MOST_TOKENS


def test_quick_tells_fifty_tokens_of_notes_from_two_hundred(tmp_path: Path):
    right = []
    for state in (50, 200):
        made = script_player("script", state=state)
        suite = QUICK.only(["independent", "chain"])
        result = run(lambda _, made=made: made, suite, ["constant"], seed=0, folder=tmp_path / str(state))
        right.append(sum(sum(one.right) for one in result.attempts))
    assert right[0] < 0.95 * right[1] == 0.95 * 272
