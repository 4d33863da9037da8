"""`mem1 train --dry-run`: everything but the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.planning.checks import Check, checks
from mem1.planning.families import meta_parameters
from mem1.planning.plan import Plan, make_plan, record
from mem1.planning.rehearsal import Rehearsed, rehearse
from mem1.planning.setup import Setup
from mem1.training.loop.recipe import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What came out of it."""

    parameters: int
    """Of the model that transformers makes of the recipe's shape, on the meta device."""
    plan: Plan
    checks: tuple[Check, ...]
    rehearsed: Rehearsed

    @property
    def ready(self) -> bool:
        """Whether a run would find everything that it needs."""
        return all(check.ok for check in self.checks)

    def record(self) -> Mapping[str, Any]:
        """As JSON."""
        return {
            "ready": self.ready,
            "parameters": self.parameters,
            "checks": [asdict(check) for check in self.checks],
            "rehearsed": asdict(self.rehearsed),
            "plan": record(self.plan),
        }


def dry_run(config: TrainConfig, *, out: Path) -> DryRun:
    """Plan a recipe, look whether what it names is there, and rehearse a step; `out` is where a run would write.

    Raises UserError where the recipe has no stage, its model's shape is not known, or its stages cannot work.
    """
    plan = make_plan(config, setup=Setup.of(config))
    parameters = meta_parameters(plan.network)
    if parameters != plan.network.parameters:
        raise UserError(
            f"transformers makes a model of {parameters:,} parameters of this shape, the plan counts "
            f"{plan.network.parameters:,}; its config.json has parts that the plan does not know"
        )
    found = checks(config, disk=plan.disk, out=out)
    return DryRun(parameters=parameters, plan=plan, checks=tuple(found), rehearsed=rehearse(config))
