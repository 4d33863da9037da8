"""The results as tables: on the terminal within 80 columns, in Markdown and CSV.

    policy   N  tasks   EM per objective    F1  turns  peak tokens  without prompt  if appended
    base     2    200  0.36 [0.31, 0.41]  0.40    4.1           94              62          154

    markdown(rows)  ->  | policy | N | EM per objective | ...
    csv(rows)       ->  policy,context,objectives,tasks,em,em_low,em_high,...,endings.answered,...

Where questions depend on one another, a second table shows exact match by depth:

    policy   N  EM at depth 0     1     2
    base     3           0.60  0.30  0.10

`differences(runs)`, for the page, tells what a training added:

    exact match          N = 2
    trained minus start  +0.42 [0.30, 0.53] *

Markdown ends with the mean over several runs; CSV has every number of every run, unrounded, and no means.
"""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rich.console import Console

from mem1.errors import UserError
from mem1.evaluation.compare import Difference, paired_difference
from mem1.evaluation.metrics import bounds
from mem1.evaluation.report.rows import (
    EM,
    FURTHER,
    Column,
    ReportRow,
    Run,
    Series,
    main_columns,
    own_metrics,
    series,
    shown,
)
from mem1.pages.table import Table, fitting, markdown_text
from mem1.pages.table import markdown as markdown_table
from mem1.records import Ended, Trajectory


def results(rows: Sequence[ReportRow], columns: Sequence[Column] | None = None) -> Table:
    """One line per run, policy and N; the mean follows the runs of a policy."""
    wanted = shown(main_columns(rows) if columns is None else columns, rows)
    lines = [(line, row, [column.cell(row) for column in wanted]) for line, row in _in_order(series(rows))]
    return _table(rows, [column.heading for column in wanted], lines, {c.heading: c.meaning for c in wanted})


def by_depth(rows: Sequence[ReportRow]) -> Table | None:
    """Exact match by depth; None if no question depends on another."""
    deepest = max((int(depth) for row in rows for depth in row.em_by_depth or ()), default=0)
    if not deepest:
        return None
    depths = [str(depth) for depth in range(deepest + 1)]
    lines = []
    for line, row in _in_order(series(rows)):
        if (found := row.em_by_depth) is not None:
            cells = [f"{found[depth]:.2f}" if depth in found else "" for depth in depths]
            lines.append((line, row, [str(row.objectives), *cells]))
    return _table(rows, ["N", "EM at depth 0", *depths[1:]], lines, {})


def differences(runs: Sequence[Run]) -> Table | None:
    """Exact match of the last policy minus that of each earlier one, over the tasks that both attempted, by N; over the
    runs of a family if there are several. None: no two policies attempted the same tasks."""
    compared: dict[tuple[str, str, str], dict[int, Difference]] = {}
    for (family, context), policies in _sides(runs).items():
        *earlier, (name, newest) = policies.items()
        for other, before in earlier:
            for n in sorted(newest.keys() & before.keys()):
                with suppress(UserError):  # other tasks
                    within = bounds(attempt for run in (*newest[n], *before[n]) for attempt in run)
                    difference = paired_difference(newest[n], before[n], within=within)
                    compared.setdefault((family, context, f"{name} minus {other}"), {})[n] = difference
    if not compared:
        return None
    sizes = sorted({n for of in compared.values() for n in of})
    families, contexts = ({names[place] for names in compared} for place in (0, 1))
    rows, marked = [], set()
    for row, ((family, context, pair), of) in enumerate(compared.items()):
        name = ", ".join([pair, *([context] if len(contexts) > 1 else []), *([family] if len(families) > 1 else [])])
        rows.append((name, *(of[n].text(signed=True) if n in of else None for n in sizes)))
        marked |= {(row, column) for column, n in enumerate(sizes, start=1) if n in of and of[n].apart}
    return Table(headings=("exact match", *(f"N = {n}" for n in sizes)), rows=rows, marked=frozenset(marked))


def _sides(runs: Sequence[Run]) -> dict[tuple[str, str], dict[str, dict[int, list[Sequence[Trajectory]]]]]:
    """(family, memory) -> policy -> N -> the attempts of each run."""
    found: dict[tuple[str, str], dict[str, dict[int, list[Sequence[Trajectory]]]]] = {}
    for run in runs:
        for attempts in run.attempts:
            row = attempts.row
            if row.em is not None:
                policies = found.setdefault((run.family, row.context), {})
                policies.setdefault(row.policy, {}).setdefault(row.objectives, []).append(attempts.trajectories)
    return found


