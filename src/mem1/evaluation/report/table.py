"""The results as a table on the terminal; fits 80 columns.

policy   N  tasks   EM per objective    F1  turns  peak tokens  without prompt  if appended
base     2    200  0.36 [0.31, 0.41]  0.40    4.1           94              62          154

Where questions depend on one another, a second table has the exact match by depth, and no column for other rows:

policy   N  EM at depth 0     1     2
base     3           0.60  0.30  0.10
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mem1.records import Ended

COLUMNS = ("policy", "N", "tasks", "EM per objective", "F1", "turns", "peak tokens", "without prompt", "if appended")


def names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each row's policy is called: with its context policy, where the rows have more than one."""
    several = len({row["context"] for row in rows}) > 1
    return [f"{row['policy']}, {row['context']}" if several else row["policy"] for row in rows]


def note(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the columns mean, the context policy where all rows share one, and how often a tool failed."""
    contexts = {row["context"] for row in rows}
    shared = f"Context policy: {contexts.pop()}. " if len(contexts) == 1 else ""
    special = "".join((*_failures(rows), *_opinions(rows)))
    return (
        f"{shared}EM: exact match, mean over tasks [95 % interval]. "
        f"If appended: peak of the same turns if nothing were dropped.{special}"
    )


def _failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each row in which a tool failed: it counts as wrong there, and the reader must know."""
    for name, row in zip(names(rows), rows, strict=True):
        if failed := row["endings"][Ended.TOOL_FAILED.value]:
            of = f"{failed} of {row['tasks']} tasks"
            yield f" {name}, N = {row['objectives']}: the search failed in {of} (tool_failed), which count as wrong."


def _opinions(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each row that a judge was asked about, with how much of it there is and how far to believe it."""
    for name, row in zip(names(rows), rows, strict=True):
        if judge := row["judge"]:
            right, agreement = ("-" if judge[key] is None else f"{judge[key]:.2f}" for key in ("correct", "agreement"))
            yield (
                f" {name}, N = {row['objectives']}: the judge {judge['model']} takes {right} of the answers for right; "
                f"it judged {judge['judged']:.0%} of them and agrees with EM on {agreement}."
            )


def body(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The texts of all rows, in the order of `COLUMNS`; the HTML page shows the same."""
    return [
        (
            name,
            str(row["objectives"]),
            str(row["tasks"]),
            f"{row['em']:.2f} [{row['em_low']:.2f}, {row['em_high']:.2f}]",
            f"{row['f1']:.2f}",
            f"{row['turns']:.1f}",
            f"{row['peak_tokens']:,.0f}",
            f"{row['peak_tokens_without_prompt']:,.0f}",
            f"{row['appended_peak_tokens']:,.0f}",
        )
        for name, row in zip(names(rows), rows, strict=True)
    ]


def depth_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Of the table by depth; empty where no question of any row depends on another."""
    deepest = max((int(depth) for row in rows for depth in row["em_by_depth"] or ()), default=0)
    return ("policy", "N", "EM at depth 0", *(str(depth) for depth in range(1, deepest + 1))) if deepest else ()


def depth_body(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The texts of the rows whose questions depend on one another, in the order of `depth_columns`."""
    depths = range(len(depth_columns(rows)) - 2)
    return [
        (
            name,
            str(row["objectives"]),
            *(f"{by_depth[str(d)]:.2f}" if str(d) in by_depth else "" for d in depths),
        )
        for name, row in zip(names(rows), rows, strict=True)
        if (by_depth := row["em_by_depth"]) is not None
    ]


def print_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print one line a row, with a space between policies. `rows` are `Row.as_dict()`."""
    headings = [c if c == "EM per objective" else c.replace(" ", "\n", 1) for c in COLUMNS]
    console.print(_table(headings, body(rows), note(rows)))
    if depth_columns(rows):
        caption = "EM by depth: the longest chain of references behind a question; 0: it stands alone."
        console.print(_table(depth_columns(rows), depth_body(rows), caption))


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]], caption: str) -> Table:
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        numeric = heading != "policy"
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, vertical="bottom")
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        table.add_row(*map(escape, line), end_section=following is not None and following[0] != line[0])
    return table
