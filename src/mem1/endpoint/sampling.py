"""Sampling for calls that come one by one, from many attempts at the same time.

    calls of attempts 1, 2, 3  ->  one batch of three contexts  ->  each its own completion, as soon as it has ended

An engine in this process gets them joined, in a thread of its own (`mem1.engines.request_queue`). An engine that forms
batches itself (`concurrency`) is called directly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace

from mem1.engines.base import Completion, Engine, Follow, Request, Sampling, Streaming, stream_rounds
from mem1.engines.request_queue import RequestQueue, Row
from mem1.envs.base import Action, Environment, Observation
from mem1.errors import UserError
from mem1.net.threads import Batcher

_JOINED = 1024
"""Most calls of an engine's or environment's batch."""


class Closed(Exception):
    """Nobody samples any more."""


class JoinedCalls:
    """Joins calls of the engine and of the environment; thread-safe. `with`: on leaving, nothing runs any more."""

    def __init__(self, engine: Engine, environment: Environment, sampling: Sampling) -> None:
        self._engine, self._environment, self._sampling = engine, environment, sampling
        self._batched = getattr(engine, "concurrency", 1) == 1
        self._rows: RequestQueue[None] = RequestQueue(self, size=_JOINED)
        # actions of one kind are joined: a kind that the environment does not know fails, and nothing is repeated
        self._actions: Batcher[Action, str, Observation | UserError] = Batcher(self._observe, threads=1, size=_JOINED)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._closed = False
        self._under_way: set[Future[list[Completion]]] = set()
        self.error: Exception | None = None
        """Errors of the engine or the environment, which end the run and not an attempt."""

    def __enter__(self) -> JoinedCalls:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            under_way = list(self._under_way)
        # the weights may change once these are done; nobody ever reports a cancelled one to `wait`
        wait([future for future in under_way if not future.cancel()])
        with self._turn:  # a row is answered before the engine has ended its batch
            pass
        self._rows.close()
        self._actions.close()

    def complete(self, row: Row) -> Completion:
        """A completion. Raises what the engine raises, and Closed."""
        if not self._batched:
            with self._kept():
                sampling = replace(self._sampling, seeds=(row.seed,))
                return self._engine.complete([row.context], max_tokens=[row.max_tokens], sampling=sampling)[0]
        with self._lock:
            if self._closed:
                raise Closed
            future = self._rows.submit([row], None).results
            self._under_way.add(future)
        try:
            return future.result()[0]
        except CancelledError as error:
            raise Closed from error
        finally:
            self._under_way.discard(future)

    def observe(self, action: Action) -> Observation:
        """The environment's reply. Raises UserError for an action that it does not know, and Closed."""
        if self._closed:
            raise Closed
        found = self._actions.submit([action], action.kind).result()[0]
        if isinstance(found, UserError):
            raise found
        return found

    @property
    def workers(self) -> int:
        """Number of processes of the engine."""
        return getattr(self._engine, "workers", 1)

    @property
    def yields(self) -> bool:
        """Whether nobody samples any more."""
        return self._closed

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Held while the engine samples."""
        with self._turn:
            yield

    def stream(self, requests: Sequence[Request], follow: Follow, _: None, /) -> None:
        """Complete these requests and those that `follow` returns."""
        with self._kept():
            if isinstance(self._engine, Streaming):
                self._engine.stream(requests, follow, sampling=self._sampling)
            else:
                stream_rounds(self._engine, requests, follow, self._sampling)

    def interrupt(self) -> None:
        """Never: an agent waits for each call."""

    def _observe(self, actions: Sequence[Action], _: str) -> list[Observation | UserError]:
        with suppress(UserError), self._kept():  # of one action; the others go on
            return [*self._environment.observe(actions)]
        return [self._alone(action) for action in actions]

    def _alone(self, action: Action) -> Observation | UserError:
        try:
            with self._kept():
                return self._environment.observe([action])[0]
        except UserError as error:
            return error

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            self.error = self.error or error
            raise
