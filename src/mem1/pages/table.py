"""Tables of texts: on a terminal and in Markdown; `mem1.pages.page` has them in HTML.

Table(headings=("memory", "chain"), rows=(("full", "0.71 [0.64, 0.78]"), ("notes", None)), marked={(0, 1)})

memory             chain
full    0.71 [0.64, 0.78] *
notes
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement

_HEADING = 24
"""Characters of a heading before it continues on the next line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headings and rows of texts."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    """None: there is no value."""
    names: int = 1
    """Number of leading columns that name the row; the others are numbers."""
    marked: AbstractSet[tuple[int, int]] = frozenset()
    """(row, column) of cells with a star behind them."""
    strong: AbstractSet[int] = frozenset()
    """Rows that stand out, such as means."""
    grouped: bool = False
    """Whether rows whose first cells are equal belong together."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Heading -> its meaning, for a page."""
    kind: ClassVar[str] = "table"

    def transposed(self) -> Table:
        """Columns as rows, for a narrow terminal."""
        columns = tuple(zip(*self.rows, strict=True)) or ((),) * len(self.headings)
        return Table(
            headings=(self.headings[0], *(str(name) for name in columns[0])),
            rows=tuple((heading, *cells) for heading, cells in zip(self.headings[1:], columns[1:], strict=True)),
            marked=frozenset((column - 1, row + 1) for row, column in self.marked),
        )

    def shown(self, row: int, column: int) -> str | None:
        """A cell with its star."""
        cell = self.rows[row][column]
        return cell if cell is None or (row, column) not in self.marked else f"{cell} *"


def printed(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | None]],
    *,
    title: str | None = None,
    caption: str | None = None,
    names: int = 1,
    left: Sequence[int] = (),
    grouped: bool = False,
) -> rich_table.Table:
    """A table for the terminal; cells are in the terminal's markup.

    names    leading columns, left-aligned and broken where the terminal is too narrow
    left     further columns that are left-aligned; all others are right-aligned
    grouped  a space follows the rows of one name
    """
    shown = rich_table.Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title and escape(title),
        title_justify="left",
        caption=caption and escape(caption),
        caption_justify="left",
    )
    for number, heading in enumerate(headings):
        justify = "left" if number < names or number in left else "right"
        shown.add_column(escape(heading), justify=justify, vertical="bottom", no_wrap=number >= names)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        last = grouped and following is not None and following[0] != row[0]
        shown.add_row(*("" if cell is None else cell for cell in row), end_section=last)
    return shown


def fitting(console: Console, table: Table, title: str | None = None, *, keys: int = 1) -> Iterator[rich_table.Table]:
    """The table, cut between columns into several where the terminal is too narrow; each has the first `keys`
    columns."""
    columns = range(len(table.headings))
    cells = [[table.shown(row, column) for column in columns] for row in range(len(table.rows))]
    rows = [[None if cell is None else escape(cell) for cell in line] for line in cells]
    headings = ["\n".join(textwrap.fill(line, _HEADING) for line in one.split("\n")) for one in table.headings]

    def part(start: int, end: int) -> rich_table.Table:
        return printed(
            [*headings[:keys], *headings[start:end]],
            [[*row[:keys], *row[start:end]] for row in rows],
            title=title if start == keys else None,
            names=table.names,
            grouped=table.grouped,
        )

    unlimited = console.options.update(max_width=sys.maxsize)
    start = keys
    while start < len(headings):
        end = start + 1
        while (
            end < len(headings) and Measurement.get(console, unlimited, part(start, end + 1)).maximum <= console.width
        ):
            end += 1
        yield part(start, end)
        start = end


def markdown(table: Table) -> str:
    """In GitHub's Markdown."""
    rule = ["---" if position < table.names else "---:" for position in range(len(table.headings))]
    texts = [[markdown_text(text or "") for text in line] for line in (table.headings, *table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (texts[0], rule, *texts[1:])) + "\n"


def markdown_text(text: str) -> str:
    """The text without characters that mean something in Markdown; the brackets of an interval make no link."""
    return re.sub(r"([\\`*_<>|#])", r"\\\1", " ".join(text.split()))
