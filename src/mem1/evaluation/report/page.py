"""The page of one or more runs: numbers, tables, figures, and every trajectory turn by turn.

write_page("runs/a/report.html", report([run], title="a"))
headlines(rows)  ->  Headline("0.40 → 1.00", "exact match per objective at N = 2, base → trained"), ...
"""

from __future__ import annotations

from collections.abc import Sequence

from mem1.evaluation.report.figures import curves, endings, over_n
from mem1.evaluation.report.rows import EM, FURTHER, PEAK, REWARD, ReportRow, Run, rows_of, score, series
from mem1.evaluation.report.tables import by_depth, note, results, warnings
from mem1.evaluation.report.viewer_data import fit
from mem1.pages.figures import Figure
from mem1.pages.page import Details, Figures, Headline, Page, Part, Section

_DEPTH = (
    "Exact match by depth: the longest chain of references behind a question. A question of depth 0 refers to no "
    "other; one of depth 1 refers to the answer of such a question."
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
        sections=[*([Section("Results", _results(rows))] if rows else []), *groups],
        viewer=(lambda room: fit(runs, room)) if any(run.attempts or run.kept for run in runs) else None,
        sources=[run.name for run in runs] if several else ["the run"],
    )


def _results(rows: Sequence[ReportRow]) -> list[Part]:
    depths, further = by_depth(rows), results(rows, FURTHER)
    meanings = " ".join(f"{heading}: {meaning}." for heading, meaning in further.meanings.items())
    return [
        results(rows),
        " ".join((note(rows), *warnings(rows))),
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
