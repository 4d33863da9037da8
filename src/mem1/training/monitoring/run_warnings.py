"""Rules that flag an unhealthy run of [rl]: functions of the rows of metrics.jsonl, without state.

    rows = [{"step": 1, "entropy": 0.03, ...}, ..., {"step": 40, "entropy": 0.001, ...}]
    found(rows, RunWarnings(), Circumstances())   ->   [Finding("entropy", 0.0012, 36, "entropy has fallen to ...")]

A rule looks at the last few steps, and where a change tells, at the first few of the same phase of the curriculum: more
objectives need more tokens. Each has a section in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from mem1.recipe.run_warnings import RuleName, RunWarnings

Row = Mapping[str, Any]
"""A row of metrics.jsonl."""
CUT = ("out_of_tokens", "out_of_turns")
"""Endings by a limit."""
DRIFT_FLOAT32, DRIFT_BFLOAT16 = 1e-3, 0.1
"""Mean differences in nats that rounding does not explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The part of a recipe that rules read."""

    steps: int | None = None
    """Steps of the phase; None: unknown."""
    compares_attempts: bool = True
    """Whether the algorithm learns from differences within a group."""
    bfloat16: bool = False
    """Whether sampler or trainer computes in bfloat16."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds."""

    rule: str
    value: float
    since: int
    """First step of those that look wrong, as in metrics.jsonl."""
    text: str

    @property
    def page(self) -> str:
        """Where to read on."""
        return f"docs/metrics.md#{self.rule}"


Values = Sequence[tuple[int, float]]
"""(step, value) in the order of the steps, without those that had nothing to measure."""


def found(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> list[Finding]:
    """Returns the warnings due after the last of these rows, those of one phase from its first step."""
    if "all" in limits.off:
        return []
    findings = (rule(rows, limits, circumstances) for name, rule in RULES.items() if name not in limits.off)
    return [finding for finding in findings if finding is not None]


def _equal_rewards(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    needed = min(limits.steps, circumstances.steps or limits.steps)
    last = _lasting(_values(rows, "groups_with_variance"), lambda share: share <= limits.equal_rewards)
    if len(last) < needed or not circumstances.compares_attempts:
        return None
    rewards = [value for step, value in _values(rows, "reward") if step >= last[0][0]]
    average = f"{_mean(rewards):.2f}" if rewards else "unknown, as every attempt's tool failed"
    text = (
        f"hardly any group has rewards that differ, so there is nothing to learn from; the mean reward is {average}. "
        "Where every attempt fails, begin with a better policy or with fewer objectives (rl.curriculum); where every "
        "attempt succeeds, take more; otherwise raise rl.group_size or rl.temperature"
    )
    return Finding("equal_rewards", last[-1][1], last[0][0], text)


def _long_outputs(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    change = _change([(row["step"], _ratio(row, "completion_tokens", "turns")) for row in rows], limits.steps)
    if change is None or change.now <= limits.long_outputs * change.before:
        return None
    text = f"sampled tokens per turn have grown from {change.before:.0f} to {change.now:.0f}"
    return Finding("long_outputs", change.now, change.since, text)


def _cut_attempts(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    change = _change([(row["step"], _cut_share(row)) for row in rows], limits.steps)
    if change is None or change.now - change.before <= limits.cut_attempts:
        return None
    text = f"a limit of turns or tokens ends {change.now:.0%} of the attempts; at the start it was {change.before:.0%}"
    return Finding("cut_attempts", change.now, change.since, text)


def _malformed(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    change = _change(_values(rows, "malformed"), limits.steps)
    if change is None or change.now - change.before <= limits.malformed:
        return None
    text = f"{change.now:.0%} of the turns are malformed; at the start it was {change.before:.0%}"
    return Finding("malformed", change.now, change.since, text)


def _entropy(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    change = _change(_values(rows, "entropy"), limits.steps)
    if change is None or change.now >= limits.entropy * change.before:
        return None
    text = f"entropy has fallen from {change.before:.2g} to {change.now:.2g} nats per token"
    return Finding("entropy", change.now, change.since, text)


def _sampler_trainer(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    limit = limits.sampler_trainer or (DRIFT_BFLOAT16 if circumstances.bfloat16 else DRIFT_FLOAT32)
    last = _lasting(_values(rows, "sampler_trainer_mean"), lambda mean: mean > limit)
    if len(last) < min(limits.steps, circumstances.steps or limits.steps):
        return None
    text = f"sampler and trainer differ by {last[-1][1]:.2g} nats per token on average, more than {limit:g}"
    return Finding("sampler_trainer", last[-1][1], last[0][0], text)


def _critic(rows: Sequence[Row], limits: RunWarnings, circumstances: Circumstances) -> Finding | None:
    trained = [row for row in rows if row.get("learning_rate")]  # it is 0 while the critic warms up
    last = _lasting(_values(trained, "explained_variance"), lambda share: share <= limits.critic)
    if len(last) < limits.steps:
        return None
    text = f"the critic predicts the returns worse than a constant would: explained_variance is {last[-1][1]:.2f}"
    return Finding("critic", last[-1][1], last[0][0], text)


Rule = Callable[[Sequence[Row], RunWarnings, Circumstances], "Finding | None"]
RULES: Mapping[str, Rule] = {
    "equal_rewards": _equal_rewards,
    "long_outputs": _long_outputs,
    "cut_attempts": _cut_attempts,
    "malformed": _malformed,
    "entropy": _entropy,
    "sampler_trainer": _sampler_trainer,
    "critic": _critic,
}
assert {*RULES, "all"} == set(get_args(RuleName))


@dataclass(frozen=True, slots=True)
class _Change:
    """Means over the first and over the last steps."""

    before: float
    now: float
    since: int


def _change(values: Sequence[tuple[int, float | None]], steps: int) -> _Change | None:
    """None: too few steps to tell."""
    known = [(step, value) for step, value in values if value is not None]
    if len(known) < 2 * steps:
        return None
    first, last = known[:steps], known[-steps:]
    return _Change(_mean([value for _, value in first]), _mean([value for _, value in last]), last[0][0])


def _lasting(values: Values, wrong: Callable[[float], bool]) -> Values:
    """The values at the end that are all wrong; empty: the last is not."""
    good = next((back for back, (_, value) in enumerate(reversed(values)) if not wrong(value)), len(values))
    return values[len(values) - good :]


def _values(rows: Sequence[Row], key: str) -> Values:
    return [(row["step"], row[key]) for row in rows if row.get(key) is not None]


def _ratio(row: Row, key: str, by: str) -> float | None:
    return row[key] / row[by] if row.get(key) is not None and row.get(by) else None


def _cut_share(row: Row) -> float | None:
    endings: Mapping[str, float] = row.get("endings") or {}
    return sum(endings.get(name, 0.0) for name in CUT) / sum(endings.values()) if endings else None


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
