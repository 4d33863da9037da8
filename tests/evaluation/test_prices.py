"""What appending costs against rewriting: by hand, by closed formulas, and against a simulated cache of prefixes.

prompt 100; each turn: state 20 (when it has to), action 10, result 50; three turns
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from cost import Call, best, break_even, calls, compare, costs, recorded_sizes
from hypothesis import given
from hypothesis import strategies as st

from mem1.errors import UserError
from mem1.evaluation.tokens import Sizes, TurnSizes, even_sizes
from mem1.memory import Fold, Full, MemoryPolicy, memory_policy, next_context
from mem1.prices import PRICE_CLASSES, PrefixCache, Prices, price_class
from mem1.records import Trajectory, Turn

THREE = even_sizes(prompt=100, state=20, action=10, result=50, turns=3)
PRICES = Prices(fresh=10, cached=1, write=12, output=50)
TYPICAL = even_sizes(prompt=1200, state=250, action=50, result=600, turns=300)


def call(fresh: int, cached: int, written: int, output: int, last: int) -> Call:
    return Call(fresh=fresh, cached=cached, written=written, output=output, output_if_last=last)


class TestByHand:
    def test_full_reads_what_it_wrote_and_writes_what_is_new(self):
        assert calls(THREE, None, PrefixCache()) == [
            call(0, 0, 100, 10, 10),
            call(0, 100, 60, 10, 10),
            call(0, 160, 60, 10, 10),
        ]

    def test_constant_writes_the_prompt_alone_and_a_state_as_soon_as_something_is_dropped(self):
        assert calls(THREE, 1, PrefixCache()) == [
            call(0, 0, 100, 10, 10),
            call(60, 100, 0, 30, 10),  # of turn 1 nothing is dropped yet; the state is for turn 3
            call(80, 100, 0, 30, 10),
        ]

    def test_fold_of_two_writes_its_state_in_turn_three(self):
        assert [(c.context, c.output) for c in calls(THREE, 2, PrefixCache())] == [(100, 10), (160, 10), (220, 30)]

    def test_the_cost_of_an_attempt_by_the_turn_with_which_it_ends(self):
        first, second = 100 * 12 + 10 * 50, 100 * 1 + 60 * 10
        assert costs(calls(THREE, 1, PrefixCache()), PRICES) == [
            first / 1e6,
            (first + second + 10 * 50) / 1e6,  # the last turn writes no state
            (first + second + 30 * 50 + 100 * 1 + 80 * 10 + 10 * 50) / 1e6,
        ]

    def test_thoughts_are_written_where_no_state_is_and_stay_in_the_context(self):
        assert [(c.context, c.output) for c in calls(THREE, None, PrefixCache(), thoughts=0.5)] == [
            (100, 20),
            (170, 20),
            (240, 20),
        ]

    def test_a_thought_that_does_not_survive_is_output_alone(self):
        turns = (TurnSizes(state=2, action=1, result=3, thought=7),) * 2
        assert [(c.context, c.output) for c in calls(Sizes(prompt=5, turns=turns), None, PrefixCache())] == [
            (5, 8),
            (9, 8),
        ]

    def test_a_prefix_is_cached_from_the_minimum_on_and_in_whole_steps(self):
        made = calls(THREE, None, PrefixCache(minimum=128, step=64))
        assert [(c.fresh, c.cached, c.written) for c in made] == [(100, 0, 0), (32, 0, 128), (28, 128, 64)]

    def test_peak_and_means_are_over_attempts(self):
        one = even_sizes(prompt=100, state=20, action=10, result=50, turns=1)
        full, constant, *_ = compare([THREE, one], PRICES, PrefixCache())
        assert (full.peak_tokens, constant.peak_tokens) == ((230 + 110) / 2, (190 + 110) / 2)
        assert (full.output, constant.output) == ((30 + 10) / 2, (50 + 10) / 2)
        assert constant.by_turn == pytest.approx((0.0017, (0.0029 + 0.0017) / 2, (0.0053 + 0.0017) / 2))
        assert constant.cost == constant.by_turn[-1]

    def test_break_even_is_the_turn_from_which_on_it_stays_cheaper(self):
        assert break_even([10, 24, 39, 51, 63], [10, 22, 36, 52, 70]) == 4
        assert break_even([1, 3, 2, 9], [2, 2, 3, 8]) is None
        assert break_even([1, 1], [2, 2]) == 1
        assert break_even([0.1 + 0.2], [0.3]) is None


# ---------------------------------------------------------------------------------------- a simulated cache


def simulate(
    sizes: Sizes, policy: MemoryPolicy, cache: PrefixCache, thoughts: float, turns: int
) -> list[tuple[int, ...]]:
    """(fresh, cached, written, output) of each call, from token sequences that a memory builds.

    All tokens differ, so two contexts share what the policy kept and nothing by chance. What is cached is a set of
    prefixes; whether a turn drops something is seen in the next context.
    """
    ids = itertools.count()

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(itertools.islice(ids, count))

    prompt, stored, done, made = tokens(sizes.prompt), set(), [], []
    for number, size in enumerate(sizes.turns[:turns], start=1):
        context = next_context(policy, prompt, done).ids
        probe = Turn(context_ids=context, completion_ids=tokens(1))
        following = next_context(policy, prompt, [*done, probe]).ids
        drops = following[: len(context)] != context
        memory = size.state if drops and number < turns else round(thoughts * size.state)
        completion = tokens(size.thought + memory + size.action)
        done.append(
            Turn(
                context_ids=context,
                completion_ids=completion,
                observation_ids=tokens(size.result),
                completion_spans={"thought": (0, size.thought)} if size.thought else {},
            )
        )
        cached = max((n for n in range(len(context) + 1) if context[:n] in stored), default=0)
        shared = len([a for a, b in zip(context, following, strict=False) if a == b])
        keeps = [n for n in range(shared + 1) if n % cache.step == 0 and n >= cache.minimum]
        stored |= {context[:n] for n in keeps}
        written = max(0, max(keeps, default=0) - cached)
        made.append((len(context) - cached - written, cached, written, len(completion)))
    return made


turn_sizes = st.builds(
    TurnSizes,
    state=st.integers(0, 12),
    action=st.integers(1, 5),  # no turn without a token: else nothing shows that it was dropped
    result=st.integers(0, 12),
    thought=st.integers(0, 3),
)
any_sizes = st.builds(Sizes, prompt=st.integers(1, 15), turns=st.lists(turn_sizes, min_size=1, max_size=6).map(tuple))
any_cache = st.builds(PrefixCache, minimum=st.integers(0, 25), step=st.integers(1, 7))
whole_prices = st.builds(
    Prices, fresh=st.integers(0, 9), cached=st.integers(0, 9), write=st.integers(0, 9), output=st.integers(0, 9)
)


@given(sizes=any_sizes, k=st.none() | st.integers(1, 8), cache=any_cache, prices=whole_prices, half=st.booleans())
def test_the_formula_is_what_a_cache_of_token_prefixes_charges(
    sizes: Sizes, k: int | None, cache: PrefixCache, prices: Prices, half: bool
):
    thoughts = 0.5 if half else 0.0
    policy = Full() if k is None else Fold(k)
    made = calls(sizes, k, cache, thoughts=thoughts)
    priced = costs(made, prices)
    for turns in range(1, len(sizes.turns) + 1):
        simulated = simulate(sizes, policy, cache, thoughts, turns)
        last = made[turns - 1]
        formula = [(c.fresh, c.cached, c.written, c.output) for c in made[:turns]]
        assert [*formula[:-1], (last.fresh, last.cached, last.written, last.output_if_last)] == simulated
        money = sum(
            f * prices.fresh + c * prices.cached + w * prices.write + o * prices.output for f, c, w, o in simulated
        )
        assert priced[turns - 1] == money / 1e6  # whole numbers below 2**53: no rounding


@given(sizes=any_sizes, cache=any_cache)
def test_folding_no_sooner_than_the_attempt_ends_is_full(sizes: Sizes, cache: PrefixCache):
    assert calls(sizes, len(sizes.turns), cache) == calls(sizes, None, cache)


# ------------------------------------------------------------------------------------------ closed formulas


@pytest.mark.parametrize("prices", [PRICES, Prices(fresh=1, cached=1, write=1, output=4)])
@pytest.mark.parametrize("turns", [2, 3, 10])
def test_rewriting_every_turn_against_appending_in_closed_form(prices: Prices, turns: int):
    s, moved = 20, 60  # tokens of a state, and of an action with its result
    sizes = even_sizes(prompt=100, state=s, action=10, result=50, turns=turns)
    full, constant = (costs(calls(sizes, k, PrefixCache()), prices)[-1] * 1e6 for k in (None, 1))
    states = (turns - 2) * (prices.fresh + prices.output) * s
    writes = (turns - 1) * (prices.write - prices.fresh) * moved
    reads = (turns - 1) * (turns - 2) / 2 * prices.cached * moved
    assert constant - full == pytest.approx(states - writes - reads)


@given(s=st.integers(1, 400), moved=st.integers(1, 800), rho=st.integers(2, 100), gamma=st.integers(1, 8))
def test_the_break_even_turn_where_writing_is_free_is_known(s: int, moved: int, rho: int, gamma: int):
    """T* = 1 + 2 (1 + gamma) s / (rho (r + o)), prices relative to a fresh token; rho in percent, cheaper after T*."""
    ratio = 2 * (1 + gamma) * s * 100, rho * moved
    turn = 1 + ratio[0] // ratio[1] + 1
    if not 3 <= turn <= 60:
        return
    prices = Prices(fresh=100, cached=rho, write=100, output=100 * gamma)
    sizes = even_sizes(prompt=10, state=s, action=0, result=moved, turns=60)
    assert compare([sizes], prices, PrefixCache(), turns=1)[1].break_even == turn


@pytest.mark.parametrize("name", ["hosted-90", "hosted-90-automatic"])
def test_in_a_long_attempt_the_cheapest_k_is_the_root_of_what_a_state_costs_over_what_reading_costs(name: str):
    """k* = sqrt(2 s (write + output - cached) / (cached (r + o)))."""
    prices = PRICES_OF[name]
    k = math.sqrt(2 * 250 * (prices.write + prices.output - prices.cached) / (prices.cached * 650))
    lines = compare([TYPICAL], prices, PrefixCache(), turns=60)
    cheapest = best(lines).k
    assert cheapest is not None and abs(cheapest - k) <= 1


PRICES_OF = {name: known.prices for name, known in PRICE_CLASSES.items()}


class TestPriceClasses:
    def test_rewriting_every_turn_pays_soon_without_a_discount_and_late_with_a_large_one(self):
        turn = {name: compare([TYPICAL], p, PrefixCache(), turns=20)[1].break_even for name, p in PRICES_OF.items()}
        assert turn["open-weights"] == 3
        assert turn["hosted-50"] == 9
        assert (turn["hosted-90"], turn["hosted-90-automatic"]) == (43, 55)

    def test_of_twenty_turns_rewriting_every_turn_costs_more_than_appending_at_ninety_percent_off(self):
        known = price_class("hosted-90")
        lines = compare([TYPICAL], known.prices, known.cache, turns=20)
        assert lines[1].cost > 1.3 * lines[0].cost
        cheapest = best(lines)
        assert cheapest.context == "fold(7)" and cheapest.cost < 0.9 * lines[0].cost
        assert cheapest.break_even is not None and cheapest.break_even < 20

    def test_all_equal_prices_are_best_without_a_memory_of_the_past(self):
        known = price_class("open-weights")
        assert best(compare([TYPICAL], known.prices, known.cache, turns=20)).context == "constant"

    def test_of_equal_costs_full_is_the_cheapest(self):
        two = even_sizes(prompt=10, state=3, action=1, result=2, turns=2)
        assert best(compare([two], Prices(fresh=1, cached=1, write=1, output=1), PrefixCache())).context == "full"

    @pytest.mark.parametrize("name", PRICE_CLASSES)
    def test_a_class_has_a_source_and_a_date_or_is_no_price_list(self, name: str):
        known = PRICE_CLASSES[name]
        assert known.source.startswith("https://") is (known.unit == "USD")
        assert bool(known.date) is bool(known.source)

    def test_an_unknown_class_lists_the_known_ones(self):
        with pytest.raises(UserError, match="known: hosted-90, "):
            price_class("hosted")


# ------------------------------------------------------------------------------------------- recorded attempts


def rolled_out(policy: MemoryPolicy, turns: Sequence[tuple[int, int, int]], forced: int = 0) -> Trajectory:
    """An attempt with turns of (state, action, result) tokens; the last context ends with `forced` tokens more."""
    done: list[Turn] = []
    for number, (state, action, result) in enumerate(turns, start=1):
        context, last = next_context(policy, (1, 2, 3), done), number == len(turns)
        opened = forced if last else 0
        done.append(
            Turn(
                context_ids=context.ids + (0,) * opened,
                completion_ids=(0,) * (state + action),
                observation_ids=() if last else (0,) * result,
                completion_spans={"state": (0, state), "action": (state, state + action)},
                context_spans=context.spans,
                prefilled=bool(opened),
            )
        )
    return Trajectory(turns=tuple(done), context=policy.name)


class TestRecorded:
    @pytest.mark.parametrize("forced", [0, 2])
    @pytest.mark.parametrize("name", ["constant", "fold(2)", "full"])
    def test_priced_under_its_own_policy_an_attempt_has_the_contexts_that_it_had(self, name: str, forced: int):
        policy = memory_policy(name)
        attempt = rolled_out(policy, [(4, 2, 5), (6, 1, 3), (3, 2, 8), (5, 4, 0)], forced)
        k = policy.k if isinstance(policy, Fold) else None
        made = calls(recorded_sizes(attempt), k, PrefixCache(), thoughts=1)
        assert [c.context for c in made] == [len(turn.context_ids) for turn in attempt.turns]
        assert [c.output for c in made] == [len(turn.completion_ids) for turn in attempt.turns]

    def test_an_attempt_under_another_policy_that_asks_for_summaries_is_refused(self):
        with pytest.raises(UserError, match="unknown memory 'nonsense'"):
            recorded_sizes(Trajectory(turns=rolled_out(Full(), [(1, 1, 1)]).turns, context="nonsense"))

    def test_an_attempt_without_a_call_is_refused(self):
        with pytest.raises(UserError, match="made no call"):
            recorded_sizes(Trajectory(turns=(), context="full"))


class TestChecks:
    @pytest.mark.parametrize("price", [-1.0, math.inf, math.nan])
    def test_a_price_is_a_number_of_at_least_zero(self, price: float):
        with pytest.raises(ValueError, match="'cached' must be a number"):
            Prices(fresh=1, cached=price, write=1, output=1)

    def test_sizes_and_caches_are_checked(self):
        with pytest.raises(ValueError, match="at least one turn"):
            Sizes(prompt=1, turns=())
        with pytest.raises(ValueError, match="must not be negative"):
            even_sizes(prompt=1, state=-1, action=1, result=1, turns=1)
        with pytest.raises(ValueError, match="step >= 1"):
            PrefixCache(step=0)
        with pytest.raises(ValueError, match="no attempt"):
            compare([], PRICES, PrefixCache())
