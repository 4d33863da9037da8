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
    """Why there is no completion (`Ended.ENGINE_FAILED`); None: there is one."""
    interrupted: bool = False
    """True: it was cut short, with budget left, for new weights, and can be continued."""
    weights_versions: tuple[VersionRun, ...] = ()
    """Versions of the weights that sampled its tokens, as reported by a server; empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. There is no top-p or top-k: they bias importance ratios."""

    temperature: float = 1.0
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int = 0
    """Seed of the whole call. Engines use `seeds_for`."""
    seeds: tuple[int, ...] = ()
    """One seed per context; empty: derived from `seed` and the context's place in the call."""

    def seeds_for(self, contexts: int) -> tuple[int, ...]:
        """Seeds in [0, 2**63), the only source of random numbers for each context.

        Samples therefore do not depend on the rest of the call. Raises ValueError for another number of seeds.
        """
        if self.seeds and len(self.seeds) != contexts:
            raise ValueError(f"{contexts} contexts have {len(self.seeds)} seeds; give one per context, or none")
        return self.seeds or tuple(derived_seed(self.seed, place) for place in range(contexts))


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends only on these parts, such as (seed, task, attempt, turn)."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Engine(Protocol):
    """Samples completions for a batch of contexts."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, in order, each of at most its own `max_tokens`; failures are in `failed`."""
        ...
