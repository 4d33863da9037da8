"""Every algorithm on a tiny model: it learns in the right direction, resumes exactly, and says what it did.

A made-up task: the model writes two turns of a few random tokens. No environment is needed, since an update takes
trajectories and rewards and asks nothing of where they come from.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from builders import float64_everywhere, random_tokens, save_checkpoint, tiny_model, trajectory
from precision import FLOAT32
from torch import Tensor
from transformers import PreTrainedModel

from mem1.algorithms.base import Advantages, Algorithm, Attempt, has_variance
from mem1.algorithms.channels import Channel, Channels
from mem1.algorithms.group import (
    Dapo,
    DrGrpo,
    Grpo,
    Overlong,
    Reinforce,
    ReinforcePlusPlus,
    Rejection,
    Rloo,
    normalised_advantages,
)
from mem1.algorithms.losses import Importance, Kl, clipped_surrogate
from mem1.algorithms.ppo import Ppo
from mem1.algorithms.ratios import Cispo, Gspo
from mem1.configuration import load_toml
from mem1.engines.base import Sampling
from mem1.engines.workers import one_thread
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.packing import Pack
from mem1.policy.policy import Policy
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Ended, Group, Question, Task, Trajectory, Turn
from mem1.rollout import Rollout
from mem1.training.gradients.actor_critic import Critic
from mem1.training.gradients.samples import OldPolicyStats, make_samples, minibatches
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.logprobs import completion_logprobs, score, trunk_states
from mem1.training.ranks.optimizers import adamw
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import load_checkpoint

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Grpo(),
    "dr_grpo": DrGrpo(tokens_per_attempt=8),
    "rloo": Rloo(),
    "reinforce": Reinforce(baseline=0.5),
    "reinforce_pp": ReinforcePlusPlus(),
    "reinforce_pp, group baseline": ReinforcePlusPlus(group_baseline=True),
    "dapo": Dapo(),
    "gspo, trajectory": Gspo(),
    "gspo, turn": Gspo(unit="turn"),
    "cispo": Cispo(),
    "ppo, head": Ppo(critic="head"),
    "ppo, separate": Ppo(critic="separate"),
    "rejection": Rejection(threshold=0.5),
}
everything = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def recipe(algorithm: Algorithm | None = None, **changes: Any) -> Rl:
    defaults: dict[str, Any] = {"tasks_per_step": 2, "group_size": 3, "warmup": 0, "learning_rate": 1e-3}
    defaults["curriculum"] = (Phase(steps=4),)
    return Rl(algorithm=algorithm or Grpo(), **(defaults | changes))


def stage(config: Rl, *, seed: int = 0, dtype: torch.dtype = torch.float64, workers: int = 1) -> RlStage:
    """A stage without rollouts: groups are handed to `update`."""
    policy = Policy(tiny_model("qwen2", dtype=dtype, seed=seed), cast(Any, None))
    return RlStage(policy, config, cast(Rollout, None), cast(TaskSource, None), seed=0, workers=workers)


def sampled(
    model: PreTrainedModel, trajectories: Sequence[Trajectory], *, version: int = 0, shift: float = 0.0
) -> list[Trajectory]:
    """With the log-probs that their sampler would have recorded; one with faulty kernels is off by `shift`."""
    with torch.no_grad():
        nested = completion_logprobs(model, trajectories)

    def turn(plain: Turn, logprobs: Tensor) -> Turn:
        return replace(
            plain, logprobs=tuple((logprobs + shift).tolist()), weights_versions=((version, len(plain.completion_ids)),)
        )

    return [
        replace(t, turns=tuple(map(turn, t.turns, per_turn)), metrics={"em": (0.0,), "f1": (0.0,)})
        for t, per_turn in zip(trajectories, nested, strict=True)
    ]


REWARDS = ((1, 0, 0), (0, 1, 2), (0.5, 0.5, 0.5), (0, 0, 1))


def groups(model: PreTrainedModel, *rewards_by_group: Sequence[float], results: int = 0, **options: Any) -> list[Group]:
    """Attempts of two turns at a prompt of their group; the second context keeps the first turn.

    With `results` a third keeps the second turn's alone, and so many tokens of a result: it branches.
    """
    rng = random.Random(1)
    plain: list[Trajectory] = []
    for rewards in rewards_by_group:
        prompt = random_tokens(rng, 4)
        for reward in rewards:
            first, second = random_tokens(rng, rng.randint(2, 4)), random_tokens(rng, rng.randint(1, 3))
            turns = [(prompt, first), (prompt + first + random_tokens(rng, 2), second)]
            if results:
                turns.append((prompt + second + random_tokens(rng, results), random_tokens(rng, 2)))
            plain.append(replace(trajectory(*turns), reward=reward))
    attempts = iter(sampled(model, plain, **options))
    return [Group(trajectories=tuple(next(attempts) for _ in rewards)) for rewards in rewards_by_group]


def likelihoods(learner: RlStage, rollout: Sequence[Group]) -> list[float]:
    """Log-prob of each attempt."""
    with torch.no_grad():
        nested = completion_logprobs(learner.policy.model, [t for g in rollout for t in g.trajectories])
    return [sum(float(turn.sum()) for turn in turns) for turns in nested]


def weights(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


@everything
def test_two_steps_make_good_attempts_likelier_than_bad_ones(algorithm: Algorithm):
    learner = stage(recipe(algorithm))
    rollout = groups(learner.policy.model, (1, 0, 0), (0, 1, 1))
    before, start = likelihoods(learner, rollout), weights(learner.policy.model)
    for index in range(2):
        row = learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 1)), index)
        assert cast(float, row["grad_norm"]) > 0
    gain = [after - b for after, b in zip(likelihoods(learner, rollout), before, strict=True)]
    assert not torch.equal(start, weights(learner.policy.model))
    good, bad = [gain[i] for i in (0, 4, 5)], [gain[i] for i in (1, 2, 3)]
    assert sum(good) / 3 > 0 and sum(good) > sum(bad)


@pytest.mark.numeric
@everything
def test_micro_batches_and_packing_do_not_change_a_step(algorithm: Algorithm):
    def after(**changes: Any) -> tuple[int, dict[str, Any], Tensor]:
        learner = stage(recipe(algorithm, tasks_per_step=4, kl=Kl(coefficient=0.1), entropy=0.01, **changes))
        rollout = groups(learner.policy.model, *REWARDS, shift=0.1, results=12)
        row = learner.update(rollout, 0)
        packs = learner.networks.packs([t for group in rollout for t in group.trajectories])
        # AdamW's moments are the gradient; its steps would blow the rounding of a gradient of 0 up to their size
        moments = [s["exp_avg"].flatten() for o in learner.optimizers.members for s in o.state.values()]
        numbers = {k: v for k, v in row.items() if k != "endings" and v is not None}
        return len(packs), numbers, torch.cat(moments)

    with float64_everywhere():
        one, whole_row, whole = after()
        assert one == 1
        one_context_a_row = algorithm in (ALGORITHMS["gspo, turn"], ALGORITHMS["ppo, separate"])
        for packed in (True, False)[: 1 + one_context_a_row]:
            several, row, gradient = after(pack_tokens=64, packed=packed)
            assert several > 3
            assert row == pytest.approx(whole_row, rel=1e-9, abs=1e-12)
            torch.testing.assert_close(gradient, whole, rtol=0, atol=1e-10 * float(whole.abs().max()))


@pytest.mark.parametrize("name", ["grpo", "gspo, turn", "ppo, head", "ppo, separate", "rejection"])
def test_packs_trained_two_at_a_time_make_the_same_step_bit_for_bit(name: str):
    def after(workers: int) -> tuple[dict[str, Any], Tensor]:
        changes: dict[str, Any] = {"old_logprobs_from": "trainer", "pack_tokens": 64, "tasks_per_step": 8}
        config = recipe(ALGORITHMS[name], kl=Kl(coefficient=0.1), entropy=0.01, **changes)
        learner = stage(config, workers=workers, dtype=torch.float32)
        rollout = groups(learner.policy.model, *[(1, 0, 0), (0, 1, 2)] * 4)
        telling = [t for group in rollout for t in group.trajectories]
        assert len(learner.networks.packs(telling)) > 2
        row = learner.update(rollout, 0)
        return {k: v for k, v in row.items() if k != "endings"}, torch.cat(
            [weights(learner.policy.model), *map(weights, learner.modules.values())]
        )

    with one_thread():  # as each of two workers has: the same sums in the same order
        (one_row, one), (two_row, two) = after(1), after(2)
    assert one_row == two_row
    assert torch.equal(one, two)


class OneTurn(Grpo):
    """GRPO whose advantage lands on one turn of each attempt, as channels may have it."""

    turn: int

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        def of_one(found: Advantages | None, attempt: Attempt) -> Advantages:
            assert found is not None
            counts = [len(turn.completion_ids) for turn in attempt.trajectory.turns]
            on = torch.cat([torch.full((n,), float(number == self.turn)) for number, n in enumerate(counts)])
            return Advantages(advantages_K=found.advantages_K * on)

        return [list(map(of_one, *both)) for both in zip(super().advantages(groups), groups, strict=True)]


@pytest.mark.numeric
def test_turns_without_an_advantage_are_not_computed_and_the_gradient_is_the_same():
    def after(turn: int, *, throughout: bool) -> tuple[dict[str, Any], Tensor]:
        # a penalty of nothing, with which every token is trained
        kl = Kl(coefficient=0.0) if throughout else None
        learner = stage(recipe(OneTurn(turn=turn), kl=kl, pack_tokens=64))
        rollout = groups(learner.policy.model, (1, 0, 0), (0, 1, 2), results=12)
        row = learner.update(rollout, 0)
        moments = [s["exp_avg"].flatten() for o in learner.optimizers.members for s in o.state.values()]
        return row, torch.cat(moments)

    with float64_everywhere():
        for turn in range(3):
            (row, gradient), (every, same) = after(turn, throughout=False), after(turn, throughout=True)
            torch.testing.assert_close(gradient, same, rtol=0, atol=1e-12 * float(same.abs().max()))
            assert float(gradient.abs().max()) > 0
            assert row["loss"] == pytest.approx(every["loss"], rel=1e-12)
            assert row["entropy"] != every["entropy"]


def test_pieces_without_a_gradient_are_in_no_pack():
    learner = stage(recipe(OneTurn(turn=2)))
    (group,) = groups(learner.policy.model, (0, 1, 2), results=12)
    old = learner.networks.old_policy_stats([group.trajectories])
    trained = accumulate(learner.networks, make_samples(learner.config, [group], old), passes := PassStats())
    told = [group.trajectories[0].turns[2], group.trajectories[2].turns[2]]  # the middle one has the mean reward
    assert [t.turns for t in trained] == [(turn,) for turn in told]
    assert passes.tokens == sum(len(turn.completion_ids) for turn in told)


def test_the_default_is_one_clipped_step_on_the_attempts_with_an_advantage_bit_for_bit():
    learner = stage(recipe(tasks_per_step=3), dtype=torch.float32)
    rollout = groups(learner.policy.model, (1, 0, 0), (1, 1, 1), (0, 1, 2))
    model = tiny_model("qwen2", dtype=torch.float32)
    told = [*rollout[0].trajectories, rollout[2].trajectories[0], rollout[2].trajectories[2]]
    scores = score(model, Pack.whole(told), temperature=1.0)
    new_M, entropy_M = scores.logprobs_M, scores.entropy_M
    old_M = torch.tensor([p for t in told for turn in t.turns for p in turn.logprobs])
    below, middle, above = normalised_advantages((0, 1, 2))
    assert middle == 0
    advantages = (*normalised_advantages((1, 0, 0)), below, above)
    advantages_M = torch.tensor(
        [a for a, t in zip(advantages, told, strict=True) for _ in range(t.num_completion_tokens)]
    )
    tokens = float(sum(t.num_completion_tokens for g in rollout for t in g.trajectories))
    by_hand = clipped_surrogate(new_M, old_M, advantages_M, clip_low=0.2, clip_high=0.2, denominator=tokens)
    by_hand.loss.backward()
    norm = adamw(model, 1e-3).step(scale=1.0, max_grad_norm=1.0)
    row = learner.update(rollout, 0)
    assert (row["loss"], row["grad_norm"]) == (by_hand.loss.item(), norm)
    assert row["entropy"] == float(entropy_M.sum()) / len(entropy_M)
    assert (row["groups_with_variance"], row["staleness_max"]) == (2 / 3, 0.0)
    assert torch.equal(weights(learner.policy.model), weights(model))


@pytest.mark.numeric
@pytest.mark.parametrize("critic", ["head", "separate"])
def test_a_value_is_read_where_the_logit_of_its_token_is_read(critic: str):
    model = tiny_model("llama")
    made = Critic(Ppo(critic=cast(Any, critic)), model).double()
    torch.nn.init.normal_(made.head.weight)
    (attempt, *_) = groups(model, (1.0,))[0].trajectories
    for packed in (True, False):
        if made.trunk is None:
            states_MD = score(model, Pack.whole([attempt]), temperature=1.0, packed=packed).states_MD
        else:
            states_MD = trunk_states(made.trunk, Pack.whole([attempt]), packed=packed)
        expected: list[Tensor] = []
        for turn in attempt.turns:  # the state before token k is that of the k tokens before it
            ids = torch.tensor([turn.context_ids + turn.completion_ids])
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
            expected.append(hidden[len(turn.context_ids) - 1 : -1] @ made.head.weight[0])
        torch.testing.assert_close(made.values(states_MD), torch.cat(expected), rtol=0, atol=1e-10)


def test_the_value_loss_reaches_the_policys_trunk_by_the_share_that_is_set():
    states = torch.ones(2, 32, requires_grad=True)
    for share in (0.0, 0.25):
        critic = Critic(Ppo(critic="head", value_grad_scale=share), tiny_model("llama"))
        torch.nn.init.constant_(critic.head.weight, 2.0)
        states.grad = None
        critic.values(states).sum().backward()
        assert states.grad is not None and critic.head.weight.grad is not None
        assert states.grad.unique().tolist() == [2.0 * share]
        assert critic.head.weight.grad.unique().tolist() == [2.0]


def test_gae_runs_across_the_context_reset_and_a_cut_trajectory_has_the_same_advantages():
    # values 0.5 0.5 | 0.25 0.75, reward 1, lam 0.5: the numbers of algorithms/ppo.py
    config = Ppo(lam=0.5, whiten=False)
    values_M = torch.tensor([0.5, 0.5, 0.25, 0.75])
    expected = [0.03125, 0.0625, 0.625, 0.25]
    for attempt in (trajectory(([1], [2, 3]), ([4], [5, 6])), trajectory(([1], [2]), ([7], [3, 5]), ([4], [6]))):
        ((made,),) = config.advantages([[Attempt(trajectory=attempt, shaped_reward=1.0, values_K=values_M)]])
        assert made is not None and made.returns_K is not None
        assert made.advantages_K.tolist() == pytest.approx(expected)
        assert made.returns_K.tolist() == pytest.approx([0.53125, 0.5625, 0.875, 1.0])


def test_while_the_critic_warms_up_the_policy_does_not_change():
    for critic in ("head", "separate"):
        learner = stage(recipe(Ppo(critic=cast(Any, critic), critic_warmup=1)))
        made = learner.networks.critic
        assert made is not None
        policy, value = weights(learner.policy.model), weights(made)
        rows = []
        for index in range(2):
            rows.append(learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 2)), index))
            if index == 0:
                assert torch.equal(policy, weights(learner.policy.model))
                assert all(p.grad is None for p in learner.policy.model.parameters()), "nothing is left for the next"
                assert not torch.equal(value, weights(made))
        assert (rows[0]["learning_rate"], rows[0]["grad_norm"]) == (0.0, 0.0)
        assert rows[1]["learning_rate"] == 1e-3 and cast(float, rows[1]["grad_norm"]) > 0
        assert not torch.equal(policy, weights(learner.policy.model))


@pytest.mark.parametrize(
    ("algorithm", "rates"), [(Grpo(), [0.5, 1, 1, 0.5]), (Ppo(critic="separate", critic_warmup=2), [0, 0, 0.5, 1])]
)
def test_the_learning_rate_rises_and_falls_with_the_steps_of_the_policy(algorithm: Algorithm, rates: list[float]):
    learner = stage(recipe(algorithm, warmup=2, decay=0.5))
    made = groups(learner.policy.model, (1, 0, 0), (0, 1, 2))
    assert [learner.update(made, index)["learning_rate"] for index in range(4)] == [1e-3 * rate for rate in rates]


def test_the_critics_learning_rate_rises_over_steps_of_its_own_and_adamw_is_set_for_both():
    ppo = Ppo(critic="separate", critic_learning_rate=1e-2, critic_rate_warmup=4)
    learner = stage(recipe(ppo, warmup=2, beta2=0.999, weight_decay=0.01))
    made = groups(learner.policy.model, (1, 0, 0), (0, 1, 2))
    members = learner.optimizers.members
    seen = []
    for index in range(3):
        learner.update(made, index)
        seen.append([member.param_groups[0]["lr"] for member in members])
    assert seen == [[5e-4, 2.5e-3], [1e-3, 5e-3], [1e-3, 7.5e-3]]
    assert {group["betas"] for member in members for group in member.param_groups} == {(0.9, 0.999)}
    assert all(m.param_groups[0]["weight_decay"] == 0.01 for m in members), "matrices"


@pytest.mark.numeric
def test_the_critics_bias_fits_the_returns_of_a_rollout_before_its_first_update():
    learner = stage(recipe(Ppo(critic_learning_rate=1e-30, value_clip=0.01)))
    made = learner.networks.critic
    assert made is not None
    rollout = groups(learner.policy.model, (1, 0, 0), (0, 1, 2))
    attempts = [t for group in rollout for t in group.trajectories]
    tokens = [t.num_completion_tokens for t in attempts]
    returns = [t.reward or 0.0 for t in attempts]
    mean = sum(r * k for r, k in zip(returns, tokens, strict=True)) / sum(tokens)
    row = learner.update(rollout, 0)
    rounding = sum(tokens) * FLOAT32  # of a mean in float32
    assert made.head.bias.tolist() == [pytest.approx(mean, rel=rounding)]
    squares = sum((r - mean) ** 2 * k for r, k in zip(returns, tokens, strict=True)) / sum(tokens)
    assert row["value_loss"] == pytest.approx(squares / 2, rel=3 * rounding)  # the move of the bias is not clipped
    assert row["value_clip_fraction"] == 0.0
    assert learner.update(rollout, 1)["value_loss"] == pytest.approx(squares / 2, rel=3 * rounding)


def test_a_critic_learns_to_explain_the_returns():
    algorithm = Ppo(critic="separate", critic_warmup=15, critic_learning_rate=6e-3)
    learner = stage(recipe(algorithm, curriculum=(Phase(steps=16),)))
    rollout = groups(learner.policy.model, (1, 0, 0), (0, 1, 2))
    rows = [learner.update(rollout, index) for index in range(15)]
    assert rows[0]["explained_variance"] == pytest.approx(0.0)  # a new critic says 0 everywhere
    assert cast(float, rows[-1]["explained_variance"]) > 0.8
    assert cast(float, rows[-1]["value_loss"]) < 0.2 * cast(float, rows[0]["value_loss"])


def test_the_penalty_is_adapted_in_steps_that_move_the_policy_alone():
    algorithm, kl = Ppo(critic="separate", critic_warmup=2), Kl(coefficient=0.1, target=0.01)
    learner = stage(recipe(algorithm, kl=kl))
    rows = [learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 2)), index) for index in range(4)]
    assert [row["kl_coefficient"] for row in rows[:3]] == [0.1, 0.1, 0.1]
    assert rows[3]["kl_coefficient"] == pytest.approx(0.098), "adapted behind the first step of the policy"


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_a_resumed_ppo_with_an_adaptive_penalty_is_an_unbroken_one_bit_for_bit(tmp_path: Path, critic: str):
    config = recipe(Ppo(critic=cast(Any, critic)), kl=Kl(coefficient=0.1, target=0.01), epochs=2, minibatches=2)

    def go_on(learner: RlStage, steps: range) -> list[dict[str, Any]]:
        return [dict(learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 2)), i)) for i in steps]

    unbroken = stage(config, dtype=torch.float32)
    rows = go_on(unbroken, range(2))
    first = stage(config, dtype=torch.float32)
    assert go_on(first, range(1)) == rows[:1]
    path = save_checkpoint(
        tmp_path, 1, first.policy.model, first.optimizers.members, fingerprint="f", modules=first.modules
    )
    second = stage(config, dtype=torch.float32, seed=5)  # other weights: all must come from the checkpoint
    load_checkpoint(path, second.policy.model, second.optimizers.members, fingerprint="f", modules=second.modules)
    assert go_on(second, range(1, 2)) == rows[1:]
    for a, b in zip(unbroken.modules.values(), second.modules.values(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    assert torch.equal(weights(unbroken.policy.model), weights(second.policy.model))
    assert rows[1]["kl_coefficient"] != rows[0]["kl_coefficient"] and rows[1]["kl"] > 0
    plain = stage(recipe(), dtype=torch.float32)
    with pytest.raises(UserError, match=r"holds the modules \['critic', 'reference'\], this run has \[\]"):
        load_checkpoint(path, plain.policy.model, second.optimizers.members, fingerprint="f")


def test_mini_batches_hold_every_attempt_once_an_epoch_and_do_not_count_turns():
    attempts = [["a1", "a2", "a3"], ["b1", "b2"]]
    assert list(minibatches(attempts, count=1, epochs=2, seed="s")) == [attempts, attempts]
    parts = list(minibatches(attempts, count=2, epochs=3, seed="s"))
    assert len(parts) == 6
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        assert sorted(chain(*first, *second)) == ["a1", "a2", "a3", "b1", "b2"]
        assert {len(list(chain(*part))) for part in (first, second)} == {2, 3}
    assert len({str(part) for part in parts[::2]}) > 1, "each epoch has an order of its own"
    assert parts == list(minibatches(attempts, count=2, epochs=3, seed="s"))


@pytest.mark.numeric
def test_several_updates_a_rollout_count_up_the_staleness():
    learner = stage(recipe(epochs=2, minibatches=3))
    rollout = groups(learner.policy.model, (1, 0, 0), (0, 1, 2), version=6, shift=0.25)
    row = learner.update(rollout, 1)
    # step 1 begins after 6 updates; its own are number 0 to 5, each on a third of the attempts
    assert (row["staleness_mean"], row["staleness_max"]) == (2.5, 5.0)
    # compared where the policy is still the one that sampled: in the first of them
    assert row["sampler_trainer_mean"] == pytest.approx(0.25, abs=32 * FLOAT32)  # of two log-probs of up to 16
    stale = groups(learner.policy.model, (1, 0, 0), (0, 1, 2), version=2)
    assert stage(recipe()).update(stale, 3)["staleness_mean"] == 1.0


@pytest.mark.numeric
def test_the_old_policy_is_the_sampler_or_the_trainer():
    def clipped(**changes: Any) -> dict[str, Any]:
        learner = stage(recipe(**changes))
        return dict(learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 2), shift=0.25), 0))

    # the sampler is off by a quarter nat everywhere; by the trainer's own log-probs the first ratio is 1 all the same
    sampler, trainer = clipped(), clipped(old_logprobs_from="trainer")
    assert sampler["sampler_trainer_mean"] == pytest.approx(0.25, abs=32 * FLOAT32) == trainer["sampler_trainer_mean"]
    assert sampler["clip_fraction"] > trainer["clip_fraction"] == 0.0


@pytest.mark.numeric
@pytest.mark.parametrize(("shift", "capped", "ratio"), [(-0.25, 0.0, 2.718281828**0.25), (-5.0, 1.0, 2.0)])
def test_importance_weights_make_up_for_another_sampler(shift: float, capped: float, ratio: float):
    def gradient(config: Rl, shift: float) -> tuple[float, float | None]:
        learner = stage(config)
        row = learner.update(groups(learner.policy.model, (1, 0, 0), shift=shift), 0)
        return cast(float, row["grad_norm"]), cast("float | None", row.get("capped_share"))

    plain, none = gradient(recipe(tasks_per_step=1), 0.0)
    weighed, share = gradient(recipe(tasks_per_step=1, importance=Importance(cap=2.0)), shift)
    assert (none, share) == (None, capped)
    assert weighed / plain == pytest.approx(ratio, rel=1e-4)


@pytest.mark.numeric
def test_a_sequence_weight_is_that_of_the_whole_trajectory():
    attempt = trajectory(([1], [2, 3]), ([4], [5]))
    before = OldPolicyStats(sampler_K=torch.tensor([-1.0, -1.0, -1.0]), old_K=torch.tensor([-0.9, -1.2, -0.8]))
    config = recipe(Reinforce(), importance=Importance(level="sequence", cap=2.0))
    scored = Group(trajectories=(replace(attempt, reward=1.0),))
    ((lesson,),) = make_samples(config, [scored], [[before]])
    assert lesson.weights_K is not None
    assert lesson.weights_K.tolist() == pytest.approx([math.e**0.1] * 3, rel=8 * FLOAT32)


@pytest.mark.numeric
def test_a_penalty_in_the_reward_is_taken_per_token_by_ppo_and_per_trajectory_by_the_others():
    attempts = tuple(replace(trajectory(([1], [2]), ([4], [5])), reward=r) for r in (1.0, 0.0))
    far = OldPolicyStats(
        sampler_K=torch.zeros(2),
        old_K=torch.tensor([-1.0, -1.0]),
        reference_K=torch.tensor([-1.5, -1.25]),
        values_K=torch.zeros(2),
    )
    near = replace(far, reference_K=far.old_K)
    kl = Kl(where="reward", estimator="k1")
    made = Group(trajectories=attempts)
    (rows,) = make_samples(recipe(DrGrpo(), kl=kl), [made], [[far, near]], kl_coefficient=0.4)
    # k1 is 0.5 and 0.25: rewards 1 - 0.3 and 0, mean 0.35
    close = partial(pytest.approx, rel=8 * FLOAT32)  # a few additions and products of numbers around 1
    assert [row.advantages_K.tolist() for row in rows] == [close([0.35] * 2), close([-0.35] * 2)]
    apart = replace(far, reference_K=torch.tensor([-1.5, -0.75]))  # k1 is 0.5 and -0.25, which counts as 0
    floored = recipe(DrGrpo(), kl=Kl(where="reward", negative=False))
    (rows,) = make_samples(floored, [made], [[apart, near]], kl_coefficient=0.4)
    assert [row.advantages_K.tolist() for row in rows] == [close([0.4] * 2), close([-0.4] * 2)]
    ppo = Ppo(lam=1.0, whiten=False)
    (rows,) = make_samples(recipe(ppo, kl=kl), [made], [[far, near]], kl_coefficient=0.4)
    # to come: -0.4 * 0.25 + 1 after the second token, and -0.4 * 0.5 more before it
    assert rows[0].advantages_K.tolist() == close([0.7, 0.9])


def test_a_large_penalty_in_the_loss_holds_the_policy_where_it_was():
    def kl_after(coefficient: float) -> float:
        learner = stage(recipe(kl=Kl(coefficient=coefficient), learning_rate=3e-3))
        rows = [learner.update(groups(learner.policy.model, (1, 0, 0), (0, 1, 1)), i) for i in range(4)]
        assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-9)
        return cast(float, rows[-1]["kl"])

    assert 0 < kl_after(100.0) < 0.5 * kl_after(0.0)


def test_an_entropy_bonus_keeps_the_policy_from_making_up_its_mind():
    def entropy_after(bonus: float) -> float:
        learner = stage(recipe(entropy=bonus))
        rows = [learner.update(groups(learner.policy.model, (1, 1, 1), (0, 0, 0)), i) for i in range(3)]
        return cast(float, rows[-1]["entropy"] or 0.0) - cast(float, rows[0]["entropy"] or 0.0)

    assert entropy_after(1.0) > 0.01
    assert entropy_after(0.0) == 0.0  # no group has variance, so nothing is trained


def test_denominators_count_the_step_and_not_its_contexts():
    one, cut = trajectory(([1], [2, 3, 4])), trajectory(([1], [2]), ([1], [3]), ([1], [4]))
    for algorithm in ALGORITHMS.values():
        assert algorithm.denominator([one, one]) == algorithm.denominator([cut, one])
    assert [a.denominator([one, cut]) for a in (Grpo(), DrGrpo(tokens_per_attempt=9), Gspo(unit="turn"))] == [6, 18, 2]


class OneTells:
    """Tasks and attempts at them; of each draw only the first group has variance, in the others all are right."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        """(objectives, tasks, seed) of each call."""
        self.names: list[str] = []
        """Of the tasks attempted."""
        self.telling: str | None = None

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        self.asked.append((objectives, count, seed))
        questions = tuple(Question(id=f"q{i}", text="?", answers=("a",)) for i in range(objectives))
        names = [f"{objectives} objectives, seed {seed}, {n}" for n in range(count)]
        return [Task(id=name, questions=questions, prompt="p", turn_limit=1) for name in names]

    def __call__(
        self, tasks: Sequence[Task], *, numbers: Sequence[int], sampling: Sampling, **_: Any
    ) -> list[Trajectory]:
        self.names += dict.fromkeys(task.id for task in tasks)
        attempts = zip(tasks, numbers, strict=True)
        rewards = [0.0 if task.id == tasks[0].id and number == 0 else 1.0 for task, number in attempts]
        turn = Turn(context_ids=(1, 2), completion_ids=(3,), logprobs=(-1.0,))
        return [
            Trajectory(
                turns=(turn,), task=task, reward=r, metrics={"em": (r,) * task.objectives, "f1": (r,) * task.objectives}
            )
            for task, r in zip(tasks, rewards, strict=True)
        ]


def drawn(algorithm: Algorithm) -> tuple[RlStage, OneTells, list[Group]]:
    config = recipe(algorithm, tasks_per_step=4, group_size=2).model_copy(
        update={"curriculum": (Phase(steps=1, objectives=(2, 4)),)}
    )
    model, tells = tiny_model("qwen2"), OneTells()
    learner = RlStage(Policy(model, cast(Any, None)), config, cast(Rollout, tells), cast(TaskSource, tells), seed=3)
    return learner, tells, learner.sample(0)


def test_dapo_draws_again_for_the_groups_that_teach_nothing():
    learner, tells, groups_drawn = drawn(Dapo(max_draws=3))
    seed = 3 * 1_000_003
    assert tells.asked == [
        (2, 2, seed),
        (4, 2, seed),
        (2, 1, seed + 1_000_000_007),
        (4, 2, seed + 1_000_000_007),
        (4, 2, seed + 2_000_000_014),
    ], "4 groups; of the first draw one of 2 objectives tells, of the second the other"
    assert len(groups_drawn) == 4 + 3 + 2 == len(set(tells.names))
    row = learner.update(groups_drawn, 0)
    assert (row["groups_drawn"], row["groups_with_variance"]) == (9.0, 3 / 9)


def test_other_algorithms_draw_once():
    _, tells, groups_drawn = drawn(Grpo())
    assert len(groups_drawn) == 4 and len(tells.asked) == 2


def test_overlong_attempts_are_worth_less_by_all_their_turns_but_do_not_give_a_group_variance():
    attempts = [replace(trajectory(([1], [2] * 3), ([3], [4] * n)), reward=1.0) for n in (1, 6, 9)]  # 4, 9, 12 tokens
    before = [OldPolicyStats(sampler_K=torch.zeros(n), old_K=torch.zeros(n)) for n in (4, 9, 12)]
    config = recipe(Dapo(overlong=Overlong(limit=10, buffer=2)))
    (rows,) = make_samples(config, [Group(trajectories=tuple(attempts))], [before])
    # rewards 1, 0.5 and 0: as far from the middle one on either side
    first, middle, last = (float(row.advantages_K[0]) for row in rows)
    assert first == pytest.approx(-last) and first > 1 and middle == 0.0
    learner = stage(config)
    assert learner.update(groups(learner.policy.model, (1, 1, 1)), 0)["loss"] == 0.0


def test_rejection_learns_the_kept_attempts_and_nothing_else():
    learner = stage(recipe(Rejection(threshold=1.0, best=1)))
    rollout = groups(learner.policy.model, (1, 2, 0), (0, 0, 0.5))
    kept = rollout[0].trajectories[1]
    row = learner.update(rollout, 0)
    assert row["accepted_share"] == 1 / 6
    assert row["loss"] == pytest.approx(-sum(sum(t.logprobs) for t in kept.turns) / kept.num_completion_tokens)
    before = weights(learner.policy.model)
    assert learner.update(groups(learner.policy.model, (0, 0, 0)), 1)["grad_norm"] == 0.0
    assert torch.equal(before, weights(learner.policy.model))


def test_attempts_without_a_token_are_neither_trained_nor_in_the_way():
    for algorithm in (Grpo(), Ppo(), Gspo(unit="turn")):
        learner = stage(recipe(algorithm, kl=Kl()))
        (full,) = groups(learner.policy.model, (1, 0))
        empty = Trajectory(turns=(), reward=0.0, metrics={"em": (0.0,), "f1": (0.0,)})
        row = learner.update([Group(trajectories=(*full.trajectories, empty)), Group(trajectories=(empty, empty))], 0)
        assert cast(float, row["grad_norm"]) > 0


def failed(attempt: Trajectory) -> Trajectory:
    """The same, cut short by a search engine that did not answer."""
    return replace(attempt, turns=attempt.turns[:1], ended=Ended.TOOL_FAILED, reward=None, metrics={})


@everything
def test_an_attempt_whose_tool_failed_is_as_if_it_had_never_been(algorithm: Algorithm):
    learner, without = stage(recipe(algorithm)), stage(recipe(algorithm))
    first, second = groups(learner.policy.model, (1, 0, 0.5), (0, 1, 1))
    disturbed = [Group(trajectories=(failed(second.trajectories[0]), *first.trajectories)), second]
    row, expected = learner.update(disturbed, 0), without.update([first, second], 0)
    assert torch.equal(weights(learner.policy.model), weights(without.policy.model))
    assert cast(float, row["grad_norm"]) > 0
    assert cast(dict[str, float], row["endings"]) == {"answered": 6.0, "tool_failed": 1.0}
    same = ("reward", "em", "turns", "completion_tokens", "groups_with_variance", "loss", "groups_skipped")
    assert {key: row[key] for key in same} == {key: expected[key] for key in same}


def test_attempts_whose_tool_failed_do_not_give_a_group_variance():
    model = tiny_model("qwen2")
    (equal,) = groups(model, (1, 1, 0))
    kept = Group(trajectories=(*equal.trajectories[:2], failed(equal.trajectories[2])))
    scored_before = replace(equal.trajectories[2], ended=Ended.TOOL_FAILED)
    assert [has_variance(g) for g in (equal, kept, Group(trajectories=(*equal.trajectories[:2], scored_before)))] == [
        True,
        False,
        False,
    ]


class Credited(Grpo):
    """Advantages, and the critic's targets, as the test likes them."""

    of: ClassVar[Callable[[int], Advantages | None]]

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        return [[type(self).of(x.trajectory.num_completion_tokens) for x in group] for group in groups]