def _table(
    rows: Sequence[ReportRow],
    headings: Sequence[str],
    lines: Sequence[tuple[Series, ReportRow, Sequence[str]]],
    meanings: Mapping[str, str],
) -> Table:
    """The lines behind their policy, and its run if there are several."""
    several = len({row.run for row in rows}) > 1
    runs = {row.run for row in rows}
    return Table(
        headings=["policy", *(["run"] if several else []), *headings],
        rows=[[line.name, *([row.run] if several else []), *cells] for line, row, cells in lines],
        names=2 if several else 1,
        strong={number for number, (_, row, _) in enumerate(lines) if row.run not in runs},
        grouped=True,
        meanings=meanings,
    )


def _in_order(found: Sequence[Series]) -> Iterator[tuple[Series, ReportRow]]:
    for line in found:
        for rows in (*line.runs.values(), line.mean):
            for row in rows:
                yield line, row


def note(rows: Sequence[ReportRow]) -> str:
    """The meaning of the columns, the memory if all share one, endings, repeated questions and failures."""
    contexts = {row.context for row in rows}
    shared = f"Memory: {contexts.pop()}. " if len(contexts) == 1 else ""
    means = "For a mean of runs: [lowest run, highest run]. " if any(line.mean for line in series(rows)) else ""
    special = "".join((_endings(rows), _repeats(rows), *_failures(rows), *_opinions(rows)))
    measured = "".join(f"{column.heading}: {column.meaning}. " for column in own_metrics(rows))
    if shown([EM], rows):
        scorers = ", ".join(dict.fromkeys(row.scorer for row in rows if row.scorer))
        measured = f"EM: {EM.meaning}{f', by the scorer {scorers}' if scorers else ''}. {measured}"
    appended = "If appended: peak of the same turns if nothing had been dropped."
    return f"{shared}{measured}{means}{appended}{special}"


ADVICE = {
    Ended.OUT_OF_TOKENS: "raise budget.completion_extra (tokens of a completion) or budget.context",
    Ended.OUT_OF_TURNS: "raise the turn limit (tasks.turn_limit.extra, in a shop tasks.turns_per_goal)",
    Ended.BAD_TAGS: "the model does not write the tags; speak to it as it was trained: by its chat template "
    "(protocol=framed or tools), or in the tags that it knows (protocol.base)",
    Ended.TOOL_FAILED: "the trajectories (--out) say why under `detail`",
    Ended.ENGINE_FAILED: "the trajectories (--out) say why under `detail`",
    Ended.OUT_OF_TIME: "raise agent.time_limit_s, or lower agent.concurrency",
    Ended.AGENT_FAILED: "the trajectories (--out) say why under `detail`",
}


def warnings(rows: Sequence[ReportRow]) -> list[str]:
    """A sentence for each policy and reason for which most tasks of some sizes failed, with what to change."""
    found: dict[tuple[str, Ended], list[str]] = {}
    for name, row in _named(rows):
        for ended in ADVICE:
            count = row.endings.get(ended.value, 0)
            if 2 * count > row.tasks:
                found.setdefault((name, ended), []).append(f"{count} of {row.tasks} at N = {row.objectives}")
    return [
        f"Warning: {name}: most tasks ended with {ended} ({', '.join(sizes)}): {ADVICE[ended]}."
        for (name, ended), sizes in found.items()
    ]


def _endings(rows: Sequence[ReportRow]) -> str:
    """Endings without an answer; failures of a tool or an engine have sentences of their own."""
    policy_failed = (
        *(Ended.OUT_OF_TURNS, Ended.OUT_OF_TOKENS, Ended.BAD_TAGS),
        *(Ended.OUT_OF_TIME, Ended.AGENT_FAILED),
    )
    parts: list[str] = []
    for name, row in _named(rows):
        counts = [f"{row.endings[e.value]} {e}" for e in policy_failed if row.endings.get(e.value)]
        if counts:
            parts.append(f"{name}, N = {row.objectives}: {', '.join(counts)} of {row.tasks}")
    answered = all(row.endings.get(Ended.ANSWERED.value) == row.tasks for _, row in _named(rows))
    return f" Endings without an answer: {'; '.join(parts)}." if parts else " All tasks answered." if answered else ""


