"""The servers that sample for a recipe, while it trains and when its trained policy is evaluated.

with weight_sync(recipe, policy, ranks) as sync:                        None: this process samples
with trained_agent(recipe, policy, device, name="a") as agent:          agent.evaluate(recipe, source, folder=...)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mem1.engines.device import Device, release_unused
from mem1.evaluation.agents import EvaluatedModel, policy_agent
from mem1.evaluation.tokens import model_shape
from mem1.lock import alone_in
from mem1.policy.policy import Policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.training.ranks.processes import ONE_PROCESS, Ranks
from mem1.training.sampling.weight_sync import WeightSync


@contextmanager
def weight_sync(config: Recipe, policy: Policy, ranks: Ranks = ONE_PROCESS) -> Iterator[WeightSync | None]:
    """The servers that sample for the recipe, looked after by rank 0 inside the block; None: nothing to look after."""
    if config.rl is None or not isinstance(config.rollout, ServerRollouts) or ranks.rank != 0:
        yield None
        return
    stops = policy.dialogue(resolve(config)).stop_strings
    with alone_in(Path(config.rollout.weights_folder)), WeightSync(config.rollout, policy.codec, stops) as sync:
        yield sync


@contextmanager
def trained_agent(recipe: Recipe, policy: Policy, device: Device, *, name: str) -> Iterator[EvaluatedModel]:
    """A policy as its training samples: on the servers of [rollout], which get its weights, or in this process."""
    speaks = resolve(recipe)
    with weight_sync(recipe, policy) as sync:
        if sync is None or recipe.rl is None or not isinstance(recipe.rollout, ServerRollouts):
            yield policy_agent(recipe, policy, speaks, device, name=name)
            return
        if recipe.rollout.sleep:
            release_unused()  # what training has held
        sync.push_weights(policy.model, recipe.rl.version_at(recipe.rl.steps))
        yield EvaluatedModel(
            engine=sync.engine,
            speaks=speaks,
            dialogue=policy.dialogue(speaks),
            name=name,
            identity=policy.fingerprint,
            at_a_time=recipe.rollout.concurrency,
            shape=model_shape(policy.model),
        )
