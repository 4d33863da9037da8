"""What a channel needs and attempts do not have is said before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from channel_groups import GROUP, attempt
from worlds import SMALL

from mem1.algorithms.base import Attempt
from mem1.algorithms.channels import Channels, MemoryLength, Objectives
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.planning.preflight import dry_run
from mem1.policy.policy import make_policy
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import UNSCORED, Ended, Question, Task
from mem1.training.train import make_stages

GAMES = {"kind": "gymnasium", "id": "text_games:Games", "actions": ["take one", "take two"], "prompt": "plain"}
SUMS = {"kind": f"{__name__}:Sums"}


class Sums:
    """Two questions a task; what it measures of each is called `right`, and it measures an answer alone."""

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        questions = tuple(Question(id=str(n), text=f"What is {n} and {n}?", answers=(str(2 * n),)) for n in range(2))
        return [Task(id=f"{seed}-{n}", questions=questions, prompt="Q1 a Q2 b", turn_limit=3) for n in range(count)]

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        return [Observation(text="a") for _ in actions]

    def score(self, task: Task, answer: str) -> Outcome:
        right = tuple(float(q.answers[0] in answer) for q in task.questions)
        return Outcome(sum(right), {"right": right, "all": float(all(right))} if answer else {})


def recipe(tasks: Any, channels: list[dict[str, Any]], name: str = "channels", **more: Any) -> Recipe:
    given: dict[str, Any] = {"name": name, "channels": channels}
    return Recipe(
        model=ModelConfig(
            new=TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48, tokenizer="bpe", vocab_size=300)
        ),
        tasks=tasks,
        rl=Rl(
            curriculum=(Phase(steps=1, objectives=(2,) if tasks is SUMS else (1,)),),
            tasks_per_step=1,
            group_size=2,
            algorithm=given,  # type: ignore[arg-type]
        ),
        **more,
    )


def begin(config: Recipe) -> None:
    """What comes before the first step."""
    make_stages(config, make_policy(config))


@pytest.mark.parametrize(
    ("tasks", "channel", "said"),
    [
        (
            GAMES,
            {"name": "objectives"},
            "objectives reads the metric 'em', .*; they have: steps, score. Set its metric",
        ),
        (GAMES, {"name": "memory_length"}, "memory_length reads the metric 'em', .*; they have: steps, score"),
        (SUMS, {"name": "objectives"}, "objectives reads the metric 'em', .*; they have: right, all"),
        (
            SUMS,
            {"name": "objectives", "metric": "all"},
            "needs the metric 'all' of each question, .* has 2 and 1 of it",
        ),
        (SUMS, {"name": "memory_length", "metric": "em"}, "they have: right, all"),
        (SMALL, {"name": "objectives", "metric": "exact"}, "they have: em, f1"),
    ],
)
def test_a_metric_that_is_not_measured_is_refused_before_sampling_with_those_that_are(tasks, channel, said):
    if tasks is GAMES:
        pytest.importorskip("gymnasium")
    with pytest.raises(UserError, match=said):
        begin(recipe(tasks, [{"name": "outcome"}, channel]))


@pytest.mark.parametrize(
    ("tasks", "channel"),
    [
        (GAMES, {"name": "objectives", "metric": "score"}),
        (GAMES, {"name": "memory_length", "metric": "steps", "least": 0.0}),
        (SUMS, {"name": "objectives", "metric": "right"}),
        (SUMS, {"name": "memory_length", "metric": "all"}),
        (SMALL, {"name": "objectives", "metric": "f1"}),
    ],
)
def test_what_is_measured_is_taken_also_where_only_an_answer_shows_it(tasks, channel):
    if tasks is GAMES:
        pytest.importorskip("gymnasium")
    begin(recipe(tasks, [{"name": "outcome"}, channel]))


def test_ppo_is_paid_by_channels_with_the_same_needs():
    pytest.importorskip("gymnasium")
    channels = [{"name": "outcome"}, {"name": "memory_length"}]
    with pytest.raises(UserError, match="they have: steps, score"):
        begin(recipe(GAMES, channels, name="ppo"))


def test_a_dry_run_says_it_and_rehearses_the_rest(tmp_path: Path):
    pytest.importorskip("gymnasium")
    for channel, ready in (({"name": "objectives"}, False), ({"name": "objectives", "metric": "steps"}, True)):
        made = dry_run(recipe(GAMES, [channel]), out=tmp_path / "run")
        (check,) = (check for check in made.checks if check.name == "tasks")
        assert check.ok is ready and ("they have: steps, score" in check.detail) is not ready
        assert "rl" in made.rehearsed.stages


def ended(ending: Ended, **metrics: Any) -> Attempt:
    made = attempt(0.0, ())
    return replace(made, trajectory=replace(made.trajectory, ended=ending, metrics=metrics))


def test_an_agent_that_measures_other_things_is_found_out_by_the_first_group_that_answered():
    measured = ended(Ended.ANSWERED, score=1.0)
    for channel in (Objectives(), MemoryLength()):
        with pytest.raises(UserError, match="they have: score"):
            channel.by_turn([ended(Ended.OUT_OF_TURNS), measured])
    with pytest.raises(UserError, match="they have: none"):
        MemoryLength().rewards(ended(Ended.ANSWERED))
    with pytest.raises(UserError, match="has 2 and 1 of it"):
        Objectives(metric="score").by_turn([measured, measured])


@pytest.mark.parametrize("lost", [ended(Ended.OUT_OF_TURNS), ended(Ended.ANSWERED, score=0.0, **{UNSCORED: 1.0})])
def test_attempts_that_ended_before_they_were_measured_got_nothing_right(lost: Attempt):
    zeros = [[0.0] * len(lost.trajectory.turns)] * 2
    assert Objectives().by_turn([lost, lost]) == MemoryLength().by_turn([lost, lost]) == zeros
    assert len(Channels(channels=(Objectives(), MemoryLength())).advantages([[lost, GROUP[0]]])[0]) == 2
