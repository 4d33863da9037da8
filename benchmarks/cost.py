"""What rewriting the context costs or saves against appending, at a provider's prices and with its prompt cache.

    python benchmarks/cost.py --prompt 1200 --state 250 --action 50 --result 600 --turns 20      every price class
    python benchmarks/cost.py runs/a/shipped-1.jsonl --prices hosted-90                          sizes of a recorded run

The calls of an attempt under `full` and `fold(k)`:

    prompt 100; every turn writes a state of 20 (when it has to) and an action of 10, and gets a result of 50
    full        contexts 100, 160, 220     outputs 10, 10, 10
    fold(1)     contexts 100, 160, 180     outputs 10, 30, 10      turn 2 writes a state, because turn 3 drops turn 1

The context tokens of a call are priced in three parts: `cached` tokens, the prefix that the previous call wrote to the
cache; `written` ones, which the next call will read; and `fresh` ones. Generated tokens are `output`. A state is
written in exactly those turns after which something is dropped, so that fold(k) with k >= T is `full`. For equal
turns of state s, action o and result r, at prices p (fresh), c (cached), w (written) and g (output), the difference is

    constant - full = (T - 2)(p + g) s - (T - 1)(w - p)(o + r) - (T - 1)(T - 2)/2 * c (o + r)

    cost of the states, each written and read once; minus that of appending: cache writes, ever longer cache reads

    cost if the attempt ends with turn   1    2    3    4    5
    full                                10   22   36   52   70
    fold(1)                             10   24   39   51   63      break-even turn 4: cheaper from there on

The sizes come from four numbers (`even_sizes`) or from a recorded attempt:

    context P P, completion S S A, result R R R; context P P S S A R R R, completion A A
    recorded_sizes(...)  ->  prompt 2; state 2, action 1, result 3; state 0, action 2, result 0
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from rich.console import Console

from mem1.cli.options import make_folder_of, new_file
from mem1.errors import UserError
from mem1.evaluation.tokens import Sizes, TurnSizes, even_sizes
from mem1.memory import Fold, Full, Window, memory_policy
from mem1.pages.page import plotly
from mem1.pages.table import printed
from mem1.prices import PRICE_CLASSES, PrefixCache, PriceClass, Prices, chosen_prices
from mem1.records import Trajectory, Turn
from mem1.trajectory_files import read_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Tokens of one call by price."""

    fresh: int
    cached: int
    written: int
    output: int
    output_if_last: int
    """Output if this is the last call, which writes no state because nobody would read it."""

    @property
    def context(self) -> int:
        return self.fresh + self.cached + self.written


def calls(sizes: Sizes, k: int | None, cache: PrefixCache, *, thoughts: float = 0.0) -> list[Call]:
    """The calls of an attempt under fold(k), or under `full` if `k` is None; one per turn.

    In a turn without a state the agent writes `thoughts` times as much as a state (0: only its action; 1: it thinks as
    long in every turn, as the agents of MEM1 do), which stays in the context like its action.
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
    """Entry t - 1: cost of the attempt if it ends with turn t, in the unit of the prices."""
    given = [c.fresh * prices.fresh + c.cached * prices.cached + c.written * prices.write for c in made]
    before = accumulate((g + c.output * prices.output for g, c in zip(given, made, strict=True)), initial=0.0)
    # zip stops at the last call; the final partial sum has no call after it
    return [(b + g + c.output_if_last * prices.output) / 1e6 for b, g, c in zip(before, given, made, strict=False)]


def recorded_sizes(trajectory: Trajectory) -> Sizes:
    """The sizes of an attempt recorded under `constant`, `fold(k)`, `full` or `window(k)`.

    Raises UserError for other memories, which do not make one call per turn, and for an attempt without calls.
    """
    name = trajectory.task.id if trajectory.task is not None else "?"
    if not isinstance(memory_policy(trajectory.context), Fold | Full | Window):
        raise UserError(
            f"task {name!r} was recorded under {trajectory.context}, which does not make one call per turn; give a run "
            "under constant, fold(k), full or window(k)"
        )
    if not trajectory.turns:
        raise UserError(f"task {name!r} made no call ({trajectory.ended}); leave it out")
    first, last = trajectory.turns[0], trajectory.turns[-1]
    prefilled = len(last.prefill_ids)
    turns = [_turn_sizes(turn, 0) for turn in trajectory.turns]
    if len(turns) > 1:  # the answer tag opened in the last context follows the last result
        turns[-2] = _turn_sizes(trajectory.turns[-2], prefilled)
    return Sizes(prompt=len(first.context_ids), turns=tuple(turns))


def _turn_sizes(turn: Turn, following: int) -> TurnSizes:
    state, thought = (stop - start for start, stop in (turn.completion_spans.get(r, (0, 0)) for r in _WRITTEN))
    return TurnSizes(
        state=state,
        thought=thought,
        action=len(turn.completion_ids) - state - thought,
        result=len(turn.observation_ids) + following,
    )


_WRITTEN = ("state", "thought")


_ROUNDING = 1e-12
"""Relative difference up to which two costs count as equal, because of the order of summation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCost:
    """The cost of one memory. Means are over attempts."""

    context: str
    """Name of the memory."""
    k: int | None
    """None: `full`."""
    cost: float
    """Mean cost of an attempt, in the unit of the prices."""
    by_turn: tuple[float, ...]
    """Entry t - 1: mean cost if every attempt had ended with turn t at the latest."""
    fresh: float
    """Mean context tokens per attempt neither read from the cache nor written to it."""
    cached: float
    written: float
    output: float
    """Mean generated tokens per attempt."""
    peak_tokens: float
    """Mean over attempts of the largest context + output."""
    break_even: int | None
    """First turn from which it stays cheaper than `full`; None: none of the turns considered, or it is `full`."""


