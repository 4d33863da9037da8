"""Exact match against the longest context: what a memory keeps at each size of what is in sight.

    python benchmarks/frontier.py benchmarks/results/beyond-frontier --others benchmarks/results/beyond \
        --figure research/images/frontier.svg

Both folders are results of benchmarks/compare.py. Policies of the first that differ by a number alone, such as
notebook(1) and notebook(4), are a curve; each policy of --others is a point. The longest context is without the prompt,
on average over tasks; intervals (95 %) are over seeds and tasks. The figure is drawn by matplotlib: pip install -e
'.[benchmarks]'.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from run_results import Scores, by_policy, markdown, mean_cell, mean_of, mean_over

from mem1.evaluation.intervals import seeds_interval

_NUMBERED = re.compile(r"(\w+)\((\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A policy at one number of objectives."""

    scores: Scores
    peak: float
    """Tokens without the prompt."""


Points = Mapping[str, Mapping[int, Point]]
"""By policy and number of objectives."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="policies of several sizes")
    parser.add_argument("--others", type=Path, help="policies to show beside them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of both")
    parser.add_argument("--figure", type=Path, help="where to draw it; without, the table alone")
    given = parser.parse_args(arguments)
    found = points_of(given.results, given.seeds)
    if not found:
        parser.error(f"{given.results} has no results of the seeds {given.seeds}; make them by benchmarks/compare.py")
    print(table(found))
    if given.figure is not None:
        draw(found, {} if given.others is None else points_of(given.others, given.seeds), given.figure)


def points_of(folder: Path, seeds: Sequence[int]) -> Points:
    """Of the policies that have results of all these seeds."""
    runs = {
        policy: [of_policy[seed]["tokens"] for seed in seeds]
        for policy, of_policy in by_policy(folder).items()
        if of_policy.keys() >= set(seeds)
    }
    return {
        policy: {
            int(size): Point(
                scores=[run[size]["em"] for run in of_seeds],
                peak=mean_over([run[size] for run in of_seeds], "peak_without_prompt"),
            )
            for size in of_seeds[0]
        }
        for policy, of_seeds in sorted(runs.items(), key=lambda pair: _family(pair[0]))
    }


def table(found: Points) -> str:
    sizes = list(next(iter(found.values())))
    rows = {
        f"`{policy}`": [f"{mean_cell(by_size[n].scores)}, {by_size[n].peak:.0f}" for n in sizes]
        for policy, by_size in found.items()
    }
    return markdown("memory", [f"N = {n}: EM, peak" for n in sizes], rows)


def _family(policy: str) -> tuple[str, int]:
    """notebook(4)  ->  ("notebook", 4)"""
    numbered = _NUMBERED.fullmatch(policy)
    return (numbered[1], int(numbered[2])) if numbered else (policy, 0)


def draw(found: Points, others: Points, path: Path) -> None:
    """One panel for each number of objectives."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    sizes = list(next(iter(found.values())))
    colour = pyplot.get_cmap("tab20")  # ten would not be enough
    size = 3.6 * len(sizes) + 1.8, 3.8
    figure, ((*axes,),) = pyplot.subplots(1, len(sizes), figsize=size, sharey=True, squeeze=False, layout="constrained")
    families: dict[str, list[str]] = defaultdict(list)
    for policy in found:
        families[_family(policy)[0]].append(policy)
    for axis, n in zip(axes, sizes, strict=True):
        for number, (family, policies) in enumerate(families.items()):
            points = [found[policy][n] for policy in policies]
            x, y = [point.peak for point in points], [mean_of(point.scores) for point in points]
            ends = [seeds_interval(point.scores) for point in points]
            below, above = ([abs(m - end[i]) for m, end in zip(y, ends, strict=True)] for i in (0, 1))
            style = {"color": colour(2 * number), "marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.5}
            axis.errorbar(x, y, yerr=(below, above), label=f"{family}(k)", **style)
            for policy, at_x, at_y in zip(policies, x, y, strict=True):
                cap = str(_family(policy)[1])
                axis.annotate(cap, (at_x, at_y), xytext=(3, 4), textcoords="offset points", fontsize=7)
        shown = [policy for policy in others if _family(policy)[0] not in families and n in others[policy]]
        for number, policy in enumerate(shown, start=2 * len(families)):
            point = others[policy][n]
            axis.plot(
                [point.peak], [mean_of(point.scores)], marker="s", linestyle="", color=colour(number), label=policy
            )
        ticks = (75, 150, 300, 600, 1200, 2400)
        axis.set(xscale="log", title=f"N = {n}", xlabel="peak tokens without the prompt", ylim=(-0.03, 1))
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("exact match")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
