"""One self-contained HTML page about a run: headline numbers, table, figures, whole trajectories turn by turn.

    write_report("runs/a/report.html", title="quickstart", rows=rows, curve=curve,
                 trajectories=[("after training", trajectory)], decode=tokenizer.decode, facts={"seed": "0"})

Nothing is fetched from anywhere, and everything that a policy or a document wrote is escaped: it is shown as text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mem1.errors import UserError
from mem1.evaluation.report import figures
from mem1.evaluation.report.table import COLUMNS, body, depth_body, depth_columns, note
from mem1.evaluation.report.transcript import Decode, Transcript, transcript
from mem1.records import Trajectory

CURVES = (
    ("reward", "reward per task"),
    ("em", "exact match per objective"),
    ("turns", "turns per task"),
    ("peak_tokens", "peak tokens per task"),
)
"""Keys of metrics.jsonl drawn as learning curves, with their titles."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One large number with a line of explanation."""

    value: str
    label: str


def write_report(
    path: str | Path,
    *,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    curve: Sequence[Mapping[str, Any]],
    trajectories: Sequence[tuple[str, Trajectory]],
    decode: Decode,
    facts: Mapping[str, str],
) -> None:
    """Write the page, replacing an older one atomically.

    `rows` are `Row.as_dict()`, `curve` the lines of metrics.jsonl (may be empty), `trajectories` (label,
    trajectory) pairs shown in full, `decode` turns token ids into text, `facts` are shown as a list of names and
    values. Raises UserError if the file cannot be written.
    """
    page = render(
        title=title,
        rows=rows,
        curve=curve,
        transcripts=[transcript(label, trajectory, decode) for label, trajectory in trajectories],
        facts=facts,
    )
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(page, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot write the report ({error.strerror}); choose another folder") from error


def render(
    *,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    curve: Sequence[Mapping[str, Any]],
    transcripts: Sequence[Transcript],
    facts: Mapping[str, str],
) -> str:
    """The page as one text."""
    folder = files("mem1.evaluation.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(folder.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    drawn = [(key, label) for key, label in CURVES if any(row.get(key) is not None for row in curve)]
    return template.render(
        style=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),  # ours, not data
        title=title,
        headlines=headlines(rows),
        columns=COLUMNS,
        note=note(rows),
        body=body(rows),
        depth_columns=depth_columns(rows),
        depth_body=depth_body(rows),
        figures=[_markup(figures.em_figure(rows)), _markup(figures.peak_figure(rows))] if rows else [],
        curves=[_markup(figures.curve_figure(curve, key, label)) for key, label in drawn],
        transcripts=transcripts,
        facts=facts,
    )


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """Exact match at the smallest and largest N above 1, before and after where both are there, and the peaks.

    The numbers are those of the last policy of `rows`; "before" is the first policy, in the same context.
    """
    if not rows:
        return []
    policy, context = rows[-1]["policy"], rows[-1]["context"]
    after = {row["objectives"]: row for row in rows if (row["policy"], row["context"]) == (policy, context)}
    first = rows[0]["policy"]
    before = {r["objectives"]: r for r in rows if r["policy"] == first != policy and r["context"] == context}
    several = sorted(n for n in after if n > 1) or sorted(after)
    low, high = several[0], several[-1]
    shown = [_em_headline(n, after[n], before.get(n)) for n in dict.fromkeys((low, high))]
    peak = after[high]
    shown.append(
        Headline(
            f"{peak['peak_tokens']:,.0f}",
            f"peak tokens at {_n(high)}; the same turns appended: {peak['appended_peak_tokens']:,.0f}",
        )
    )
    if low != high and after[low]["peak_tokens_without_prompt"] > 0:
        growth = {
            key: after[high][key] / after[low][key]
            for key in ("peak_tokens_without_prompt", "appended_peak_tokens_without_prompt")
        }
        appended = growth["appended_peak_tokens_without_prompt"]
        shown.append(
            Headline(
                f"\u00d7 {growth['peak_tokens_without_prompt']:.1f}",
                f"growth of the peak without the prompt from {_n(low)} to {high}; appended: \u00d7 {appended:.1f}",
            )
        )
    return shown


def _em_headline(n: int, after: Mapping[str, Any], before: Mapping[str, Any] | None) -> Headline:
    value = f"{after['em']:.2f}" if before is None else f"{before['em']:.2f} → {after['em']:.2f}"
    change = "" if before is None else f", {before['policy']} → {after['policy']}"
    return Headline(value, f"exact match per objective at {_n(n)}{change}")


def _n(objectives: int) -> str:
    return f"N\u00a0=\u00a0{objectives}"  # not broken over two lines


def _markup(svg: str) -> Markup:
    """matplotlib escapes the labels that it writes, so its element goes in as it is."""
    return Markup(svg)
