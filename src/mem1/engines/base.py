"""The port of every engine: token ids in, sampled token ids with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled after one context."""

    token_ids: tuple[int, ...]
    """The sampled tokens, stop token included."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled token at the sampling temperature; empty: the engine has none."""
    stopped: bool = True
    """False: the token budget ran out before a stop."""
    failed: str | None = None
    """Why the engine gave nothing (`Ended.ENGINE_FAILED`); None: it sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. There is no top-p or top-k: they bias importance ratios."""

    temperature: float = 1.0
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int = 0


class Engine(Protocol):
    """Samples completions for a batch of contexts."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion a context, in order, each of at most its own `max_tokens`; one that failed says so."""
        ...
