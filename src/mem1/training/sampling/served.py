"""The servers that sample for a recipe, while it trains and when its trained policy is evaluated.

with weight_sync(recipe, policy, ranks) as sync:                        None: this process samples
with trained_agent(recipe, policy, device, name="a") as agent:          agent.evaluate(recipe, source, folder=...)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from mem1.engines.device import Device, release_unused
from mem1.engines.launched import LaunchedVllm
from mem1.errors import UserError
from mem1.evaluation.agents import EvaluatedAgent, policy_agent
from mem1.evaluation.tokens import model_shape
from mem1.lock import alone_in
from mem1.policy.policy import Policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.training.ranks.processes import ONE_PROCESS, Ranks
from mem1.training.sampling.published import TOKENIZER, write_model
from mem1.training.sampling.weight_sync import WeightSync

VLLM_LOG = "vllm.log"
"""In the folder of the run; of an evaluation, in that of the weights."""


@contextmanager
def weight_sync(config: Recipe, policy: Policy, ranks: Ranks = ONE_PROCESS) -> Iterator[WeightSync | None]:
    """The servers that sample for the recipe, looked after by rank 0 inside the block; None: nothing to look after."""
    if config.rl is None or not isinstance(config.rollout, ServerRollouts) or ranks.rank != 0:
        yield None
        return
    rollout, stops = config.rollout, policy.dialogue(resolve(config)).stop_strings
    with alone_in(Path(rollout.weights_folder)), ExitStack() as held:
        launched = None if rollout.launch is None else held.enter_context(_launched(config, rollout, policy))
        yield held.enter_context(WeightSync(rollout, policy.codec, stops, launched=launched))


@contextmanager
def _launched(config: Recipe, rollout: ServerRollouts, policy: Policy) -> Iterator[LaunchedVllm]:
    """The server that the run starts, from a folder with the policy that is there as long as the server."""
    assert rollout.launch is not None
    rollout.launch.check()
    on_gpu = torch.cuda.is_available()
    if rollout.sleep and not on_gpu:
        raise UserError(
            "rollout.sleep = true is for a server on the trainer's own GPU, and there is none; leave it out, or set "
            "rollout.engine = local"
        )
    folder, shape = Path(rollout.weights_folder) / "model", policy.model.config
    context = min(config.budget.context, getattr(shape, "max_position_embeddings", config.budget.context))
    try:
        with LaunchedVllm(
            rollout.launch,
            folder=folder,
            tokenizer=folder / TOKENIZER,
            model=rollout.model,
            dtype=rollout.published_dtype,
            context=context,
            on_gpu=on_gpu,
            sleep=rollout.sleep,
        ) as launched:
            write_model(folder, policy, dtype=getattr(torch, rollout.published_dtype), untied=launched.untied)
            yield launched
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def trained_agent(recipe: Recipe, policy: Policy, device: Device, *, name: str) -> Iterator[EvaluatedAgent]:
    """A policy as its training samples: on the servers of [rollout], which get its weights, or in this process."""
    speaks = resolve(recipe)
    with weight_sync(recipe, policy) as sync:
        if sync is None or recipe.rl is None or not isinstance(recipe.rollout, ServerRollouts):
            yield policy_agent(recipe, policy, speaks, device, name=name)
            return
        sync.start(Path(recipe.rollout.weights_folder) / VLLM_LOG)
        if recipe.rollout.sleep:
            release_unused()  # what training has held
        sync.push_weights(policy.model, recipe.rl.version_at(recipe.rl.steps))
        yield EvaluatedAgent(
            engine=sync.engine,
            speaks=speaks,
            dialogue=policy.dialogue(speaks),
            name=name,
            identity=policy.fingerprint,
            at_a_time=recipe.rollout.concurrency,
            shape=model_shape(policy.model),
        )
