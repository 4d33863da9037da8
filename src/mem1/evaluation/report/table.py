"""The results as tables of texts, and on the terminal within 80 columns.

policy   N  tasks   EM per objective    F1  turns  peak tokens  without prompt  if appended
base     2    200  0.36 [0.31, 0.41]  0.40    4.1           94              62          154

Where questions depend on one another, a second table has the exact match by depth, and no column for other rows:

policy   N  EM at depth 0     1     2
base     3           0.60  0.30  0.10
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mem1.evaluation.report.columns import EM, MAIN, Column, Record, shown
from mem1.evaluation.report.lines import Line, lines
from mem1.records import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table of texts; the first columns, `names` of them, say whose numbers follow."""

    headings: Sequence[str]
    body: Sequence[Sequence[str]]
    names: int


def results(rows: Sequence[Record], columns: Sequence[Column] = MAIN) -> Cells:
    """One line a run, policy and N, and after the runs of a policy their mean."""
    wanted = shown(columns, rows)
    several = len({row.get("run") for row in rows}) > 1
    return Cells(
        headings=["policy", *(["run"] if several else []), *(column.heading for column in wanted)],
        body=[
            [line.name, *([row["run"]] if several else []), *(column.cell(row) for column in wanted)]
            for line, row in _in_order(lines(rows))
        ],
        names=2 if several else 1,
    )


def by_depth(rows: Sequence[Record]) -> Cells | None:
    """Exact match by depth; None where no question of any row depends on another."""
    deepest = max((int(depth) for row in rows for depth in row["em_by_depth"] or ()), default=0)
    if not deepest:
        return None
    several = len({row.get("run") for row in rows}) > 1
    depths = [str(depth) for depth in range(deepest + 1)]
    return Cells(
        headings=["policy", *(["run"] if several else []), "N", "EM at depth 0", *depths[1:]],
        body=[
            [
                line.name,
                *([row["run"]] if several else []),
                str(row["objectives"]),
                *(f"{row['em_by_depth'][depth]:.2f}" if depth in row["em_by_depth"] else "" for depth in depths),
            ]
            for line, row in _in_order(lines(rows))
            if row["em_by_depth"] is not None
        ],
        names=2 if several else 1,
    )


def _in_order(found: Sequence[Line]) -> Iterator[tuple[Line, Record]]:
    for line in found:
        for rows in (*line.runs.values(), line.mean):
            for row in rows:
                yield line, row


def note(rows: Sequence[Record]) -> str:
    """What the columns mean, the context policy where all share one, how tasks ended, and what recurs or failed."""
    contexts = {row["context"] for row in rows}
    shared = f"Context policy: {contexts.pop()}. " if len(contexts) == 1 else ""
    means = " Of a mean of runs: [lowest run, highest run]." if any(line.mean for line in lines(rows)) else ""
    special = "".join((_endings(rows), _repeats(rows), *_failures(rows), *_opinions(rows)))
    return f"{shared}EM: {EM.meaning}.{means} If appended: peak of the same turns if nothing were dropped.{special}"


_ADVICE = {
    Ended.OUT_OF_TOKENS: "raise the budget of a completion (--max-completion, in a recipe budget.completion_extra) or "
    "of the context (--max-context, budget.context)",
    Ended.OUT_OF_TURNS: "raise the turn limit (in a recipe tasks.turn_limit.extra, in a shop tasks.turns_per_goal)",
    Ended.BAD_TAGS: "the model does not write the tags; give it a prompt with instructions (--prompt mem1, in a recipe "
    "tasks.prompt), its chat template (--chat-template) or the vocabulary that it knows (--vocabulary)",
    Ended.TOOL_FAILED: "the trajectories (--out) say why under `detail`",
    Ended.ENGINE_FAILED: "the trajectories (--out) say why under `detail`",
}


