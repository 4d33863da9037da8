"""Requests for completions: those of equal options are sampled together, each is answered when its rows have ended.

    submit A (1,900 tokens), B (5)     one batch; B is answered after five steps
    submit C (5), options as A's       joins A when B has ended
    submit D, other options            nobody joins any more; D is next when A and C have ended
    yields, as for a pause             nobody joins any more; what waits has the next turn
    abandon A                          A is sampled on beside C, and ends when nobody waits for any row

Those of a policy server, and the calls of agents that are trained.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

from mem1.engines.base import Completion, Follow, Request
from mem1.net.threads import Call, Pool, WaitingCalls

_MOST_IN_TURN = 1 << 14
"""Rows that may join one turn, whose records grow with them."""


class Row(NamedTuple):
    """One requested completion."""

    context: tuple[int, ...]
    max_tokens: int
    seed: int
    """In [0, 2**63). The sample depends on it alone, not on the rest of the batch."""


Options = TypeVar("Options")
Taken = TypeVar("Taken", contravariant=True)


class Turns(Protocol[Taken]):
    """Who samples."""

    @property
    def workers(self) -> int:
        """Number of processes that share the rows of a turn."""
        ...

    @property
    def yields(self) -> bool:
        """Whether the turn must end as soon as what is under way has ended."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Inside, nobody else samples; waits until that is so."""
        ...

    def stream(self, requests: Sequence[Request], follow: Follow, options: Taken, /) -> None:
        """Within a turn: as `mem1.engines.base.Streaming.stream`."""
        ...

    def interrupt(self) -> None:
        """End the completions under way where they are."""
        ...


@dataclass(eq=False, kw_only=True)
class Requested(Call[Row, Options, Completion]):
    """Rows that are answered together, by a completion each."""

    found: dict[int, Completion] = field(default_factory=dict)
    """By key, in which the rows are in order."""
    gone: bool = False
    """Nobody waits for it any more."""


class RequestQueue(Generic[Options]):
    """Thread-safe; samples in one thread."""

    def __init__(self, sampler: Turns[Options], *, size: int) -> None:
        """`size`: most rows that are sampled together; a call of more is sampled alone."""
        self._sampler, self._size = sampler, size
        self._pool = Pool(1)
        self._lock = threading.Lock()
        self._waiting: WaitingCalls[Requested[Options]] = WaitingCalls()
        self._under_way: dict[int, Requested[Options]] = {}
        """Whose a row is, by key."""
        self._joining = 0
        """Rows that may still join those under way."""
        self._keys = count()

    def submit(self, rows: Sequence[Row], options: Options) -> Requested[Options]:
        """A call whose `results` come; it is dropped where they are cancelled before it begins."""
        call = Requested(items=rows, options=options)
        self._waiting.add(call)
        # as many turns as calls, and each takes at least one while there are any
        self._pool.submit(lambda _: self._take_turn(), None)
        return call

    def abandon(self, call: Requested[Options]) -> None:
        """Nobody waits for this call any more: rows under way of such calls alone are interrupted."""
        call.results.cancel()
        with self._lock:
            call.gone = True
            if self._under_way and all(one.gone for one in self._under_way.values()):
                self._sampler.interrupt()

    def close(self) -> None:
        """Take no more calls; those that wait are still answered."""
        self._pool.close()

    def _take_turn(self) -> None:
        with self._sampler.turn():
            with self._lock:
                calls = self._waiting.oldest(self._size)
                requests = self._begun(calls)
            if not calls:
                return
            options = calls[0].options
            # with fewer rows than processes, one would do all that joins
            self._joining = _MOST_IN_TURN if len(requests) >= self._sampler.workers else 0
            try:
                self._sampler.stream(requests, lambda finished: self._follow(finished, options), options)
            except BaseException as error:  # of any kind: it belongs to whoever waits for the results
                with self._lock:
                    lost = set(self._under_way.values())
                    self._under_way.clear()
                for call in lost:
                    call.results.set_exception(error)

    def _follow(self, finished: Sequence[tuple[Request, Completion]], options: Options) -> list[Request]:
        ended: list[Requested[Options]] = []
        with self._lock:
            for request, completion in finished:
                call = self._under_way.pop(request.key)
                call.found[request.key] = completion
                if len(call.found) == len(call.items):
                    ended.append(call)
            room = min(self._size - len(self._under_way), self._joining)
            more = [] if self._sampler.yields else self._begun(self._waiting.next(options, room))
            self._joining -= len(more)
        for call in ended:
            call.results.set_result([call.found[key] for key in sorted(call.found)])
        return more

    def _begun(self, calls: Sequence[Requested[Options]]) -> list[Request]:
        keys = [(next(self._keys), call, row) for call in calls for row in call.items]
        self._under_way |= {key: call for key, call, _ in keys}
        return [Request(context=row.context, max_tokens=row.max_tokens, seed=row.seed, key=key) for key, _, row in keys]
