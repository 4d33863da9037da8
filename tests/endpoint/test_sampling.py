"""Calls that are joined into batches: what waits and what runs when they are closed, and what one action can spoil."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from local_models import fresh
from servers import wait_for
from worlds import CODEC, task

from mem1.endpoint.sampling import Closed, JoinedCalls
from mem1.engines.base import Completion, Sampling
from mem1.engines.local import LocalEngine
from mem1.engines.request_queue import Row
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError


class Held:
    """An engine that works on its first batch until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def complete(self, contexts: Any, **_: Any) -> list[Completion]:
        self.begun.set()
        assert self.released.wait(60)
        return [Completion(token_ids=tuple(context)) for context in contexts]


def test_closing_waits_for_the_batch_that_runs_and_not_for_a_call_that_never_began():
    engine, ended = Held(), threading.Event()
    calls = JoinedCalls(engine, Bookings(), Sampling())

    def close() -> None:
        with calls:
            pass
        ended.set()

    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(calls.complete, Row((1,), 5, 0))
        assert engine.begun.wait(60)
        waits = pool.submit(calls.complete, Row((2,), 5, 0))
        wait_for(lambda: len(calls._under_way) == 2)
        threading.Thread(target=close, daemon=True).start()
        with pytest.raises(Closed):
            waits.result(60)
        assert not ended.is_set()
        engine.released.set()
        assert runs.result(60).token_ids == (1,) and ended.wait(60)


def test_a_call_is_answered_before_longer_ones_beside_it_and_none_is_under_way_after_the_end():
    engine, steps = LocalEngine(fresh(), CODEC, ()), itertools.count()
    held, go = threading.Event(), threading.Event()

    def stops(_token: int, sampled: Any) -> bool:
        if next(steps) == 40:
            held.set()
            assert go.wait(60)
        return False

    engine.stops = stops  # type: ignore[method-assign]
    with JoinedCalls(engine, Bookings(), Sampling()) as calls, ThreadPoolExecutor(3) as pool:
        with calls.turn():  # both wait
            long = pool.submit(calls.complete, Row((5, 9), 300, 1))
            short = pool.submit(calls.complete, Row((5, 9, 7), 5, 2))
            wait_for(lambda: len(calls._under_way) == 2)
        assert held.wait(60) and len(short.result(10).token_ids) == 5 and not long.done()
        later = pool.submit(calls.complete, Row((5, 9, 7), 5, 2))
        go.set()
        assert later.result(60).token_ids == short.result().token_ids and len(long.result(60).token_ids) == 300
    assert not calls._turn.locked()


class Bookings:
    """Books whatever it is asked to; the first action is held until the others wait."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self.begun, self.released = threading.Event(), threading.Event()

    def observe(self, actions: Any) -> list[Observation]:
        self.begun.set()
        assert self.released.wait(60)
        found = []
        for action in actions:
            if action.kind != "book":
                raise UserError(f"no action {action.kind!r}")
            self.booked.append(action.argument)
            found.append(Observation(text=f"booked {action.argument}"))
        return found

    def score(self, task: Any, answer: str) -> Outcome:
        raise AssertionError("nothing is scored here")


def test_an_unknown_action_does_not_repeat_those_that_wait_beside_it():
    environment, one = Bookings(), task("Oslo")
    with JoinedCalls(Held(), environment, Sampling()) as calls, ThreadPoolExecutor(4) as pool:
        first = pool.submit(calls.observe, Action(one, "book", "a train"))
        assert environment.begun.wait(60)
        given = [("book", "a flight"), ("serach", "x"), ("book", "a room")]
        flight, unknown, room = (pool.submit(calls.observe, Action(one, *each)) for each in given)
        wait_for(lambda: len(calls._actions._waiting) == 3)
        environment.released.set()
        texts = [future.result(60).text for future in (first, flight, room)]
        assert texts == ["booked a train", "booked a flight", "booked a room"]
        with pytest.raises(UserError, match="no action 'serach'"):
            unknown.result(60)
    assert sorted(environment.booked) == ["a flight", "a room", "a train"]
