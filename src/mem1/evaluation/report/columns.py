"""Which numbers of a row are shown, and how: every table of a report reads this list.

    EM.cell({"em": 0.4, "em_low": 0.31, "em_high": 0.52})   ->  "0.40 [0.31, 0.52]"

A column that no row has a value for is left out, so a new number needs one line here and nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""`Row.as_dict()`, of several runs with "run" as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of a row."""

    key: str
    """Key of the row; with an interval the row has `<key>_low` and `<key>_high` too."""
    heading: str
    meaning: str
    """A phrase for the reader, unit included."""
    digits: int = 0
    """Digits after the point."""

    def value(self, row: Record) -> str:
        """The number alone; empty where the row has none."""
        value = row.get(self.key)
        return "" if value is None else self._number(value)

    def interval(self, row: Record) -> str:
        """ "[low, high]"; empty where the row has no interval."""
        low, high = row.get(f"{self.key}_low"), row.get(f"{self.key}_high")
        return "" if low is None or high is None else f"[{self._number(low)}, {self._number(high)}]"

    def cell(self, row: Record) -> str:
        """The number with its interval."""
        return f"{self.value(row)} {self.interval(row)}".strip()

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


N = Column(key="objectives", heading="N", meaning="questions in one task")
EM = Column(key="em", heading="EM per objective", meaning="exact match, mean over tasks [95 % interval]", digits=2)
PEAK = Column(key="peak_tokens", heading="peak tokens", meaning="largest context and completion of a task's turns")

MAIN = (
    N,
    Column(key="tasks", heading="tasks", meaning="attempts behind the row"),
    EM,
    Column(key="f1", heading="F1", meaning="token F1 per objective", digits=2),
    Column(key="turns", heading="turns", meaning="calls of the policy per task", digits=1),
    PEAK,
    Column(key="peak_tokens_without_prompt", heading="without prompt", meaning="peak tokens without the prompt"),
    Column(key="appended_peak_tokens", heading="if appended", meaning="peak of the same turns if nothing were dropped"),
)
"""The columns of every table."""

FURTHER = (
    N,
    Column(key="reward", heading="reward", meaning="mean reward, in the environment's unit", digits=2),
    Column(key="total_tokens", heading="total tokens", meaning="context and completion summed over a task's turns"),
    Column(key="dependency", heading="dependency", meaning="(generated, visible) token pairs per task"),
    Column(key="state_tokens", heading="state tokens", meaning="mean length of a written state, tags included"),
    Column(key="searches", heading="searches", meaning="searches per task", digits=1),
    Column(key="duplicate_searches", heading="again", meaning="searches per task sent before in it", digits=2),
    Column(key="malformed", heading="malformed", meaning="share of turns that could not be parsed", digits=3),
)
"""The columns of the page's second table: cost and behaviour."""


def shown(columns: Sequence[Column], rows: Sequence[Record]) -> list[Column]:
    """The columns for which some row has a value."""
    return [column for column in columns if any(row.get(column.key) is not None for row in rows)]
