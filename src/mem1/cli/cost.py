"""`mem1 cost`: what rewriting the context costs or saves against appending, given prices and prompt caching."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.cli.options import Fills, JsonOption, make_folder_of, new_file, refuse
from mem1.cli.progress import table
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.evaluation.tokens import Sizes
    from mem1.extras.cost.compare import PolicyCost
    from mem1.prices import PriceClass

HORIZON = 500
"""Turns searched for the break-even turn if sizes are given; a recorded run has only its own."""
_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Values of k in a table; JSON has all."""


def command(
    invocation: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(help="Recorded run in place of sizes: a .jsonl of trajectories, or its folder.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of the prompt.")] = None,
    state: Annotated[int | None, typer.Option(min=0, help="Tokens of a state, when one is written.")] = None,
    action: Annotated[int | None, typer.Option(min=0, help="Tokens of an action (a query, the answer).")] = None,
    result: Annotated[int | None, typer.Option(min=0, help="Tokens of a result.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, max=HORIZON, help="Turns of an attempt.")] = None,
    prices: Annotated[
        list[str] | None, typer.Option(help="Price class (docs/cost.md); repeatable. Default: all.")
    ] = None,
    fresh: Annotated[float | None, typer.Option(help="Your price per million context tokens.")] = None,
    cached: Annotated[float | None, typer.Option(help="Read from the cache.")] = None,
    write: Annotated[float | None, typer.Option(help="Written to the cache; --fresh if free.")] = None,
    output: Annotated[float | None, typer.Option(help="Your price per million generated tokens.")] = None,
    cache_minimum: Annotated[
        int | None,
        typer.Option(min=0, help="Shortest cached prefix. Default: the class's; 0 with own prices."),
    ] = None,
    cache_step: Annotated[
        int | None,
        typer.Option(min=1, help="Prefixes end at multiples of this. Default: the class's, else 1."),
    ] = None,
    cache_lifetime: Annotated[
        float | None, typer.Option(min=0, help="Seconds until an unread prefix is dropped. Default: never.")
    ] = None,
    pause: Annotated[
        float,
        typer.Option(min=0, help="Seconds from one call to the next."),
        Fills("mem1.extras.cost.compare:PrefixCache.pause_s"),
    ] = 0.0,
    thoughts: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of a state written in turns that need none; 0: only the action."),
        Fills("mem1.extras.cost.compare:compare.thoughts"),
    ] = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Write the costs over turns to this .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Price an attempt under full context and under fold(k) for every k: cheapest k, break-even turn, peak."""
    from mem1.extras.cost.compare import compare

    if cache_lifetime is None:
        refuse(invocation, "pause", because="matters only with --cache-lifetime; give both")
    classes = price_classes(prices, {"fresh": fresh, "cached": cached, "write": write, "output": output})
    classes = [_with_cache(c, cache_minimum, cache_step, cache_lifetime, pause) for c in classes]
    attempts, ends = _attempts(run, {"prompt": prompt, "state": state, "action": action, "result": result}, turns)
    compared = [(c, compare(attempts, c.prices, c.cache, thoughts=thoughts, turns=ends)) for c in classes]
    if plot is not None:
        _write_plot(plot, compared, ends)
    if as_json:
        priced = [_record(known, lines, ends) for known, lines in compared]
        print(json.dumps({"attempts": len(attempts), "thoughts": thoughts, "prices": priced}))
    else:
        _print(compared, thoughts)


def price_classes(names: Sequence[str] | None, own: Mapping[str, float | None]) -> list[PriceClass]:
    """The classes of these names, or the only one of a user's own prices; neither: all that ship.

    Raises UserError for an unknown name, for both, and for prices that are missing or none.
    """
    from mem1.prices import PRICE_CLASSES, PrefixCache, PriceClass, Prices, price_class

    given = {name: price for name, price in own.items() if price is not None}
    if not given:
        return [price_class(name) for name in names] if names else list(PRICE_CLASSES.values())
    if names:
        raise UserError("use either --prices, or your own: --fresh, --cached, --write and --output")
    if missing := [f"--{name}" for name in own if name not in given]:
        raise UserError(f"give all four prices; missing: {', '.join(missing)} (--write is --fresh if writing is free)")
    try:
        return [PriceClass(name="own", about="as given", prices=Prices(**given), cache=PrefixCache(), unit="own unit")]
    except ValueError as error:
        raise UserError(str(error)) from error


def _with_cache(
    known: PriceClass, minimum: int | None, step: int | None, lifetime: float | None, pause: float
) -> PriceClass:
    from dataclasses import replace

    from mem1.prices import PrefixCache

    return replace(
        known,
        cache=PrefixCache(
            minimum=known.cache.minimum if minimum is None else minimum,
            step=known.cache.step if step is None else step,
            lifetime_s=lifetime,
            pause_s=pause,
        ),
    )


def _attempts(run: Path | None, sizes: Mapping[str, int | None], turns: int | None) -> tuple[list[Sizes], int | None]:
    """The sizes that are priced, and the last turn; None: each attempt's own."""
    from mem1.evaluation.tokens import even_sizes
    from mem1.extras.cost.compare import recorded_sizes
    from mem1.trajectory_files import read_trajectories

    options = {**sizes, "turns": turns}
    if run is not None:
        if given := [f"--{name}" for name, size in options.items() if size is not None]:
            raise UserError(f"{', '.join(given)}: {run} has its own sizes; leave out one or the other")
        called = [trajectory for trajectory in read_trajectories(_file(run)) if trajectory.turns]
        if not called:
            raise UserError(f"{run} has no attempt with a model call; give another run")
        return [recorded_sizes(trajectory) for trajectory in called], None
    if missing := [f"--{name}" for name, size in options.items() if size is None]:
        raise UserError(f"give a recorded run, or all sizes; missing: {', '.join(missing)}")
    known = {name: size for name, size in sizes.items() if size is not None}
    return [even_sizes(**known, turns=HORIZON)], turns


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
    from dataclasses import asdict, replace

    from mem1.extras.cost.compare import best

    rows = [asdict(replace(line, by_turn=line.by_turn[:turns])) for line in lines]
    return {**asdict(known), "best": best(lines).context, "rows": rows}


def _print(compared: Sequence[tuple[PriceClass, Sequence[PolicyCost]]], thoughts: float) -> None:
    from rich.console import Console

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
    from mem1.extras.cost.compare import best

    rows = []
    for known, (full, constant, *others) in compared:
        cheapest = best((full, constant, *others))
        costs = (known.name, _money(full.cost), _money(constant.cost), _turn(constant))
        rows.append((*costs, cheapest.context, _money(cheapest.cost), _turn(cheapest)))
    return table(("prices", "full", "constant", "break-\neven", "cheapest", "cost", "break-\neven"), rows, left=(4,))


def _by_k(known: PriceClass, lines: Sequence[PolicyCost]) -> Any:
    from mem1.extras.cost.compare import best

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
    return table(headings, rows, caption=caption)


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
    from mem1.evaluation.report.page import plotly
    from mem1.extras.cost.compare import best

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
        path.write_text(f'<!doctype html><meta charset="utf-8"><title>mem1 cost</title>{scripts}', encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --plot") from error