class TooFew(Grpo):
    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return tuple(rewards_G)[1:]


class NoAdvantages(Grpo):
    def group_advantages(self, rewards_G: Sequence[float]) -> Any:
        return None


class OfQuestions(Channel):
    def by_turn(self, attempts_G: Sequence[Attempt]) -> list[list[float]]:
        return [[1.0] for _ in attempts_G]


def crediting(of: Callable[[int], Advantages | None]) -> Algorithm:
    return type("Own", (Credited,), {"of": staticmethod(of), "__annotations__": {}})(name="own")


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (crediting(lambda k: Advantages(advantages_K=torch.ones(k + 3))), r"shape \(\d,\) for an attempt with \d"),
        (crediting(lambda k: Advantages(advantages_K=torch.ones(k, 1))), r"shape \(\d, 1\) for an attempt with \d"),
        (crediting(lambda k: Advantages(advantages_K=torch.ones(k), returns_K=torch.ones(1))), r"shape \(1,\)"),
        (crediting(lambda k: Advantages(advantages_K=torch.full((k,), math.nan))), "not finite"),
        (crediting(lambda k: Advantages(advantages_K=cast(Any, [1.0] * k))), "returned a list of numbers"),
        (crediting(lambda k: cast(Any, torch.ones(k))), r"returned tensor\(.* for an attempt; return Advantages"),
        (TooFew(name="own"), r"of TooFew returned \[.*, where lists of \[3\] are due: a number for each attempt"),
        (NoAdvantages(name="own"), r"of NoAdvantages returned \[None\], where lists of \[3\] are due"),
        (Channels(channels=(OfQuestions(name="own"),)), r"by_turn of OfQuestions returned .* lists of \[2, 2, 2\]"),
    ],
)
def test_an_own_algorithm_that_returns_something_else_is_named(algorithm: Algorithm, message: str):
    (rollout,) = groups(tiny_model("qwen2"), (1, 0, 0))
    zeros = [torch.zeros(t.num_completion_tokens) for t in rollout.trajectories]
    with pytest.raises(UserError, match=message):
        make_samples(recipe(algorithm), [rollout], [[OldPolicyStats(sampler_K=old, old_K=old) for old in zeros]])


