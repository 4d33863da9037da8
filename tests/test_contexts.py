"""Which tokens the model sees next, by literal tokens.

prompt    100 101
turn t    completion t1 t2 t3, result t8 t9; its state is t1 t2, its query t3
"""

from __future__ import annotations

import pytest

from mem1.contexts import ContextPolicy, Fold, Full, Window, context_policy, next_context
from mem1.errors import UserError
from mem1.records import Turn

PROMPT = (100, 101)


def turn(t: int) -> Turn:
    return Turn(
        context_ids=PROMPT,
        completion_ids=(10 * t + 1, 10 * t + 2, 10 * t + 3),
        observation_ids=(10 * t + 8, 10 * t + 9),
        completion_spans={"state": (0, 2), "action": (2, 3)},
    )


TURNS = [turn(t) for t in range(1, 6)]


def kept(policy: ContextPolicy, turns: int) -> list[int]:
    """Numbers of the turns that stand in the context, by the first token of each."""
    ids = next_context(policy, PROMPT, TURNS[:turns]).ids
    return [i // 10 for i in ids[len(PROMPT) :] if i % 10 == 1]


@pytest.mark.parametrize("policy", [Fold(1), Fold(3), Full(), Window(2)])
def test_the_first_context_is_the_prompt_alone(policy: ContextPolicy):
    context = next_context(policy, PROMPT, [])
    assert context.ids == PROMPT
    assert context.spans == {"prompt": (0, 2)}


def test_constant_keeps_prompt_last_completion_and_last_result():
    #                                               prompt    state   query  result
    assert next_context(Fold(1), PROMPT, TURNS[:1]).ids == (100, 101, 11, 12, 13, 18, 19)
    assert next_context(Fold(1), PROMPT, TURNS[:3]).ids == (100, 101, 31, 32, 33, 38, 39)


def test_full_appends_every_turn():
    assert next_context(Full(), PROMPT, TURNS[:2]).ids == (100, 101, 11, 12, 13, 18, 19, 21, 22, 23, 28, 29)


def test_window_keeps_the_last_two_turns():
    assert [kept(Window(2), n) for n in range(1, 5)] == [[1], [1, 2], [2, 3], [3, 4]]


def test_fold_appends_for_two_turns_then_rewrites():
    assert [kept(Fold(2), n) for n in range(1, 6)] == [[1], [1, 2], [3], [3, 4], [5]]


def test_fold_of_one_is_constant():
    assert Fold(1) == context_policy("constant")
    assert [kept(Fold(1), n) for n in range(1, 6)] == [[1], [2], [3], [4], [5]]


def test_fold_of_a_billion_is_full():
    for n in range(6):
        assert next_context(Fold(10**9), PROMPT, TURNS[:n]) == next_context(Full(), PROMPT, TURNS[:n])


@pytest.mark.parametrize("policy", [Fold(1), Fold(2), Full(), Window(2)])
def test_spans_mark_prompt_and_the_newest_state_query_and_result(policy: ContextPolicy):
    for n in range(1, 6):
        context = next_context(policy, PROMPT, TURNS[:n])
        marked = {role: context.ids[a:b] for role, (a, b) in context.spans.items()}
        assert marked == {
            "prompt": PROMPT,
            "state": (10 * n + 1, 10 * n + 2),
            "query": (10 * n + 3,),
            "result": (10 * n + 8, 10 * n + 9),
        }


def test_a_newest_turn_without_a_state_has_no_state_span():
    bare = Turn(context_ids=PROMPT, completion_ids=(61, 62), observation_ids=(68,), completion_spans={"action": (0, 2)})
    context = next_context(Full(), PROMPT, [*TURNS[:1], bare])
    assert context.ids == (100, 101, 11, 12, 13, 18, 19, 61, 62, 68)
    assert context.spans == {"prompt": (0, 2), "query": (7, 9), "result": (9, 10)}


def test_a_thought_that_does_not_survive_is_left_out_and_the_spans_move():
    #                                    thought  state  query
    thinking = Turn(
        context_ids=PROMPT,
        completion_ids=(71, 72, 73, 74, 75),
        observation_ids=(78,),
        completion_spans={"thought": (0, 2), "state": (2, 4), "action": (4, 5)},
    )
    context = next_context(Fold(1), PROMPT, [thinking])
    assert context.ids == (100, 101, 73, 74, 75, 78)
    assert context.spans == {"prompt": (0, 2), "state": (2, 4), "query": (4, 5), "result": (5, 6)}


def test_a_thought_after_the_state_leaves_the_states_span_in_place():
    #                                    state  thought  query
    thinking = Turn(
        context_ids=PROMPT,
        completion_ids=(71, 72, 73, 74),
        observation_ids=(78,),
        completion_spans={"state": (0, 1), "thought": (1, 3), "action": (3, 4)},
    )
    context = next_context(Fold(1), PROMPT, [thinking])
    assert context.ids == (100, 101, 71, 74, 78)
    assert context.spans == {"prompt": (0, 2), "state": (2, 3), "query": (3, 4), "result": (4, 5)}


@pytest.mark.parametrize("name", ["constant", "full", "fold(4)", "window(2)"])
def test_a_policy_is_found_by_its_own_name(name: str):
    assert context_policy(name).name == name


@pytest.mark.parametrize("name", ["", "Constant", "fold", "fold(0)", "window(-1)", "fold(1.5)", "fold(2) "])
def test_an_unknown_policy_lists_the_known_ones(name: str):
    with pytest.raises(UserError, match="known: constant, full, fold"):
        context_policy(name)


@pytest.mark.parametrize("policy", [Fold, Window])
def test_a_policy_that_keeps_nothing_is_refused(policy: type[Fold] | type[Window]):
    with pytest.raises(ValueError, match="k >= 1, not 0"):
        policy(0)
