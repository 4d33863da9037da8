"""Token counts of one attempt under every memory, worked out by hand.

The prompt is p q. Five turns write a state and a search, or the answer; letters stand for tokens:

    turn        1      2      3      4      5
    completion  a b    c d e  f g    h      k l m
    result      r      s s    t      u u
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from mem1.evaluation.tokens import (
    ModelShape,
    appended_peak_tokens,
    appended_tokens,
    attempt_cost,
    cached_by_turn,
    dependency,
    forward_flops,
    peak_tokens,
    state_tokens,
    total_tokens,
)
from mem1.memory import memory_policy, next_context
from mem1.prices import PrefixCache, PriceClass, Prices
from mem1.records import Trajectory, Turn

COMPLETIONS = ("ab", "cde", "fg", "h", "klm")
RESULTS = ("r", "ss", "t", "uu", "")
SHAPE = ModelShape(parameters=1000, output_parameters=100, layers=3, width=10)


def ids(letters: str) -> tuple[int, ...]:
    return tuple(map(ord, letters))


def attempt(policy: str) -> Trajectory:
    turns: list[Turn] = []
    for completion, result in zip(COMPLETIONS, RESULTS, strict=True):
        context = next_context(memory_policy(policy), ids("pq"), turns)
        turns.append(
            Turn(
                context_ids=context.ids,
                completion_ids=ids(completion),
                observation_ids=ids(result),
                context_spans=context.spans,
                completion_spans={"state": (0, 1)},
            )
        )
    return Trajectory(turns=tuple(turns), context=policy)


@dataclass(frozen=True)
class Counted:
    """What was counted on paper."""

    contexts: str
    """Of the five turns; the part that the turn before has processed stands before the bar."""
    cached: tuple[int, ...]
    fresh: int
    peak: int
    total: int
    dependency: float
    pairs: int
    """(token, visible token) pairs: n (n + 1) / 2 summed over turns of n tokens."""
    pairs_cached: int
    """Without those of c cached tokens: c (c + 1) / 2 less at each turn."""


BY_HAND = {
    "constant": Counted(
        # turn          1    2        3         4        5
        contexts="|pq   pqab|r   pq|cdess   pq|fgt   pq|huu",
        cached=(0, 4, 2, 2, 2),
        fresh=2 + 1 + 5 + 3 + 3,
        # sizes 2 + 2, 5 + 3, 7 + 2, 5 + 1, 5 + 3
        peak=9,
        total=4 + 8 + 9 + 6 + 8,
        dependency=2 * 3 + 3 * 6.5 + 2 * 8 + 1 * 5.5 + 3 * 6.5,
        pairs=10 + 36 + 45 + 21 + 36,
        pairs_cached=10 + (36 - 10) + (45 - 3) + (21 - 3) + (36 - 3),
    ),
    "fold(2)": Counted(
        # turn          1    2        3           4             5
        contexts="|pq   pqab|r   pqabrcde|ss   pq|fgt   pqfgth|uu",
        # folds after the second and the fourth turn: the third context has both turns, the fourth only the third one
        cached=(0, 4, 8, 2, 6),
        fresh=2 + 1 + 2 + 3 + 2,
        # sizes 2 + 2, 5 + 3, 10 + 2, 5 + 1, 8 + 3
        peak=12,
        total=4 + 8 + 12 + 6 + 11,
        dependency=2 * 3 + 3 * 6.5 + 2 * 11 + 1 * 5.5 + 3 * 9.5,
        pairs=10 + 36 + 78 + 21 + 66,
        pairs_cached=10 + (36 - 10) + (78 - 36) + (21 - 3) + (66 - 21),
    ),
    "full": Counted(
        # turn          1    2        3             4                5
        contexts="|pq   pqab|r   pqabrcde|ss   pqabrcdessfg|t   pqabrcdessfgth|uu",
        cached=(0, 4, 8, 12, 14),
        fresh=2 + 1 + 2 + 1 + 2,
        # sizes 2 + 2, 5 + 3, 10 + 2, 13 + 1, 16 + 3
        peak=19,
        total=4 + 8 + 12 + 14 + 19,
        dependency=2 * 3 + 3 * 6.5 + 2 * 11 + 1 * 13.5 + 3 * 17.5,
        pairs=10 + 36 + 78 + 105 + 190,
        pairs_cached=10 + (36 - 10) + (78 - 36) + (105 - 78) + (190 - 105),
    ),
    "window(2)": Counted(
        # turn          1    2        3             4            5
        contexts="|pq   pqab|r   pqabrcde|ss   pq|cdessfgt   pq|fgthuu",
        cached=(0, 4, 8, 2, 2),
        fresh=2 + 1 + 2 + 8 + 6,
        # sizes 2 + 2, 5 + 3, 10 + 2, 10 + 1, 8 + 3
        peak=12,
        total=4 + 8 + 12 + 11 + 11,
        dependency=2 * 3 + 3 * 6.5 + 2 * 11 + 1 * 10.5 + 3 * 9.5,
        pairs=10 + 36 + 78 + 66 + 66,
        pairs_cached=10 + (36 - 10) + (78 - 36) + (66 - 3) + (66 - 3),
    ),
}
APPENDED = [4, 8, 12, 14, 19]
"""The sizes of the turns of `full`, which every policy would have had if nothing had been dropped."""


@pytest.fixture(params=BY_HAND)
def policy(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_contexts_are_the_ones_drawn(policy: str):
    drawn = [context.replace("|", "") for context in BY_HAND[policy].contexts.split()]
    assert ["".join(map(chr, turn.context_ids)) for turn in attempt(policy).turns] == drawn


def test_what_the_call_before_has_processed_is_the_part_before_the_bar(policy: str):
    counted = BY_HAND[policy]
    assert counted.cached == tuple(context.index("|") for context in counted.contexts.split())
    assert tuple(cached_by_turn(attempt(policy))) == counted.cached
    assert counted.fresh == sum(len(turn.context_ids) for turn in attempt(policy).turns) - sum(counted.cached)


def test_peak_total_and_dependency(policy: str):
    counted, trajectory = BY_HAND[policy], attempt(policy)
    assert (peak_tokens(trajectory), peak_tokens(trajectory, prompt=False)) == (counted.peak, counted.peak - 2)
    assert total_tokens(trajectory) == counted.total == counted.fresh + sum(counted.cached) + 11
    assert dependency(trajectory) == counted.dependency


def test_if_everything_had_been_appended_every_policy_would_have_the_sizes_of_full(policy: str):
    assert appended_tokens(attempt(policy)) == APPENDED == [t.num_tokens for t in attempt("full").turns]
    assert (appended_peak_tokens(attempt(policy)), appended_peak_tokens(attempt(policy), prompt=False)) == (19, 17)


def test_flops_add_matrices_logits_and_attention(policy: str):
    counted, trajectory = BY_HAND[policy], attempt(policy)
    #                  2 * parameters           2 * logits   4 * layers * width
    assert forward_flops(trajectory, SHAPE) == 2000 * counted.total + 200 * 11 + 120 * counted.pairs
    processed = counted.total - sum(counted.cached)
    cached = 2000 * processed + 200 * 11 + 120 * counted.pairs_cached
    assert forward_flops(trajectory, SHAPE, cached=counted.cached) == cached


def test_with_a_cache_appending_processes_every_token_once():
    full = attempt("full")
    assert forward_flops(full, SHAPE, cached=cached_by_turn(full)) == 2000 * 19 + 200 * 11 + 120 * 190


def test_a_context_that_repeats_the_call_before_is_cached_whole_and_no_further():
    first = Turn(context_ids=(1, 2), completion_ids=(3, 4))
    assert cached_by_turn(Trajectory(turns=(first, first))) == [0, 2]
    assert cached_by_turn(Trajectory(turns=(first, replace(first, context_ids=(1, 2, 3))))) == [0, 3]
    assert cached_by_turn(Trajectory(turns=(first, replace(first, context_ids=(2, 1))))) == [0, 0]


def test_the_state_is_measured_with_its_tags_and_may_be_missing():
    turn = Turn(context_ids=(1,), completion_ids=(1, 2, 3), completion_spans={"state": (0, 2), "action": (2, 3)})
    assert state_tokens(turn) == 2
    assert state_tokens(replace(turn, completion_spans={"action": (0, 3)})) is None


def test_a_summary_is_a_state_and_an_agent_that_appends_would_not_have_written_it():
    """prompt p q; turn 1: a b, result i; asked for a summary behind <s>: c d; turn 2: e f"""
    spans = {"prompt": (0, 2)}
    first = Turn(context_ids=(1, 2), completion_ids=(3, 4), observation_ids=(5,), context_spans=spans)
    asked = Turn(
        context_ids=(1, 2, 3, 4, 5, 9),
        completion_ids=(6, 7),
        observation_ids=(8,),
        action="summary",
        prefilled=True,
        context_spans={**spans, "result": (4, 5)},
    )
    last = Turn(context_ids=(1, 2, 9, 6, 7, 8), completion_ids=(3, 4), context_spans={**spans, "result": (5, 6)})
    attempt = Trajectory(turns=(first, asked, last))
    assert appended_tokens(attempt) == [4, 5, 7]
    assert [state_tokens(turn) for turn in attempt.turns] == [None, 3, None]
    assert peak_tokens(attempt) == 8


def test_what_an_attempt_costs_by_the_prices_of_each_kind_of_token():
    prices = Prices(fresh=1.0, cached=0.1, write=2.0, output=10.0)
    by = PriceClass(name="x", about="", prices=prices, cache=PrefixCache(minimum=4, step=2))
    # contexts pq | pqabr | pqabr cdess of the first turns under full; 4 and 8 tokens of a call's prompt can be cached
    first_two = replace(attempt("full"), turns=attempt("full").turns[:2])
    # turn 1: 2 fresh, 2 out; turn 2: 4 read (of pqab), 0 more to write, 1 fresh, 3 out
    assert attempt_cost(first_two, by) * 1e6 == pytest.approx(2 + 20 + 0.4 + 1 + 30)
    third = replace(attempt("full"), turns=attempt("full").turns[:3])
    # turn 3: of 10 tokens 8 were processed and are read, 2 are written; 2 out
    assert attempt_cost(third, by) * 1e6 == pytest.approx(53.4 + 0.8 + 4 + 20)
