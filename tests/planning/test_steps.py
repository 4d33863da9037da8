"""A schedule for the memory: phases of the curriculum that name a memory of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import SAMPLING, SMALL, rollout

from mem1.configuration import load_toml
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.planning.attempts import Attempts, rl_attempts
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.protocol import PAPER
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Trajectory
from mem1.training.monitoring.validation import Validation
from mem1.training.sampling.group_sampling import GroupSampler

PHASES = (
    Phase(steps=2, objectives=(1,)),
    Phase(steps=1, objectives=(2,), memory="capped(3)"),
    Phase(steps=2, objectives=(2,)),
    Phase(steps=1, objectives=(1,), memory="full"),
)


def recipe(**changes: Any) -> Recipe:
    tiny = ModelConfig(new=TinyModel(hidden_size=32, layers=2, feed_forward=64))
    return Recipe(**{"tasks": SMALL, "model": tiny, "rl": Rl(curriculum=PHASES), **changes})


def test_a_memory_holds_until_a_later_phase_names_another():
    rl = Rl(curriculum=PHASES)
    assert [rl.memory(step) for step in range(6)] == [None, None, "capped(3)", "capped(3)", "capped(3)", "full"]
    assert [rl.objectives(step) for step in range(6)] == [(1,), (1,), (2,), (2,), (2,), (1,)]
    for of in (rl.memory, rl.objectives):
        with pytest.raises(IndexError):
            of(6)


def searches(context: str) -> str:
    """A state of five words and a search."""
    return "Q1 </answer>" if context.endswith("<answer>") else "<IS> now Q1 Q2 Q3 then </IS> <query> now </query>"


def test_each_step_samples_under_the_memory_of_its_phase():
    source = SMALL.source("train", PAPER)
    base = rollout(searches, source.environment, context="window(2)")
    rl = Rl(curriculum=PHASES, tasks_per_step=1, group_size=2)
    sampler = GroupSampler(make_policy(recipe()).model, rl, base, source, seed=0)

    def attempt(step: int) -> Trajectory:
        one, other = sampler.sample(step)[0].trajectories
        assert one.context == other.context
        return one

    by_step = [attempt(step) for step in (0, 2, 4, 5)]
    assert [t.context for t in by_step] == ["window(2)", "capped(3)", "capped(3)", "full"]
    states = [[b - a for _, role, a, b in t.turns[3].context_origins if role == "state"] for t in by_step]
    assert states == [[7, 7], [5], [5], [7, 7, 7]]
    again = sampler.sample(4)[0].trajectories[0]
    assert replace(again, seconds=0) == replace(by_step[2], seconds=0), "whatever was sampled before"


def test_validation_is_under_the_recipes_memory_in_every_phase():
    config = recipe(memory="window(2)", evaluation={"every": 1, "validation_tasks": 2})
    base = rollout(searches, SMALL.source("train", PAPER).environment, context="window(2)")
    validation = Validation.of(config, base, PAPER, base.dialogue.codec)
    assert validation is not None
    attempts = validation.rollout(validation.tasks, sampling=SAMPLING)
    assert {t.context for t in attempts} == {"window(2)"}


TOML = """
memory = "notes(60)"
tasks = { kind = "atlas" }

[[rl.curriculum]]
steps = 2
memory = "notes(120)"

[[rl.curriculum]]
steps = 2
memory = "notes(60)"
"""


def test_a_schedule_in_a_recipe(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(TOML)
    config = load_toml(tmp_path / "recipe.toml", Recipe)
    assert config.rl is not None
    assert [config.rl.memory(step) for step in range(4)] == ["notes(120)"] * 2 + ["notes(60)"] * 2


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("notes(120)", "notse(120)", "unknown memory 'notse.120.' .did you mean notes.*; known: constant"),
    ],
)
def test_a_phase_whose_memory_cannot_be_is_refused_with_the_recipe(
    tmp_path: Path, written: str, instead: str, message: str
):
    (tmp_path / "recipe.toml").write_text(TOML.replace(written, instead, 1))
    with pytest.raises(UserError, match=message):
        load_toml(tmp_path / "recipe.toml", Recipe)


def test_an_agent_of_ones_own_has_no_schedule():
    driven = recipe(agent={"entry": "builtins:print"}, tasks=AtlasTasks(), model=ModelConfig())
    with pytest.raises(UserError, match=r"makes its own contexts: leave out memory, or give agent\.memory"):
        resolve(driven)


def test_a_plan_counts_the_memory_that_trains_on_most():
    config = recipe()
    assert config.rl is not None
    planned, _ = rl_attempts(config, config.rl, Attempts())
    assert planned.trained > 0
    alone = [
        rl_attempts(config.model_copy(update={"memory": name}), Rl(curriculum=(Phase(steps=6),)), Attempts())[0]
        for name in ("constant", "capped(3)", "full")
    ]
    assert planned == max(alone, key=lambda tokens: tokens.trained)
    assert len({tokens.trained for tokens in alone}) > 1
