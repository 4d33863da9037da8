"""Channels as rewards of PPO: what each turn is paid, at which token, and that the outcome alone is PPO as it was."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import random_group, trajectory
from torch import Tensor

from mem1.algorithms.base import Attempt
from mem1.algorithms.channels import ByTurn, Channel, MemoryLength, Objectives, Outcome, Where, paid
from mem1.algorithms.ppo import Ppo, generalised_advantages, whitened
from mem1.configuration import load_toml, to_toml
from mem1.errors import UserError
from mem1.recipe.recipe import Recipe
from mem1.records import Question, Task, Trajectory, Turn

QUICK = Path(__file__).parents[2] / "recipes" / "atlas-quick.toml"
TASK = Task(
    id="t",
    questions=(Question(id="1", text="Who founded Alvex?", answers=("Mira Toll",), titles=("Alvex",)),),
    prompt="Q1",
    turn_limit=9,
)


def turn(tokens: int = 2) -> Turn:
    """`tokens` of the state, then two of the action."""
    return Turn(
        context_ids=(1,),
        completion_ids=(1,) * (tokens + 2),
        action="search",
        completion_spans={**({"state": (0, tokens)} if tokens else {}), "action": (tokens, tokens + 2)},
    )


def attempt(*turns: Turn, reward: float = 1.0, em: float = 1.0, **fields: Any) -> Attempt:
    made = Trajectory(turns=turns, task=TASK, reward=reward, metrics={"em": (em,)})
    return Attempt(trajectory=made, shaped_reward=reward, **fields)


class Given(Channel):
    """Pays these numbers, one for each turn."""

    tokens: Where = "memory"
    numbers: tuple[float, ...] = ()

    def rewards(self, attempt: Attempt) -> ByTurn:
        return list(self.numbers)


def pay(channel: Channel, x: Attempt) -> list[float]:
    return paid((channel,), x).tolist()


def test_the_outcome_is_paid_once_on_the_last_token_of_the_trajectory():
    assert pay(Outcome(), attempt(turn(), turn(tokens=0), reward=0.5)) == [0, 0, 0, 0, 0, 0.5]
    bare = trajectory(([1], [2, 3]), ([4], [5]), ([6], []))  # nothing was sampled in the last turn
    assert pay(Outcome(), Attempt(trajectory=bare, shaped_reward=2.0)) == [0, 0, 2]


def test_a_trajectory_without_a_token_is_paid_nothing():
    for turns in ((), (([1], []),)):
        assert pay(Outcome(), Attempt(trajectory=trajectory(*turns), shaped_reward=7.0)) == []
    late = Attempt(trajectory=trajectory(([1], []), ([2], [3])), shaped_reward=1.0)
    assert pay(Given(numbers=(2.0, 0.0)), late) == [0.0]  # nor for what nobody did


def test_a_memory_that_is_too_long_earns_nothing():
    x = attempt(turn(tokens=2), turn(tokens=4))
    assert sum(pay(Outcome(memory_limit=4), x)) == 1.0 and sum(pay(Outcome(memory_limit=3), x)) == 0.0


def test_a_turn_is_paid_at_the_last_token_of_its_memory():
    x = attempt(turn(), turn(), turn(tokens=0))
    # the last turn wrote no memory, so it is paid at its end
    assert pay(Given(numbers=(0.5, 1.5, -3.0), weight=2.0), x) == [0, 1, 0, 0, 0, 3, 0, 0, 0, -6]
    assert pay(Given(numbers=(0.5, 1.5, -3.0), tokens="all"), x) == [0, 0, 0, 0.5, 0, 0, 0, 1.5, 0, -3]


def test_only_attempts_that_were_right_pay_for_their_memory():
    turns = turn(tokens=1), turn(tokens=3)
    assert pay(MemoryLength(weight=0.25), attempt(*turns)) == [-0.25, 0, 0, 0, 0, -0.75, 0, 0]
    assert pay(MemoryLength(), attempt(*turns, em=0.0)) == [0.0] * 8
    assert sum(pay(MemoryLength(least=0.0), attempt(*turns, em=0.0))) == -4.0


def test_least_is_asked_of_the_mean_over_questions():
    x = attempt(turn(tokens=1))
    half = replace(x, trajectory=replace(x.trajectory, metrics={"em": (1.0, 0.0)}))
    assert [sum(pay(MemoryLength(least=least), half)) for least in (0.49, 0.5, 0.51)] == [-1.0, -1.0, 0.0]


def test_channels_are_summed_token_by_token():
    x = attempt(turn(), turn(tokens=0))
    assert paid((Outcome(), Given(numbers=(1.0, 0.0), weight=0.5)), x).tolist() == [0, 0.5, 0, 0, 0, 1]


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("penalised", [True, False])
def test_the_outcome_alone_is_ppo_with_the_reward_at_the_end_to_the_digit(whiten: bool, penalised: bool):
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    trajectories = [t for turns in (1, 3, 4) for t in random_group(rng, 2, turns=turns)]
    counts = [t.num_completion_tokens for t in trajectories]

    def noise(count: int) -> Tensor:
        return torch.randn(count, generator=generator)

    attempts = [
        Attempt(
            trajectory=t,
            shaped_reward=rng.random(),
            values_K=noise(count),
            kl_penalty_K=noise(count) if penalised else None,
        )
        for t, count in zip(trajectories, counts, strict=True)
    ]
    algorithm = Ppo(lam=0.9, gamma=0.99, whiten=whiten)
    assert algorithm == Ppo(lam=0.9, gamma=0.99, whiten=whiten, channels=(Outcome(),))
    found = [one for group in algorithm.advantages([attempts[:2], attempts[2:]]) for one in group]
    at_the_end = [
        torch.tensor([*[0.0] * (count - 1), x.shaped_reward]) for count, x in zip(counts, attempts, strict=True)
    ]
    if penalised:
        at_the_end = [r - x.kl_penalty_K for r, x in zip(at_the_end, attempts, strict=True)]  # type: ignore[operator]
    values = torch.cat([x.values_K for x in attempts if x.values_K is not None])
    advantages, returns = generalised_advantages(values, torch.cat(at_the_end), counts, gamma=0.99, lam=0.9)
    advantages = whitened(advantages) if whiten else advantages
    assert torch.equal(torch.cat([one.advantages_K for one in found if one is not None]), advantages)
    assert torch.equal(torch.cat([x.returns_K for x in found if x is not None and x.returns_K is not None]), returns)


def test_a_reward_of_a_turn_is_heard_in_earlier_contexts_and_not_in_later_ones():
    x = attempt(turn(), turn(), turn(), reward=0.0, values_K=torch.zeros(12))
    algorithm = Ppo(channels=(Given(numbers=(0.0, 8.0, 0.0)),), lam=0.5, whiten=False)
    ((found,),) = algorithm.advantages([[x]])
    assert found is not None
    # 8 for the second turn, whose memory ends with the sixth token
    assert found.advantages_K.tolist() == [0.25, 0.5, 1, 2, 4, 8, 0, 0, 0, 0, 0, 0]


def test_a_recipe_gives_ppo_channels():
    given = ["rl.algorithm={name='ppo', channels=[{name='outcome'}, {name='memory_length', weight=0.1}]}"]
    recipe = load_toml(QUICK, Recipe, given)
    assert recipe.rl is not None
    assert recipe.rl.algorithm == Ppo(channels=(Outcome(), MemoryLength(weight=0.1)))


def test_a_written_recipe_has_the_channels_with_their_own_keys(tmp_path: Path):
    given = ["rl.algorithm={name='ppo', channels=[{name='outcome', memory_limit=40}, {name='memory_length'}]}"]
    recipe = load_toml(QUICK, Recipe, given)
    (tmp_path / "config.toml").write_text(to_toml(recipe))
    assert load_toml(tmp_path / "config.toml", Recipe) == recipe


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        ("{name='objectives'}", "objectives compares attempts, which ppo does not; take the algorithm channels"),
        ("{name='outcome', scale=false}", "scale of outcome has no effect"),
    ],
)
def test_a_channel_that_ppo_cannot_pay_is_refused(channel: str, why: str):
    with pytest.raises(UserError, match=why):
        load_toml(QUICK, Recipe, [f"rl.algorithm={{name='ppo', channels=[{channel}]}}"])


def test_a_channel_without_rewards_says_so():
    assert not Objectives().has_rewards and MemoryLength().has_rewards
    with pytest.raises(NotImplementedError, match="Objectives compares attempts"):
        Objectives().rewards(attempt(turn()))
