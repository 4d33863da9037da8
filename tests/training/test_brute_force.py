"""Two steps of every algorithm with its options come to what brute force comes to: weights, AdamW's moments, metrics.

The attempts are of every awkward kind: groups with failed attempts, with equal rewards, with one attempt left; turns
without a token and with one; attempts without a turn; contexts that continue, branch and share a prompt; turns that
several versions of the weights have sampled. A step is cut into several packs. In float64, so that what differs is
rounding: a sum of a few hundred terms, to 1e-9 of the largest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from brute_force import Brute
from builders import float64_everywhere, random_tokens, tiny_model, turn
from torch import Tensor, nn

from mem1.algorithms.group import Dapo, DrGrpo, Grpo, Overlong, Reinforce, ReinforcePlusPlus, Rejection, Rloo
from mem1.algorithms.losses import Importance, Kl
from mem1.algorithms.ppo import Ppo
from mem1.algorithms.ratios import Cispo, Gspo
from mem1.envs.base import TaskSource
from mem1.policy.policy import Policy
from mem1.recipe.rl import Phase, Rl
from mem1.records import Ended, Group, Trajectory, Turn
from mem1.rollout import Rollout
from mem1.training.rl import RlStage

TEMPERATURE = 0.7
CLOSE = 1e-9
ADAPTED = Kl(coefficient=0.3, target=0.05, horizon=2.0)
REWARD = Kl(coefficient=0.2, where="reward", target=0.05)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "grpo": (Grpo(), {"kl": ADAPTED, "entropy": 0.05, "epochs": 2, "max_grad_norm": 0.3}),
    "grpo, asynchronous": (Grpo(clip_low=0.1, clip_high=0.3), {"importance": Importance(cap=1.2), "max_staleness": 2}),
    "grpo, kl in reward": (Grpo(), {"kl": REWARD, "minibatches": 2}),
    "grpo, one context a row": (Grpo(), {"kl": Kl(estimator="k3"), "entropy": 0.05, "packed": False}),
    "dr_grpo": (
        DrGrpo(tokens_per_attempt=9),
        {"kl": Kl(coefficient=0.3, estimator="k3"), "old_logprobs_from": "trainer"},
    ),
    "rloo": (Rloo(), {"kl": REWARD, "importance": Importance(level="sequence", cap=1.5)}),
    "reinforce": (Reinforce(baseline=0.4), {"kl": REWARD, "entropy": 0.1}),
    "reinforce_pp": (ReinforcePlusPlus(clip_low=0.1), {"kl": REWARD, "epochs": 2}),
    "reinforce_pp, group baseline": (ReinforcePlusPlus(group_baseline=True), {"kl": REWARD, "minibatches": 2}),
    "dapo": (Dapo(overlong=Overlong(limit=12, buffer=6)), {"epochs": 2, "entropy": 0.02}),
    "gspo, trajectory": (Gspo(clip_low=0.01, clip_high=0.02), {"kl": ADAPTED, "epochs": 2}),
    "gspo, turn": (Gspo(unit="turn", clip_low=0.05, clip_high=0.1), {"importance": Importance(cap=1.1)}),
    "cispo": (Cispo(clip_high=0.1), {"entropy": 0.05, "epochs": 2}),
    "cispo, two bounds": (
        Cispo(clip_low=0.01, clip_high=0.02),
        {"importance": Importance(level="sequence", cap=1.1), "epochs": 2},
    ),
    "ppo, head": (
        Ppo(gamma=0.98, lam=0.9, value_clip=0.02, value_grad_scale=0.3, critic_learning_rate=0.02),
        {"kl": REWARD, "entropy": 0.02, "epochs": 2},
    ),
    "ppo, separate": (
        Ppo(critic="separate", lam=0.95, whiten=False),
        {"kl": ADAPTED, "minibatches": 2, "max_grad_norm": 0.5, "importance": Importance()},
    ),
    "rejection": (Rejection(threshold=0.5, best=2), {"kl": ADAPTED, "epochs": 2}),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """Advantages, rewards and the critic too."""
    with float64_everywhere():
        yield


def stage(config: Rl) -> RlStage:
    """A policy that has moved since it was copied as the reference, and a critic that says something."""
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_model("qwen2", hidden_size=16, intermediate_size=16, num_hidden_layers=1, **heads)
    learner = RlStage(Policy(model, cast(Any, None)), config, cast(Rollout, None), cast(TaskSource, None), seed=0)
    generator = torch.Generator().manual_seed(7)
    critic = learner.networks.critic
    with torch.no_grad():
        for parameter in [*model.parameters(), *(critic.head.parameters() if critic is not None else ())]:
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return learner


def attempts_at_tasks(rng: random.Random) -> list[list[Trajectory]]:
    """Four tasks. Contexts: constant (branches at each turn), appended (continues), with empty and one-token turns."""

    def attempt(prompt: tuple[int, ...], sampled: Sequence[int], *, appended: bool) -> Trajectory:
        turns: list[Turn] = []
        context = prompt
        for tokens in sampled:
            turns.append(turn(context, random_tokens(rng, tokens)))
            kept = context if appended else prompt
            context = kept + turns[-1].completion_ids + random_tokens(rng, 4)
        return Trajectory(turns=tuple(turns))

    groups = []
    for number in range(5):
        prompt = random_tokens(rng, 10)
        shapes = [(5, 1, 4), (3, 0, 6), (1,), (7, 2)][: 4 if number < 3 else 2]
        groups.append([attempt(prompt, shape, appended=(number + i) % 2 == 0) for i, shape in enumerate(shapes)])
    groups[1].append(Trajectory(turns=()))
    return groups


REWARDS = ((1.0, 0.0, 0.5, 2.0), (0.0, 1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0, 1.0), (0.0, 0.0))


def rollout(learner: RlStage, seed: int, version: int) -> list[Group]:
    """Scored attempts; their sampler is off by some noise, and half of each turn by weights one version older."""
    rng = random.Random(seed)
    tasks = attempts_at_tasks(rng)
    made = iter(sampled([t for task in tasks for t in task], learner, version, rng))
    groups = [
        Group(trajectories=tuple(replace(next(made), reward=r, metrics={"em": (r,), "f1": (r,)}) for r in rewards))
        for rewards in REWARDS
    ]
    first, *middle, last = groups
    failure = replace(last.trajectories[1], ended=Ended.TOOL_FAILED, reward=None, metrics={})
    other = replace(first.trajectories[1], ended=Ended.TOOL_FAILED, reward=None, metrics={})
    wrong = replace(first.trajectories[0], ended=Ended.BAD_TAGS)
    return [
        Group(trajectories=(other, wrong, *first.trajectories[1:])),
        *middle,
        Group(trajectories=(last.trajectories[0], failure)),
    ]


def sampled(
    trajectories: Sequence[Trajectory], learner: RlStage, version: int, rng: random.Random
) -> Iterator[Trajectory]:
    model = learner.policy.model
    brute = Brute(learner.config, model, model, None)
    with torch.no_grad():
        states = brute.rows(brute.policy.get_decoder(), trajectories)
    for trajectory, states_KD in zip(trajectories, states, strict=True):
        yield recorded(trajectory, brute.logprobs(brute.policy, states_KD, trajectory)[0].tolist(), version, rng)


def recorded(trajectory: Trajectory, logprobs: Sequence[float], version: int, rng: random.Random) -> Trajectory:
    values = iter(logprobs)
    turns = []
    for plain in trajectory.turns:
        tokens = len(plain.completion_ids)
        off = rng.gauss(0, 0.1)
        versions = ((max(0, version - 1), tokens // 2), (version, tokens - tokens // 2))
        turns.append(
            replace(
                plain,
                logprobs=tuple(next(values) + off + rng.gauss(0, 0.2) for _ in range(tokens)),
                weights_versions=tuple((v, n) for v, n in versions if n),
            )
        )
    return replace(trajectory, turns=tuple(turns))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])


def assert_close(found: Tensor, wanted: Tensor, what: str) -> None:
    """To 1e-9 of the largest."""
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, rtol=0, atol=CLOSE * max(scale, 1e-3), msg=lambda m: f"{what}: {m}")


def moments(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], name: str) -> Tensor:
    return flat([optimizer.state[p].get(name, torch.zeros_like(p)) for p in parameters])


@pytest.mark.parametrize("name", CASES)
def test_two_steps_equal_brute_force(name: str):
    algorithm, options = CASES[name]
    settings: dict[str, Any] = {"max_grad_norm": 0.8, **options}
    config = Rl(
        curriculum=(Phase(steps=9),),
        tasks_per_step=5,
        group_size=4,
        algorithm=algorithm,
        temperature=TEMPERATURE,
        learning_rate=0.01,
        warmup=3,
        pack_tokens=64,
        **settings,
    )
    learner = stage(config)
    made = learner.networks
    reference = made.reference.model if made.reference is not None else learner.policy.model
    brute = Brute(config, learner.policy.model, cast(Any, reference), made.critic)
    for index in range(2):
        groups = rollout(learner, seed=index, version=index * config.updates)
        judged = [t for g in groups for t in g.trajectories if t.ended.scorable]
        assert len(made.packs(judged)) >= 3
        row, wanted = learner.update(groups, index), brute.update(groups, index)
        for key, value in wanted.items():
            assert row[key] == pytest.approx(value, rel=CLOSE, abs=CLOSE), f"{key} of step {index}"
        assert wanted["grad_norm"] and wanted["clip_fraction"] is not None
        pairs = [(learner.policy.model, brute.policy, brute.actor)]
        if made.critic is not None and brute.critics is not None:
            pairs.append((cast(Any, made.critic), brute.critic, brute.critics))
        for (ours, theirs, adam), optimizer in zip(pairs, learner.optimizers.members, strict=True):
            where = f"step {index}, {type(ours).__name__}"
            assert_close(flat(list(ours.parameters())), flat(list(theirs.parameters())), f"weights, {where}")
            trained = list(ours.parameters())
            assert_close(moments(optimizer, trained, "exp_avg"), flat(adam.first), f"first moments, {where}")
            assert_close(moments(optimizer, trained, "exp_avg_sq"), flat(adam.second), f"second moments, {where}")


def test_the_attempts_are_of_every_awkward_kind():
    learner = stage(Rl(curriculum=(Phase(steps=1),)))
    trajectories = [t for g in rollout(learner, 0, 3) for t in g.trajectories]
    lengths = {len(turn.completion_ids) for t in trajectories for turn in t.turns}
    assert {0, 1, 2} < lengths and any(not t.turns for t in trajectories)
    assert any(len(turn.weights_versions) == 2 for t in trajectories for turn in t.turns)
    assert {str(t.ended) for t in trajectories} == {"answered", "bad_tags", "tool_failed"}
    continued = [
        later.context_ids[: earlier.num_tokens] == earlier.context_ids + earlier.completion_ids
        for t in trajectories
        for earlier, later in pairwise(t.turns)
    ]
    assert set(continued) == {True, False}
