"""One self-contained HTML page about results of the benchmark: scores, what they cost, differences, and every task.

    write_page("runs/qwen/bench.html", sides_of(result))
    write_page("compared.html", [Side(result=a, memory="full"), Side(result=b, memory="notes")])

It is made of the parts of the report on a run (`mem1.evaluation.report`): style, theme, figures. Names and details come
from result files that anybody may have written; they are shown as text, and the page loads nothing from anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mem1.bench.results import Attempt
from mem1.bench.scores import Point, Side, by_family, by_task, names_of, score_of
from mem1.bench.tables import (
    comparisons,
    difference_table,
    endings_table,
    families_of,
    notes,
    score_table,
    short,
    spent_table,
)
from mem1.durable import write_file
from mem1.errors import UserError, printable
from mem1.evaluation.report.figures import SHARE_AXIS, Figure, line_style
from mem1.evaluation.report.page import content_policy, packed_plotly, page_script, plotly, static_text, stylesheet
from mem1.evaluation.report.viewer_data import compressed

_SHARED = ("elements.js", "inflate.js", "theme.js", "scroll.js", "figures.js")
_STATIC = files("mem1.bench") / "static"
_LONGEST_DETAIL = 300
"""Characters of a reason that the list shows."""
_MOST_FACTS = 12
"""Entries of `Result.about` that the head shows."""


def write_page(path: Path, sides: Sequence[Side], *, title: str) -> None:
    """Write the page, atomically.

    Raises UserError for sides that cannot be compared, and if the file cannot be written.
    """
    page = render(sides, title=title)
    try:
        write_file(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot write the page ({error.strerror}); choose another folder") from error


def render(sides: Sequence[Side], *, title: str) -> str:
    """The page as one text. Raises UserError for sides that cannot be compared; ValueError without any."""
    if not sides:
        raise ValueError("a page needs at least one side")
    compared = comparisons(sides)
    names = [short(name) for name in names_of(sides)]
    script = page_script(*map(static_text, _SHARED), _text("tasks.js"))
    groups = figure_groups(sides, names)
    return _template().render(
        title=printable(title),
        policy=content_policy(script, plotly()),
        style=Markup(stylesheet() + _text("page.css")),  # ours, not data
        script=Markup(script),
        facts=_facts(sides),
        notes=notes(sides, compared),
        scores=score_table(sides),
        spent=spent_table(sides),
        endings=endings_table(sides),
        by_family=[(short(family), spent_table(sides, family)) for family in families_of(sides)],
        differences=difference_table(sides, compared) if compared else None,
        groups=groups,
        specs=compressed([figure for _, _, figures in groups for figure in figures]),
        plotly=packed_plotly(),
        data=compressed(task_data(sides, names)),
    )


def figure_groups(sides: Sequence[Side], names: Sequence[str]) -> list[tuple[str, str, list[Figure]]]:
    """(heading, note, figures) of each group."""
    found = [score_of(side.attempts) for side in sides]
    points = [one.points for one in found]
    cells = dict.fromkeys((point.family, point.level) for side in points for point in side)
    levels = by_family(attempt for side in sides for attempt in side.attempts)
    several = {family: len({attempt.level for attempt in of}) > 1 for family, of in levels.items()}
    ordered = sorted(cells, key=lambda cell: (list(levels).index(cell[0]), cell[1]))
    over_n = [
        _over_n(f"{short(family)}, level {level}" if several[family] else short(family), names, points, family, level)
        for family, level in ordered
    ]
    trade = _trade(names, found)
    peaks = _peaks(names, points)
    return [
        ("Accuracy over the number of objectives", "Bars: 95 % intervals over tasks.", over_n),
        ("What it takes", "", [*([trade] if trade else []), peaks]),
    ]


def _over_n(title: str, names: Sequence[str], points: Sequence[Sequence[Point]], family: str, level: int) -> Figure:
    traces = []
    for number, (name, side) in enumerate(zip(names, points, strict=True)):
        drawn = [point for point in side if (point.family, point.level) == (family, level)]
        style = line_style(number)
        error = {
            "type": "data",
            "symmetric": False,
            "array": [point.accuracy.high - point.accuracy.value for point in drawn],
            "arrayminus": [point.accuracy.value - point.accuracy.low for point in drawn],
            "thickness": 1.2,
            "width": 4,
            "color": style["line"]["color"],
        }
        traces.append(
            {
                **style,
                "name": _plain(name),
                "x": [point.objectives for point in drawn],
                "y": [point.accuracy.value for point in drawn],
                "error_y": error,
                "text": [f"{point.accuracy.value:.2f}, {point.tasks:,} tasks" for point in drawn],
                "hovertemplate": "N = %{x}: %{text}<extra>%{fullData.name}</extra>",
            }
        )
    share = {**SHARE_AXIS, "title": {"text": "share of right answers"}}
    return {"title": title, "data": traces, "layout": {"xaxis": _sizes(traces), "yaxis": share}}


def _peaks(names: Sequence[str], points: Sequence[Sequence[Point]]) -> Figure:
    """The mean peak over N, over the tasks of all families."""
    traces = []
    for number, (name, side) in enumerate(zip(names, points, strict=True)):
        sizes = sorted({point.objectives for point in side})
        of = [[point for point in side if point.objectives == n] for n in sizes]
        means = [sum(p.peak * p.tasks for p in some) / sum(p.tasks for p in some) for some in of]
        hover = "N = %{x}: %{y:,.0f} tokens<extra>%{fullData.name}</extra>"
        traces.append({**line_style(number), "name": _plain(name), "x": sizes, "y": means, "hovertemplate": hover})
    tokens = {"rangemode": "tozero", "title": {"text": "tokens"}}
    return {"title": "mean peak, all families", "data": traces, "layout": {"xaxis": _sizes(traces), "yaxis": tokens}}


def _trade(names: Sequence[str], found: Sequence[Any]) -> Figure | None:
    """The score of all families over tokens per right answer; None where nobody had a right answer."""
    traces = []
    for number, (name, score) in enumerate(zip(names, found, strict=True)):
        if score.per_right is None or score.per_right.tokens == 0:
            continue
        style = line_style(number)
        area = score.area
        error = {"type": "data", "symmetric": False, "array": [area.high - area.value], "thickness": 1.2, "width": 4}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "marker": {**style["marker"], "size": 11},
                "name": _plain(name),
                "x": [score.per_right.tokens],
                "y": [area.value],
                "error_y": {**error, "arrayminus": [area.value - area.low], "color": style["marker"]["color"]},
                "hovertemplate": "%{y:.2f} at %{x:,.0f} tokens<extra>%{fullData.name}</extra>",
            }
        )
    if not traces:
        return None
    spent = [math.log10(trace["x"][0]) for trace in traces]
    ends = [min(spent) - 0.3, max(spent) + 0.3]  # so that sides with much the same are seen to be near
    layout = {
        "xaxis": {"type": "log", "range": ends, "title": {"text": "tokens per right answer"}},
        "yaxis": {**SHARE_AXIS, "title": {"text": "score"}},
    }
    return {"title": "score and tokens per right answer, all families", "data": traces, "layout": layout}


def _sizes(traces: Sequence[Figure]) -> Figure:
    sizes = sorted({n for trace in traces for n in trace["x"]})
    return {"type": "log", "tickvals": sizes, "ticktext": list(map(str, sizes)), "title": {"text": "N, objectives"}}


def _plain(name: str) -> str:
    """The name as Plotly shows it unchanged: it reads a little HTML, and the page takes "--name" for a colour."""
    name = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f" {name}" if name.startswith("--") else name


def task_data(sides: Sequence[Side], names: Sequence[str]) -> dict[str, Any]:
    """What the list shows: a row per task with one entry per side, null where it did not attempt the task."""
    attempts = [by_task(side) for side in sides]
    tasks = {name: attempt for side in attempts for name, attempt in reversed(side.items())}
    ordered = dict.fromkeys(name for side in attempts for name in side)
    endings = list(dict.fromkeys(attempt.ended for side in attempts for attempt in side.values()))
    families = list(dict.fromkeys(attempt.family for attempt in tasks.values()))
    numbers = {ended: number for number, ended in enumerate(endings)}
    rows = [
        [
            printable(name)[:_LONGEST_DETAIL],
            families.index(tasks[name].family),
            tasks[name].level,
            tasks[name].objectives,
            [_row(side[name], numbers) if name in side else None for side in attempts],
        ]
        for name in ordered
    ]
    return {
        "sides": list(names),
        "units": [short(side.result.unit or "") for side in sides],
        "families": list(map(short, families)),
        "endings": [short(ended).replace("_", " ") for ended in endings],
        "tasks": rows,
    }


def _row(attempt: Attempt, endings: dict[str, int]) -> list[Any]:
    spent = attempt.tokens
    cost = None if attempt.cost is None else float(f"{attempt.cost:.4g}")
    return [
        [round(value, 3) for value in attempt.right],
        endings[attempt.ended],
        printable(attempt.detail)[:_LONGEST_DETAIL],
        attempt.turns,
        attempt.searches,
        spent.fresh,
        spent.cached,
        spent.output,
        attempt.peak,
        cost,
        round(attempt.seconds, 2),
    ]


def _facts(sides: Sequence[Side]) -> list[tuple[str, list[str]]]:
    """(name, its values): what tells how the results came about, once where they agree."""
    results = list({id(side.result): side.result for side in sides}.values())
    one = results[0]
    facts: list[tuple[str, list[str]]] = [
        ("model", [short(result.model) for result in results]),
        ("suite", [short(one.suite)]),
        ("seed", [f"{one.seed}, the public one" if one.seed == 0 else str(one.seed)]),
        ("tasks", [f"{len({attempt.task for side in sides for attempt in side.attempts}):,}"]),
        ("mem1", [short(result.version) for result in results]),
        ("prices", [_fact(result.prices) for result in results]),
        ("wall time", [f"{result.seconds:,.0f} s" for result in results]),
    ]
    about = dict.fromkeys(name for result in results for name in list(result.about)[:_MOST_FACTS])
    facts += [(short(str(name)), [_fact(result.about.get(name)) for result in results]) for name in about]
    known = [(name, [value or "none" for value in values]) for name, values in facts if any(values)]
    return [(name, values if len(set(values)) > 1 else values[:1]) for name, values in known]


def _fact(value: Any) -> str:
    return "" if value is None else short(value if isinstance(value, str) else json.dumps(value))


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html.jinja"))
