"""The policy of a server: samples batches, and changes its weights between two of them.

sampler.complete(rows, options)         one batch; each completion is marked with the version of its weights
sampler.stage(weights)               keep them beside those in use
sampler.change(version=3)            use them from the next batch on; no batch sees both
sampler.pause(abort=False)           returns when the batch under way is done; the next one waits for resume()
sampler.pause(abort=True)            the same, but interrupts the completions under way
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from mem1.engines.base import Completion, Engine, Sampling
from mem1.engines.codec import Codec
from mem1.engines.policy_server.requests import BatchOptions, Row
from mem1.engines.weights import Weights, put
from mem1.engines.workers import local_engine

_ENGINES = 8
"""Most engines kept, one per list of stop strings; they share the model."""


class Sampler:
    """Thread-safe; samples one batch at a time."""

    def __init__(self, model: PreTrainedModel, codec: Codec, *, workers: int = 1) -> None:
        self.model, self.codec = model, codec
        self.version: int | None = None
        """Version of the weights in use; None: those that the server was started with."""
        self.paused = False
        self._workers = workers
        self._staged: Weights | None = None
        self._changing = False
        self._interrupt = torch.zeros((), dtype=torch.bool).share_memory_()
        """Seen by all processes that sample."""
        self._turn = threading.Condition()
        """Held while a batch is sampled or weights change."""
        self._engines: OrderedDict[tuple[str, ...], Engine] = OrderedDict()

    @property
    def longest(self) -> int | None:
        """Most tokens of context and completion together; None: the model's configuration has no limit."""
        return getattr(self.model.config, "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return self.model.get_input_embeddings().weight.shape[0]  # type: ignore[index, union-attr]

    def complete(self, rows: Sequence[Row], options: BatchOptions) -> list[Completion]:
        """One completion per row, in order, all by the same weights."""
        with self._turn:
            self._turn.wait_for(lambda: not (self.paused or self._changing))
            completions = self._engine(options.stops).complete(
                [row.context for row in rows],
                max_tokens=[row.max_tokens for row in rows],
                sampling=Sampling(temperature=options.temperature, seeds=tuple(row.seed for row in rows)),
            )
            return [self._marked(completion) for completion in completions]

    def _marked(self, completion: Completion) -> Completion:
        if self.version is None:
            return completion
        return replace(completion, weights_versions=((self.version, len(completion.token_ids)),))

    def pause(self, *, abort: bool = False) -> None:
        """Begin no further batch; returns when the one under way is done, or interrupted by `abort`."""
        self.paused = True  # before taking the lock, or waiting batches could go first, one after the other
        self._interrupt.fill_(abort)
        with self._turn:
            self._interrupt.fill_(False)

    def resume(self) -> None:
        with self._turn:
            self.paused = False
            self._turn.notify_all()

    def discard(self) -> None:
        """Drop staged weights."""
        self._staged = None

    def stage(self, weights: Weights) -> None:
        """Hold weights that fit the model for `change`."""
        self._staged = weights

    def change(self, *, version: int) -> bool:
        """Use the staged weights from the next batch on; False where none are staged."""
        weights, self._staged = self._staged, None
        if weights is None:
            return False
        self._changing = True  # before taking the lock, or waiting batches could go first
        try:
            with self._turn:
                put(weights, self.model)
                self.version = version
        finally:
            with self._turn:
                self._changing = False
                self._turn.notify_all()
        return True

    def _engine(self, stops: tuple[str, ...]) -> Engine:
        if stops not in self._engines:
            self._engines[stops] = local_engine(
                self.model, self.codec, stops, workers=self._workers, interrupt=self._interrupt
            )
            if len(self._engines) > _ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(stops)
        return self._engines[stops]