@pytest.mark.parametrize("algorithm", [Grpo(), DrGrpo(), Rloo(), Gspo(), Cispo(), ReinforcePlusPlus()], ids=str)
def test_equal_rewards_teach_nothing_however_the_kl_in_the_reward_differs(algorithm: Algorithm):
    config = recipe(algorithm, kl=Kl(coefficient=0.001, where="reward"))
    (rollout,) = groups(tiny_model("qwen2"), (1, 1, 1, 1, 1, 1))
    before = [
        OldPolicyStats(sampler_K=old, old_K=old, reference_K=old + torch.randn(len(old)))
        for old in (torch.zeros(t.num_completion_tokens) for t in rollout.trajectories)
    ]
    (rows,) = make_samples(config, [rollout], [before], kl_coefficient=0.001)
    assert all(not row.advantages_K.any() and not row.has_gradient((0, len(row.advantages_K))) for row in rows)
    learner = stage(config)
    weights_before = weights(learner.policy.model)
    row = learner.update([rollout], 0)
    assert (row["grad_norm"], row["loss"], row["skipped_equal"], row["skipped_too_few"]) == (0.0, 0.0, 1.0, 0.0)
    assert (row["clip_fraction"], row["entropy"], row["sampler_trainer_max"]) == (None, None, None)
    assert torch.equal(weights(learner.policy.model), weights_before)


