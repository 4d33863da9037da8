"""The figures of a report.

over_n(rows, EM)      exact match over N with intervals: one line per policy, or per run and their mean
curves(runs)          learning curves, one line per run
endings(rows)         share of tasks by ending
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mem1.evaluation.report.rows import EM, Column, ReportRow, Run, Series, series
from mem1.pages.figures import SHARE_AXIS, Figure, error_bars, line_style, over_sizes
from mem1.records import Ended

SMOOTHED_STEPS = 10
"""Window of the trailing mean over a learning curve, in steps."""
CURVES = (
    ("reward", "reward per task"),
    ("em", "exact match per objective"),
    ("turns", "turns per task"),
    ("peak_tokens", "peak tokens per task"),
    ("groups_with_variance", "groups whose attempts differ in reward"),
    ("sampler_trainer_max", "largest difference of log-probs, sampler and trainer"),
)
"""Keys of metrics.jsonl drawn as learning curves, with their titles."""
SHARES = ("em", "f1", "groups_with_variance")
"""Metrics between 0 and 1, drawn on the whole of that axis."""
FEW_STEPS = 10
"""Up to here each step has a tick; a longer axis has whole numbers by itself."""


def over_n(
    rows: Sequence[ReportRow], column: Column, title: str, *, appended: Callable[[ReportRow], float] | None = None
) -> Figure:
    """A number over N, one line for each of `series(rows)`.

    `appended`: the number that the same turns would have had if nothing had been dropped; dashed for the last policy
    that drops something, and hidden behind the legend for the others.
    """
    found = series(rows)
    traces = [trace for number, line in enumerate(found) for trace in _line(line, number, column)]
    if appended is not None:
        rewriting = [number for number, line in enumerate(found) if line.context != "full"]
        for number in rewriting:
            shown = True if number == rewriting[-1] else "legendonly"
            traces.append(_if_appended(found[number], number, appended, visible=shown))
    return over_sizes(title, traces, _axis_of(column is EM))


def _axis_of(share: bool) -> Figure:
    return SHARE_AXIS if share else {"rangemode": "tozero", "exponentformat": "power"}


def _steps(runs: Sequence[Run]) -> Figure:
    """The axis of steps, which are whole numbers."""
    last = max((row["step"] for run in runs for row in run.curve), default=0)
    return {"title": {"text": "optimiser step"}, "tickformat": ",d", **({"dtick": 1} if last <= FEW_STEPS else {})}


def curves(runs: Sequence[Run]) -> list[Figure]:
    """One figure for each of `CURVES`, and each other metric of the domain, that any run recorded."""
    own = dict.fromkeys(n for run in runs for one in run.attempts for t in one.trajectories[:1] for n in t.metrics)
    others = [(name, name) for name in own if name not in dict(CURVES)]
    wanted = [*CURVES[:1], *others, *CURVES[1:]]
    drawn = [(key, title) for key, title in wanted if any(r.get(key) is not None for run in runs for r in run.curve)]
    return [
        {
            "title": title,
            "data": [trace for number, run in enumerate(runs) for trace in _curve(run, number, key)],
            "layout": {"xaxis": _steps(runs), "yaxis": _axis_of(key in SHARES)},
        }
        for key, title in drawn
    ]


def endings(rows: Sequence[ReportRow]) -> Figure:
    """One bar per policy and N, divided by ending."""
    bars = [(f"{line.name}, N = {row.objectives}", row) for line in series(rows) for row in line.best]
    return {
        "title": "how tasks ended",
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": ended.value.replace("_", " "),
                "y": [name for name, _ in bars],
                "x": [row.endings[ended.value] / row.tasks for _, row in bars],
                "customdata": [row.endings[ended.value] for _, row in bars],
                "hovertemplate": "%{y}: %{customdata} tasks, %{x:.1%}<extra>%{fullData.name}</extra>",
                "marker": {"color": f"--ended-{ended.value.replace('_', '-')}"},
            }
            for ended in Ended
            if any(row.endings[ended.value] for _, row in bars)
        ],
        "layout": {
            "barmode": "stack",
            "hovermode": "closest",
            "height": 110 + 24 * len(bars),
            "xaxis": {"tickformat": ".0%", "range": [0, 1], "title": {"text": "share of tasks"}},
            "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        },
    }


def _line(line: Series, number: int, column: Column) -> Iterator[Figure]:
    """The runs, faint where their mean is drawn over them."""
    for run, rows in line.runs.items():
        name = f"{line.name}, {run}" if len(line.runs) > 1 else line.name
        faint = {"opacity": 0.45, "showlegend": False} if line.mean else {}
        yield {**_over_n(rows, number, column, name), **faint, "legendgroup": str(number)}
    if line.mean:
        yield {**_over_n(line.mean, number, column, f"{line.name}, mean"), "legendgroup": str(number)}


def _over_n(rows: Sequence[ReportRow], number: int, column: Column, name: str) -> Figure:
    drawn = [row for row in rows if column.value(row) is not None]
    trace = {
        **line_style(number),
        "name": name,
        "x": [row.objectives for row in drawn],
        "y": [column.value(row) for row in drawn],
        "text": [f"{column.cell(row)}, {row.tasks:,} tasks" for row in drawn],
        "hovertemplate": "N = %{x}: %{text}<extra>%{fullData.name}</extra>",
    }
    bars = [(column.ends(row), value) for row in drawn if (value := column.value(row)) is not None]
    errors = [(value - low, high - value) for (low, high), value in bars if low is not None and high is not None]
    if len(errors) == len(drawn):
        trace["error_y"] = error_bars(errors, number)
    return trace


def _if_appended(line: Series, number: int, value: Callable[[ReportRow], float], *, visible: bool | str) -> Figure:
    style = line_style(number)
    return {
        **style,
        "line": {**style["line"], "dash": "dot", "width": 1.5},
        "marker": {**style["marker"], "symbol": "circle-open"},
        "name": f"{line.name}, if appended",
        "x": [row.objectives for row in line.best],
        "y": [value(row) for row in line.best],
        "visible": visible,
        "hovertemplate": "N = %{x}: %{y:,.0f}<extra>%{fullData.name}</extra>",
    }


def _curve(run: Run, number: int, key: str) -> Iterator[Figure]:
    """The recorded values, faint under their trailing mean where there are many; steps without a value are left out."""
    points = [(row["step"], row[key]) for row in run.curve if row.get(key) is not None]
    steps, values = [step for step, _ in points], [value for _, value in points]
    many = len(values) > 2 * SMOOTHED_STEPS
    style = {**line_style(number), "mode": "lines", "x": steps, "legendgroup": run.name}
    hover = "step %{x}: %{y:.4g}<extra>%{fullData.name}</extra>"
    faint = {"opacity": 0.35, "showlegend": False} if many else {}
    if values:
        yield {**style, **faint, "name": run.name, "y": values, "hovertemplate": hover}
    if many:
        mean = f"{run.name}, mean of {SMOOTHED_STEPS} steps"
        yield {**style, "name": mean, "y": _trailing_mean(values), "hovertemplate": hover}


def _trailing_mean(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, i + 1 - SMOOTHED_STEPS) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
