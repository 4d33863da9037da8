"""Calls that are joined into batches: what waits and what runs when they are closed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_rollouts import Down
from servers import wait_for

from mem1.endpoint.sampling import Closed, JoinedCalls, Row
from mem1.engines.base import Completion, Sampling


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
    calls = JoinedCalls(engine, Down(), Sampling())

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
