"""The port of every engine: token ids in, sampled token ids with their log-probabilities out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mem1.records import VersionRun


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
    interrupted: bool = False
    """True: it was cut short, with budget left, because new weights are on their way; it can be gone on with."""
    weights_versions: tuple[VersionRun, ...] = ()
    """Which weights sampled its tokens, as a server says; empty: those that the caller speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. There is no top-p or top-k: they bias importance ratios."""

    temperature: float = 1.0
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int = 0
    """Of everything that is sampled. Not for engines, which ask `seeds_for`."""
    seeds: tuple[int, ...] = ()
    """One a context of the call; empty: made of `seed` and the context's place in the call."""

    def seeds_for(self, contexts: int) -> tuple[int, ...]:
        """One for each of so many contexts, from which alone its random numbers may come: in [0, 2**63).

        So what is sampled does not depend on what else is in the call. Raises ValueError for another number of seeds.
        """
        if self.seeds and len(self.seeds) != contexts:
            raise ValueError(f"{contexts} contexts have {len(self.seeds)} seeds; give one a context, or none")
        return self.seeds or tuple(derived_seed(self.seed, place) for place in range(contexts))


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that is a function of these parts and of nothing else: (seed, task, attempt, turn)."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Engine(Protocol):
    """Samples completions for a batch of contexts."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion a context, in order, each of at most its own `max_tokens`; one that failed says so."""
        ...
