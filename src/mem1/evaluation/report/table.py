"""The results as a table on the terminal; fits 80 columns.

policy   N  tasks   EM per objective    F1  turns  peak tokens  without prompt  if appended
base     2    200  0.36 [0.31, 0.41]  0.40    4.1           94              62          154
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
    return (
        f"{shared}EM: exact match, mean over tasks [95 % interval]. "
        f"If appended: peak of the same turns if nothing were dropped.{''.join(_failures(rows))}"
    )


def _failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each row in which a tool failed: it counts as wrong there, and the reader must know."""
    for name, row in zip(names(rows), rows, strict=True):
        if failed := row["endings"][Ended.TOOL_FAILED.value]:
            of = f"{failed} of {row['tasks']} tasks"
            yield f" {name}, N = {row['objectives']}: the search failed in {of} (tool_failed), which count as wrong."


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


def print_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print one line a row, with a space between policies. `rows` are `Row.as_dict()`."""
    table = Table(box=SIMPLE_HEAD, caption=note(rows), caption_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for column in COLUMNS:
        numeric = column != "policy"
        heading = column if column == "EM per objective" else column.replace(" ", "\n", 1)
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, vertical="bottom")
    lines = body(rows)
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        table.add_row(*map(escape, line), end_section=following is not None and following[0] != line[0])
    console.print(table)
