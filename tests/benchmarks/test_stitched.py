"""MEM1's stitched sequence: where it differs from what the sampler saw, and nowhere else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from builders import random_trajectory, trajectory
from stitching import stitch

from mem1.records import Trajectory, Turn

P, Q, S, A, I, T, B, J, E = range(1, 10)  # noqa: E741


def drawn() -> Trajectory:
    """The trajectory drawn in the module: prompt p q, states s and t, queries a and b, results i and j."""
    spans = {"state": (0, 1), "action": (1, 2)}
    return Trajectory(
        turns=(
            Turn(context_ids=(P, Q), completion_ids=(S, A), completion_spans=spans),
            Turn(context_ids=(P, Q, S, A, I), completion_ids=(T, B), completion_spans=spans),
            Turn(context_ids=(P, Q, T, B, J), completion_ids=(E,)),
        )
    )


def rows(visible: torch.Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in visible.tolist()]


def test_the_mask_that_was_meant_hides_the_previous_state():
    stitched = stitch(drawn())
    assert stitched.input_ids.tolist() == [P, Q, S, A, I, T, B, J, E]
    assert stitched.position_ids.tolist() == list(range(9))
    assert stitched.target_node.tolist() == [2, 3, 5, 6, 8]
    assert stitched.visible.dtype == torch.bool
    assert rows(stitched.visible) == [
        "x........",  # p
        "xx.......",  # q
        "xxx......",  # s
        "xxxx.....",  # a
        "....x....",  # i: a result sees itself alone
        "xx.xxx...",  # t: not s
        "xx.xxxx..",  # b
        ".......x.",  # j
        "xx....xxx",  # e: not t, and nothing of turn 1
    ]


def test_the_option_shows_the_previous_state_and_changes_nothing_else():
    hidden, shown = stitch(drawn()).visible, stitch(drawn(), previous_state=True).visible
    assert (shown & ~hidden).nonzero().tolist() == [[5, 2], [6, 2], [8, 5]]
    assert not (hidden & ~shown).any()


def test_without_spans_the_whole_completion_is_state():
    bare = trajectory(([P], [S, A]), ([P, S, A, I], [E]))
    assert rows(stitch(bare).visible)[-1] == "x..xx"
    assert rows(stitch(bare, previous_state=True).visible)[-1] == "xxxxx"


def test_the_opening_of_a_forced_answer_stands_with_the_result():
    forced = trajectory(([P], [S]), ([P, S, I, J], [E]))
    assert stitch(forced).input_ids.tolist() == [P, S, I, J, E]
    assert stitch(forced).target_node.tolist() == [1, 4]


def test_one_turn_is_the_ordinary_causal_sequence():
    stitched = stitch(trajectory(([P, Q], [A, B])))
    assert stitched.visible.equal(torch.ones(4, 4, dtype=torch.bool).tril())


def test_every_sampled_token_is_one_target():
    one = random_trajectory(random.Random(0), turns=5)
    stitched = stitch(one)
    sampled = [token for turn in one.turns for token in turn.completion_ids]
    assert stitched.input_ids[stitched.target_node].tolist() == sampled
    assert len(stitched.input_ids) == one.turns[0].num_tokens + sum(
        len(before.observation_ids) + len(turn.completion_ids)
        for before, turn in zip(one.turns, one.turns[1:], strict=False)
    )


@pytest.mark.parametrize("policy", ["full", "window(2)", "fold(2)"])
def test_other_context_policies_cannot_be_stitched(policy: str):
    with pytest.raises(ValueError, match="only constant memory can be stitched"):
        stitch(random_trajectory(random.Random(0), policy=policy, turns=4))


def test_nothing_to_stitch_is_an_error():
    with pytest.raises(ValueError, match="no turns"):
        stitch(replace(drawn(), turns=()))
