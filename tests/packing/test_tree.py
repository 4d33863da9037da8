"""The token tree: every distinct prefix once, and every sampled token a target of its own."""

from __future__ import annotations

import random

import pytest
import torch
from builders import random_batch, random_group, random_trajectory, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.packing import TokenTree, pack, visible
from mem1.records import Trajectory

P, Q, A, B, I, C, D, J, E, X, Y = range(1, 12)  # noqa: E741


def path(tree: TokenTree, node: int) -> tuple[int, ...]:
    """Tokens from the root to `node`, by walking parents."""
    tokens = []
    while node >= 0:
        tokens.append(int(tree.input_ids[node]))
        node = int(tree.parent[node])
    return tuple(reversed(tokens))


def prefixes(trajectories: list[Trajectory]) -> set[tuple[int, ...]]:
    paths = [turn.context_ids + turn.completion_ids for t in trajectories for turn in t.turns]
    return {ids[:n] for ids in paths for n in range(1, len(ids) + 1)}


def test_three_turns_of_constant_memory_as_drawn_in_the_module():
    tree = pack([trajectory(([P, Q], [A, B]), ([P, Q, A, B, I], [C, D]), ([P, Q, C, D, J], [E]))])
    assert tree.input_ids.tolist() == [P, Q, A, B, I, C, D, C, D, J, E]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 2, 3, 4, 5]
    assert tree.parent.tolist() == [-1, 0, 1, 2, 3, 4, 5, 1, 7, 8, 9]
    assert tree.end.tolist() == [11, 11, 7, 7, 7, 7, 7, 11, 11, 11, 11]
    assert tree.target_node.tolist() == [2, 3, 5, 6, 10]


def test_a_copy_under_other_ancestors_is_a_branch_of_its_own():
    # The second context starts p q x y i: nothing after the prompt is shared with p q a b.
    tree = pack([trajectory(([P, Q], [A, B]), ([P, Q, X, Y, I], [C, D]))])
    assert tree.input_ids.tolist() == [P, Q, A, B, X, Y, I, C, D]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 6]
    assert tree.parent.tolist() == [-1, 0, 1, 2, 1, 4, 5, 6, 7]
    assert tree.end.tolist() == [9, 9, 4, 4, 9, 9, 9, 9, 9]
    assert tree.target_node.tolist() == [2, 3, 7, 8]


def test_the_sampled_tokens_of_turn_one_are_shared_with_their_copy_and_trained_once():
    tree = pack([trajectory(([P, Q], [A, B]), ([P, Q, A, B, I], [C, D]))])
    assert tree.input_ids.tolist() == [P, Q, A, B, I, C, D]
    assert tree.target_node.tolist() == [2, 3, 5, 6]


def test_full_context_is_one_chain_the_ordinary_causal_sequence():
    one = random_trajectory(random.Random(0), policy="full", turns=5)
    tree = pack([one])
    length = one.turns[-1].num_tokens
    assert tree.parent.tolist() == list(range(-1, length - 1))
    assert tree.end.tolist() == [length] * length
    assert tree.segments == ((0, length, -1),)
    assert visible(tree).equal(torch.ones(length, length, dtype=torch.bool).tril())


def test_constant_memory_is_a_star_whose_trunk_is_the_prompt():
    prompt = (P, Q, P)
    done = [(A, B), (C, D), (E, X)]
    tree = pack(
        [
            trajectory(
                (prompt, done[0]), (prompt + done[0], done[1]), (prompt + done[1], done[2]), (prompt + done[2], [J])
            )
        ]
    )
    # Turns 1 and 2 are one branch: nothing older stood before the first completion.
    assert tree.segments == ((0, 3, -1), (3, 7, 0), (7, 11, 0), (11, 14, 0))


def test_a_group_stores_its_prompt_once():
    group = random_group(random.Random(1), 3, turns=2, prompt=20)
    tree = pack(group)
    starts = [start for start, _, before in tree.segments if before == -1]
    assert starts == [0]
    assert (tree.end == len(tree)).sum() >= 20
    assert len(tree) <= sum(t.turns[1].num_tokens - 20 for t in group) + 20


def test_attempts_that_sampled_the_same_tokens_share_nodes_but_not_targets():
    tree = pack([trajectory(([P], [A, B])), trajectory(([P], [A, C])), trajectory(([P], [A, B]))])
    assert tree.input_ids.tolist() == [P, A, B, C]
    assert tree.target_node.tolist() == [1, 2, 1, 3, 1, 2]


