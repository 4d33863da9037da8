"""Watches a run while it trains: reports each warning of `run_warnings`, and each failing writer, once and records it.

A line of runs/quick/warnings.jsonl:

    {"step": 40, "stage": "rl", "warning": "entropy", "value": 0.0012, "text": "since step 36: entropy has ..."}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mem1.engines.device import ON_CPU, Device
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Rl, ServerRollouts
from mem1.run_folder import METRICS, read_metrics, warnings_of
from mem1.training.monitoring.metrics_log import Metrics, append_warning
from mem1.training.monitoring.run_warnings import Circumstances, Finding, found
from mem1.training.ranks.placement import samples_in_bfloat16, trains_in_bfloat16

log = logging.getLogger(__name__)


def circumstances(config: Recipe, steps: int, device: Device = ON_CPU) -> Circumstances:
    """Those of a phase of [rl] with so many steps, computed on this device."""
    served = isinstance(config.rollout, ServerRollouts) and config.rollout.published_dtype == "bfloat16"
    return Circumstances(
        steps=steps,
        compares_attempts=config.rl is None or config.rl.algorithm.compares_attempts,
        bfloat16=served or trains_in_bfloat16(config, device) or samples_in_bfloat16(config, device),
    )


def phase_of(rl: Rl, done: int) -> tuple[int, int]:
    """Where the phase of the `done`th step of [rl] begins, in steps before it, and how many it has."""
    begin = 0
    for phase in rl.curriculum:
        if done <= begin + phase.steps:
            return begin, phase.steps
        begin += phase.steps
    raise IndexError("past the last phase")


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
        begin, steps = phase_of(rl, step - self._before)
        rows = [row for row in self._rows if row["step"] > self._before + begin]
        for finding in found(rows, self.config.warnings, replace(self._circumstances, steps=steps)):
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
