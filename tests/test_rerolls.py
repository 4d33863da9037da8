"""Turns sampled anew from their stored contexts: how they are made, what they are compared with, what they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from worlds import CODEC, SAMPLING, replay, rollout, shelf, task

from mem1.algorithms.base import Attempt, has_variance
from mem1.algorithms.channels import Channels, Objectives, Outcome, Reroll
from mem1.algorithms.group import EPSILON
from mem1.configuration import load_toml
from mem1.errors import UserError
from mem1.protocol import ANSWER, MALFORMED, vocabulary
from mem1.records import Ended, Group, Trajectory, Turn, trajectory_from_json, trajectory_to_json
from mem1.rollout import Rollout
from mem1.training.gradients.samples import make_samples, scorable_groups
from mem1.training.logprobs import completion_logprobs
from mem1.training.loop.recipe import Recipe
from mem1.training.loop.rerolls import rerolled
from mem1.training.loop.rl import RlStage
from mem1.training.loop.train import make_rollout
from mem1.training.weights.policy import SHIPPED, load_policy

QUICK = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
CHANNELS = 'rl.algorithm={name="channels", channels=[{name="outcome"}, {name="reroll", attempts=3}]}'
SMALL = ["tasks.entities=60", "tasks.worlds=2", "rl.tasks_per_step=3", "rl.group_size=4", "rl.epochs=1", "workers=1"]


def made_stage(*overrides: str) -> RlStage:
    config = load_toml(QUICK, Recipe, [*SMALL, CHANNELS, *overrides])
    assert config.rl is not None
    tags, policy = vocabulary(config.vocabulary), load_policy(SHIPPED)
    source = config.tasks.source("train", tags)
    return RlStage(policy, config.rl, make_rollout(config, policy, source, tags), source, seed=0)


@pytest.fixture(scope="module")
def stage() -> RlStage:
    return made_stage()


@pytest.fixture(scope="module")
def groups(stage: RlStage) -> list[Group]:
    sampled = [group for step in range(4) for group in stage.sample(step)]
    places = [t.rerolled for group in sampled for t in group.trajectories if t.rerolled is not None]
    assert any(turn > 0 for _, turn in places) and any(attempt > 0 for attempt, _ in places)
    return sampled


def again(group: Group) -> list[Trajectory]:
    return [t for t in group.trajectories if t.rerolled is not None]


def without_rounding(attempt: Trajectory) -> Trajectory:
    """Without what depends on the other contexts of a batch."""
    return replace(attempt, seconds=0.0, turns=tuple(replace(turn, logprobs=()) for turn in attempt.turns))


def original(group: Group, one: Trajectory) -> Turn:
    assert one.rerolled is not None
    number, turn = one.rerolled
    (attempt,) = [t for t in group.attempts if t.attempt == number]
    return attempt.turns[turn]


# -- how they are made ---------------------------------------------------------------------------------------------


def test_an_attempt_goes_on_from_any_of_its_turns_as_if_it_had_never_stopped(stage: RlStage):
    one = cast(Rollout, stage.rollout)
    tasks = stage.source.tasks(objectives=2, count=4, seed=5)
    whole = one(tasks, sampling=SAMPLING)
    assert any(len(t.turns) > 2 for t in whole)
    for turns in (1, 2):
        found = one(tasks, sampling=SAMPLING, earlier=[t.turns[: min(turns, len(t.turns) - 1)] for t in whole])
        assert list(map(without_rounding, found)) == list(map(without_rounding, whole))


def test_a_turn_of_each_group_is_sampled_anew_from_its_very_context(groups: list[Group]):
    assert {len(group.attempts) for group in groups} == {4}
    assert [[t.attempt for t in again(group)] for group in groups] == [[4, 5, 6]] * len(groups)
    for group in groups:
        assert len({t.rerolled for t in again(group)}) == 1
        for one in again(group):
            (turn,) = one.turns
            was = original(group, one)
            assert turn.context_ids == was.context_ids
            assert was.action not in (ANSWER, MALFORMED)
            assert one.reward is not None
    texts = [({t.turns[0].text for t in again(group)}, original(group, again(group)[0]).text) for group in groups]
    assert any(len(new) > 1 and was not in new for new, was in texts)  # each is drawn by itself


def test_the_same_seed_makes_the_same_turns(stage: RlStage, groups: list[Group]):
    one = [again(group) for group in stage.sample(0)]
    assert [[t.turns for t in of_group] for of_group in one] == [[t.turns for t in again(g)] for g in groups[:3]]


@pytest.mark.parametrize(
    "text", ["<answer> Q1 x </answer>", "<IS> Lina </IS> <answer> x </answer>", "<IS> Lina </IS> x"]
)
def test_a_group_without_a_memory_that_is_used_stays_as_it_is(text: str):
    answers = rollout(replay(*[text] * 2), shelf("x"))
    asked = task("x")
    attempts = answers([asked, asked], sampling=SAMPLING)
    group = Group(trajectories=tuple(attempts))
    assert rerolled([group], 3, answers, SAMPLING) == [group]


def test_what_follows_decides_the_reward_and_is_not_kept():
    search, right, wrong = (
        "<IS> Lina </IS> <query> mayor </query>",
        "<answer> Q1 Lina </answer>",
        "<answer> Q1 Mana </answer>",
    )
    asked = task("Lina")
    (first,) = rollout(replay(search, wrong), shelf("Lina"))([asked], sampling=SAMPLING)
    (group,) = rerolled(
        [Group(trajectories=(first,))], 2, rollout(replay(search, search, right, wrong), shelf("Lina")), SAMPLING
    )
    assert [(t.rerolled, t.reward, len(t.turns)) for t in again(group)] == [((0, 0), 1.0, 1), ((0, 0), 0.0, 1)]
    assert CODEC.decode(again(group)[0].turns[0].completion_ids) == search


def test_a_turn_sampled_anew_is_read_back_as_it_was_written(groups: list[Group]):
    one = again(groups[0])[0]
    assert trajectory_from_json(trajectory_to_json(one)) == one
    whole = groups[0].attempts[0]
    assert "rerolled" not in trajectory_to_json(whole)
    assert trajectory_from_json(trajectory_to_json(whole)) == whole


# -- what they are compared with -----------------------------------------------------------------------------------


def search_turn() -> Turn:
    return Turn(
        context_ids=(1,),
        completion_ids=(1, 2, 3, 4),
        action="search",
        content="x",
        completion_spans={"state": (0, 2), "action": (2, 4)},
    )


def attempt(reward: float, number: int, rerolled: tuple[int, int] | None = None) -> Attempt:
    turns = (search_turn(), search_turn()) if rerolled is None else (search_turn(),)
    metrics = {"em": (reward,)}
    made = Trajectory(
        turns=turns,
        task=task("x"),
        reward=reward,
        metrics=metrics,
        attempt=number,
        rerolled=rerolled,
        ended=Ended.ANSWERED,
    )
    return Attempt(trajectory=made, shaped_reward=reward)


GROUP = [attempt(1.0, 0), attempt(0.0, 1), attempt(0.0, 2, (0, 1)), attempt(0.0, 3, (0, 1)), attempt(1.0, 4, (0, 1))]


def test_a_turn_is_compared_with_those_in_its_place_alone():
    one = 0.5 / (0.5 + EPSILON)  # rewards 1 0 0 1
    expected = [[0.0, one], [0.0, 0.0], [-one], [-one], [one]]
    for order in (GROUP, GROUP[::-1]):
        found = Reroll().by_turn(order)
        wanted = expected if order is GROUP else expected[::-1]
        assert [pytest.approx(numbers) for numbers in wanted] == found


def test_without_the_attempt_the_new_turns_are_compared_with_one_another():
    numbers = [number for (number,) in Reroll(scale=False).by_turn(GROUP[1:])[1:]]
    assert numbers == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


@pytest.mark.parametrize("order", [1, -1])
def test_other_channels_do_not_see_them_and_give_them_nothing(order: int):
    channels = Channels(channels=(Outcome(), Objectives()))
    (whole,) = channels.advantages([GROUP[:2][::order]])
    (found,) = channels.advantages([GROUP[::order]])
    values = [one.advantages_K.tolist() for one in found[::order] if one is not None]
    assert values[:2] == [one.advantages_K.tolist() for one in whole[::order] if one is not None]
    assert any(values[0]) and not any(map(any, values[2:]))


def test_the_credit_lands_on_the_memory_of_the_turn_alone():
    (found,) = Channels(channels=(Reroll(scale=False),)).advantages([GROUP])
    values = [one.advantages_K.tolist() for one in found if one is not None]
    assert values[0] == [0.0] * 4 + [0.5, 0.5, 0.0, 0.0]
    assert values[2] == [-0.5, -0.5, 0.0, 0.0]


def test_new_turns_do_not_count_as_attempts():
    whole = Group(trajectories=tuple(x.trajectory for x in (GROUP[1], GROUP[1], *GROUP[2:])))
    assert not has_variance(whole)
    algorithm = Channels(channels=(Outcome(), Reroll()))
    alone = Group(trajectories=tuple(x.trajectory for x in (GROUP[0], *GROUP[2:])))
    assert scorable_groups(algorithm, [alone, whole]) == [whole]
    failed = replace(GROUP[0].trajectory, ended=Ended.TOOL_FAILED)
    assert not scorable_groups(algorithm, [Group(trajectories=(failed, GROUP[2].trajectory))])


# -- what they train -----------------------------------------------------------------------------------------------


def test_their_log_probs_are_the_trainers(stage: RlStage, groups: list[Group]):
    new = [one for group in groups for one in again(group)]
    found = completion_logprobs(stage.policy.model, new)
    for one, (by_turn,) in zip(new, found, strict=True):
        assert torch.allclose(by_turn, torch.tensor(one.turns[0].logprobs), atol=1e-4)


def test_a_step_trains_their_tokens_once_and_counts_only_whole_attempts():
    stage = made_stage('rl.algorithm={name="channels", channels=[{name="reroll", attempts=6}]}')
    sampled = stage.sample(0)
    stats = stage.networks.old_policy_stats([group.trajectories for group in sampled])
    samples = [sample for group in make_samples(stage.config, sampled, stats) for sample in group]
    trained = [sample for sample in samples if sample.advantages_K.any()]
    assert any(sample.trajectory.rerolled is not None for sample in trained)
    for sample in trained:
        turns = {number for number, one in enumerate(_split(sample.advantages_K, sample.trajectory)) if one.any()}
        assert len(turns) == 1
    metrics = stage.update(sampled, 0)
    attempts = [t for group in sampled for t in group.attempts]
    assert metrics["reward"] == pytest.approx(sum(t.reward or 0.0 for t in attempts) / len(attempts))
    assert metrics["grad_norm"]


def _split(advantages_K: torch.Tensor, trajectory: Trajectory) -> list[torch.Tensor]:
    return list(advantages_K.split([len(turn.completion_ids) for turn in trajectory.turns]))


def test_an_agent_of_its_own_cannot_be_continued():
    with pytest.raises(UserError, match="leave out the channel reroll"):
        load_toml(
            QUICK,
            Recipe,
            [CHANNELS, "context=constant", 'agent={entry="endpoint_agents:run"}', "chat={}", 'tasks.prompt="tools"'],
        )