def test_unrelated_prompts_make_a_forest():
    tree = pack([trajectory(([P], [A])), trajectory(([Q], [A]))])
    assert tree.parent.tolist() == [-1, 0, -1, 2]
    assert tree.end.tolist() == [2, 2, 4, 4]


@pytest.mark.parametrize("longer_first", [True, False])
def test_a_path_that_continues_another_extends_it_without_a_branch(longer_first: bool):
    turns = [trajectory(([P], [A])), trajectory(([P, A, I], [B]))]
    tree = pack(turns[::-1] if longer_first else turns)
    assert tree.input_ids.tolist() == [P, A, I, B]
    assert tree.segments == ((0, 4, -1),)


def test_a_path_that_ends_at_a_branch_keeps_its_own_nodes():
    tree = pack([trajectory(([P, A], [B, C])), trajectory(([P, A], [B, D])), trajectory(([P], [A, B]))])
    assert tree.input_ids.tolist() == [P, A, B, C, D]
    assert tree.target_node.tolist() == [2, 3, 2, 4, 1, 2]


def test_branches_stand_in_the_order_in_which_they_were_first_seen():
    tree = pack([trajectory(([P, Q], [X])), trajectory(([P, Q], [A])), trajectory(([P], [B]))])
    assert tree.input_ids.tolist() == [P, Q, X, A, B]


def test_a_turn_without_completion_has_no_target():
    tree = pack([trajectory(([P, Q], []), ([P, Q, A], [B]))])
    assert tree.counts == ((0, 1),)
    assert tree.target_node.tolist() == [3]


def test_values_of_sampled_tokens_regroup_by_trajectory_and_turn():
    tree = pack([trajectory(([P], [A, B]), ([P, A], [C])), Trajectory(turns=()), trajectory(([P], [D]))])
    values = tree.split(torch.arange(4))
    assert [[turn.tolist() for turn in turns] for turns in values] == [[[0, 1], [2]], [], [[3]]]


@pytest.mark.parametrize("trajectories", [[], [Trajectory(turns=())]])
def test_packing_nothing_is_an_error(trajectories: list[Trajectory]):
    with pytest.raises(ValueError, match="no turns"):
        pack(trajectories)


def test_a_tree_with_more_branches_in_a_row_than_python_recurses_packs():
    # Each path leaves the first one a token later than the one before: p p p x, p p x, p x …
    tree = pack([trajectory(([P] * n, [X])) for n in range(1500, 0, -1)])
    assert len(tree) == 3000
    assert int(tree.position_ids.max()) == 1500


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_every_distinct_prefix_is_one_node_at_its_depth(seed: int):
    batch = random_batch(seed)
    tree = pack(batch)
    found = [path(tree, node) for node in range(len(tree))]
    assert len(found) == len(set(found))
    assert set(found) == prefixes(batch)
    assert [len(p) - 1 for p in found] == tree.position_ids.tolist()


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_a_token_sees_exactly_its_ancestors_and_itself(seed: int):
    tree = pack(random_batch(seed))
    found = [path(tree, node) for node in range(len(tree))]
    brute = torch.tensor([[q[: len(k)] == k for k in found] for q in found])
    assert visible(tree).equal(brute)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_every_sampled_token_is_one_target_whose_path_is_its_context_and_completion(seed: int):
    batch = random_batch(seed)
    tree = pack(batch)
    targets = tree.split(tree.target_node)
    checked = 0
    for one, nodes_of_turns in zip(batch, targets, strict=True):
        for turn, nodes in zip(one.turns, nodes_of_turns, strict=True):
            for position, node in enumerate(nodes.tolist()):
                assert path(tree, node) == turn.context_ids + turn.completion_ids[: position + 1]
                checked += 1
    assert checked == len(tree.target_node) == sum(t.num_completion_tokens for t in batch) > 0


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_segments_tile_the_layout_and_name_the_segment_before_them(seed: int):
    tree = pack(random_batch(seed))
    assert [start for start, _, _ in tree.segments] == [0, *(stop for _, stop, _ in tree.segments)][:-1]
    assert tree.segments[-1][1] == len(tree)
    for start, stop, before in tree.segments:
        assert tree.parent[start] == (tree.segments[before][1] - 1 if before >= 0 else -1)
        assert tree.parent[start + 1 : stop].tolist() == list(range(start, stop - 1))


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_the_order_of_trajectories_changes_the_layout_but_not_the_tree(seed: int):
    batch = random_batch(seed)
    shuffled = random.Random(seed).sample(batch, len(batch))
    one, other = pack(batch), pack(shuffled)
    assert {path(one, n) for n in range(len(one))} == {path(other, n) for n in range(len(other))}
    assert len(one.segments) == len(other.segments)
