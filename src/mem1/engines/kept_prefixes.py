"""Keys and values of contexts, kept from one call of `LocalEngine` to the next within a session.

    call 1   p q r a b         call 2   p q r c d e     ->   p q r are taken over, c d e are computed
    call 1   p q r x           call 2   p q r x y       ->   p q r x are taken over, y is computed

A rewritten context still begins with its prompt, and an appended one with all of the last. In a session the weights do
not change, so what was computed for equal first tokens can be used again: these tokens are at the same positions and
see the same tokens before them. Only the contexts of the last call are kept.

Letters: B contexts, H key-value heads, T tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

_SAME_HEAD = 16
"""Number of equal first tokens from which on contexts are compared."""
_WORTH = 0.6
"""Contexts are taken over if what is left to compute, padding included, is at most this share of them."""

Found = list[tuple[int, "Kept | None"]]
"""For each context, how many of its first tokens are kept, and by which."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One context."""

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values of each layer, (H, T, D)."""


@dataclass
class KeptPrefixes:
    """Those of one engine."""

    limit: int
    """Most tokens that are kept."""
    session: int | None = None
    _now: dict[tuple[int, ...], list[Kept]] = field(default_factory=dict)
    """First tokens -> contexts of the last call that begin so."""
    _next: list[Kept] = field(default_factory=list)
    """Contexts of this call."""

    @property
    def tokens(self) -> int:
        """Number of tokens kept of this call."""
        return sum(len(kept.ids) for kept in self._next)

    def begin(self, session: int | None) -> bool:
        """Begin a call; whether it belongs to a session. What another session kept is forgotten."""
        if session is None or session != self.session:
            self._next.clear()
        self.session, self._now = session, {}
        for kept in self._next:
            self._now.setdefault(kept.ids[:_SAME_HEAD], []).append(kept)
        self._next = []
        return session is not None

    def find(self, contexts: Sequence[Sequence[int]]) -> Found:
        """What is kept of each context, without its last token; empty: not worth it."""
        found = [self._longest(tuple(context)) for context in contexts]
        left = max(len(context) - length for context, (length, _) in zip(contexts, found, strict=True))
        return found if left <= _WORTH * max(map(len, contexts)) else []

    def _longest(self, context: tuple[int, ...]) -> tuple[int, Kept | None]:
        best: tuple[int, Kept | None] = (0, None)
        for kept in self._now.get(context[:_SAME_HEAD], ()):
            same = min(_equal(kept.ids, context), len(context) - 1)
            best = max(best, (same, kept), key=lambda pair: pair[0])
        return best

    def add(self, contexts: Sequence[Sequence[int]], cache: Cache, real_BT: Tensor) -> None:
        """Keep these contexts, whose tokens are the real columns of the cache, as far as the limit goes."""
        room = self.limit - self.tokens
        for row, context in enumerate(contexts):
            room -= len(context)
            if room < 0:
                return
            columns = real_BT[row].nonzero()[:, 0]
            held: list[Any] = cache.layers
            layers = tuple((layer.keys[row][:, columns], layer.values[row][:, columns]) for layer in held)
            self._next.append(Kept(tuple(context), layers))


def load(found: Found, cache: Cache, device: torch.device) -> Tensor:
    """Puts what was found into an empty cache, left-padded to a common length; which columns are real, (B, T)."""
    longest = max(length for length, _ in found)
    first = next(kept for _, kept in found if kept is not None)
    empty: list[Any] = cache.layers
    for number, layer in enumerate(empty):
        pair: list[Tensor] = []
        for which in range(2):
            like = first.layers[number][which]
            padded_BHTD = like.new_zeros(len(found), like.shape[0], longest, like.shape[2])
            for row, (length, kept) in enumerate(found):
                if kept is not None:
                    padded_BHTD[row, :, longest - length :] = kept.layers[number][which][:, :length]
            pair.append(padded_BHTD)
        layer.update(*pair)
    lengths_B1 = torch.tensor([[length] for length, _ in found], device=device)
    return torch.arange(longest, device=device)[None] >= longest - lengths_B1


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal first tokens."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
