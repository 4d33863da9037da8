"""Rules that flag an unhealthy run of [rl], and the watch that reports each once while the run trains.

    rows = [{"step": 1, "entropy": 0.03, ...}, ..., {"step": 40, "entropy": 0.001, ...}]
    found(rows, RunWarnings(), Circumstances())   ->   [Finding("entropy", 0.0012, 36, "entropy has fallen to ...")]

A rule looks at the last few steps, and where a change tells, at the first few of the same phase of the curriculum: more
objectives need more tokens. Rules are functions of the rows of metrics.jsonl, without state; each has a section in
docs/metrics.md. What was reported, and a writer that failed, is a line of runs/quick/warnings.jsonl:

    {"step": 40, "stage": "rl", "warning": "entropy", "value": 0.0012, "text": "since step 36: entropy has ..."}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from mem1.engines.device import ON_CPU, Device
from mem1.recipe.evaluation import RuleName, RunWarnings
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.run_folder import METRICS, read_metrics, warnings_of
from mem1.training.monitoring.metrics_log import Metrics, append_warning
from mem1.training.ranks.placement import samples_in_bfloat16, trains_in_bfloat16

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


log = logging.getLogger(__name__)


def circumstances(config: Recipe, steps: int, device: Device = ON_CPU) -> Circumstances:
    """Those of a phase of [rl] with so many steps, computed on this device."""
    served = isinstance(config.rollout, ServerRollouts) and config.rollout.published_dtype == "bfloat16"
    return Circumstances(
        steps=steps,
        compares_attempts=config.rl is None or config.rl.algorithm.compares_attempts,
        bfloat16=served or trains_in_bfloat16(config, device) or samples_in_bfloat16(config, device),
    )


class Watch:
    """Says each warning once per stage. A resumed run knows those of the steps that it has kept."""

    def __init__(
        self,
        config: Recipe,
        folder: Path,
        *,
        device: Device = ON_CPU,
        alert: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`alert` receives the text of each warning of a rule; `device` computes."""
        self.config, self.folder, self.alert = config, folder, alert
        self._circumstances = circumstances(config, 0, device)
        self._rows: list[Mapping[str, Any]] = []
        self._before = 0
        self._said: set[str] = set()

    def begin(self, stage: str, before: int) -> None:
        """A stage begins, or goes on, after `before` steps of earlier stages."""
        self.stage, self._before = stage, before
        rows = read_metrics(self.folder / METRICS) if (self.folder / METRICS).is_file() else []
        self._rows = [row for row in rows if row["step"] > before]
        self._said = {row["warning"] for row in warnings_of(self.folder) if row["stage"] == stage}

    def look(self, step: int, metrics: Metrics) -> None:
        """At the numbers of one more step of the stage."""
        rl = self.config.rl
        if self.stage != "rl" or rl is None:
            return
        self._rows.append({"step": step, **metrics})
        begin, phase = rl.phase_at(step - self._before - 1)
        rows = [row for row in self._rows if row["step"] > self._before + begin]
        for finding in found(rows, self.config.warnings, replace(self._circumstances, steps=phase.steps)):
            if finding.rule not in self._said:
                self._said.add(finding.rule)
                self._say(step, finding)

    def _say(self, step: int, finding: Finding) -> None:
        text = f"since step {finding.since}: {finding.text}; see {finding.page}"
        row = {"step": step, "stage": self.stage, "warning": finding.rule, "value": finding.value, "text": text}
        append_warning(self.folder, row)
        log.warning("warning: %s", text)
        self.alert(text)

    def writer_failed(self, step: int, name: str, text: str) -> None:
        """Say that a writer failed at a step, and keep it unless an earlier process has."""
        if text not in (row["text"] for row in warnings_of(self.folder)):
            append_warning(self.folder, {"step": step, "stage": None, "warning": f"writer {name}", "text": text})
        log.warning("warning: %s", text)
