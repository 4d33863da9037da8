r"""The table for papers: Markdown, LaTeX (booktabs), and CSV with every number of every row, unrounded.

    markdown(rows)  ->  | policy | N | EM per objective | ...
    latex(rows)     ->  trained\_a & 2 & 0.71 {\scriptsize [0.65, 0.77]} & ... \\
    csv(rows)       ->  policy,context,objectives,tasks,em,em_low,em_high,...,endings.answered,...

Markdown and LaTeX have the mean of several runs after them; CSV has the rows of the runs alone.
"""

from __future__ import annotations

import csv as csv_module
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mem1.evaluation.report.columns import Record
from mem1.evaluation.report.table import Cells, by_depth, note, results, warnings

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin an argument
    **{character: "\\" + character for character in "&%$#_{}"},
}


def markdown(rows: Sequence[Record]) -> str:
    """Tables of GitHub's Markdown, with what the columns mean below."""
    below = "\n\n".join(map(_markdown_text, (note(rows), *warnings(rows))))
    return "\n".join([*(_markdown(cells) for cells in _tables(rows)), below, ""])


def latex(rows: Sequence[Record]) -> str:
    """`tabular`s for the package booktabs; what the columns mean is a comment above them."""
    above = [f"% {' '.join(line.split())}" for line in (note(rows), *warnings(rows))]
    return "\n".join([*above, *(_latex(cells) for cells in _tables(rows)), ""])


def csv(rows: Sequence[Record]) -> str:
    """One line a run, policy and N; a field that holds several numbers is one column for each ("endings.answered")."""
    flat = [dict(_flat(row)) for row in rows]
    text = io.StringIO()
    writer = csv_module.DictWriter(text, _columns(flat), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[Record]], str]] = {"md": markdown, "csv": csv, "latex": latex}
"""Name of `mem1 report --format` -> what writes it."""


def _tables(rows: Sequence[Record]) -> list[Cells]:
    depths = by_depth(rows)
    return [results(rows), *([depths] if depths else [])]


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(column, cell); entries of a list are counted from 1, as turns are."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            yield from _flat({str(place): entry for place, entry in enumerate(value, start=1)}, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns, those of one field side by side, although some rows have more turns than the first."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    fields = list(dict.fromkeys(column.partition(".")[0] for column in columns))
    return sorted(columns, key=lambda column: fields.index(column.partition(".")[0]))


def _markdown(cells: Cells) -> str:
    rule = ["---" if position < cells.names else "---:" for position in range(len(cells.headings))]
    lines = [cells.headings, *cells.body]
    texts = [[_markdown_text(text) for text in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (texts[0], rule, *texts[1:])) + "\n"


def _markdown_text(text: str) -> str:
    """Characters that mean something in Markdown are shown as they are; an interval's brackets make no link."""
    return re.sub(r"([\\`*_<>|#])", r"\\\1", " ".join(text.split()))


def _latex(cells: Cells) -> str:
    align = "".join("l" if position < cells.names else "r" for position in range(len(cells.headings)))
    head = " & ".join(map(_latex_text, cells.headings)) + r" \\"
    body: list[str] = []
    for number, line in enumerate(cells.body):
        if number and line[0] != cells.body[number - 1][0]:
            body.append(r"\addlinespace")
        names = [_latex_text(text) for text in line[: cells.names]]
        body.append(" & ".join([*names, *map(_latex_cell, line[cells.names :])]) + r" \\")
    return "\n".join(
        [rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    )


def _latex_cell(text: str) -> str:
    """A number; its interval in a smaller size."""
    number, _, interval = text.partition(" ")
    return _latex_text(number) + (rf" {{\scriptsize {interval}}}" if interval else "")


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