def _repeats(rows: Sequence[ReportRow]) -> str:
    """One sentence on tasks that share questions: the number of distinct questions for each N."""
    counts = {
        f"N = {row.objectives}: {row.questions} different of {row.tasks * row.objectives}": None
        for _, row in _named(rows)
        if row.questions < row.tasks * row.objectives
    }
    return f" Questions that recur count once in the intervals ({'; '.join(counts)})." if counts else ""


def _failures(rows: Sequence[ReportRow]) -> Iterator[str]:
    """A sentence for each row in which a tool or an engine failed; such tasks count as wrong."""
    for name, row in _named(rows):
        for ended, what in ((Ended.TOOL_FAILED, "search"), (Ended.ENGINE_FAILED, "model's server")):
            if failed := row.endings.get(ended.value, 0):
                of = f"{failed} of {row.tasks} tasks"
                yield f" {name}, N = {row.objectives}: the {what} failed in {of} ({ended}), which count as wrong."


def _opinions(rows: Sequence[ReportRow]) -> Iterator[str]:
    """A sentence for each judged row: what the judge accepted, its coverage and its agreement with exact match."""
    for name, row in _named(rows):
        if judge := row.judge:
            right, agreement = ("-" if share is None else f"{share:.2f}" for share in (judge.correct, judge.agreement))
            yield (
                f" {name}, N = {row.objectives}: the judge {judge.model} accepts {right} of the answers; it judged "
                f"{judge.judged:.0%} of them and agrees with EM on {agreement}."
            )


def _named(rows: Sequence[ReportRow]) -> Iterator[tuple[str, ReportRow]]:
    """Every row with the name of its policy, and of its run if there are several."""
    for line in series(rows):
        for run, of_run in line.runs.items():
            for row in of_run:
                yield ", ".join(filter(None, (line.name, run if len(line.runs) > 1 else ""))), row


def print_table(rows: Sequence[ReportRow], console: Console) -> None:
    """Print one line per row, with a space between policies."""
    _print(console, results(rows), note(rows))
    for warning in warnings(rows):
        console.print(warning, style="yellow", markup=False, highlight=False)
    if depths := by_depth(rows):
        caption = "Depth: longest chain of references behind a question; 0: it refers to no other."
        _print(console, depths, caption)


def _print(console: Console, table: Table, caption: str) -> None:
    headings = [h if h.startswith("EM ") else h.replace(" ", "\n", 1) for h in table.headings]
    keys = table.headings.index("N") + 1
    for part in fitting(console, replace(table, headings=headings), keys=keys):
        console.print(part)
    console.print(caption, style="table.caption", markup=False, highlight=False)


def markdown(rows: Sequence[ReportRow]) -> str:
    """Tables in GitHub's Markdown, followed by the meaning of the columns."""
    below = "\n\n".join(map(markdown_text, (note(rows), *warnings(rows))))
    return "\n".join([*(markdown_table(table) for table in _tables(rows)), below, ""])


def csv(rows: Sequence[ReportRow]) -> str:
    """One line per run, policy and N; a field with several numbers has a column for each ("endings.answered")."""
    flat = [dict(_flat(_record(row))) for row in rows]
    text = io.StringIO()
    writer = csv_module.DictWriter(text, _columns(flat), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[ReportRow]], str]] = {"md": markdown, "csv": csv}
"""Value of `mem1 report --format` -> writer."""


def _tables(rows: Sequence[ReportRow]) -> list[Table]:
    tables = (results(rows), by_depth(rows), results(rows, FURTHER))
    return [table for table in tables if table is not None]


def _record(row: ReportRow) -> dict[str, Any]:
    record = row.as_dict()
    names = {name: record.pop(name) for name in ("run", "family")}
    return {**names, **record} if row.run else record


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(column, cell); the entries of a list are numbered from 1, like turns."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            yield from _flat({str(place): entry for place, entry in enumerate(value, start=1)}, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns, those of one field side by side even if later rows have more turns than the first."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    fields = list(dict.fromkeys(column.partition(".")[0] for column in columns))
    return sorted(columns, key=lambda column: fields.index(column.partition(".")[0]))
