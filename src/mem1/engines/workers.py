"""`local` in several processes, for small models on a CPU: each samples a share of the attempts with one thread.

    attempts 0 1 2 3   ->   this process 0 1, a worker 2 3   ->   eight steps each   ->   what has ended, what follows

Sampling a small model is a long sequence of tiny operations, which a second thread does not speed up but a second
process does. The weights are in shared memory, so workers see every optimiser step without a copy. Samples do not
depend on the number of workers, since each context has a seed of its own. All meet after the same number of steps, not
when one has something to tell: which rows share a step, and so how their numbers are rounded, is a matter of what is
sampled and not of which process was quicker. Worker processes are started once, with the first contexts that can be
shared, and serve every engine of this process.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing
from transformers import PreTrainedModel

from mem1.engines.base import Completion, Follow, Request, Sampling, Streaming
from mem1.engines.codec import Codec
from mem1.engines.local import Batch, Finished, LocalEngine, completed
from mem1.errors import UserError
from mem1.interrupts import GRACE_S

_NUMBERS = itertools.count()
_STEPS = 8
"""Tokens that each process samples for its rows between two meetings."""

PROCESSES = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
"""How other processes are started.

On Linux all are forked from one that has imported torch and transformers, which takes seconds, once. It has no other
thread, and so a fork is safe there; on macOS it is not, and each process imports them itself.
"""
PRELOADED = (__name__, "transformers.models.qwen2")
if sys.platform == "linux":
    PROCESSES.set_forkserver_preload(list(PRELOADED))


def local_engine(
    model: PreTrainedModel,
    codec: Codec,
    stop_strings: Sequence[str],
    *,
    workers: int,
    interrupt: torch.Tensor | None = None,
) -> Streaming:
    """A `LocalEngine` with this `interrupt`, in several processes where `workers` is more than 1."""
    engine = LocalEngine(model, codec, stop_strings, interrupt=interrupt)
    return engine if workers == 1 else ParallelEngine(engine, workers=workers)


class ParallelEngine:
    """Shares the attempts of a call among this process and `workers - 1` others."""

    def __init__(self, engine: LocalEngine, *, workers: int) -> None:
        """Raises UserError for a model that is not on a CPU."""
        if engine.model.device.type != "cpu":
            raise UserError(f"workers = {workers} is for models on a CPU; on {engine.model.device} set workers = 1")
        self.engine = engine
        self.workers = workers
        self._number, self._count = next(_NUMBERS), workers - 1
        self._helpers: list[_Helper] = []
        self._shared: list[torch.Tensor] = []
        """The weights that the helpers see, held so that nothing else can come to lie where they are."""

    def _open(self) -> None:
        """Move the weights to shared memory, and give the engine to the helpers."""
        self._helpers = _helpers(self._count)
        self.engine.model.share_memory()
        self._shared = [weight.data for weight in self.engine.model.parameters()]
        for helper in self._helpers:
            helper.call(("open", self._number, self.engine))
        weakref.finalize(self, _close, self._helpers, self._number)

    @property
    def _moved(self) -> bool:
        """Whether the weights are elsewhere, since the model was in another precision."""
        pairs = zip(self._shared, self.engine.model.parameters(), strict=True)
        return any(held.data_ptr() != weight.data_ptr() for held, weight in pairs)

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, as `LocalEngine.complete`."""
        return completed(self.stream, contexts, max_tokens, sampling)

    def stream(self, requests: Sequence[Request], follow: Follow, *, sampling: Sampling) -> None:
        """As `LocalEngine.stream`; what follows a request of the same key is sampled by the same process."""
        if not requests:
            return
        # Ctrl-C has ended them, nothing was to be shared yet, or what they see is trained no longer
        if len(requests) > 1 and (not self._helpers or self._moved):
            self._open()
        shares = _shares(len(requests), len(self._helpers) + 1)
        busy, error = self._helpers[: len(shares) - 1], None
        try:
            for helper in busy:
                helper.send(("stream", self._number, sampling))
            try:
                with one_thread(), self.engine.opened(sampling, keep=True) as batch:
                    _meetings(batch, busy, [requests[share] for share in shares], follow)
            except Exception as raised:
                error = raised
            for helper in busy:
                helper.call(None)
        except BaseException:  # an answer left in the pipe would be read as that of the next call
            for helper in busy:
                helper.process.kill()
                helper.process.join()
            self._helpers = []
            raise
        if error is not None:
            raise error


