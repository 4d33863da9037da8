"""What appending costs against rewriting: `full` against `fold(k)`, under a cache of prefixes.

    prompt 100; every turn writes a state of 20 (when it has to) and an action of 10, and gets a result of 50
    full        contexts 100, 160, 220     outputs 10, 10, 10
    fold(1)     contexts 100, 160, 180     outputs 10, 30, 10      turn 2 writes a state, for turn 3 drops turn 1

A call pays for its context in three parts: `cached` tokens, the prefix that the call before it wrote; `written` ones,
which the next call will read; and `fresh` ones. What it generates is `output`. A state is written in exactly those
turns after which something is dropped, so that fold(k) with k >= T is `full`. Derivation, assumptions and a table by
hand: docs/cost.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Money, in any one unit, per million tokens."""

    fresh: float
    """Of a context token that is neither read from the cache nor written to it."""
    cached: float
    """Of a context token that is read from the cache."""
    write: float
    """Of a context token that is written to the cache; the price of a fresh one where writing is free."""
    output: float
    """Of a generated token."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"the price {name!r} must be a number of at least 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """Which prefixes a server keeps between two calls."""

    minimum: int = 0
    """Shortest prefix that is kept, in tokens."""
    step: int = 1
    """A prefix is kept up to a multiple of this many tokens."""
    lifetime_s: float | None = None
    """A prefix that was not read for longer is gone; None: it stays."""
    pause_s: float = 0.0
    """Seconds from one call to the next."""

    def __post_init__(self) -> None:
        if self.minimum < 0 or self.step < 1:
            raise ValueError(f"a cache has a minimum >= 0 and a step >= 1, not {self.minimum} and {self.step}")

    def kept(self, tokens: int) -> int:
        """Of a prefix of that many tokens, how many the next call finds."""
        expired = self.lifetime_s is not None and self.pause_s > self.lifetime_s
        whole_steps = tokens // self.step * self.step
        return 0 if expired or whole_steps < self.minimum else whole_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSizes:
    """Tokens of one turn."""

    state: int
    """Of the memory that it writes when it has to."""
    action: int
    result: int
    """Of what the environment returns; of the last turn nobody reads it."""
    thought: int = 0
    """Written in every turn and kept in no later context, where the protocol has such a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of one attempt, whatever policy it is then priced under. Raises ValueError without turns."""

    prompt: int
    turns: tuple[TurnSizes, ...]

    def __post_init__(self) -> None:
        if not self.turns or self.prompt < 1:
            raise ValueError("an attempt has a prompt of at least one token, and at least one turn")
        if any(min(turn.state, turn.action, turn.result, turn.thought) < 0 for turn in self.turns):
            raise ValueError("sizes are numbers of tokens, so none is below 0")


def even_sizes(*, prompt: int, state: int, action: int, result: int, turns: int) -> Sizes:
    """An attempt whose turns are all alike."""
    return Sizes(prompt=prompt, turns=(TurnSizes(state=state, action=action, result=result),) * turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Tokens of one call by what they cost."""

    fresh: int
    cached: int
    written: int
    output: int
    output_if_last: int
    """The same without a state, which nobody would read: `output` of the last call."""

    @property
    def context(self) -> int:
        return self.fresh + self.cached + self.written


def calls(sizes: Sizes, k: int | None, cache: PrefixCache, *, thoughts: float = 0.0) -> list[Call]:
    """The calls of an attempt under fold(k), or under `full` where `k` is None; one a turn.

    In a turn that has to write no state the agent writes `thoughts` times as much (0: its action alone; 1: agents
    that think as long in every turn, as those of mem1 do), which stays in the context like its action.
    """
    made: list[Call] = []
    kept, kept_tokens, readable = 0, 0, 0
    for turn in sizes.turns:
        context = sizes.prompt + kept_tokens
        drops = kept == k
        idle = round(thoughts * turn.state)
        memory = turn.state if drops else idle
        next_readable = cache.kept(sizes.prompt if drops else context)
        written = max(0, next_readable - readable)
        made.append(
            Call(
                fresh=context - readable - written,
                cached=readable,
                written=written,
                output=turn.thought + memory + turn.action,
                output_if_last=turn.thought + idle + turn.action,
            )
        )
        carried = memory + turn.action + turn.result
        kept, kept_tokens = (1, carried) if drops else (kept + 1, kept_tokens + carried)
        readable = next_readable
    return made


def costs(made: Sequence[Call], prices: Prices) -> list[float]:
    """Entry t - 1: the cost of the attempt if it ends with turn t, in the unit of the prices."""
    given = [c.fresh * prices.fresh + c.cached * prices.cached + c.written * prices.write for c in made]
    before = accumulate((g + c.output * prices.output for g, c in zip(given, made, strict=True)), initial=0.0)
    # zip ends with the calls: the last partial sum has no call after it
    return [(b + g + c.output_if_last * prices.output) / 1e6 for b, g, c in zip(before, given, made, strict=False)]