def test_reinforce_pp_skips_a_step_with_one_attempt_left_and_logs_it():
    learner = stage(recipe(ReinforcePlusPlus(), tasks_per_step=2, group_size=1))
    one, other = groups(learner.policy.model, (1,), (0,))
    before = weights(learner.policy.model)
    row = learner.update([one, Group(trajectories=tuple(map(failed, other.trajectories)))], 0)
    assert torch.equal(before, weights(learner.policy.model))
    assert (row["skipped_too_few"], row["groups_skipped"], row["grad_norm"]) == (1.0, 2.0, 0.0)
    row = learner.update([one, other], 1)
    assert (row["skipped_too_few"], row["skipped_equal"], row["groups_skipped"]) == (0.0, 0.0, 0.0)
    assert not torch.equal(before, weights(learner.policy.model))


def test_a_part_of_a_step_with_nothing_to_teach_is_no_optimiser_step():
    learner = stage(recipe())
    (rollout,) = groups(learner.policy.model, (1, 1, 1))
    lessons = make_samples(learner.config, [rollout], learner.networks.old_policy_stats([rollout.trajectories]))
    totals = PassStats()
    assert not accumulate(learner.networks, lessons, totals)
    assert totals == PassStats()


def test_ppo_whitens_and_neither_discounts_nor_decays_by_default():
    assert (Ppo().whiten, Ppo().gamma, Ppo().lam) == (True, 1.0, 1.0)


