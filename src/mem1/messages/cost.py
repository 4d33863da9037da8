"""How often a chat agent should fold, and whether folding pays at all, by prices and measured sizes.

Sizes of a conversation in tokens: prompt P (tools, system, task), exchange a, state s, request for a state q. Prices
relative to a fresh token: cached rho, write w, output gamma. For a state, every k exchanges, the model is called once
more, then the state and the exchange that stays are written to the cache again. Where a writer beside it makes the
states, that exchange was not in the cache before:

    per state      s (w + gamma - rho) + rho P + q + (w - rho) a                                   = F
    by a writer    s (w - rho)                                                                     = F
    per exchange   rho a (k - 1) / 2 for reading the exchanges since the last state again
    best k         sqrt(2 F / (rho a)), where the sum F / k + rho a (k - 1) / 2 is smallest

    sizes = Sizes(prompt=3_000, exchange=1_650, action=150, state=500)
    best_k(sizes, price_class("hosted-90").prices)    ->  9.5
    break_even(sizes, ..., k=10)                      ->  the number of exchanges from which on folding is cheaper

`break_even` plays both ways call by call, with the smallest prefix that the cache keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from mem1.messages.bounds import Bounds, result_tokens, tokens_of
from mem1.messages.transcript import Exchange, Form, Transcript, User
from mem1.prices import PrefixCache, Prices, cost_of

REQUEST_TOKENS = 130
"""Tokens of the request for a state."""
HORIZON = 500
"""Exchanges that `break_even` looks ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Mean tokens of a conversation's parts."""

    prompt: float
    """Tools, system message and the user's messages."""
    exchange: float
    """What the model says in a turn, with its results."""
    action: float
    """What the model says in a turn."""
    state: float


def measured(transcript: Transcript, form: Form, bounds: Bounds) -> Sizes:
    """The sizes of a conversation so far; a state is assumed to fill half its bound."""
    exchanges = [part for part in transcript.parts if isinstance(part, Exchange)]
    users = [part.message for part in transcript.parts if isinstance(part, User)]
    said = sum(tokens_of(exchange.said, bounds.count) for exchange in exchanges)
    returned = sum(
        result_tokens(form.content_of(result), bounds) for exchange in exchanges for result in exchange.results
    )
    number = max(1, len(exchanges))
    return Sizes(
        prompt=tokens_of([*transcript.system, *users], bounds.count),
        exchange=(said + returned) / number,
        action=said / number,
        state=bounds.state / 2,
    )


def best_k(sizes: Sizes, prices: Prices, *, writer: bool = False) -> float:
    """Exchanges between two states at which a long run is cheapest, at least 1; infinite where caches are free.

    `writer`: a writer beside the model makes the states, whose own cost is not counted.
    """
    per_exchange = prices.cached * sizes.exchange
    if per_exchange <= 0:
        return math.inf
    state = sizes.state * (prices.write - prices.cached)
    if not writer:
        again = (prices.write - prices.cached) * sizes.exchange
        asked = sizes.state * prices.output + prices.cached * sizes.prompt + prices.fresh * REQUEST_TOKENS
        state += again + asked
    return max(1.0, math.sqrt(2 * state / per_exchange))


def break_even(sizes: Sizes, prices: Prices, cache: PrefixCache, k: int, *, writer: bool = False) -> int | None:
    """Exchanges from which on folding every `k` is cheaper than appending; None: not within `HORIZON`.

    `writer`: as in `best_k`.
    """
    appended = list(accumulate(_costs(sizes, prices, cache, None, writer)))
    folding = list(accumulate(_costs(sizes, prices, cache, k, writer)))
    dearer = [turn for turn, (a, f) in enumerate(zip(appended, folding, strict=True), start=1) if f >= a]
    return None if dearer[-1:] == [HORIZON] else (dearer[-1] if dearer else 0) + 1


def _costs(sizes: Sizes, prices: Prices, cache: PrefixCache, k: int | None, writer: bool) -> Iterator[float]:
    """Cost of each exchange, in the unit of the prices; a state is paid with the exchange before it."""
    context, readable, whole = sizes.prompt, 0.0, 0

    def call(tokens: float, output: float) -> float:
        nonlocal readable
        cached = min(readable, cache.kept(int(tokens)))
        readable = cache.kept(int(tokens))
        return cost_of(tokens, cached, output, prices, cache)

    for _ in range(HORIZON):
        cost = call(context, sizes.action)
        context += sizes.exchange
        whole += 1
        if k is not None and whole > k:
            if not writer:
                cost += call(context, sizes.state) + prices.fresh * REQUEST_TOKENS
            context, whole = sizes.prompt + sizes.state + sizes.exchange, 1
            readable = cache.kept(int(sizes.prompt))
        yield cost


def advice(k: int, turn: int | None) -> str:
    """`turn`: the exchange from which on folding every `k` exchanges is cheaper, if any."""
    if turn is None:
        return f"Appending is cheaper for {HORIZON} exchanges and more."
    return f"Folding every {k} exchanges is cheaper than appending from exchange {turn} on."
