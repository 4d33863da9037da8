"""Which tokens the model sees next, by literal tokens.

prompt    100 101
turn t    completion t1 t2 t3, result t8 t9; its state is t1 t2, its query t3
summary   completion s1 s2 (action "summary") after a context that ended with the opening tag 900
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mem1.errors import UserError
from mem1.memory import (
    Belief,
    Capped,
    Fold,
    Full,
    Masked,
    MemoryPolicy,
    NoMemory,
    RetrievedNotes,
    Summary,
    Window,
    memory_policy,
    next_context,
)
from mem1.memory.selection import Kept, Selection
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
EVERY = [Fold(1), Fold(3), Full(), Window(2), Capped(4), Masked(), NoMemory(), Summary(9), Belief(), RetrievedNotes(2)]


def kept(policy: MemoryPolicy, turns: int) -> list[int]:
    """Numbers of the turns that stand in the context, by the first token of each."""
    ids = next_context(policy, PROMPT, TURNS[:turns]).ids
    return [i // 10 for i in ids[len(PROMPT) :] if i % 10 == 1]


@pytest.mark.parametrize("policy", EVERY)
def test_the_first_context_is_the_prompt_alone(policy: MemoryPolicy):
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
    assert Fold(1) == memory_policy("constant")
    assert [kept(Fold(1), n) for n in range(1, 6)] == [[1], [2], [3], [4], [5]]


def test_fold_of_a_billion_is_full():
    for n in range(6):
        assert next_context(Fold(10**9), PROMPT, TURNS[:n]) == next_context(Full(), PROMPT, TURNS[:n])


@pytest.mark.parametrize("policy", [Fold(1), Fold(2), Full(), Window(2)])
def test_spans_mark_prompt_and_the_newest_state_query_and_result(policy: MemoryPolicy):
    for n in range(1, 6):
        context = next_context(policy, PROMPT, TURNS[:n])
        marked = {role: context.ids[a:b] for role, (a, b) in context.spans.items()}
        assert marked == {
            "prompt": PROMPT,
            "state": (10 * n + 1, 10 * n + 2),
            "query": (10 * n + 3,),
            "result": (10 * n + 8, 10 * n + 9),
        }


@pytest.mark.parametrize("policy", EVERY)
def test_every_token_after_the_prompt_is_traced_to_its_turn(policy: MemoryPolicy):
    context = next_context(policy, PROMPT, TURNS)
    ends = [len(PROMPT), *(stop for *_, stop in context.origins)]
    assert ends == [*(start for _, _, start, _ in context.origins), len(context.ids)]
    for number, role, start, stop in context.origins:
        of_turn = {"state": (1, 2), "query": (3,), "result": (8, 9)}[role]
        assert context.ids[start:stop] == tuple(10 * number + digit for digit in of_turn)


def test_equal_turns_are_traced_by_their_places():
    context = next_context(Full(), PROMPT, [turn(1), turn(1)])
    assert [number for number, *_ in context.origins] == [1, 1, 1, 2, 2, 2]


def test_tokens_of_a_completion_that_are_neither_state_nor_query_are_text():
    odd = replace(turn(1), completion_spans={"action": (1, 2)})
    assert next_context(Full(), PROMPT, [odd]).origins == (
        (1, "text", 2, 3),
        (1, "query", 3, 4),
        (1, "text", 4, 5),
        (1, "result", 5, 7),
    )


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


SHARED = [
    # 71 is of the thought alone, 72 to 74 of what stays, 75 of the rest alone; spans overlap by one token
    ("thought and state", {"thought": (0, 2), "state": (1, 3), "action": (3, 4), "rest": (4, 5)}, {"state": (0, 2)}),
    ("thought and action", {"thought": (0, 2), "action": (1, 4), "rest": (4, 5)}, {"query": (0, 3)}),
    ("action and rest", {"thought": (0, 1), "action": (1, 4), "rest": (3, 5)}, {"query": (0, 3)}),
    ("thought and note", {"thought": (0, 2), "note": (1, 3), "action": (3, 4), "rest": (4, 5)}, {"note": (0, 2)}),
    (
        "thought and a second note",
        {"note": (1, 2), "thought": (0, 1), "note 2": (2, 3), "action": (3, 4), "rest": (3, 5)},
        {"note": (0, 1), "note 2": (1, 2)},
    ),
]


@pytest.mark.parametrize(("spans", "moved"), [one[1:] for one in SHARED], ids=[one[0] for one in SHARED])
def test_a_token_that_is_shared_with_what_stays_does_stay(spans: dict[str, Any], moved: dict[str, Any]):
    shared = Turn(
        context_ids=PROMPT, completion_ids=(71, 72, 73, 74, 75), observation_ids=(78,), completion_spans=spans
    )
    context = next_context(Fold(1), PROMPT, [shared])
    assert context.ids == (100, 101, 72, 73, 74, 78)
    roles = {"query": (2, 3)} | moved
    assert context.spans == {"prompt": (0, 2), "result": (5, 6)} | {r: (a + 2, b + 2) for r, (a, b) in roles.items()}


def test_a_thought_between_two_parts_shares_a_token_with_both():
    #                                    state 71 72, thought 72 73 74, note 74, action 74 75
    spans = {"state": (0, 2), "thought": (1, 4), "note": (3, 4), "action": (3, 5)}
    between = Turn(context_ids=PROMPT, completion_ids=(71, 72, 73, 74, 75), completion_spans=spans)
    context = next_context(Fold(1), PROMPT, [between])
    assert context.ids == (100, 101, 71, 72, 74, 75)
    assert context.spans["state"] == (2, 4) and context.spans["note"] == (4, 5) and context.spans["query"] == (4, 6)
    noted = replace(between, completion_spans={"note": (0, 2), "thought": (1, 4), "note 2": (3, 4), "action": (4, 5)})
    assert next_context(Fold(1), PROMPT, [noted]).ids == (100, 101, 71, 72, 74, 75)
    inside = replace(between, completion_spans={"state": (0, 3), "thought": (2, 4), "action": (2, 5)})
    whole = next_context(Fold(1), PROMPT, [inside])
    assert whole.ids == (100, 101, 71, 72, 73, 74, 75) and whole.spans["query"] == (4, 7)


def test_a_role_without_tokens_has_no_range():
    empty = replace(TURNS[0], completion_spans={"state": (0, 0), "action": (0, 3)})
    context = next_context(Fold(1), PROMPT, [empty])
    assert context.spans == {"prompt": (0, 2), "query": (2, 5), "result": (5, 7)}
    assert context.origins == ((1, "query", 2, 5), (1, "result", 5, 7))


def test_a_state_that_is_dropped_leaves_the_token_that_it_shares():
    spans = {"thought": (0, 2), "state": (1, 4), "note": (3, 5), "action": (5, 6)}
    noted = Turn(context_ids=PROMPT, completion_ids=(71, 72, 73, 74, 75, 76), completion_spans=spans)
    context = next_context(NoMemory(), PROMPT, [noted])
    assert context.ids == (100, 101, 74, 75, 76)
    assert context.spans == {"prompt": (0, 2), "note": (2, 4), "query": (4, 5), "result": (5, 5)}
    bare = replace(noted, completion_spans={"state": (0, 3), "action": (2, 6)})
    context = next_context(NoMemory(), PROMPT, [bare])
    assert context.ids == (100, 101, 73, 74, 75, 76)
    assert context.origins == ((1, "query", 2, 6),)


def stated(*text: int) -> Turn:
    """A turn whose state is 50 `text` 51, with query 60 and result 70."""
    inside = (1, 1 + len(text))
    return Turn(
        context_ids=PROMPT,
        completion_ids=(50, *text, 51, 60),
        observation_ids=(70,),
        completion_spans={"state": (0, len(text) + 2), "state_text": inside, "action": (len(text) + 2, len(text) + 3)},
    )


def test_capped_keeps_the_first_tokens_of_the_states_text_and_both_tags():
    capped = next_context(Capped(2), PROMPT, [stated(1, 2, 3, 4)])
    assert capped.ids == (100, 101, 50, 1, 2, 51, 60, 70)
    assert capped.spans == {"prompt": (0, 2), "state": (2, 6), "query": (6, 7), "result": (7, 8)}


@pytest.mark.parametrize("text", [(), (1,), (1, 2)])
def test_capped_leaves_a_state_within_the_cap_as_it_is(text: tuple[int, ...]):
    assert next_context(Capped(2), PROMPT, [stated(*text)]) == next_context(Fold(1), PROMPT, [stated(*text)])


def test_capped_after_a_thought_that_does_not_survive():
    #                              thought  state           query
    thinking = Turn(
        context_ids=PROMPT,
        completion_ids=(71, 72, 50, 1, 2, 3, 51, 60),
        observation_ids=(70,),
        completion_spans={"thought": (0, 2), "state": (2, 7), "state_text": (3, 6), "action": (7, 8)},
    )
    capped = next_context(Capped(1), PROMPT, [thinking])
    assert capped.ids == (100, 101, 50, 1, 51, 60, 70)
    assert capped.spans == {"prompt": (0, 2), "state": (2, 5), "query": (5, 6), "result": (6, 7)}


def test_none_keeps_the_last_query_and_its_result_but_no_state():
    forgetful = next_context(NoMemory(), PROMPT, [stated(1), stated(2, 3)])
    assert forgetful.ids == (100, 101, 60, 70)
    assert forgetful.spans == {"prompt": (0, 2), "query": (2, 3), "result": (3, 4)}


def test_masked_keeps_every_completion_and_the_newest_result():
    masked = next_context(Masked(), PROMPT, TURNS[:3])
    assert masked.ids == (100, 101, 11, 12, 13, 21, 22, 23, 31, 32, 33, 38, 39)
    assert masked.spans == {"prompt": (0, 2), "state": (8, 10), "query": (10, 11), "result": (11, 13)}


def summary_of(context: tuple[int, ...]) -> Turn:
    return Turn(
        context_ids=(*context, 900),
        completion_ids=(91, 92),
        observation_ids=(98,),
        action="summary",
        prefilled=True,
        context_spans={"prompt": (0, 2), "result": (2, len(context))},
    )


def test_summary_appends_until_more_than_n_tokens_have_gathered():
    for n, asks in ((1, None), (2, None), (3, "summary")):  # 5 tokens a turn
        context = next_context(Summary(10), PROMPT, TURNS[:n])
        assert context.ids == next_context(Full(), PROMPT, TURNS[:n]).ids
        assert context.requested_action == asks


def test_after_a_summary_it_and_what_follows_are_kept():
    before = next_context(Summary(10), PROMPT, TURNS[:3]).ids
    turns = [*TURNS[:3], summary_of(before)]
    context = next_context(Summary(10), PROMPT, turns)
    assert context.ids == (100, 101, 900, 91, 92, 98)
    assert context.spans == {"prompt": (0, 2), "state": (2, 5), "result": (5, 6)}
    assert context.requested_action is None
    context = next_context(Summary(10), PROMPT, [*turns, TURNS[3]])
    assert context.ids == (100, 101, 900, 91, 92, 98, 41, 42, 43, 48, 49)
    assert context.spans == {"prompt": (0, 2), "state": (6, 8), "query": (8, 9), "result": (9, 11)}


def test_a_long_summary_is_not_asked_for_again_before_something_has_followed_it():
    turns = [*TURNS[:3], summary_of(PROMPT)]
    assert next_context(Summary(1), PROMPT, turns).requested_action is None
    assert next_context(Summary(1), PROMPT, [*turns, TURNS[3]]).requested_action == "summary"


def noted(t: int, text: str) -> Turn:
    return Turn(context_ids=PROMPT, completion_ids=(10 * t + 1,), content=text, observation=text)


def recalled(k: int, *texts: str) -> list[int]:
    """Numbers of the turns in the context, the first is 1."""
    turns = [noted(t, text) for t, text in enumerate(texts, start=1)]
    return [i // 10 for i in next_context(RetrievedNotes(k), PROMPT, turns).ids[len(PROMPT) :]]


def test_external_recalls_the_note_that_shares_words_with_the_last_turn():
    assert recalled(1, "mayor of oslo", "seat of rome", "king of crete", "Oslo mayor") == [1, 4]
    assert recalled(1, "mayor of oslo", "seat of rome", "king of crete", "who was king in Crete") == [3, 4]


def test_external_keeps_all_notes_while_there_are_no_more_than_k():
    assert recalled(3, "a", "b", "c", "d") == [1, 2, 3, 4]


def test_external_brings_the_linked_note_along():
    # note 3 is the best match; of the others note 1 is most like note 3, and shares no word with the last turn
    texts = ("tower heights", "fog", "bergen tower", "rain", "mayor bergen")
    assert recalled(2, *texts) == [1, 3, 5]


def test_external_looks_for_words_in_state_query_and_result():
    def note(**texts: Any) -> Turn:
        return Turn(context_ids=PROMPT, completion_ids=(1,), **texts)

    for where in ("state", "content", "observation"):
        turns = [note(**{where: word}) for word in ("oslo", "rome", "crete", "oslo")]
        assert RetrievedNotes(1).select(turns).kept == (Kept(turn=turns[0]), Kept(turn=turns[3]))


def test_of_notes_that_fit_equally_well_external_recalls_the_newest():
    assert recalled(1, "oslo", "rome", "oslo", "crete", "oslo") == [3, 5]
    assert recalled(2, "fog", "rain", "snow", "hail", "sun") == [3, 4, 5], "no word in common: the last ones"
    assert recalled(2, "oslo fog", "oslo", "rome", "oslo", "oslo") == [2, 4, 5], "and so of the linked ones"


def test_external_shows_whole_turns_oldest_first():
    turns = [replace(t, content=c) for t, c in zip(TURNS, ("oslo", "rome", "crete", "malta", "rome"), strict=True)]
    ids = next_context(RetrievedNotes(1), PROMPT, turns).ids
    assert ids == (100, 101, 21, 22, 23, 28, 29, 51, 52, 53, 58, 59)


def test_external_is_a_pure_function_of_the_turns():
    texts = [f"w{i % 5} w{i % 3} w{i}" for i in range(30)]
    assert recalled(4, *texts) == recalled(4, *texts)
    assert len(recalled(4, *texts)) == 5


@pytest.mark.parametrize(
    "name",
    [
        "constant",
        "full",
        "fold(4)",
        "window(2)",
        "capped(64)",
        "masked",
        "summary(256)",
        "belief",
        "external(3)",
        "none",
    ],
)
def test_a_policy_is_found_by_its_own_name(name: str):
    assert memory_policy(name).name == name


@pytest.mark.parametrize("name", ["", "Constant", "fold", "fold(0)", "window(-1)", "fold(1.5)"])
def test_an_unknown_policy_lists_the_known_ones(name: str):
    with pytest.raises(UserError, match=r"known: constant, fold\(k\), notes, notes\(n\), notebook\(k\), full"):
        memory_policy(name)


@pytest.mark.parametrize("policy", [Capped, RetrievedNotes, Fold, Summary, Window])
def test_a_policy_that_keeps_nothing_is_refused(policy: Callable[[int], MemoryPolicy]):
    with pytest.raises(ValueError, match="a number of at least 1, not 0"):
        policy(0)


class Owner:
    """A policy of one's own that has a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1]),))

    def filled(self, turns: Sequence[Turn]) -> tuple[int, int]:
        return len(turns), self.limit


class Bare:
    """One that has nothing but what it must have."""

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1]),))


def test_a_policy_of_ones_own_says_how_full_it_is_and_need_not():
    own, bare = memory_policy(f"{__name__}:Owner(7)"), memory_policy(f"{__name__}:Bare")
    assert (own.name, own.filled(TURNS[:3])) == (f"{__name__}:Owner(7)", (3, 7))
    assert (bare.filled(TURNS[:3]), bare.asks) == (None, frozenset())
