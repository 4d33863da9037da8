"""`local` in several processes, for small models on a CPU: each samples a share of the contexts with one thread.

    contexts 0 1 2 3 4 5   ->   this process 0 1 2   |   a worker 3 4 5   ->   completions 0 1 2 3 4 5

Sampling a small model is a long sequence of tiny operations, which a second thread does not speed up but a second
process does. The weights are in shared memory, so workers see every optimiser step without a copy. Samples do not
depend on the number of workers, since each context has a seed of its own. Worker processes are started once, with the
first contexts that can be shared, and serve every engine of this process.
"""

from __future__ import annotations

import itertools
import signal
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing
from transformers import PreTrainedModel

from mem1.engines.base import Completion, Engine, Sampling
from mem1.engines.codec import Codec
from mem1.engines.local import LocalEngine
from mem1.errors import UserError

_NUMBERS = itertools.count()

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
) -> Engine:
    """A `LocalEngine` with this `interrupt`, in several processes where `workers` is more than 1."""
    engine = LocalEngine(model, codec, stop_strings, interrupt=interrupt)
    return engine if workers == 1 else ParallelEngine(engine, workers=workers)


class ParallelEngine:
    """Shares the contexts of a call among this process and `workers - 1` others."""

    def __init__(self, engine: LocalEngine, *, workers: int) -> None:
        """Moves the model's weights to shared memory. Raises UserError for a model that is not on a CPU."""
        if engine.model.device.type != "cpu":
            raise UserError(f"workers = {workers} is for models on a CPU; on {engine.model.device} set workers = 1")
        self.engine = engine
        self._number, self._count = next(_NUMBERS), workers - 1
        self._helpers: list[_Helper] = []
        engine.model.share_memory()

    def _open(self) -> None:
        self._helpers = _helpers(self._count)
        for helper in self._helpers:
            helper.call("open", self._number, self.engine)
        weakref.finalize(self, _close, self._helpers, self._number)

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, as `LocalEngine.complete`."""
        if not contexts:
            return []
        if len(contexts) > 1 and not self._helpers:  # Ctrl-C has ended them, or nothing was to be shared yet
            self._open()
        seeds = sampling.seeds_for(len(contexts))
        own, *others = [
            (contexts[rows], max_tokens[rows], replace(sampling, seeds=seeds[rows]))
            for rows in _shares(len(contexts), len(self._helpers) + 1)
        ]
        busy = list(zip(self._helpers, others, strict=False))
        for helper, share in busy:
            helper.send("sample", self._number, *share)
        try:
            with one_thread():
                own_answer = _answer({self._number: self.engine}, "sample", self._number, *own)
            answers = [own_answer, *(helper.receive() for helper, _ in busy)]
        except BaseException:  # an answer left in the pipe would be read as that of the next call
            for helper, _ in busy:
                helper.process.kill()
                helper.process.join()
            self._helpers = []
            raise
        return [completion for answer in answers for completion in _result(answer)]


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

    def send(self, *request: Any) -> None:
        try:
            self.connection.send(request)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> list[Completion] | Exception:
        try:
            return self.connection.recv()
        except (EOFError, OSError) as lost:
            raise self._lost() from lost

    def call(self, *request: Any) -> None:
        self.send(*request)
        _result(self.receive())

    def _lost(self) -> UserError:
        self.process.join(timeout=1)
        return UserError(
            f"a sampling process ended (exit code {self.process.exitcode}), perhaps because memory ran out; "
            "resume, or run with workers = 1"
        )


def _result(answer: list[Completion] | Exception) -> list[Completion]:
    if isinstance(answer, Exception):
        raise answer
    return answer


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
            helper.call("close", number)


def _serve(connection: Connection) -> None:
    """Main loop of a helper; ends when the other end of the pipe is closed, for whatever reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the run
    torch.set_num_threads(1)
    engines: dict[int, LocalEngine] = {}
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(_answer(engines, *request))


def _answer(engines: dict[int, LocalEngine], *request: Any) -> list[Completion] | Exception:
    """What was asked for, or the error that the owner raises once all shares are answered."""
    try:
        return _completions(engines, *request)
    except Exception as error:
        return error


def _completions(engines: dict[int, LocalEngine], verb: str, number: int, *rest: Any) -> list[Completion]:
    if verb == "open":
        (engines[number],) = rest
    elif verb == "close":
        engines.pop(number, None)
    else:
        contexts, max_tokens, sampling = rest
        return engines[number].complete(contexts, max_tokens=max_tokens, sampling=sampling)
    return []
