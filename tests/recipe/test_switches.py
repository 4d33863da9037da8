"""Every switch of research/beyond.md is a key of one recipe, and trains a step."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mem1.api import find_recipe
from mem1.configuration import load_toml
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.records import Group
from mem1.training.rl import RlStage
from mem1.training.train import make_rollout

PAGE = (Path(__file__).parents[2] / "research" / "beyond.md").read_text(encoding="utf-8")
SWITCHES = re.findall(r"^\| .+ \| `(.+)` \|$", PAGE.split("## Switches")[1].split("\n## ")[0], flags=re.MULTILINE)
TINY = ["model.new.hidden_size=32", "model.new.layers=2", "model.new.heads=2", "model.new.look_back=[1]"]
SMALL = ["tasks.entities=40", "tasks.worlds=1", "rl.tasks_per_step=2", "rl.group_size=3", "rl.epochs=1", "workers=1"]


def test_there_is_a_switch_for_each_part_of_the_frontier():
    assert len(SWITCHES) == len(set(SWITCHES)) == 16


@pytest.mark.parametrize("keys", SWITCHES)
def test_a_switch_trains_a_step(keys: str):
    config = load_toml(find_recipe("compare-atlas/train"), Recipe, [*TINY, *SMALL, *shlex.split(keys)])
    assert config.rl is not None
    tags = resolve(config).tags
    policy, source = make_policy(config), config.tasks.source("train", tags)
    rollout = make_rollout(config, policy, source)
    stage = RlStage(policy, config.rl, rollout, source, seed=0)
    groups = stage.sample(0)
    assert all(len(group.trajectories) == 3 for group in groups)
    before = {name: x.clone() for name, x in policy.model.state_dict().items()}
    stage.update([differing(group) for group in groups], 0)
    assert any(not x.equal(before[name]) for name, x in policy.model.state_dict().items())


def differing(group: Group) -> Group:
    """The group with rewards 0, 1, 2, ..., so that there is something to learn from the attempts of a random model."""
    rewarded = (
        replace(t, reward=float(i), metrics={"em": (float(i > 0), float(i > 1))})
        for i, t in enumerate(group.trajectories)
    )
    return Group(trajectories=tuple(rewarded))
