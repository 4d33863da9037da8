"""The reinforcement learning of a recipe as one stage in this process, whose steps a benchmark takes one by one."""

from __future__ import annotations

from mem1.policy.policy import Policy, make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.training.rl import RlStage
from mem1.training.train import make_rollout


def rl_stage(config: Recipe, policy: Policy | None = None) -> RlStage:
    """The `[rl]` of this recipe, sampled here; policy: None: the one that the recipe begins with."""
    assert config.rl is not None
    tags = resolve(config).tags
    source = config.tasks.source("train", tags)
    policy = make_policy(config) if policy is None else policy
    return RlStage(policy, config.rl, make_rollout(config, policy, source), source, config.seed)