@everything
def test_a_group_with_too_few_attempts_left_is_skipped_and_a_step_without_any_changes_nothing(algorithm: Algorithm):
    learner = stage(recipe(algorithm, kl=None if isinstance(algorithm, Rejection) else Kl(target=0.01)))
    group, other = groups(learner.policy.model, (1, 0), (1, 0))
    one_left = Group(trajectories=(group.trajectories[0], failed(group.trajectories[1])))
    compares = learner.config.algorithm.compares_attempts
    assert learner.update([one_left, other], 0)["groups_skipped"] == float(compares)
    before, coefficient = weights(learner.policy.model), learner.networks.kl_coefficient
    row = learner.update([Group(trajectories=tuple(map(failed, g.trajectories))) for g in (group, other)], 1)
    assert torch.equal(before, weights(learner.policy.model))
    assert (row["groups_skipped"], row["groups_with_variance"], row["grad_norm"]) == (2.0, 0.0, 0.0)
    assert (row["reward"], row["em"], row["peak_tokens"]) == (None, None, None)
    assert learner.networks.kl_coefficient == coefficient
    json.dumps(row)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'group_size = 1\nalgorithm.name = "grpo"',
            "grpo compares the attempts at a task; set group_size to 2 or more",
        ),
        ('epochs = 2\nalgorithm.name = "rloo"', "rloo has no ratio to the old policy"),
        ('kl.estimator = "k1"', "has a gradient of 0 on average; take k2 or k3"),
        ("kl.negative = false", "negative = false is for where = reward"),
        ('kl = {where = "reward", estimator = "k3"}', "in the reward has a policy gradient that is not that of the KL"),
        (
            'tasks_per_step = 1\ngroup_size = 1\nalgorithm.name = "reinforce_pp"',
            "set tasks_per_step or group_size to 2 or more",
        ),
        ('algorithm.name = "grpoo"', "unknown algorithm 'grpoo' .did you mean grpo.*; known: grpo, dr_grpo"),
        ('algorithm.name = "grpo"\nalgorithm.unit = "turn"', "unknown key rl.algorithm.unit"),
        ("algorithm.clip_low = 0.1", r"\[rl.algorithm\] needs the key name,"),
        ("clip_low = 0.1", "unknown key rl.clip_low"),
        ('algorithm.name = "rejection"', "required key rl.algorithm.threshold is missing"),
        ('algorithm = {name = "rejection", threshold = 1.0}\nimportance.cap = 2.0', "rejection takes neither"),
        ("tasks_per_step = 1\ngroup_size = 2\nminibatches = 3", "3 minibatches of 2 attempts"),
        ('algorithm = {name = "dapo", overlong = {limit = 5, buffer = 9}}', "buffer must lie between 0 and the limit"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused_with_the_way_out(tmp_path: Path, text: str, message: str):
    path = tmp_path / "recipe.toml"
    path.write_text(f'[tasks]\nkind = "atlas"\n[rl]\ncurriculum = [{{steps = 1}}]\n{text}\n')
    with pytest.raises(UserError, match=message):
        load_toml(path, Recipe)
