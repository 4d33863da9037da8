"""Packs: every turn in exactly one, none larger than the cap, cut only where contexts branch."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from builders import POLICIES, random_batch, random_group, random_trajectory, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.packing import Pack, Piece, pack, split_into_packs
from mem1.records import Trajectory

P, Q, A, B, I, C, D, J, E = range(1, 10)  # noqa: E741
DRAWN = trajectory(([P, Q], [A, B]), ([P, Q, A, B, I], [C, D]), ([P, Q, C, D, J], [E]))
"""7 tokens of two turns that continue one another, then a branch; 11 together, as the prompt is shared."""


def size(packed: Pack, trajectories: list[Trajectory]) -> int:
    assert len(packed.tree) == len(pack([piece.of(trajectories) for piece in packed.pieces]))
    return len(packed.tree)


def placed(packs: list[Pack]) -> list[tuple[int, int]]:
    """(trajectory, turn) in the order of packs and pieces."""
    return [(p.trajectory, turn) for packed in packs for p in packed.pieces for turn in range(*p.turns)]


def all_turns(trajectories: list[Trajectory]) -> list[tuple[int, int]]:
    return [(number, turn) for number, t in enumerate(trajectories) for turn in range(len(t.turns))]


def test_a_trajectory_is_cut_at_its_branch_and_its_tokens_with_it():
    packs = split_into_packs([DRAWN], max_tokens=10)
    assert [list(packed.pieces) for packed in packs] == [
        [Piece(trajectory=0, turns=(0, 2), tokens=(0, 4))],
        [Piece(trajectory=0, turns=(2, 3), tokens=(4, 5))],
    ]
    assert [size(packed, [DRAWN]) for packed in packs] == [7, 6]
    assert packs[1].trajectories[0].turns == DRAWN.turns[2:]


def test_shared_tokens_count_once():
    whole = [[Piece(trajectory=0, turns=(0, 3), tokens=(0, 5))]]
    assert [list(packed.pieces) for packed in split_into_packs([DRAWN], max_tokens=11)] == whole
    assert sum(turn.num_tokens for turn in DRAWN.turns) == 17


def test_a_piece_that_is_not_wanted_is_in_no_pack_and_joins_nothing():
    back = trajectory(([P], [A]), ([Q], [B]), ([P], [C, D]))
    wanted = {(0, 1), (2, 3)}
    (packed,) = split_into_packs([back], max_tokens=20, wanted=lambda piece: piece.turns in wanted)
    assert list(packed.pieces) == [
        Piece(trajectory=0, turns=(0, 1), tokens=(0, 1)),
        Piece(trajectory=0, turns=(2, 3), tokens=(2, 4)),
    ]
    assert packed.tree.input_ids.tolist() == [P, A, C, D]
    assert split_into_packs([back], max_tokens=20, wanted=lambda piece: False) == []


def test_the_prompt_is_shared_within_a_pack_and_repeated_in_the_next():
    attempts = [trajectory(([P, Q, I], [first])) for first in (A, B, C, D)]
    assert [placed([p]) for p in split_into_packs(attempts, max_tokens=5)] == [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]


def test_full_context_stays_whole_even_beyond_the_cap():
    rng = random.Random(0)
    one = random_trajectory(rng, policy="full", turns=5)
    small = [trajectory(([C], [D]))]
    packs = split_into_packs([*small, one, *small], max_tokens=4)
    assert [placed([p]) for p in packs] == [[(0, 0)], [(1, n) for n in range(5)], [(2, 0)]]
    assert size(packs[1], [*small, one]) > 4


def test_whole_trajectories_are_cut_nowhere_even_beyond_the_cap():
    small = trajectory(([C], [D]))
    packs = split_into_packs([small, DRAWN, small, small], max_tokens=10, whole=True)
    assert [placed([p]) for p in packs] == [[(0, 0)], [(1, 0), (1, 1), (1, 2)], [(2, 0), (3, 0)]]


def test_an_oversized_piece_is_alone_even_before_its_own_prefix():
    large, prefix = trajectory((range(20), [A])), trajectory((range(19), [19]))
    packs = split_into_packs([large, prefix], max_tokens=20)
    assert [placed([p]) for p in packs] == [[(0, 0)], [(1, 0)]]


def test_balanced_packs_are_as_many_but_the_largest_is_as_small_as_it_can_be():
    #                       3 + 3 + 3 | 3        becomes       3 + 3 | 3 + 3
    four = [trajectory(([first], [first, first])) for first in range(4)]
    assert [len(p.pieces) for p in split_into_packs(four, max_tokens=9)] == [3, 1]
    assert [len(p.pieces) for p in split_into_packs(four, max_tokens=9, ranks=2)] == [2, 2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_makes_no_packs(ranks: int):
    assert split_into_packs([], max_tokens=5, ranks=ranks) == []
    assert split_into_packs([Trajectory(turns=())], max_tokens=5, ranks=ranks) == []


def test_a_cap_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="max_tokens must be at least 1, not 0"):
        split_into_packs([DRAWN], max_tokens=0)


BATCHES = st.integers(0, 10**6).map(lambda seed: random_batch(seed, size=6))


@settings(max_examples=30)
@given(BATCHES, st.integers(1, 60), st.integers(1, 3))
def test_every_turn_is_in_one_pack_in_order_and_every_token_with_its_turn(batch, max_tokens: int, ranks: int):
    packs = split_into_packs(batch, max_tokens=max_tokens, ranks=ranks)
    assert all(packed.pieces for packed in packs)
    assert placed(packs) == all_turns(batch)
    for piece in (piece for packed in packs for piece in packed.pieces):
        before = batch[piece.trajectory].turns[: piece.turns[0]]
        start = sum(len(turn.completion_ids) for turn in before)
        assert piece.tokens == (start, start + piece.of(batch).num_completion_tokens)


@settings(max_examples=30)
@given(BATCHES, st.integers(1, 60), st.integers(1, 3))
def test_a_pack_is_within_the_cap_unless_it_cannot_be_cut(batch, max_tokens: int, ranks: int):
    for packed in split_into_packs(batch, max_tokens=max_tokens, ranks=ranks):
        if size(packed, batch) > max_tokens:
            (uncut,) = packed.trajectories
            paths = [turn.context_ids + turn.completion_ids for turn in uncut.turns]
            assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(paths))


@settings(max_examples=30)
@given(BATCHES, st.integers(1, 60))
def test_the_next_piece_would_not_have_fitted(batch, max_tokens: int):
    packs = split_into_packs(batch, max_tokens=max_tokens)
    for one, other in pairwise(packs):
        first = split_into_packs(other.trajectories[:1], max_tokens=1)[0].trajectories[0]
        assert len(pack([*one.trajectories, first])) > max_tokens


@settings(max_examples=30)
@given(BATCHES, st.integers(10, 60))
def test_no_cap_gives_as_few_packs_with_a_smaller_largest_one(batch, max_tokens: int):
    few = len(split_into_packs(batch, max_tokens=max_tokens))
    balanced = split_into_packs(batch, max_tokens=max_tokens, ranks=2)
    few += few % 2
    assert len(balanced) <= few
    largest = max(size(packed, batch) for packed in balanced)
    for cap in range(max(1, largest - 5), max_tokens + 1):
        packs = split_into_packs(batch, max_tokens=cap)
        assert len(packs) > few or max(size(packed, batch) for packed in packs) >= largest


@pytest.mark.parametrize("policy", POLICIES)
def test_a_group_in_two_packs_costs_little_more_than_in_one(policy: str):
    group = random_group(random.Random(3), 8, policy=policy, turns=4, longest=20, prompt=40)
    together = len(pack(group))
    packs = split_into_packs(group, max_tokens=together // 2 + 200)
    assert len(packs) == 2
    assert sum(size(packed, group) for packed in packs) <= together + 40 + 60
