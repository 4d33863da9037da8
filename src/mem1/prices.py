"""Published prices of a few kinds of servers, each with its source and date, and what their caches of prefixes keep.

Prices change: these show how a result depends on the discount for cached tokens. For your own server, give your own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from mem1.errors import UserError, suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Money, in any one unit, per million tokens."""

    fresh: float
    """Context tokens neither read from the cache nor written to it."""
    cached: float
    """Context tokens read from the cache."""
    write: float
    """Context tokens written to the cache; equal to `fresh` if writing is free."""
    output: float
    """Generated tokens."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"the price {name!r} must be a number of at least 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """The prefixes that a server keeps between two calls."""

    minimum: int = 0
    """Length of the shortest prefix kept, in tokens."""
    step: int = 1
    """Prefixes are kept in multiples of this number of tokens."""

    def __post_init__(self) -> None:
        if self.minimum < 0 or self.step < 1:
            raise ValueError(f"a cache has a minimum >= 0 and a step >= 1, not {self.minimum} and {self.step}")

    def kept(self, tokens: int) -> int:
        """Number of tokens of a prefix that the next call finds in the cache."""
        whole_steps = tokens // self.step * self.step
        return 0 if whole_steps < self.minimum else whole_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceClass:
    """The prices of one kind of server, and its cache."""

    name: str
    about: str
    prices: Prices
    cache: PrefixCache
    unit: str = "USD"
    """Currency of the prices, per million tokens."""
    source: str = ""
    """URL of the price list, and a second one about the cache if needed; empty: an example."""
    date: str = ""
    """Date of the page, or day on which it was read."""


def cost_of(prompt: float, cached: float, output: float, prices: Prices, cache: PrefixCache) -> float:
    """Cost of a call of these sizes, where `cached` of its prompt is read from the cache and the rest written."""
    written = max(0.0, cache.kept(int(prompt)) - cached)
    fresh = prompt - cached - written
    return cached * prices.cached + written * prices.write + fresh * prices.fresh + output * prices.output


_CLASSES = (
    PriceClass(
        name="hosted-90",
        about="Claude Sonnet 4.6: 90 % off cached tokens, writing to the cache costs 25 % more",
        prices=Prices(fresh=3.00, cached=0.30, write=3.75, output=15.00),
        # the minimum for this model, quoted from the guide in the second source
        cache=PrefixCache(minimum=1024),
        source=(
            "https://platform.claude.com/docs/en/docs/about-claude/pricing, "
            "https://github.com/anthropics/anthropic-sdk-python/issues/1194"
        ),
        date="read 2026-11-21 in a stored copy without a date",
    ),
    PriceClass(
        name="hosted-90-automatic",
        about="GPT-5.4: 90 % off cached tokens, writing to the cache is free",
        prices=Prices(fresh=2.50, cached=0.25, write=2.50, output=15.00),
        # the steps are those of the announcement under hosted-50
        cache=PrefixCache(minimum=1024, step=128),
        source=(
            "https://www.morphllm.com/openai-api-pricing (a third party's copy of the list), "
            "https://developers.openai.com/api/docs/guides/prompt-caching.md"
        ),
        date="June 2026",
    ),
    PriceClass(
        name="hosted-50",
        about="GPT-4o: 50 % off cached tokens, writing to the cache is free",
        prices=Prices(fresh=2.50, cached=1.25, write=2.50, output=10.00),
        cache=PrefixCache(minimum=1024, step=128),
        source="https://openai.com/index/api-prompt-caching/",
        date="2024-10-01",
    ),
    PriceClass(
        name="open-weights",
        about="Qwen2.5 7B Instruct Turbo at Together: one price for every token, none named for cached ones",
        prices=Prices(fresh=0.30, cached=0.30, write=0.30, output=0.30),
        cache=PrefixCache(),
        source="https://www.together.ai/models/qwen2-5-7b-instruct-turbo",
        date="read 2026-11-21 in a stored copy without a date",
    ),
    PriceClass(
        name="self-hosted",
        # a forward pass takes 2 * 6.53e9 FLOPs a token (Qwen2.5-7B, embeddings left out), and 4 * 28 * 3584 more for
        # each token that it attends to; read by 650 new tokens in a call, a cached one costs 650 * 4.0e5 / 1.3e10
        about="forward FLOPs of a 7B model in a call of 650 new tokens, as multiples of a fresh token's",
        prices=Prices(fresh=1.00, cached=0.02, write=1.00, output=1.00),
        cache=PrefixCache(step=16),
        unit="million tokens' FLOPs",
    ),
)
PRICE_CLASSES: Mapping[str, PriceClass] = {known.name: known for known in _CLASSES}


def price_class(name: str) -> PriceClass:
    """The price class with this name. Raises UserError, listing the known ones, for any other name."""
    if name not in PRICE_CLASSES:
        raise UserError(
            f"unknown price class {name!r}{suggestion(name, PRICE_CLASSES)}; known: {', '.join(PRICE_CLASSES)}"
        )
    return PRICE_CLASSES[name]


def chosen_prices(name: str | None, own: Mapping[str, float | None]) -> PriceClass | None:
    """The class with this name, or one of a user's own prices, by the names of the fields of `Prices`; None: neither.

    Raises UserError for an unknown name, for both, and for prices that are missing or none.
    """
    given = {field: price for field, price in own.items() if price is not None}
    if not given:
        return None if name is None else price_class(name)
    if name is not None:
        raise UserError("use either --prices, or your own: --fresh, --cached, --write and --output")
    if missing := [f"--{field}" for field in own if field not in given]:
        raise UserError(f"give all four prices; missing: {', '.join(missing)} (--write is --fresh if writing is free)")
    try:
        return PriceClass(name="own", about="as given", prices=Prices(**given), cache=PrefixCache(), unit="own unit")
    except ValueError as error:
        raise UserError(str(error)) from error
