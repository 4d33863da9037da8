"""Rows of a policy server join those under way, and each request is answered as soon as its own have ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from local_models import fresh
from worlds import CODEC

from mem1.engines.base import Completion, Request, Sampling
from mem1.engines.local import LocalEngine
from mem1.engines.policy_sampler import BatchOptions, Sampler
from mem1.engines.request_queue import RequestQueue, Row
from mem1.engines.workers import local_engine

WARM, GREEDY = BatchOptions(1.0, ()), BatchOptions(0.0, ())
LONG, SHORT = Row((5, 9), 300, 1), Row((5, 9, 7), 5, 2)


class Watched:
    """A queue whose steps can be held back."""

    def __init__(self) -> None:
        self.sampler = Sampler(fresh(), CODEC)
        self.queue = RequestQueue(self.sampler, size=8)
        self.steps, self.held = 0, threading.Event()
        self.go, self.gate = 0, threading.Condition()
        self.widths: list[int] = []
        self._hook = self.sampler.model.register_forward_pre_hook(self._step, with_kwargs=True)

    def _step(self, _model: Any, _args: Any, given: dict[str, Any]) -> None:
        self.widths.append(len(given["row_step"].lasts))
        with self.gate:
            assert self.gate.wait_for(lambda: self.go > 0, 60)
            self.go -= 1
            self.gate.notify_all()

    def let(self, steps: int) -> None:
        with self.gate:
            self.go = steps
            self.gate.notify_all()
            if steps < 1_000:
                assert self.gate.wait_for(lambda: self.go == 0, 60)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("mem1.engines.local.guesses_each", lambda rows, kind: 0)
    found = Watched()
    yield found
    found._hook.remove()


def alone(row: Row, options: BatchOptions = WARM) -> Completion:
    sampling = Sampling(temperature=options.temperature, seeds=(row.seed,))
    return LocalEngine(fresh(), CODEC, ()).complete([row.context], max_tokens=[row.max_tokens], sampling=sampling)[0]


def test_a_request_is_answered_before_longer_ones_beside_it(watched: Watched):
    with watched.sampler.turn():  # both wait
        long, short = (watched.queue.submit([row], WARM) for row in (LONG, SHORT))
    watched.let(7)
    assert short.results.result(10)[0].token_ids == alone(SHORT).token_ids and not long.results.done()
    watched.let(10_000)
    assert long.results.result(60)[0].token_ids == alone(LONG).token_ids
    assert watched.widths == [2] * 5 + [1] * 295


def test_who_comes_later_joins_when_a_row_has_ended(watched: Watched):
    with watched.sampler.turn():
        long, short = (watched.queue.submit([row], WARM) for row in (LONG, SHORT))
    watched.let(2)
    later = watched.queue.submit([SHORT, SHORT], WARM)
    watched.let(7)
    assert short.results.result(10) and not later.results.done()
    watched.let(2)
    assert [one.token_ids for one in later.results.result(10)] == [alone(SHORT).token_ids] * 2
    assert not long.results.done() and watched.widths[:11] == [2] * 5 + [3] * 5 + [1]
    watched.let(10_000)
    assert long.results.result(60)


def test_nobody_joins_before_those_with_other_options_that_came_first(watched: Watched):
    with watched.sampler.turn():
        long, short = (watched.queue.submit([row], WARM) for row in (LONG, SHORT))
    watched.let(1)
    other, last = watched.queue.submit([SHORT], GREEDY), watched.queue.submit([SHORT], WARM)
    watched.let(10_000)
    assert [call.results.result(60)[0].token_ids for call in (long, short, last)] == [
        alone(row).token_ids for row in (LONG, SHORT, SHORT)
    ]
    assert other.results.result(60)[0].token_ids == alone(SHORT, GREEDY).token_ids
    assert watched.widths == [2] * 5 + [1] * 305


def test_no_more_rows_than_fit_are_sampled_together(watched: Watched):
    with watched.sampler.turn():
        calls = [watched.queue.submit([SHORT] * 5, WARM) for _ in range(3)]
        many = watched.queue.submit([SHORT] * 9, WARM)
    watched.let(10_000)
    for call in (*calls, many):
        assert {one.token_ids for one in call.results.result(60)} == {alone(SHORT).token_ids}
    assert watched.widths == [5] * 15 + [9] * 5


def test_a_pause_waits_for_what_is_under_way_and_nothing_else(watched: Watched):
    with watched.sampler.turn():
        first, short = watched.queue.submit([Row((5, 9), 12, 1)], WARM), watched.queue.submit([SHORT], WARM)
    watched.let(1)
    paused = threading.Thread(target=watched.sampler.pause)
    paused.start()
    second = watched.queue.submit([SHORT], WARM)
    while not watched.sampler.paused:
        pass
    watched.let(10_000)
    paused.join(60)
    assert first.results.result(10) and short.results.result(10) and not second.results.done()
    watched.sampler.resume()
    assert second.results.result(60)


def test_to_resume_what_is_not_paused_waits_for_nobody(watched: Watched):
    call = watched.queue.submit([LONG], WARM)
    watched.let(2)
    watched.sampler.resume()
    assert not call.results.done()
    watched.let(10_000)
    assert call.results.result(60)


def test_completions_are_in_the_order_of_their_rows(watched: Watched):
    watched.let(10_000)
    rows = [Row((5, 9), 20, 7), SHORT, Row((5, 9), 9, 8)]
    found = watched.queue.submit(rows, WARM).results.result(60)
    assert [len(one.token_ids) for one in found] == [20, 5, 9]


def test_rows_that_nobody_waits_for_end_and_go_on_beside_others(watched: Watched):
    with watched.sampler.turn():
        long, other = watched.queue.submit([LONG], WARM), watched.queue.submit([Row((5, 9), 60, 4)], WARM)
    watched.let(3)
    watched.queue.abandon(long)
    watched.let(56)
    assert not other.results.done()
    watched.let(10_000)
    assert other.results.result(60)[0].token_ids == alone(Row((5, 9), 60, 4)).token_ids
    assert long.results.result(60)[0].token_ids == alone(LONG).token_ids
    watched.let(0)
    again = watched.queue.submit([LONG], WARM)
    watched.let(20)
    watched.queue.abandon(again)
    watched.let(10_000)
    (ended,) = again.results.result(60)
    assert ended.interrupted and 20 <= len(ended.token_ids) < 25
    assert watched.queue.submit([SHORT], WARM).results.result(60)[0].token_ids == alone(SHORT).token_ids


def test_a_request_that_is_given_up_while_it_waits_is_never_sampled(watched: Watched):
    watched.sampler.pause()
    gone = watched.queue.submit([LONG], WARM)
    watched.queue.abandon(gone)
    watched.sampler.resume()
    watched.let(10_000)
    assert watched.queue.submit([SHORT], WARM).results.result(60)
    assert gone.results.cancelled() and len(watched.widths) == 5


def test_an_error_is_that_of_the_calls_under_way_alone(watched: Watched):
    watched.let(10_000)
    broken = watched.queue.submit([Row((5, 10**6), 5, 1)], WARM)
    assert isinstance(broken.results.exception(60), IndexError)
    assert watched.queue.submit([SHORT], WARM).results.result(60)[0].token_ids == alone(SHORT).token_ids


def test_new_rows_join_the_process_that_has_the_fewest():
    engine = local_engine(fresh(), CODEC, (), workers=2)
    left = [Request(context=(5, 9, 7), max_tokens=5, seed=2, key=10 + k) for k in range(6)]
    found: dict[int, Completion] = {}

    def follow(finished: Any) -> list[Request]:
        found.update((request.key, completion) for request, completion in finished)
        return [left.pop() for _ in finished if left]

    first = [Request(context=row.context, max_tokens=row.max_tokens, seed=row.seed, key=k) for k, row in
             enumerate((LONG, SHORT))]  # fmt: skip
    engine.stream(first, follow, sampling=Sampling())
    assert found.pop(0).token_ids == alone(LONG).token_ids
    assert len(found) == 7 and {one.token_ids for one in found.values()} == {alone(SHORT).token_ids}