def _meetings(batch: Batch, helpers: Sequence[_Helper], parts: list[Sequence[Request]], follow: Follow) -> None:
    """Sample `parts`, one for this process and one for each helper, and what follows, until nothing is left."""
    process = {request.key: number for number, part in enumerate(parts) for request in part}
    under_way = Counter(process.values())
    while under_way.total():
        for helper, part in zip(helpers, parts[1:], strict=True):
            helper.send(part)
        answers = [_advanced(batch, parts[0]), *(helper.receive() for helper in helpers)]
        finished = [pair for answer in answers for pair in _result(answer)]
        following = follow(finished) if finished else ()
        under_way.subtract(process[request.key] for request, _ in finished)
        for request in following:
            number = process.setdefault(request.key, min(range(len(parts)), key=under_way.__getitem__))
            under_way[number] += 1
        parts = [[r for r in following if process[r.key] == number] for number in range(len(parts))]


def _advanced(batch: Batch, requests: Sequence[Request]) -> Finished | Exception:
    """What has ended, or the error that the owner raises once all processes have answered."""
    finished: Finished = []
    try:
        batch.add(requests)
        for _ in range(_STEPS):
            if batch.busy:
                finished += batch.step()
        return finished
    except Exception as error:
        return error


def _shares(rows: int, workers: int) -> list[slice]:
    """Runs of neighbouring rows (attempts at one task share a prompt), of nearly equal length and none empty."""
    workers = min(workers, rows)
    borders = [rows * i // workers for i in range(workers + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(borders)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Processes started inside do not import the program's script, which would train once more in each of them."""
    main = sys.modules["__main__"]
    file, spec = vars(main).pop("__file__", None), main.__spec__
    main.__spec__ = None
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file


class _Helper:
    """Handle of a process that samples."""

    def __init__(self) -> None:
        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_serve, args=(theirs,), daemon=True, name="mem1-sampler")
        with _without_script():
            self.process.start()
        theirs.close()

    def send(self, request: Any) -> None:
        try:
            self.connection.send(request)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> Finished | Exception:
        try:
            return self.connection.recv()
        except (EOFError, OSError) as lost:
            raise self._lost() from lost

    def call(self, request: Any) -> None:
        self.send(request)
        _result(self.receive())

    def _lost(self) -> UserError:
        self.process.join(timeout=1)
        if self.process.exitcode in _TERMINATED:  # as by a signal to the whole group, which stops this process, too
            time.sleep(GRACE_S + 1)
        return UserError(
            f"a sampling process ended (exit code {self.process.exitcode}), perhaps because memory ran out; "
            "resume, or run with workers = 1"
        )


def _result(answer: Finished | Exception) -> Finished:
    if isinstance(answer, Exception):
        raise answer
    return answer


_TERMINATED = (-signal.SIGTERM, 255)
"""Exit codes; 255: unknown, as the process that forks has ended, too."""
_HELPERS: list[_Helper] = []


def _helpers(count: int) -> list[_Helper]:
    """`count` living helpers; missing ones are started."""
    _HELPERS[:] = [helper for helper in _HELPERS if helper.process.is_alive()]
    while len(_HELPERS) < count:
        _HELPERS.append(_Helper())
    return _HELPERS[:count]


def _close(helpers: Sequence[_Helper], number: int) -> None:
    for helper in helpers:
        if helper.process.is_alive():
            helper.call(("close", number, None))


def _serve(connection: Connection) -> None:
    """Main loop of a helper; ends when the other end of the pipe is closed, for whatever reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the run
    torch.set_num_threads(1)
    engines: dict[int, LocalEngine] = {}
    with suppress(EOFError):
        while True:
            verb, number, given = connection.recv()
            if verb == "open":
                engines[number] = given
            elif verb == "close":
                engines.pop(number, None)
            else:
                _sample(connection, engines[number], given)
            connection.send([])


def _sample(connection: Connection, engine: LocalEngine, sampling: Sampling) -> None:
    """Answer each list of requests with what has ended since the last, until there is None."""
    with engine.opened(sampling, keep=True) as batch:
        while (requests := connection.recv()) is not None:
            connection.send(_advanced(batch, requests))