def compare(
    attempts: Sequence[Sizes],
    prices: Prices,
    cache: PrefixCache,
    *,
    thoughts: float = 0.0,
    turns: int | None = None,
) -> list[PolicyCost]:
    """`full`, then fold(1), fold(2), … up to fold(T) for attempts of at most T turns.

    With `turns` the attempts are priced as if they ended there; later turns are used only for `by_turn` and the
    break-even turn. Raises ValueError without attempts.
    """
    if not attempts:
        raise ValueError("there is no attempt to price")
    longest = turns or max(len(sizes.turns) for sizes in attempts)
    full = _line(attempts, None, prices, cache, thoughts, turns, ())
    folds = [_line(attempts, k, prices, cache, thoughts, turns, full.by_turn) for k in range(1, longest + 1)]
    return [full, *folds]


def best(lines: Sequence[PolicyCost]) -> PolicyCost:
    """The cheapest policy; among equals `full`, then the one that rewrites least."""
    cheapest = min(line.cost for line in lines)
    equal = [line for line in lines if line.cost <= cheapest * (1 + _ROUNDING)]
    return max(equal, key=lambda line: math.inf if line.k is None else line.k)


def break_even(by_turn: Sequence[float], full_by_turn: Sequence[float]) -> int | None:
    """First turn from which the first curve stays below the second up to the last turn; None: none."""
    cheaper = [a < b * (1 - _ROUNDING) for a, b in zip(by_turn, full_by_turn, strict=True)]
    lasting = len(list(takewhile(bool, reversed(cheaper))))
    return len(cheaper) - lasting + 1 if lasting else None


