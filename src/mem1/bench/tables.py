"""The tables of a result as texts, for the terminal and for the page.

score_table(sides)     memory      chain                budget               all
                       full        0.71 [0.64, 0.78]    0.52 [0.44, 0.60]    0.62 [0.56, 0.67]
spent_table(sides)     right answers, tokens and cost per right answer, peaks
difference_table(...)  the second minus the first of each pair, * where the interval excludes 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mem1.bench.results import Attempt
from mem1.bench.scores import Compared, Score, Side, compare, names_of, score_of, scores
from mem1.errors import printable
from mem1.pages.table import Table
from mem1.records import Ended

ALL = "all"
"""Heading of the score of all families together."""
LONGEST = 60
"""Characters of a name that tables show."""


def families_of(sides: Sequence[Side]) -> list[str]:
    """Every family that one of them attempted, in the order of the first that did."""
    return list(dict.fromkeys(attempt.family for side in sides for attempt in side.attempts))


def together(sides: Sequence[Side]) -> list[Score | None]:
    """Of each side the score of all families; None: it lacks one that another side attempted."""
    number = len(families_of(sides))
    return [score_of(side.attempts) if len(families_of([side])) == number else None for side in sides]


def score_table(sides: Sequence[Side]) -> Table:
    """Scores with their intervals, a row per side and a column per family; of several families, all together first,
    for the sides that have all."""
    families = families_of(sides)
    first = [ALL] if len(families) > 1 else []
    rows = []
    for name, side, whole in zip(names_of(sides), sides, together(sides), strict=True):
        found = scores(side)
        cells = [found[family].area.text() if family in found else None for family in families]
        rows.append((short(name), *(whole and whole.area.text() for _ in first), *cells))
    return Table(headings=("", *first, *map(short, families)), rows=tuple(rows))


def spent_table(sides: Sequence[Side], family: str | None = None) -> Table:
    """What the attempts of each side cost, at all families or at one."""
    headings = (
        "",
        "right",
        "tokens per right",
        "fresh",
        "cached",
        "output",
        "cost per right",
        "mean peak",
        "largest peak",
    )
    rows = []
    for name, side in zip(names_of(sides), sides, strict=True):
        attempts = [one for one in side.attempts if family in (None, one.family)]
        if attempts:
            rows.append((short(name), *_spent(score_of(attempts), side.result.unit)))
    unpriced = all(row[_COST] is None for row in rows)
    columns = [column for column in range(len(headings)) if column != _COST or not unpriced]
    return Table(
        headings=tuple(headings[column] for column in columns),
        rows=tuple(tuple(row[column] for column in columns) for row in rows),
    )


_COST = 6
"""Column of the cost, left out where nobody has prices."""


def endings_table(sides: Sequence[Side]) -> Table:
    """Number of attempts by ending."""
    counts = [Counter(attempt.ended for attempt in side.attempts) for side in sides]
    endings = list(dict.fromkeys(ended for of in counts for ended, _ in of.most_common()))
    names = [short(name) for name in names_of(sides)]
    rows = tuple((name, *(f"{of[ended]:,}" for ended in endings)) for name, of in zip(names, counts, strict=True))
    return Table(headings=("", *(short(ended).replace("_", " ") for ended in endings)), rows=rows)


def comparisons(sides: Sequence[Side]) -> list[Compared]:
    """Every side after the first against the first. Raises UserError where two cannot be compared."""
    return [compare(sides[0], side) for side in sides[1:]]


def difference_table(sides: Sequence[Side], compared: Sequence[Compared]) -> Table:
    """`comparisons(sides)`: a row per pair, a column per family."""
    families = [None, *families_of(sides)]
    families = [one for one in families if any(difference.family == one for c in compared for difference in c.families)]
    names = names_of(sides)
    rows, marked = [], set()
    for row, (name, found) in enumerate(zip(names[1:], compared, strict=True)):
        of = {difference.family: difference for difference in found.families}
        cells = []
        for column, family in enumerate(families, start=2):
            difference = of.get(family)
            if difference is not None and difference.difference.apart:
                marked.add((row, column))
            cells.append(None if difference is None else difference.difference.text(signed=True))
        rows.append((f"{short(name)} minus {short(names[0])}", f"{found.tasks:,}", *cells))
    headings = ("", "tasks shared", *(ALL if family is None else short(family) for family in families))
    return Table(headings=headings, rows=tuple(rows), marked=frozenset(marked))


def notes(sides: Sequence[Side], compared: Sequence[Compared] = ()) -> list[str]:
    """What a reader must know of these results: failures counted as wrong, and tasks left out."""
    found = []
    names = [short(name) for name in names_of(sides)]
    for name, side in zip(names, sides, strict=True):
        if failed := failures(side.attempts):
            found.append(f"{name}: {failed}; they count as wrong.")
    for name, one in zip(names[1:], compared, strict=True) if compared else ():
        if any(one.left_out):
            found.append(
                f"{name} and {names[0]} share {one.tasks:,} tasks; {one.left_out[1]:,} of {name} and "
                f"{one.left_out[0]:,} of {names[0]} are left out of their difference."
            )
    return found


def failures(attempts: Sequence[Attempt]) -> str:
    """How many of them failed, and the most frequent reason; empty: none did.

    "3 of 60 attempts ended as engine failed (http://127.0.0.1:8000/v1: status 401 (Incorrect API key provided))"
    """
    failed = [one for one in attempts if one.ended in FAILURES]
    if not failed:
        return ""
    kinds = " and ".join(dict.fromkeys(one.ended for one in failed)).replace("_", " ")
    ((why, _),) = Counter(one.detail for one in failed).most_common(1)
    return f"{len(failed):,} of {len(attempts):,} attempts ended as {kinds}{f' ({why})' if why else ''}"


FAILURES = frozenset(ended.value for ended in Ended if not ended.scorable)
"""Endings that are not the model's doing."""


def short(text: str) -> str:
    """The text, cut to what a table can show, without characters that a terminal or a browser obeys."""
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _spent(score: Score, unit: str | None) -> tuple[str | None, ...]:
    per = score.per_right
    cost = None if per is None else per.cost
    tokens = (None,) * 4 if per is None else tuple(f"{n:,.0f}" for n in (per.tokens, per.fresh, per.cached, per.output))
    return (
        f"{score.right:,.0f} of {score.objectives:,}",
        *tokens,
        None if cost is None else f"{cost:.3g} {short(unit or '')}".strip(),
        f"{score.mean_peak:,.0f}",
        f"{score.largest_peak:,}",
    )
