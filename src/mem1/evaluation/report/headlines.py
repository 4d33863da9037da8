"""The large numbers at the head of a page: what a reader should take away from the rows of one run.

headlines(rows)  ->  Headline("0.40 → 1.00", "exact match per objective at N = 2, base → trained"), ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.evaluation.report.columns import Record


@dataclass(frozen=True, slots=True)
class Headline:
    """One large number with a line of explanation."""

    value: str
    label: str


def headlines(rows: Sequence[Record]) -> list[Headline]:
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


def _em_headline(n: int, after: Record, before: Record | None) -> Headline:
    value = f"{after['em']:.2f}" if before is None else f"{before['em']:.2f} → {after['em']:.2f}"
    change = "" if before is None else f", {before['policy']} → {after['policy']}"
    return Headline(value, f"exact match per objective at {_n(n)}{change}")


def _n(objectives: int) -> str:
    return f"N\u00a0=\u00a0{objectives}"  # not broken over two lines