def _line(
    attempts: Sequence[Sizes],
    k: int | None,
    prices: Prices,
    cache: PrefixCache,
    thoughts: float,
    turns: int | None,
    full_by_turn: Sequence[float],
) -> PolicyCost:
    every = [calls(sizes, k, cache, thoughts=thoughts) for sizes in attempts]
    ended = [made[:turns] for made in every]
    curves = [costs(made, prices) for made in every]
    longest = max(map(len, curves))
    by_turn = tuple(_mean([curve[min(t, len(curve)) - 1] for curve in curves]) for t in range(1, longest + 1))
    outputs = [[*(c.output for c in made[:-1]), made[-1].output_if_last] for made in ended]
    peaks = [
        max(c.context + o for c, o in zip(made, written, strict=True))
        for made, written in zip(ended, outputs, strict=True)
    ]
    return PolicyCost(
        context=(Full() if k is None else Fold(k)).name,
        k=k,
        cost=_mean([curve[len(made) - 1] for curve, made in zip(curves, ended, strict=True)]),
        by_turn=by_turn,
        fresh=_mean([sum(c.fresh for c in made) for made in ended]),
        cached=_mean([sum(c.cached for c in made) for made in ended]),
        written=_mean([sum(c.written for c in made) for made in ended]),
        output=_mean([sum(written) for written in outputs]),
        peak_tokens=_mean(peaks),
        break_even=break_even(by_turn, full_by_turn) if full_by_turn else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


HORIZON = 500
"""Turns searched for the break-even turn if sizes are given; a recorded run has only its own."""
_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Values of k in a table; JSON has all."""
_SIZES = {
    "prompt": "tokens of the prompt",
    "state": "tokens of a state, when one is written",
    "action": "tokens of an action (a query, the answer)",
    "result": "tokens of a result",
    "turns": "turns of an attempt",
}
_PRICES = {
    "fresh": "your price per million context tokens",
    "cached": "of those read from the cache",
    "write": "of those written to the cache; --fresh if that is free",
    "output": "of generated tokens",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prices what the arguments say (None: those of the process); a mistake is one message."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="recorded run in place of sizes: a .jsonl, or its folder")
    for name, meaning in _SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=meaning)
    parser.add_argument("--prices", action="append", help="price class (docs/cost.md); repeatable; default: all")
    for name, meaning in _PRICES.items():
        parser.add_argument(f"--{name}", type=float, help=meaning)
    parser.add_argument("--cache-minimum", type=int, help="shortest cached prefix; default: the class's")
    parser.add_argument("--cache-step", type=int, help="cached prefixes end at multiples of this; default: the class's")
    parser.add_argument("--thoughts", type=float, default=0.0, help="share of a state written in turns that need none")
    parser.add_argument("--plot", type=Path, help="write the costs over turns to this .html")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    given = parser.parse_args(arguments)
    try:
        _price(given)
    except (UserError, ValueError) as error:
        sys.exit(f"error: {error}")


def _price(given: argparse.Namespace) -> None:
    if not 0 <= given.thoughts <= 1:
        raise UserError(f"--thoughts takes a share, from 0 to 1, not {given.thoughts}")
    own = {name: getattr(given, name) for name in _PRICES}
    found = [chosen_prices(name, own) for name in given.prices or (None,)]
    classes = [_with_cache(known, given) for known in found if known is not None] or list(PRICE_CLASSES.values())
    attempts, ends = _attempts(given.run, {name: getattr(given, name) for name in _SIZES})
    compared = [(c, compare(attempts, c.prices, c.cache, thoughts=given.thoughts, turns=ends)) for c in classes]
    if given.plot is not None:
        _write_plot(given.plot, compared, ends)
    if given.json:
        priced = [_record(known, lines, ends) for known, lines in compared]
        print(json.dumps({"attempts": len(attempts), "thoughts": given.thoughts, "prices": priced}))
    else:
        _print(compared, given.thoughts)


def _with_cache(known: PriceClass, given: argparse.Namespace) -> PriceClass:
    changed = {"minimum": given.cache_minimum, "step": given.cache_step}
    return replace(known, cache=replace(known.cache, **{k: v for k, v in changed.items() if v is not None}))


def _attempts(run: Path | None, sizes: Mapping[str, int | None]) -> tuple[list[Sizes], int | None]:
    """The sizes that are priced, and the last turn; None: each attempt's own."""
    if run is not None:
        if given := [f"--{name}" for name, size in sizes.items() if size is not None]:
            raise UserError(f"{', '.join(given)}: {run} has its own sizes; leave out one or the other")
        called = [trajectory for trajectory in read_trajectories(_file(run)) if trajectory.turns]
        if not called:
            raise UserError(f"{run} has no attempt with a model call; give another run")
        return [recorded_sizes(trajectory) for trajectory in called], None
    if missing := [f"--{name}" for name, size in sizes.items() if size is None]:
        raise UserError(f"give a recorded run, or all sizes; missing: {', '.join(missing)}")
    known = {name: size for name, size in sizes.items() if size is not None}
    turns = known["turns"]
    if not 1 <= turns <= HORIZON:
        raise UserError(f"--turns takes 1 to {HORIZON}, not {turns}")
    return [even_sizes(**{**known, "turns": HORIZON})], turns


def _file(run: Path) -> Path:
    """The trajectories of a run: the file itself, or the one in its folder."""
    if not run.is_dir():
        return run
    found = sorted({*run.glob("trajectories.jsonl"), *run.glob("evaluation/*.jsonl")})
    if len(found) != 1:
        held = ", ".join(str(path.relative_to(run)) for path in found) or "none"
        raise UserError(f"{run} holds {len(found)} files of trajectories ({held}); give one of them")
    return found[0]


def _record(known: PriceClass, lines: Sequence[PolicyCost], turns: int | None) -> dict[str, Any]:
    """Without the turns after the last, which only served to find the break-even turn."""
    rows = [asdict(replace(line, by_turn=line.by_turn[:turns])) for line in lines]
    return {**asdict(known), "best": best(lines).context, "rows": rows}


def _print(compared: Sequence[tuple[PriceClass, Sequence[PolicyCost]]], thoughts: float) -> None:
    console = Console(highlight=False)
    console.print(_summary(compared) if len(compared) > 1 else _by_k(*compared[0]))
    wrote = f"{thoughts:g} of a state" if thoughts else "only its action"
    console.print(
        f"Mean cost per attempt. In a turn that needs no state, an agent writes {wrote}. Break-even: the turn from "
        "which it is cheaper than full."
    )
    for known, _ in compared:
        origin = f"{known.source} ({known.date})" if known.source else "an example, not a price list"
        console.print(f"{known.name}: {known.about}; {origin}.", markup=False)


def _summary(compared: Sequence[tuple[PriceClass, Sequence[PolicyCost]]]) -> Any:
    rows = []
    for known, (full, constant, *others) in compared:
        cheapest = best((full, constant, *others))
        costs = (known.name, _money(full.cost), _money(constant.cost), _turn(constant))
        rows.append((*costs, cheapest.context, _money(cheapest.cost), _turn(cheapest)))
    return printed(("prices", "full", "constant", "break-\neven", "cheapest", "cost", "break-\neven"), rows, left=(4,))


def _by_k(known: PriceClass, lines: Sequence[PolicyCost]) -> Any:
    cheapest = best(lines)
    shown = [line for line in lines if line.k is None or line.k in _SHOWN or line in (cheapest, lines[-1])]
    rows = [
        (
            f"{line.context} *" if line is cheapest else line.context,
            _money(line.cost),
            f"{line.cost / lines[0].cost:.2f}" if lines[0].cost else "",
            _turn(line),
            *map(_tokens, (line.peak_tokens, line.fresh, line.cached, line.written, line.output)),
        )
        for line in shown
    ]
    headings = ("context", "cost", "of\nfull", "break-\neven", "peak", "fresh", "cached", "written", "output")
    caption = f"Cost in {known.unit}. *: the cheapest. Mean tokens per attempt."
    return printed(headings, rows, caption=caption)


def _money(cost: float) -> str:
    return f"{cost:.4f}" if cost < 10 else f"{cost:,.2f}"


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if count < 1e6 else f"{count / 1e6:.2f} M"


def _turn(line: PolicyCost) -> str:
    if line.break_even is not None:
        return str(line.break_even)
    return "" if line.k is None else "never"


def _write_plot(path: Path, compared: Sequence[tuple[PriceClass, Sequence[PolicyCost]]], turns: int | None) -> None:
    """One figure per price class, drawn by the copy of Plotly in the page."""
    if path.suffix != ".html":
        raise UserError(f"--plot {path}: the name ends in .html")
    new_file(path)
    make_folder_of(path)
    figures = []
    for known, lines in compared:
        drawn = {line.context: line.by_turn[:turns] for line in (lines[0], lines[1], best(lines))}
        axes = {"xaxis": {"title": {"text": "last turn of the attempt"}}, "yaxis": {"rangemode": "tozero"}}
        axes["yaxis"]["title"] = {"text": f"cost in {known.unit}"}
        data = [{"name": name, "x": list(range(1, 1 + len(y))), "y": y, "mode": "lines"} for name, y in drawn.items()]
        figures.append({"data": data, "layout": {"title": {"text": known.name}, **axes}})
    draw = "f => Plotly.newPlot(document.body.appendChild(document.createElement('div')), f)"
    scripts = f"<script>{plotly()}</script><body><script>{json.dumps(figures)}.forEach({draw})</script>"
    try:
        path.write_text(f'<!doctype html><meta charset="utf-8"><title>Cost</title>{scripts}', encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --plot") from error


if __name__ == "__main__":
    main()
