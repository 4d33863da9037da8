"""The page of one or more runs: numbers, tables, figures, and every trajectory turn by turn.

write_page("runs/a/report.html", report([run], title="a"))
headlines(rows)  ->  Headline("0.40 → 1.00", "exact match per objective at N = 2, base → trained"), ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mem1.evaluation.report.rows import (
    EM,
    FURTHER,
    PEAK,
    REWARD,
    Column,
    ReportRow,
    Run,
    Series,
    rows_of,
    score,
    series,
)
from mem1.evaluation.report.tables import by_depth, differences, note, results, warnings
from mem1.evaluation.report.viewer_data import fit
from mem1.pages.page import (
    SHARE_AXIS,
    Details,
    Figure,
    Figures,
    Headline,
    Page,
    Part,
    Section,
    error_bars,
    line_style,
    over_sizes,
)
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
_DEPTH = (
    "Exact match by depth: the longest chain of references behind a question. A question of depth 0 refers to no "
    "other; one of depth 1 refers to the answer of such a question."
)
_DIFFERENCES = (
    "Differences over the same tasks [95 % interval]; * where the interval excludes 0. A hard task is hard for both "
    "policies, so overlapping intervals above may hide a clear difference."
)


def report(runs: Sequence[Run], *, title: str) -> Page:
    """The page of these runs."""
    rows = rows_of(runs)
    several = len(runs) > 1
    groups = [Section(heading, [*([said] if said else []), Figures(of)]) for heading, said, of in _figures(runs, rows)]
    return Page(
        kind="report",
        title=title,
        facts=_facts(runs),
        warnings=(
            "Warnings",
            [f"{run.name}: {said}" if several else said for run in runs for said in run.warnings],
        ),
        headlines=[] if several else headlines(rows),
        sections=[*([Section("Results", _results(runs, rows))] if rows else []), *groups],
        viewer=(lambda room: fit(runs, room)) if any(run.attempts or run.kept for run in runs) else None,
        sources=[run.name for run in runs] if several else ["the run"],
    )


def _results(runs: Sequence[Run], rows: Sequence[ReportRow]) -> list[Part]:
    depths, gained, further = by_depth(rows), differences(runs), results(rows, FURTHER)
    meanings = " ".join(f"{heading}: {meaning}." for heading, meaning in further.meanings.items())
    return [
        results(rows),
        " ".join((note(rows), *warnings(rows))),
        *([gained, _DIFFERENCES] if gained else []),
        *([depths, _DEPTH] if depths else []),
        Details("Cost and behaviour", [further, meanings]),
    ]


def headlines(rows: Sequence[ReportRow]) -> list[Headline]:
    """The score at the smallest and the largest N above 1, before and after training where known, and the peaks.

    The score is exact match, or the reward in a domain without it.

    The numbers are those of the last policy in `rows`; "before" is the first policy under the same memory.
    """
    if not rows:
        return []
    policy, context = rows[-1].policy, rows[-1].context
    after = {row.objectives: row for row in rows if (row.policy, row.context) == (policy, context)}
    before = {row.objectives: row for row in rows if row.policy == rows[0].policy != policy and row.context == context}
    several = sorted(n for n in after if n > 1) or sorted(after)
    low, high = several[0], several[-1]
    first, last = after[low], after[high]
    found = [_score_headline(after[n], before.get(n)) for n in dict.fromkeys((low, high))]
    appended = f"{last.appended_peak_tokens:,.0f}"
    found.append(
        Headline(f"{last.peak_tokens:,.0f}", f"peak tokens at {_n(high)}; the same turns appended: {appended}")
    )
    if low != high and first.peak_tokens_without_prompt > 0:
        growth = last.peak_tokens_without_prompt / first.peak_tokens_without_prompt
        appended = last.appended_peak_tokens_without_prompt / first.appended_peak_tokens_without_prompt
        label = f"growth of the peak without the prompt from {_n(low)} to {high}; appended: \u00d7 {appended:.1f}"
        found.append(Headline(f"\u00d7 {growth:.1f}", label))
    return found


def _score_headline(after: ReportRow, before: ReportRow | None) -> Headline:
    column = score([after])
    values = [column.value(row) or 0.0 for row in (before, after) if row is not None]
    value = " → ".join(f"{number:.2f}" for number in values)
    change = "" if before is None else f", {before.policy} → {after.policy}"
    name = _TITLES.get(column.heading, column.heading)
    return Headline(value, f"{name} at {_n(after.objectives)}{change}")


def _n(objectives: int) -> str:
    return f"N\u00a0=\u00a0{objectives}"  # not broken over two lines


_TITLES = {EM.heading: "exact match per objective", REWARD.heading: "mean reward"}
"""Heading of a column -> title of its figure; other headings are titles themselves."""


def _figures(runs: Sequence[Run], rows: Sequence[ReportRow]) -> list[tuple[str, str, list[Figure]]]:
    """(heading, note, figures) of each group with something to draw."""
    column = score(rows)
    scores = over_n(rows, column, _TITLES.get(column.heading, column.heading))
    peak = over_n(rows, PEAK, "peak tokens", appended=lambda row: row.appended_peak_tokens)
    of_means = "; for a mean, the lowest and the highest run" if any(line.mean for line in series(rows)) else ""
    bars = f"Bars: 95 % intervals over tasks{of_means}."
    sampled = "Means over the attempts sampled for each step, at the temperature of training."
    groups = [
        ("Over the number of objectives", bars, [scores, peak] if rows else []),
        ("While training", sampled, curves(runs)),
        ("Endings", "", [endings(rows)] if rows else []),
    ]
    return [group for group in groups if group[2]]


def _facts(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(name, its value in each run, or the one value shared by all)."""
    names = dict.fromkeys(name for run in runs for name in run.facts)
    values = {name: [(run.name, run.facts.get(name, "")) for run in runs] for name in names}
    return [(name, of[:1] if len({value for _, value in of}) == 1 else of) for name, of in values.items()]


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