def warnings(rows: Sequence[Record]) -> list[str]:
    """A sentence for each row in which most tasks ended for the same failing reason, with what to change."""
    found: list[str] = []
    for name, row in _named(rows):
        for ended, advice in _ADVICE.items():
            count = row["endings"].get(ended.value, 0)
            if 2 * count > row["tasks"]:
                of = f"{count} of {row['tasks']} tasks ended with {ended}"
                found.append(f"Warning: {name}, N = {row['objectives']}: {of}: {advice}.")
    return found


def _endings(rows: Sequence[Record]) -> str:
    """How tasks ended that gave no answer; what failed outside the policy has sentences of its own."""
    policy_failed = (Ended.OUT_OF_TURNS, Ended.OUT_OF_TOKENS, Ended.BAD_TAGS)
    parts: list[str] = []
    for name, row in _named(rows):
        counts = [f"{row['endings'][e.value]} {e}" for e in policy_failed if row["endings"].get(e.value)]
        if counts:
            parts.append(f"{name}, N = {row['objectives']}: {', '.join(counts)} of {row['tasks']}")
    answered = all(row["endings"].get(Ended.ANSWERED.value) == row["tasks"] for _, row in _named(rows))
    return f" Endings without an answer: {'; '.join(parts)}." if parts else " All tasks answered." if answered else ""


def _repeats(rows: Sequence[Record]) -> str:
    """One sentence on tasks that share questions: how many different ones the tasks of each size ask."""
    asked = {
        f"N = {row['objectives']}: {row['questions']} different of {row['tasks'] * row['objectives']}": None
        for _, row in _named(rows)
        if row["questions"] < row["tasks"] * row["objectives"]
    }
    return f" Questions that recur count once in the intervals ({'; '.join(asked)})." if asked else ""


def _failures(rows: Sequence[Record]) -> Iterator[str]:
    """A sentence for each row in which a tool or an engine failed, which counts as wrong there."""
    for name, row in _named(rows):
        for ended, what in ((Ended.TOOL_FAILED, "search"), (Ended.ENGINE_FAILED, "model's server")):
            if failed := row["endings"].get(ended.value, 0):
                of = f"{failed} of {row['tasks']} tasks"
                yield f" {name}, N = {row['objectives']}: the {what} failed in {of} ({ended}), which count as wrong."


def _opinions(rows: Sequence[Record]) -> Iterator[str]:
    """A sentence for each row that a judge was asked about, with how much of it there is and how far to believe it."""
    for name, row in _named(rows):
        if judge := row["judge"]:
            right, agreement = ("-" if judge[key] is None else f"{judge[key]:.2f}" for key in ("correct", "agreement"))
            yield (
                f" {name}, N = {row['objectives']}: the judge {judge['model']} takes {right} of the answers for right; "
                f"it judged {judge['judged']:.0%} of them and agrees with EM on {agreement}."
            )


def _named(rows: Sequence[Record]) -> Iterator[tuple[str, Record]]:
    """Every row with its policy, and its run where there are several."""
    for line in lines(rows):
        for run, of_run in line.runs.items():
            for row in of_run:
                yield ", ".join(filter(None, (line.name, run if len(line.runs) > 1 else ""))), row


def print_table(rows: Sequence[Record], console: Console) -> None:
    """Print one line a row, with a space between policies. `rows` are `Row.as_dict()`."""
    cells = results(rows)
    headings = [h if h == EM.heading else h.replace(" ", "\n", 1) for h in cells.headings]
    console.print(_table(headings, cells, note(rows)))
    for warning in warnings(rows):
        console.print(warning, style="yellow", markup=False, highlight=False)
    if depths := by_depth(rows):
        caption = "EM by depth: the longest chain of references behind a question; 0: it stands alone."
        console.print(_table(depths.headings, depths, caption))


def _table(headings: Sequence[str], cells: Cells, caption: str) -> Table:
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for position, heading in enumerate(headings):
        numeric = position >= cells.names
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, vertical="bottom")
    body = cells.body
    for line, following in zip(body, [*body[1:], None], strict=True):
        table.add_row(*map(escape, line), end_section=following is not None and following[0] != line[0])
    return table
