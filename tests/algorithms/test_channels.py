"""Advantages as a sum of channels, by numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from channel_groups import GROUP, TASK, attempt, turn

from mem1.algorithms.base import Attempt
from mem1.algorithms.channels import (
    Channels,
    MemoryLength,
    Objectives,
    Outcome,
    places,
    worked_on,
)
from mem1.algorithms.group import EPSILON, Grpo
from mem1.configuration import load_toml
from mem1.errors import UserError
from mem1.recipe.recipe import Recipe
from mem1.records import Question, Trajectory, Turn

QUICK = Path(__file__).parents[2] / "recipes" / "atlas-quick.toml"


def advantages(algorithm: Channels | Grpo, group: list[Attempt]) -> list[list[float]]:
    (found,) = algorithm.advantages([group])
    return [one.advantages_K.tolist() for one in found if one is not None]


def test_the_outcome_alone_is_grpo():
    assert advantages(Channels(channels=(Outcome(),)), GROUP) == advantages(Grpo(), GROUP)


def penalised(x: Attempt, *penalties_K: float) -> Attempt:
    return replace(x, kl_penalty_K=torch.tensor(penalties_K))


def test_penalties_of_attempts_that_earned_the_same_are_no_advantages():
    group = [penalised(attempt(1.0, (1.0,)), 0.5, 0.5), attempt(1.0, (1.0,)), penalised(attempt(1.0, (1.0,)), -2.0)]
    for scale in (True, False):
        assert Outcome(scale=scale).by_turn(group) == [[0.0, 0.0]] * 3
    overlong = [penalised(x, k) for k, x in enumerate((attempt(2.0, (1.0,)), attempt(1.0, (1.0,))))]
    assert Outcome(memory_limit=3).by_turn(overlong) == [[0.0, 0.0]] * 2  # what they would have earned differs


def test_penalties_are_subtracted_from_rewards_that_differ():
    group = [penalised(attempt(2.0, (1.0,)), 0.5, 0.75), attempt(0.0, (0.0,)), penalised(attempt(1.0, (0.0,)), 0.25)]
    # 0.75, 0 and 0.75 less their mean, 0.5
    assert Outcome(scale=False).by_turn(group) == [[0.25, 0.25], [-0.5, -0.5], [0.25, 0.25]]
    assert advantages(Channels(channels=(Outcome(),)), group) == advantages(Grpo(), group)
    few = replace(group[0].trajectory.turns[0], completion_spans={})
    group = [penalised(attempt(1.0, (1.0,), few), 0.5), penalised(attempt(1.0, (1.0,)), 0.25)]
    # the second earned nothing: 0.5 and -0.25
    assert Outcome(memory_limit=3, scale=False).by_turn(group) == [[0.375], [-0.375] * 2]


def test_an_attempt_whose_memory_is_too_long_has_earned_nothing():
    short = replace(turn("search", "Alvex"), completion_spans={"state": (0, 2), "action": (4, 6)})
    long = turn("search", "Alvex")  # four tokens
    group = [attempt(1.0, (1.0,), short, short), attempt(1.0, (1.0,), short, long)]
    assert Outcome(memory_limit=4).by_turn(group) == [[0.0, 0.0], [0.0, 0.0]]
    first, second = Outcome(memory_limit=3, scale=False).by_turn(group)
    assert (first, second) == ([0.5, 0.5], [-0.5, -0.5])


def test_each_question_is_compared_by_itself_and_lands_on_the_turns_that_work_on_it():
    turns = turn("search", "Alvex"), turn("search", "seat of Berl"), turn("answer", "x")
    right, wrong = attempt(1.0, (1.0, 0.0), *turns), attempt(1.0, (0.0, 0.0), *turns)
    first, second = Objectives().by_turn([right, wrong])
    one = 0.5 / (0.5 + EPSILON)
    # only Alvex; Alvex, whose result it reads, and Berl, which differs in nothing; both
    assert first == pytest.approx([one, one / 2, one / 2])
    assert second == pytest.approx([-one, -one / 2, -one / 2])


def test_what_is_right_about_one_question_does_not_pay_for_another():
    search_1, search_2 = turn("search", "Alvex"), turn("search", "Dora Lint")
    only_1, only_2 = attempt(1.0, (1.0, 0.0), search_1, search_2), attempt(1.0, (0.0, 1.0), search_1, search_2)
    assert Outcome().by_turn([only_1, only_2]) == [[0.0, 0.0], [0.0, 0.0]]
    (a, _), (b, _) = Objectives().by_turn([only_1, only_2])
    assert (a, b) == pytest.approx((0.99980004, -0.99980004))


def test_an_attempt_that_measured_nothing_got_nothing_right():
    assert Objectives().by_turn([attempt(0.0, ()), attempt(0.0, (0.0, 0.0))]) == [[0.0, 0.0]] * 2
    (without, _), (right, _) = Objectives().by_turn([attempt(0.0, ()), attempt(1.0, (1.0, 0.0))])
    assert without < 0 < right


@pytest.mark.parametrize(
    ("turns", "worked"),
    [
        ((turn("search", "Alvex 's founder"), turn("answer", "x")), [[0], [0, 1]]),
        ((turn("search", "Alvexes"), turn("search", "BERL and Alvex")), [[0, 1], [0, 1]]),
        ((turn("search", "Dora Lint"), turn("search", "weather")), [[1], [1]]),
        ((turn("search", "Alvex"), turn("search", "x"), turn("search", "y")), [[0], [0], [0, 1]]),
        ((turn("search", "the berl of Dora"), turn("answer", "Alvex")), [[1], [0, 1]]),
        ((turn("search", "Dora , not Lint"), turn("search", "Lint")), [[0, 1], [0, 1]]),
        ((turn("search", "Berl"), turn("summary", "Alvex"), turn("search", "x")), [[1], [1], [1]]),
        ((turn("search", "Alvex"), turn("summary", "s"), turn("search", "Berl")), [[0], [0], [0, 1]]),
    ],
)
def test_the_questions_that_a_turn_works_on(turns: tuple[Turn, ...], worked: list[list[int]]):
    assert worked_on(Trajectory(turns=turns, task=TASK)) == worked


def test_a_query_names_a_title_in_a_script_without_blanks():
    titles = ("\u4e2d\u56fd", "\u79d8\u9c81")
    questions = tuple(Question(id=title, text="?", answers=("x",), titles=(title,)) for title in titles)
    task = replace(TASK, questions=questions)
    assert worked_on(Trajectory(turns=(turn("search", "\u4e2d\u56fd\u7684\u9996\u90fd"),), task=task)) == [[0]]


def test_where_the_environment_decides_what_is_read_a_turn_works_on_what_it_reads():
    questions = tuple(replace(question, read_at=at) for question, at in zip(TASK.questions, (2, 3), strict=True))
    turns = (turn("search", "Alvex"), turn("search", "Alvex"), turn("search", "x"), turn("answer", "notes"))
    assert worked_on(Trajectory(turns=turns, task=replace(TASK, questions=questions))) == [[], [0], [1], []]


def test_only_attempts_that_were_right_pay_for_the_length_of_their_memory():
    short = replace(turn("search", "Alvex"), completion_spans={"state": (0, 1), "action": (4, 6)})
    group = [attempt(1.0, (1.0,), short), attempt(1.0, (1.0,), turn("answer", "x")), attempt(0.0, (0.0,), short)]
    one = 1.5 / (1.5 + EPSILON)  # 1 and 4 tokens
    assert MemoryLength().by_turn(group) == [[pytest.approx(one)], [pytest.approx(-one)], [0.0]]
    assert MemoryLength(least=0.0).by_turn(group)[2][0] > 0


def remembering(*lengths: int, em: tuple[float, ...] = (1.0, 1.0)) -> Attempt:
    """Turns with so many tokens of memory, two of which state and note share where there are as many."""
    spans = [{"state": (0, n)} | ({"note": (n - 2, n)} if n > 1 else {}) for n in lengths]
    turns = [replace(turn("search", "Alvex"), completion_spans=one) for one in spans]
    return attempt(sum(em), em, *turns)


def test_the_length_of_a_memory_is_a_mean_over_turns_and_counts_each_token_once():
    # 2, 4 and 0 tokens a turn: less their mean, 0, -2 and 2; in all they write 6, 4 and 0
    group = [remembering(1, 2, 3), remembering(4), remembering(0, 0)]
    assert MemoryLength(scale=False).by_turn(group) == [[0.0] * 3, [-2.0], [2.0, 2.0]]
    of_all = MemoryLength(scale=False, least=0.0).by_turn([*group, remembering(6, em=(0.0, 0.0))])
    assert of_all == [[1.0] * 3, [-1.0], [3.0, 3.0], [-3.0]]


def test_least_is_asked_of_the_mean_over_questions():
    group = [remembering(1, em=(1.0, 1.0)), remembering(3, em=(1.0, 0.0)), remembering(5, em=(0.0, 0.0))]

    def taking_part(least: float) -> list[bool]:
        return [bool(of_one[0]) for of_one in MemoryLength(least=least).by_turn(group)]

    assert taking_part(1.0) == taking_part(0.51) == [False] * 3  # the first is alone
    assert taking_part(0.5) == [True, True, False]  # the best question of the second would do for more, the worst not
    assert MemoryLength(scale=False, least=0.5).by_turn(group) == [[1.0], [-1.0], [0.0]]


@pytest.mark.parametrize("rewards", [(1.0, 0.0), (0.0, 0.0)])
def test_who_is_alone_or_missing_is_compared_with_nobody(rewards: tuple[float, ...]):
    assert MemoryLength().by_turn([attempt(r, (r,)) for r in rewards]) == [[0.0, 0.0]] * 2


def test_channels_are_summed_each_where_it_lands():
    algorithm = Channels(channels=(Outcome(scale=False), MemoryLength(weight=2.0, scale=False, least=0.0)))
    short = replace(turn("answer", "x"), completion_spans={"state": (0, 1), "action": (4, 6)})
    first, second = advantages(algorithm, [attempt(1.0, (1.0,), turn("search", "Alvex"), short), attempt(0.0, (0.0,))])
    # outcome: +-0.5 on all; 2.5 and 4 tokens of memory a turn, less their mean: +-0.75, twice
    assert first == [0.5 + 1.5] * 4 + [0.5] * 2 + [0.5 + 1.5] + [0.5] * 5
    assert second == ([-0.5 - 1.5] * 4 + [-0.5] * 2) * 2


def test_the_tokens_of_a_turn_by_what_they_are():
    made = turn("search", "Alvex")
    assert (places(made, "memory"), places(made, "action"), len(places(made, "all"))) == ([0, 1, 2, 3], [4, 5], 6)
    assert places(replace(made, action="summary"), "memory") == list(range(6))


def test_a_recipe_names_channels_with_their_settings():
    given = ["rl.algorithm={name='channels', channels=[{name='objectives'}, {name='memory_length', weight=0.1}]}"]
    algorithm = load_toml(QUICK, Recipe, given).rl.algorithm  # type: ignore[union-attr]
    assert algorithm == Channels(channels=(Objectives(), MemoryLength(weight=0.1)))
    with pytest.raises(UserError, match="channels"):
        load_toml(QUICK, Recipe, ["rl.algorithm={name='channels', channels=[]}"])
    with pytest.raises(
        UserError,
        match=r"unknown channel 'length' \(did you mean memory_length\?\); known: outcome, objectives, memory_length\.",
    ):
        load_toml(QUICK, Recipe, ["rl.algorithm={name='channels', channels=[{name='length'}]}"])


def test_an_attempt_without_turns_has_no_advantages():
    empty = Attempt(trajectory=Trajectory(turns=(), task=TASK, reward=0.0), shaped_reward=0.0)
    every = Channels(channels=(Outcome(), Objectives(), MemoryLength()))
    assert advantages(every, [empty, GROUP[0]])[0] == []


def test_the_task_must_be_known():
    with pytest.raises(ValueError, match="has no task"):
        worked_on(Trajectory(turns=(turn("search", "x"),)))
