"""A step never waits for the device but to read its statistics, once, however many packs it has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from builders import VOCABULARY, random_group, tiny_model
from torch import Tensor
from valued import META, other_device, synchronisations
from worlds import CODEC

from mem1.algorithms.base import Algorithm
from mem1.algorithms.group import Grpo
from mem1.algorithms.losses import Importance, Kl
from mem1.algorithms.ppo import Ppo
from mem1.algorithms.ratios import Cispo, Gspo
from mem1.engines.base import Sampling
from mem1.engines.device import Device
from mem1.engines.local import LocalEngine
from mem1.packing import pack
from mem1.packing.attention import plan_attention
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Recall
from mem1.records import Group
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import make_samples
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.ranks.optimizers import adamw
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks
from mem1.training.supervised import recall_batch, recall_loss

ON_DEVICE = Placement(ranks=Ranks(device=Device(name="cuda:0", at=META)))


def groups() -> list[Group]:
    rng = random.Random(0)
    return [
        Group(
            trajectories=tuple(
                replace(
                    t,
                    reward=float(i % 2),
                    turns=tuple(replace(x, logprobs=(-1.0,) * len(x.completion_ids)) for x in t.turns),
                )
                for i, t in enumerate(random_group(rng, size=4))
            )
        )
        for _ in range(2)
    ]


def waits(config: Rl) -> tuple[int, Counter[str], Counter[str], Counter[str]]:
    """Packs of a step, and the waits for log-probs of before, for loss and gradient, and for the optimiser."""
    with other_device():
        model = tiny_model("qwen2", dtype=torch.float32).to("meta")  # type: ignore[arg-type]  # transformers takes less
        networks = ActorCritic.make(config, model, placement=ON_DEVICE)
        optimizer = adamw(networks.policy, 1e-3)
        with synchronisations() as before:
            old = networks.old_policy_stats([g.trajectories for g in groups()])
        samples = make_samples(config, groups(), old)
        with synchronisations() as update:
            assert accumulate(networks, samples, PassStats())
        with synchronisations() as step:
            optimizer.step(scale=1.0)
        return len(networks.packs([t for g in groups() for t in g.trajectories])), before, update, step


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (Grpo(), {}),
        (Gspo(), {}),
        (Cispo(), {}),
        (Ppo(critic="head"), {"entropy": 0.1, "old_logprobs_from": "trainer"}),
        (Ppo(critic="separate", value_clip=0.2), {"kl": Kl(), "importance": Importance()}),
    ],
    ids=["grpo", "gspo", "cispo", "ppo", "ppo with all networks"],
)
def test_an_optimiser_step_waits_once_for_its_statistics_and_once_for_the_norm(algorithm: Algorithm, more: dict):
    config = Rl(curriculum=(Phase(steps=1),), algorithm=algorithm, pack_tokens=64, **more)
    packs, before, update, step = waits(config)
    assert packs >= 2
    assert update.total() == 1, update
    assert step.total() == 1, step
    networks = 3 if "kl" in more else int(config.recomputes_old_logprobs) + isinstance(algorithm, Ppo)
    assert before.total() == networks, before


def test_recall_waits_for_no_more_than_transformers_own_mask():
    with other_device():
        model = tiny_model("qwen2", dtype=torch.float32).to("meta")  # type: ignore[arg-type]  # transformers takes less
        ids_BT, predicted_BT = recall_batch(Recall(tokens=64, pairs=(4,)), VOCABULARY, seed=0)
        with synchronisations() as waited:
            loss, _ = recall_loss(model, ids_BT, predicted_BT)
            loss.backward()
    assert waited.total() <= 1 and all("get_decoder" in place for place in waited), waited


@pytest.mark.parametrize("backend", ["blocks", "dense", "flex"])
def test_a_plan_of_attention_reaches_the_device_without_waiting(backend):
    tree = pack(groups()[0].trajectories)
    with other_device(), synchronisations() as waited:
        plan_attention(tree, backend=backend, device=META)
    assert not waited


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.nonzero(),
        lambda x: bool((x > 0).any()),
        lambda x: torch.ones(3).to(META),
        lambda x: torch.tensor([1.0], device=META),
    ],
)
def test_what_makes_the_cpu_wait_is_counted(wait: Callable[[Tensor], object]):
    with other_device():
        x = torch.ones(3).to(META)
        with synchronisations() as waited:
            wait(x)
    assert waited.total() == 1


def test_copies_that_say_so_and_work_on_the_device_wait_for_nothing():
    with other_device(), synchronisations() as waited:
        x = torch.ones(3).to(META, non_blocking=True)
        (x + 1).where(x > 0, 0.0).index_select(0, x.long()).sum()
    assert not waited


def test_the_sampler_waits_once_per_token_of_all_rows():
    contexts, budgets = [(3, 4, 5), (3, 4, 6, 7), (8,)], [5, 5, 4]
    with other_device():
        model = tiny_model("qwen2", dtype=torch.float32).to("meta")  # type: ignore[arg-type]  # transformers takes less
        engine = LocalEngine(model, CODEC, ["never"])
        engine.stops = lambda token, sampled: False  # type: ignore[method-assign]
        engine.complete(contexts, max_tokens=[1, 1, 1], sampling=Sampling(seed=0))
        with synchronisations() as waited:
            found = engine.complete(contexts, max_tokens=budgets, sampling=Sampling(seed=0))
    assert [len(completion.token_ids) for completion in found] == budgets
    assert waited.total() == 5, waited
