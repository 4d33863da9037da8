"""The page of results: scores, what they cost, differences, and every attempt, turn by turn where that was kept.

    write_page("runs/qwen/page.html", bench_page(sides_of(result), title="qwen"))

Names and details come from result files that anybody may have written; `mem1.pages.page` shows them as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mem1.bench.results import Attempt
from mem1.bench.scores import Point, Score, Side, by_family, by_task, cells_of, names_of, score_of
from mem1.bench.tables import (
    comparisons,
    difference_table,
    endings_table,
    families_of,
    notes,
    score_table,
    short,
    spent_table,
    together,
)
from mem1.errors import printable
from mem1.evaluation.compare import Estimate
from mem1.evaluation.report.viewer_data import PageData, first_tasks, turns_in_words, words
from mem1.pages.page import (
    SHARE_AXIS,
    Details,
    Figure,
    Figures,
    Page,
    Part,
    Section,
    Terms,
    Viewer,
    compressed,
    error_bars,
    inflated,
    line_style,
    over_sizes,
    plain,
)

_LEAD = (
    "How much of a long task a model keeps under each memory, and what that costs: each task asks N questions about an "
    "invented world, and all answers are due at the end. Whoever remembers everything scores 1 at every N. How to read "
    "this page is said at its end."
)
_READING = {
    "N": "The number of objectives of a task: questions to answer, or things to buy. All of them are due in one "
    "answer at the end.",
    "accuracy": "The share of a task's objectives that are right. By the scorer squad an answer is right if it equals "
    "one of the accepted answers, after both are brought to lower case without articles and punctuation. An attempt "
    "that fails has none right.",
    "score": "The mean height of accuracy over log N: each doubling of N counts the same. 1 means that everything was "
    "right at every N. A score can be compared only with scores over the same sizes.",
    "interval": "Of 100 intervals made like this one, about 95 hold the score that endless tasks of the same kind "
    "would give. Two scores may differ although their intervals overlap: the table of differences compares task by "
    "task, which is more exact.",
    "tokens per right answer": "All tokens of all attempts, failed ones too, divided by the number of right answers. "
    "Fresh: prompt tokens that no cache served. Cached: those that the provider's cache served, or could have served. "
    "Output: what the model wrote.",
    "peak": "Tokens of the longest prompt of an attempt, with the reply to it. A memory that stays constant has a "
    "flat line.",
    "seed 0": "The public tasks, for comparison. A model may have been trained on them; its score on a fresh seed "
    "shows whether that matters.",
}
_FILTERS = {
    "side": "memory",
    "family": "family",
    "level": "level",
    "objectives": "N",
    "ended": "ending",
    "outcome": "all objectives",
}
_LONGEST_DETAIL = 300
"""Characters of a reason that the list shows."""
_MOST_FACTS = 12
"""Entries of `Result.about` that the head shows."""


def bench_page(sides: Sequence[Side], *, title: str) -> Page:
    """The page of these sides. Raises UserError for sides that cannot be compared; ValueError without any."""
    if not sides:
        raise ValueError("a page needs at least one side")
    compared = comparisons(sides)
    names = [short(name) for name in names_of(sides)]
    scored: list[Part] = [
        score_table(sides),
        "The area under accuracy over log N, between 0 and 1, with its 95 % interval over tasks.",
    ]
    if compared:
        star = "* The 95 % interval of the paired difference excludes 0."
        scored.append(Section("Differences on the same tasks", [difference_table(sides, compared), star]))
    families = [Section(short(family), [spent_table(sides, family)]) for family in families_of(sides)]
    spent: list[Part] = [spent_table(sides), *([Details("By family", families)] if len(families) > 1 else [])]
    return Page(
        kind="bench",
        title=printable(title),
        lead=_LEAD,
        facts=_facts(sides),
        warnings=("Before you read on", notes(sides, compared)),
        sections=[
            Section("Scores", scored),
            Section("Tokens and cost", [*spent, Section("Endings", [endings_table(sides)])]),
            *_figures(sides, names),
        ],
        viewer=lambda room: _viewer(sides, names, room),
        closing=[Section("How to read this page", [Terms([*_READING.items()])])],
    )


def _figures(sides: Sequence[Side], names: Sequence[str]) -> list[Section]:
    found = together(sides)
    points = [(whole or score_of(side.attempts)).points for whole, side in zip(found, sides, strict=True)]
    cells = dict.fromkeys((point.family, point.level) for side in points for point in side)
    levels = by_family(attempt for side in sides for attempt in side.attempts)
    several = {family: len({attempt.level for attempt in of}) > 1 for family, of in levels.items()}
    ordered = sorted(cells, key=lambda cell: (list(levels).index(cell[0]), cell[1]))
    over_n = [
        _over_n(f"{short(family)}, level {level}" if several[family] else short(family), names, points, family, level)
        for family, level in ordered
    ]
    trade = _trade(names, found)
    return [
        Section("Accuracy over the number of objectives", ["Bars: 95 % intervals over tasks.", Figures(over_n)]),
        Section("What it takes", [Figures([*([trade] if trade else []), _peaks(names, points)])]),
    ]


def _over_n(title: str, names: Sequence[str], points: Sequence[Sequence[Point]], family: str, level: int) -> Figure:
    traces = []
    for number, (name, side) in enumerate(zip(names, points, strict=True)):
        drawn = [point for point in side if (point.family, point.level) == (family, level)]
        accuracies = [point.accuracy for point in drawn]
        traces.append(
            {
                **line_style(number),
                "name": plain(name),
                "x": [point.objectives for point in drawn],
                "y": [one.value for one in accuracies],
                "error_y": error_bars([*map(_distances, accuracies)], number),
                "text": [f"{point.accuracy.value:.2f}, {point.tasks:,} tasks" for point in drawn],
                "hovertemplate": "N = %{x}: %{text}<extra>%{fullData.name}</extra>",
            }
        )
    return over_sizes(title, traces, {**SHARE_AXIS, "title": {"text": "share of right answers"}}, "objectives")


def _distances(estimate: Estimate) -> tuple[float, float]:
    """Of the ends of its interval."""
    return estimate.value - estimate.low, estimate.high - estimate.value


def _peaks(names: Sequence[str], points: Sequence[Sequence[Point]]) -> Figure:
    """The mean peak over N, over the tasks of all families."""
    traces = []
    for number, (name, side) in enumerate(zip(names, points, strict=True)):
        sizes = sorted({point.objectives for point in side})
        of = [[point for point in side if point.objectives == n] for n in sizes]
        means = [sum(p.peak * p.tasks for p in some) / sum(p.tasks for p in some) for some in of]
        hover = "N = %{x}: %{y:,.0f} tokens<extra>%{fullData.name}</extra>"
        traces.append({**line_style(number), "name": plain(name), "x": sizes, "y": means, "hovertemplate": hover})
    tokens = {"rangemode": "tozero", "title": {"text": "tokens"}}
    return over_sizes("mean peak, all families", traces, tokens, "objectives")


def _trade(names: Sequence[str], found: Sequence[Score | None]) -> Figure | None:
    """The score of all families over tokens per right answer, of the sides that have all; None where none of them had a
    right answer."""
    traces = []
    for number, (name, score) in enumerate(zip(names, found, strict=True)):
        if score is None or score.per_right is None or score.per_right.tokens == 0:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "marker": {**line_style(number)["marker"], "size": 11},
                "name": plain(name),
                "x": [score.per_right.tokens],
                "y": [score.area.value],
                "error_y": error_bars([_distances(score.area)], number),
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


def _viewer(sides: Sequence[Side], names: Sequence[str], room: int) -> Viewer:
    """All attempts; those at the first tasks of each cell with their turns, as many as fit."""
    named = zip(names, sides, strict=True)
    groups = [(name, side, of) for name, side in named for of in cells_of(by_task(side).values()).values()]
    kept = [(name, side, of) for name, side, of in groups if any(one.task in side.told for one in of)]
    most = max((len(of) for _, _, of in kept), default=0)
    outcomes = _outcomes(sides)
    tasks, text = first_tasks(lambda tasks: _text(groups, tasks, outcomes), most, room)
    return Viewer(
        text=text,
        shown=sum(one.task in side.told for _, side, of in kept for one in of[:tasks]),
        of=sum(len(of) for _, _, of in groups),
        omissions=[
            f"{_group(name, of[0])}, N = {of[0].objectives}: tasks {tasks + 1:,} to {len(of):,}"
            for name, _, of in kept
            if len(of) > tasks
        ],
    )


_Cell = tuple[str, Side, Sequence[Attempt]]
"""Name of a side, the side, and its attempts at one family, level and size."""


def _text(groups: Sequence[_Cell], tasks: int, outcomes: Mapping[str, str]) -> str:
    data = PageData(_FILTERS)
    found = {
        (id(side), one.task): inflated(side.told[one.task])
        for _, side, of in groups
        for one in of[:tasks]
        if one.task in side.told
    }
    asked = {
        task: tuple(tuple(map(tuple, told[name])) for name in ("questions", "facts"))
        for (_, task), told in found.items()
    }
    for name, side, of in groups:
        data.add_group(_group(name, of[0]), of[0].objectives)
        for one in of:
            told = found.get((id(side), one.task))
            unknown = tuple((f"Q{n}", "", "") for n in range(1, one.objectives + 1)), ()
            labels = {
                "side": name,
                "family": short(one.family),
                "level": str(one.level),
                "objectives": str(one.objectives),
                "ended": words(short(one.ended)),
                "outcome": outcomes[one.task],
            }
            data.add_attempt(
                task=(printable(one.task)[:_LONGEST_DETAIL], *asked.get(one.task, unknown)),
                labels=labels,
                about=[*_about(one, side)],
                metrics={"em": one.right},
                ended=one.ended,
                detail=printable(one.detail)[:_LONGEST_DETAIL],
                result=f"{sum(one.right):.4g}/{one.objectives}",
                solved=one.accuracy == 1,
                length=turns_in_words(one.turns),
                answers=told["answers"] if told else (),
                turns=data.joined(told) if told else (),
            )
    return compressed(data.as_json())


def _group(name: str, one: Attempt) -> str:
    return f"{name}, {short(one.family)}"


def _outcomes(sides: Sequence[Side]) -> dict[str, str]:
    """Task -> whether all of its objectives are right: under all sides that attempted it, none, or some."""
    solved: dict[str, list[bool]] = {}
    for side in sides:
        for one in side.attempts:
            solved.setdefault(one.task, []).append(one.accuracy == 1)
    return {
        task: f"right under {'all' if all(of) else 'some only' if any(of) else 'none'}" for task, of in solved.items()
    }


def _about(one: Attempt, side: Side) -> Iterator[str]:
    spent = one.tokens
    yield f"after {turns_in_words(one.turns)} with {one.searches} searches"
    yield f"memory {short(one.memory)}"
    yield f"{spent.fresh:,} fresh, {spent.cached:,} cached and {spent.output:,} output tokens"
    yield f"peak {one.peak:,}"
    if one.cost is not None:
        yield f"{one.cost:.4g} {short(side.result.unit or '')}"
    yield f"{one.seconds:.2f} s"


def _facts(sides: Sequence[Side]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(name, its values): what tells how the results came about, once where they agree."""
    results = list({id(side.result): side.result for side in sides}.values())
    one = results[0]
    whose = [short(result.model) for result in results]
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
    return [
        (name, list(zip(whose, values, strict=True)) if len(set(values)) > 1 else [("", values[0])])
        for name, values in known
    ]


def _fact(value: Any) -> str:
    return "" if value is None else short(value if isinstance(value, str) else json.dumps(value))
