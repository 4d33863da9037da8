"""Rewards and metrics that others compute: any number, and a clear error for anything else."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from worlds import SAMPLING, replay, rollout, task

from mem1.endpoint.runs import read
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.records import Ended, Question, Trajectory, trajectory_to_json
from mem1.scoring import measurement, number

ANSWER = "<IS> done </IS> <answer> Q1 city </answer>"
NUMBERS = [
    *(1, 0.5, True, -2.0, Decimal("0.5"), Fraction(1, 2)),
    *(np.float32(0.5), np.float64(0.5), np.int64(3), np.bool_(True), np.array(0.5)),
    *(torch.tensor(0.5), torch.tensor(3), torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)),
]
NOT_NUMBERS = [
    *(None, "0.5", b"1", "nan", [], [1.0], {}, object(), 1j, math.nan, math.inf, -math.inf, 10**400),
    *(np.float32("nan"), np.array([0.5]), np.array("0.5"), torch.tensor([0.5]), torch.tensor(math.inf)),
]


@dataclass
class Rewarding:
    """An environment that scores every attempt like this."""

    reward: Any = 0.0
    metric: Any = 0.0

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        return [Observation(text="a") for _ in actions]

    def score(self, task: Any, answer: str) -> Outcome:
        return Outcome(self.reward, {"right": self.metric})


def attempted(environment: Rewarding, reward: Any = None, golds: Sequence[str] = ("city",)) -> Trajectory:
    """The second attempt at a task of a question per gold answer; `reward`: what tasks.reward returns."""
    made = rollout(replay(ANSWER, ANSWER), environment)
    made = replace(made, reward=None if reward is None else lambda task, attempt: reward[0])
    return made([task(*golds), task(*golds)], sampling=SAMPLING)[1]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_a_number_of_any_library_is_a_reward_and_a_metric(value: Any):
    own = float(value.item() if hasattr(value, "item") else value)
    for found in (attempted(Rewarding(reward=value)), attempted(Rewarding(), [value])):
        assert type(found.reward) in (int, float) and found.reward == own
        json.dumps(trajectory_to_json(found))
    assert attempted(Rewarding(metric=value)).metrics == {"right": own}
    assert read(Outcome(value)).reward == read(value).reward == own


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: type(value).__name__)
def test_anything_else_is_an_error_that_names_task_and_attempt(value: Any):
    with pytest.raises(ValueError, match="not a finite number"):
        number(value)
    where = r"of task 't', attempt 0, is .*, not a finite number \(the answer is 'Q1 city'\)"
    with pytest.raises(UserError, match=f"the reward {where}"):
        attempted(Rewarding(reward=value))
    with pytest.raises(UserError, match=f"the reward by tasks.reward {where}"):
        attempted(Rewarding(), [value])
    found = read(Outcome(value)).failed
    assert found is not None and found[0] is Ended.AGENT_FAILED and "not a finite number" in found[1]


def test_the_attempt_that_is_named_is_the_one_whose_reward_is_none():
    made = rollout(replay(ANSWER, ANSWER), Rewarding())
    made = replace(made, reward=lambda task, attempt: None if attempt.attempt == 1 else 1.0)
    with pytest.raises(UserError, match="task 't', attempt 1, is None, not a finite number"):
        made([task("city"), task("city")], sampling=SAMPLING)


@pytest.mark.parametrize("value", [(0.5, 1), [0.5, 1], np.array([0.5, 1.0]), torch.tensor([0.5, 1.0])], ids=repr)
def test_a_metric_may_have_a_number_for_each_question(value: Any):
    assert measurement(value) == (0.5, 1.0)
    assert attempted(Rewarding(metric=value), golds=("city", "mayor")).metrics == {"right": (0.5, 1.0)}


@pytest.mark.parametrize(("golds", "value"), [(("city",), (0.5, 1)), (("city", "mayor"), [1.0]), (("city",), ())])
def test_a_metric_with_a_number_too_many_or_too_few_is_named_at_once(golds: Sequence[str], value: Any):
    where = rf"'right' of task 't', attempt 0, is {len(value)} numbers for {len(golds)} objectives, not one for each"
    with pytest.raises(UserError, match=where):
        attempted(Rewarding(metric=value), golds=golds)
    unanswered = Trajectory(turns=(), ended=Ended.OUT_OF_TURNS, task=task(*golds))
    made = rollout(replay(), Rewarding())
    assert made.scored(unanswered, Outcome(0.0, {"right": ()})).metrics == {"right": ()}


@pytest.mark.parametrize("value", [None, "much", math.nan, [0.5, None], np.array([math.nan])], ids=repr)
def test_a_metric_that_is_no_number_is_named_too(value: Any):
    with pytest.raises(UserError, match=r"the metric 'right' of task 't', attempt 0, is .*, not a finite number"):
        attempted(Rewarding(metric=value))
    found = read(Outcome(1.0, {"right": value})).failed
    assert found is not None and "a metric 'right' that is" in found[1]


def only_task(task: Any) -> float:
    return 1.0


class Alone:
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"reward": f"{__name__}:only_task"},
            r"only_task' is called with \(task, trajectory\), which it does not take",
        ),
        ({"environment": f"{__name__}:Alone"}, r"Alone' is called with \(environment\), which it does not take"),
    ],
)
def test_what_cannot_be_called_as_it_will_be_is_named(keys: dict[str, str], message: str, monkeypatch: Any):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    config = AtlasTasks(worlds=1, **keys)
    with pytest.raises(UserError, match=message):
        _ = config.reward_function
        config.wrap_environment(Rewarding())


def test_a_question_of_answers_in_a_list_is_that_of_a_tuple():
    assert Question(id="q", text="Who?", answers=["a"]) == Question(id="q", text="Who?", answers=("a",))  # type: ignore
