"""What to change if a plan does not fit: each change alone, then the first few that suffice together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mem1.planning.gpus import Cluster
from mem1.planning.placement import Setup
from mem1.planning.plan import Plan, make_plan
from mem1.planning.stages import Attempts
from mem1.training.loop.recipe import Distributed, Lora, Recipe

SMALLEST_PACK = 2048
"""Smallest pack, in tokens, that is suggested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One suggested change of the recipe, with the resulting peak memory in bytes."""

    what: str
    peak: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggested changes for a plan that does not fit."""

    alone: tuple[Change, ...]
    """Each change alone, most effective first."""
    together: tuple[Change, ...]
    """Changes added one after another until the plan fits; the last one does, or none suffices."""


def advise(config: Recipe, *, setup: Setup, cluster: Cluster, attempts: Attempts | None = None) -> Advice:
    """The changes that would help. Raises UserError as `make_plan` does."""

    def planned(case: _Case) -> Plan:
        return make_plan(case.config, setup=case.setup, cluster=cluster, attempts=attempts)

    start = _Case(config=config, setup=setup)
    before = planned(start).peak
    alone = []
    for what, case in start.changes():
        plan = planned(case)
        if plan.peak < 0.99 * before:
            alone.append(Change(what=what, peak=plan.peak, fits=bool(plan.fits)))
    together: list[Change] = []
    case, fits = start, False
    while not fits and (step := next(case.changes(), None)) is not None:
        what, case = step
        plan = planned(case)
        fits = bool(plan.fits)
        together.append(Change(what=what, peak=plan.peak, fits=fits))
    return Advice(alone=tuple(sorted(alone, key=lambda change: change.peak)), together=tuple(together))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A recipe with a setup; changes come in order of their cost in time and in learning."""

    config: Recipe
    setup: Setup

    def changes(self) -> Iterator[tuple[str, _Case]]:
        distributed = self.setup.distributed or Distributed()
        if distributed.mixed_precision is None:
            mixed = _set(distributed, "mixed_precision", "bf16")
            yield 'distributed.mixed_precision = "bf16"', self._with(distributed=mixed)
        if not distributed.activation_checkpointing:
            again = _set(distributed, "activation_checkpointing", True)
            yield "distributed.activation_checkpointing = true", self._with(distributed=again)
        if (rl := self.config.rl) is not None:
            if rl.pack_tokens > SMALLEST_PACK:
                tokens = max(SMALLEST_PACK, rl.pack_tokens // 4)
                yield f"rl.pack_tokens = {tokens}", self._with_rl(pack_tokens=tokens)
            critic = rl.algorithm.critic_config
            if critic is not None and critic.critic == "separate":
                yield 'rl.algorithm.critic = "head"', self._with_rl(algorithm=_set(critic, "critic", "head"))
        copied = self.config.rl is not None and self.config.rl.kl is not None and self.setup.lora is None
        if copied and not (distributed.reference_offload or distributed.cpu_offload):
            offloaded = _set(distributed, "reference_offload", True)
            yield "distributed.reference_offload = true", self._with(distributed=offloaded)
        if self.setup.lora is None and not distributed.cpu_offload:
            yield "distributed.cpu_offload = true", self._with(distributed=_set(distributed, "cpu_offload", True))
        if self.setup.lora is None:
            resident = _set(distributed, "cpu_offload", False)
            yield "[lora] rank = 16", self._with(distributed=resident, lora=Lora())

    def _with(self, **sections: Any) -> _Case:
        return _Case(config=self.config, setup=replace(self.setup, **sections))

    def _with_rl(self, **keys: Any) -> _Case:
        assert self.config.rl is not None
        return _Case(config=_set(self.config, "rl", self.config.rl.model_copy(update=keys)), setup=self.setup)


def _set(section: Any, key: str, value: object) -> Any:
    return section.model_copy(update={key: value})
