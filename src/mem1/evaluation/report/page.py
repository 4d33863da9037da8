"""One self-contained HTML page about one or more runs: numbers, tables, figures, and every trajectory turn by turn.

    write_page("runs/a/report.html", [run], title="a")
    headlines(rows)  ->  Headline("0.40 → 1.00", "exact match per objective at N = 2, base → trained"), ...

What a reader sees first (headlines, tables) is HTML; figures and trajectories are compressed data that the page's
scripts lay out once it is shown. Nothing is fetched from anywhere, which the page's content policy forbids, and text
written by a policy or a document is shown as text: jinja2 escapes it, or the scripts write it as text nodes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mem1.durable import write_file
from mem1.errors import UserError
from mem1.evaluation.report.figures import Figure, curves, endings, over_n
from mem1.evaluation.report.rows import EM, FURTHER, PEAK, REWARD, ReportRow, Run, rows_of, score, series, shown
from mem1.evaluation.report.tables import by_depth, note, results, warnings
from mem1.evaluation.report.viewer_data import compressed, fit


@dataclass(frozen=True, slots=True)
class Headline:
    """One large number with a line of explanation."""

    value: str
    label: str


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
LARGEST = 5_000_000
"""Size limit of a page in bytes; the page names the trajectories left out to keep it."""
SCRIPTS = (
    "elements.js",
    "inflate.js",
    "theme.js",
    "scroll.js",
    "figures.js",
    "search.js",
    "turn.js",
    "trajectory.js",
    "list.js",
)
"""The page's own scripts, joined in this order, with start.js at the end."""

_TITLE_WITHIN = 1 << 16
"""Leading characters of a page that include its title."""
_STATIC = files("mem1.evaluation.report") / "static"


def write_page(path: str | Path, runs: Sequence[Run], *, title: str) -> None:
    """Write the page, replacing an older one atomically.

    Raises UserError if the file cannot be written, or holds something that is no such page.
    """
    path = Path(path)
    if path.exists() and not _is_page(path):
        raise UserError(f"{path} exists and is not a report of mem1; choose another file")
    page = render(runs, title=title)
    try:
        write_file(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot write the report ({error.strerror}); choose another folder") from error


def _is_page(path: Path) -> bool:
    """Whether the file begins like a page."""
    try:
        with open(path, encoding="utf-8") as file:
            start = file.read(_TITLE_WITHIN)
    except (OSError, UnicodeDecodeError):
        return False
    head = ("<!doctype html>", 'http-equiv="Content-Security-Policy"', " · mem1</title>")
    return start.lstrip().startswith(head[0]) and all(part in start for part in head)


def render(runs: Sequence[Run], *, title: str, largest: int = LARGEST) -> str:
    """The page as one text of at most `largest` bytes, unless it is larger even without trajectories."""
    rows = rows_of(runs)
    groups = figure_groups(runs, rows)
    script = page_script(*map(static_text, (*SCRIPTS, "start.js")))
    values: dict[str, Any] = {
        "title": title,
        "policy": content_policy(script, plotly()),
        "style": Markup(stylesheet()),  # ours, not data
        "script": Markup(script),
        "facts": _facts(runs),
        "runs": [run.name for run in runs],
        "warnings": [f"{run.name}: {said}" if len(runs) > 1 else said for run in runs for said in run.warnings],
        "headlines": headlines(rows) if len(runs) == 1 else [],
        "tables": [table for table in (results(rows), by_depth(rows)) if table] if rows else [],
        "further": results(rows, FURTHER) if rows else None,
        "meanings": {column.heading: column.meaning for column in shown(FURTHER, rows)},
        "note": " ".join((note(rows), *warnings(rows))) if rows else "",
        "groups": groups,
        "plotly": packed_plotly() if groups else "",
        "specs": compressed([figure for _, _, figures in groups for figure in figures]),
    }
    template = _template()
    empty = template.render(**values, fitted=fit([], largest))
    room = largest - _size(empty)
    page = template.render(**values, fitted=fit(runs, room))
    while _size(page) > largest and room > 0:  # the list of omissions needs room, too
        room -= _size(page) - largest
        page = template.render(**values, fitted=fit(runs, room))
    return page


def _size(page: str) -> int:
    return len(page.encode("utf-8", errors="replace"))


def figure_groups(runs: Sequence[Run], rows: Sequence[ReportRow]) -> list[tuple[str, str, list[Figure]]]:
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


def content_policy(*scripts: str) -> str:
    """The Content-Security-Policy: only these scripts, and no network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _facts(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(name, its value in each run, or the one value shared by all)."""
    names = dict.fromkeys(name for run in runs for name in run.facts)
    values = {name: [run.facts.get(name, "") for run in runs] for name in names}
    return [(name, of[:1] if len(set(of)) == 1 else of) for name, of in values.items()]


def page_script(*parts: str) -> str:
    """One script of several parts, which share their names with each other and with nothing else."""
    joined = "\n".join(parts)
    return f'(() => {{\n"use strict";\n{joined}\n}})();\n'


def static_text(name: str) -> str:
    """A part of the page: one of `SCRIPTS`, a style or a template."""
    return (_STATIC / name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """The style of the page."""
    return static_text("page.css")


def packed_plotly() -> str:
    """`plotly()` as the scripts inflate it: base64 of gzip."""
    return base64.b64encode(_plotly()).decode("ascii")


def plotly() -> str:
    """plotly.js 4.1.1, the bundle "basic" as published (npm plotly.js-basic-dist-min)."""
    return gzip.decompress(_plotly()).decode("utf-8")


def _plotly() -> bytes:
    return (_STATIC / "plotly-basic.min.js.gz").read_bytes()


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(static_text("page.html.jinja"))
