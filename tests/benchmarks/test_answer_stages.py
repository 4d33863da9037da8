"""Where answers are lost, in attempts written by hand and by experts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from answer_stages import AnswerStages, answer_stages
from worlds import CODEC, SMALL, replay, rollout, task

from mem1.engines.base import Sampling
from mem1.envs.search import SearchEnvironment
from mem1.protocol import PAPER
from mem1.records import Passage, Trajectory
from mem1.tasks.atlas import Expert

FACT = "Tila Brirkov 's mayor is Bala Brand ."
ASK = "<IS> now Q1 </IS> <query> mayor </query>"
KNOWS = "<IS> Q1 Bala Brand now Q2 </IS> <query> seat </query>"
FORGETS = "<IS> now Q2 </IS> <query> seat </query>"
ANSWERS = "<IS> Q1 Bala Brand </IS> <answer> Q1 Bala Brand </answer>"
MISREADS = "<IS> Q1 Bala Brand </IS> <answer> Q1 Bala </answer>"
GUESSES = "<IS> done </IS> <answer> Q1 Bala Brand </answer>"
GIVES_UP = "<IS> done </IS> <answer> Q1 unknown </answer>"


class Mayors:
    """A search engine that knows only about mayors."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [[(Passage("0", "", FACT), 1.0)] if query == "mayor" else [] for query in queries]


def attempt(*completions: str, context: str = "constant") -> Trajectory:
    run = rollout(replay(*completions), SearchEnvironment({"": Mayors()}, style="bare"), context=context)
    (made,) = run([task("Bala Brand", turns=9)], sampling=Sampling())
    return made


def stages(*completions: str, context: str = "constant") -> list[int]:
    """Of one question: found, captured, retained, read, right."""
    found = answer_stages([attempt(*completions, context=context)], CODEC.decode)
    assert found.asked == 1
    return [found.found, found.captured, found.retained, found.read, found.right]


def test_an_answer_that_was_found_kept_and_given():
    assert stages(ASK, KNOWS, KNOWS, ANSWERS) == [1, 1, 1, 1, 1]


def test_an_answer_that_no_result_showed_is_right_but_not_read():
    assert stages(FORGETS, GUESSES) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("last", "read"), [(GUESSES, 1), (GIVES_UP, 0)])
def test_what_the_last_result_shows_need_not_be_kept(last: str, read: int):
    assert stages(ASK, last) == [1, 1, 1, read, read]


def test_what_was_kept_and_not_given_is_misread():
    assert stages(ASK, KNOWS, KNOWS, MISREADS) == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("context", "reached"),
    [
        ("constant", [1, 0, 0, 0, 0]),
        ("masked", [1, 0, 0, 0, 0]),
        ("window(2)", [1, 1, 0, 0, 0]),
        ("full", [1, 1, 1, 0, 0]),
    ],
)
def test_what_the_policy_does_not_write_is_captured_by_a_memory_that_keeps_results(context: str, reached: list[int]):
    assert stages(ASK, FORGETS, FORGETS, GIVES_UP, context=context) == reached


@pytest.mark.parametrize(
    ("context", "reached"),
    [("constant", [1, 1, 0, 0, 0]), ("masked", [1, 1, 1, 0, 0]), ("full", [1, 1, 1, 0, 0])],
)
def test_what_a_later_state_drops_is_not_retained_unless_the_memory_keeps_the_earlier_one(
    context: str, reached: list[int]
):
    assert stages(ASK, KNOWS, FORGETS, FORGETS, GIVES_UP, context=context) == reached


def test_an_attempt_without_a_task_is_refused():
    with pytest.raises(ValueError, match="has no task"):
        answer_stages([Trajectory(turns=())], CODEC.decode)


def test_experts_lose_nothing():
    source = SMALL.source("train", PAPER)
    tasks = source.tasks(objectives=4, count=5, seed=0)
    attempts = rollout(Expert(tags=PAPER), source.environment)(tasks, sampling=Sampling())
    assert answer_stages(attempts, CODEC.decode).shares == {
        "found": 1.0, "captured": 1.0, "retained": 1.0, "read": 1.0, "em": 1.0
    }  # fmt: skip


def test_shares_multiply_to_what_is_read():
    made = AnswerStages(asked=10, found=8, captured=6, retained=3, read=3, right=4)
    assert made.shares == {"found": 0.8, "captured": 0.75, "retained": 0.5, "read": 1.0, "em": 0.4}
    nothing = AnswerStages(asked=0, found=0, captured=0, retained=0, read=0, right=0)
    assert set(nothing.shares.values()) == {None}
