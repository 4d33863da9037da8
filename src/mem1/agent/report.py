"""Usage of an agent's conversation so far: tokens as the provider counted them, and what appending had cost.

answer     Anne Lindboe
ending     answered after 31 turns, 30 tool calls (1 failed), 3 states
tokens     peak 9,812; prompt 181,022, of which 150,400 cached; output 4,310
cost       0.21 USD by hosted-90; appending 0.29 (x 0.72)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from mem1.prices import PriceClass, cost_of


class Ending(str, Enum):
    """Why an agent stopped."""

    ANSWERED = "answered"
    OUT_OF_TURNS = "out_of_turns"
    """max_turns was reached and the last turn called a tool."""
    OUT_OF_TIME = "out_of_time"
    OUT_OF_TOKENS = "out_of_tokens"
    """The answer was cut at the provider's token limit."""
    UNUSABLE = "unusable"
    """The model's replies were of no use, several times in a row: empty, or with a call that cannot be read."""
    STUCK = "stuck"
    """The model repeated the same calls, which failed alike each time."""
    INTERRUPTED = "interrupted"
    """By Ctrl-C, or by a reader of the stream that stopped reading."""
    FAILED = "failed"
    """The model gave no usable reply, or the messages exceed bounds.prompt."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of the model, in tokens."""

    state: bool
    """Whether it wrote a state for the memory; else it was a turn of the agent."""
    prompt: int
    cached: int
    output: int
    appended: int
    """The prompt if nothing had been left out of it."""
    estimated: tuple[str, ...] = ()
    """Which of prompt, cached and output the provider did not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A conversation so far. Printed, it is the four lines above."""

    answer: str | None
    """None: there is none."""
    ending: Ending | None
    """How the last run ended; None while one is running or before the first."""
    turns: int
    """Replies of the model, states not counted."""
    states: int
    """Calls for states."""
    tool_calls: int
    tool_errors: int
    """Calls that failed, were unknown, or had wrong arguments."""
    peak_tokens: int
    """Largest prompt of a call with what the model wrote, tools and system message included."""
    appended_peak_tokens: int
    """The same if nothing had been left out."""
    prompt_tokens: int
    """Sum over all calls, states included."""
    cached_tokens: int
    """Prompt tokens served from the provider's cache."""
    output_tokens: int
    estimated: tuple[str, ...]
    """Which of prompt, cached and output were estimated in some call, because the provider did not count them."""
    cost: float | None
    """In the unit of the prices; None: no prices were given."""
    appended_cost: float | None
    """The same if nothing had been left out, and no state written."""
    prices: str | None
    """Name of the price class."""
    unit: str | None
    """Currency of the prices."""
    advice: str | None
    """Whether folding pays in this conversation, and from when on; None without prices."""
    calls: tuple[ModelCall, ...]
    """Calls of the model, in order."""

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "ending": None if self.ending is None else str(self.ending)}

    def __str__(self) -> str:
        lines = [
            ("answer", self.answer or "(none)"),
            (
                "ending",
                f"{str(self.ending or 'none').replace('_', ' ')} after {_number(self.turns, 'turn')}, "
                f"{_number(self.tool_calls, 'tool call')} ({self.tool_errors} failed), {_number(self.states, 'state')}",
            ),
            (
                "tokens",
                f"peak {self.peak_tokens:,} (appended {self.appended_peak_tokens:,}); prompt {self.prompt_tokens:,}, "
                f"of which {self.cached_tokens:,} cached; output {self.output_tokens:,}",
            ),
        ]
        if self.cost is not None and self.appended_cost is not None:
            ratio = f" (x {self.cost / self.appended_cost:.2f})" if self.appended_cost else ""
            lines.append(
                ("cost", f"{self.cost:.4g} {self.unit} by {self.prices}; appending {self.appended_cost:.4g}{ratio}")
            )
        if self.advice:
            lines.append(("advice", self.advice))
        if self.estimated:
            lines.append(("estimated", f"{', '.join(self.estimated)}: the provider did not count them in every call"))
        return "\n".join(f"{name:<10} {text}" for name, text in lines)


def report(
    calls: Sequence[ModelCall],
    *,
    answer: str | None,
    ending: Ending | None,
    tool_calls: int,
    tool_errors: int,
    prices: PriceClass | None,
    advice: str | None,
) -> Report:
    """The report of these calls."""
    turns = [call for call in calls if not call.state]
    estimated = [name for name in ("prompt", "cached", "output") if any(name in call.estimated for call in calls)]
    cost = appended_cost = None
    if prices is not None:
        by = (prices.prices, prices.cache)
        cost = sum(cost_of(call.prompt, call.cached, call.output, *by) for call in calls) / 1e6
        appended_cost = sum(
            cost_of(call.appended, found, call.output, *by) for call, found in _appending(turns, prices)
        )
        appended_cost /= 1e6
    return Report(
        answer=answer,
        ending=ending,
        turns=len(turns),
        states=len(calls) - len(turns),
        tool_calls=tool_calls,
        tool_errors=tool_errors,
        peak_tokens=max((call.prompt + call.output for call in calls), default=0),
        appended_peak_tokens=max((call.appended + call.output for call in turns), default=0),
        prompt_tokens=sum(call.prompt for call in calls),
        cached_tokens=sum(call.cached for call in calls),
        output_tokens=sum(call.output for call in calls),
        estimated=tuple(estimated),
        cost=cost,
        appended_cost=appended_cost,
        prices=None if prices is None else prices.name,
        unit=None if prices is None else prices.unit,
        advice=advice,
        calls=tuple(calls),
    )


def _appending(turns: Sequence[ModelCall], prices: PriceClass) -> Iterator[tuple[ModelCall, int]]:
    """Each call, with the tokens that a cache would have served had everything been appended: what the provider counted
    where nothing was left out, nothing where it never serves any, else all that a cache can."""
    counted = [call.cached for call in turns[1:] if "cached" not in call.estimated]
    never = len(counted) > 0 and len(counted) == len(turns) - 1 and not any(counted)
    could = 0
    for call in turns:
        whole = call.prompt == call.appended and "cached" not in call.estimated
        yield call, call.cached if whole else 0 if never else could
        could = prices.cache.kept(call.appended)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"
