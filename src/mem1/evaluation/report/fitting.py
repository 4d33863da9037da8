"""As many trajectories as fit into a page, and words for those that do not.

The first k tasks of every policy and size are kept, for one k: so what can be compared stays together.

    1,000 attempts of "trained" at N = 16 and as many of "base", of which those at 312 tasks fit
    ->  omissions: "base, N = 16: tasks 313 to 1,000", "trained, N = 16: tasks 313 to 1,000"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.evaluation.report.data import PageData, compressed
from mem1.evaluation.report.runs import Attempts, Run

FIRST = 64
"""Tasks tried at first; doubled while they fit, so that of a huge run little more is laid out than is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The viewer's data."""

    text: str
    """As `compressed` writes it."""
    shown: int
    """Trajectories in it."""
    of: int
    """Trajectories of the runs."""
    omissions: Sequence[str]
    """What is left out, one text a policy and size; empty: nothing."""


def fit(runs: Sequence[Run], largest: int) -> Fitted:
    """Trajectories whose compressed text has at most `largest` characters; it may be somewhat less."""
    parts = [(run, attempts) for run in runs for attempts in run.attempts]
    most = max((len(attempts.trajectories) for _, attempts in parts), default=0)
    tasks = min(most, FIRST)
    text = _text(runs, tasks)
    while len(text) <= largest and tasks < most:
        tasks = min(most, 2 * tasks)
        text = _text(runs, tasks)
    while len(text) > largest and tasks > 0:
        tasks = int(0.99 * tasks * largest / len(text))
        text = _text(runs, tasks)
    return Fitted(
        text=text,
        shown=sum(min(tasks, len(attempts.trajectories)) for _, attempts in parts),
        of=sum(len(attempts.trajectories) for _, attempts in parts),
        omissions=[
            f"{group_name(run, attempts, runs)}, N = {attempts.objectives}: "
            f"tasks {tasks + 1:,} to {len(attempts.trajectories):,}"
            for run, attempts in parts
            if len(attempts.trajectories) > tasks
        ],
    )


def group_name(run: Run, attempts: Attempts, runs: Sequence[Run]) -> str:
    """What the page calls a policy: with its context policy and its run, where there are several."""
    contexts = {attempts.context for run in runs for attempts in run.attempts}
    parts = (attempts.policy, attempts.context if len(contexts) > 1 else "", run.name if len(runs) > 1 else "")
    return ", ".join(filter(None, parts))


def _text(runs: Sequence[Run], tasks: int) -> str:
    data = PageData()
    for run in runs:
        for attempts in run.attempts:
            data.add_group(
                run=run.name,
                policy=attempts.policy,
                context=attempts.context,
                objectives=attempts.objectives,
                name=group_name(run, attempts, runs),
            )
            for trajectory in attempts.trajectories[:tasks]:
                data.add(trajectory, run.decode)
    return compressed(data.as_json())
