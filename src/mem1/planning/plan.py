"""What a recipe needs on given GPUs, as `mem1 plan` prints it, and what to change where it does not fit.

make_plan(config, setup=setup, cluster=cluster("8xH100"))  ->  memory, tokens, FLOPs and seconds per stage
advise(config, setup=setup, cluster=cluster("H100"))       ->  changes, alone and together
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mem1.errors import UserError
from mem1.planning.memory import Memory, Needs, server_memory, stage_memory
from mem1.planning.networks import Network, Setup, recipe_network
from mem1.planning.stages import Attempts, Stage, limits, stages
from mem1.planning.step_time import Cluster, sampling_flops, step_time, training, update_flops
from mem1.recipe.model import Distributed, Lora
from mem1.recipe.recipe import Recipe

USABLE = 0.9
"""Assumed share of a GPU's memory that a plan may fill; CUDA, libraries and fragmentation take the rest."""
KEPT_CHECKPOINTS = 3
"""Checkpoints in a run's folder: the last two, and the one being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage on one rank."""

    stage: Stage
    memory: Memory
    flops: Mapping[str, int]
    """FLOPs of a step on all GPUs together, by purpose."""
    time: Mapping[str, float] | None
    """Seconds of a step by part; None: no GPUs were given."""
    server: Mapping[str, int] | None = None
    """Bytes of one server of the policy, by part; None: no server samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a recipe."""

    network: Network
    setup: Setup
    cluster: Cluster | None
    stages: tuple[StagePlan, ...]
    disk: int
    """Bytes of all checkpoints in a run's folder."""
    sizes: str
    """Origin of the attempts' sizes."""

    @property
    def usable(self) -> float | None:
        """Usable bytes of one GPU; None: no GPUs were given."""
        return None if self.cluster is None else USABLE * self.cluster.gpu.memory_gb * 1e9

    @property
    def published(self) -> int | None:
        """Bytes that a publish of the weights writes, once for all servers; None: no server samples."""
        if all(stage.server is None for stage in self.stages):
            return None
        return self.network.parameters * self.setup.publish_bytes

    @property
    def peak(self) -> int:
        return max((stage.memory.peak for stage in self.stages), default=0)

    @property
    def fits(self) -> bool | None:
        """Whether the peak is usable; None: no GPUs were given."""
        return None if self.usable is None else self.peak <= self.usable


def make_plan(
    config: Recipe, *, setup: Setup, cluster: Cluster | None = None, attempts: Attempts | None = None
) -> Plan:
    """The plan of a recipe.

    Raises UserError where its model is unknown, it has no stage, or all GPUs serve.
    """
    network = recipe_network(config)
    ranks = 1
    if cluster is not None:
        ranks = training(setup, cluster)
        if ranks < 1:
            raise UserError(f"{setup.server_gpus} of {cluster.gpus} GPUs serve, so none trains")
    planned = stages(config, setup, ranks=ranks, attempts=attempts)
    if not planned:
        raise UserError("the recipe has no stage to train ([recall], [sft] or [rl]), so there is nothing to plan")
    return Plan(
        network=network,
        setup=setup,
        cluster=cluster,
        stages=tuple(_planned(network, stage, setup, cluster, ranks) for stage in planned),
        disk=_disk(network, [stage.needs for stage in planned], setup),
        sizes=_sizes(config, planned, attempts or Attempts()),
    )


def _planned(network: Network, stage: Stage, setup: Setup, cluster: Cluster | None, ranks: int) -> StagePlan:
    flops = {**(sampling_flops(network, stage.tokens) if stage.samples else {})}
    flops |= {name: n for name, n in update_flops(network, stage.tokens, stage.passes, setup).items() if n}
    server = beside = None
    if stage.samples and setup.engine == "servers":
        attempts = -(-stage.tokens.attempts // (ranks if setup.sleep else setup.server_gpus))
        if setup.sleep:  # at the least: one attempt at a time
            least = server_memory(network, setup, attempts=1, longest=stage.tokens.longest)
            beside = {f"server: {name}": size for name, size in least.items()}
        server = server_memory(network, setup, attempts=attempts, longest=stage.tokens.longest)
    return StagePlan(
        stage=stage,
        server=server,
        memory=stage_memory(network, stage.needs, setup, ranks=ranks, cuda=cluster is not None, beside=beside),
        flops=flops,
        time=None if cluster is None else step_time(network, stage, setup, cluster),
    )


def _disk(network: Network, needs: Sequence[Needs], setup: Setup) -> int:
    """A checkpoint holds all networks and optimiser states, unsharded and without weights in 4 bits."""

    def one(need: Needs) -> int:
        whole = stage_memory(network, need, replace(setup, distributed=None))
        kept = ("weights: policy", "weights: critic", "weights: reference", "optimiser")
        return sum(whole.parts.get(name, 0) for name in kept)

    return KEPT_CHECKPOINTS * max(map(one, needs)) + network.parameters * 4


def _sizes(config: Recipe, planned: Sequence[Stage], known: Attempts) -> str:
    if known.recorded:
        return f"{len(known.recorded)} recorded attempts"
    if known.sizes is None and config.rl is None:
        return "the recipe's own"
    sizes = known.sizes or limits(config, max(n for phase in config.rl.curriculum for n in phase.objectives))  # type: ignore[union-attr]
    turn = sizes.turns[0]
    described = (
        f"{len(sizes.turns)} turns; tokens: prompt {sizes.prompt}, state {turn.state}, action {turn.action}, "
        f"result {turn.result}"
    )
    return described if known.sizes is not None else f"the most that the recipe allows: {described}"


def record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: bytes, FLOPs and seconds."""
    return {
        "parameters": plan.network.parameters,
        "network": asdict(plan.network),
        "setup": {
            "distributed": None if plan.setup.distributed is None else plan.setup.distributed.model_dump(),
            "lora": None if plan.setup.lora is None else plan.setup.lora.model_dump(),
            "engine": plan.setup.engine,
            "server_gpus": plan.setup.server_gpus,
        },
        "gpus": None if plan.cluster is None else str(plan.cluster),
        "usable_bytes": plan.usable,
        "peak_bytes": plan.peak,
        "fits": plan.fits,
        "disk_bytes": plan.disk,
        "published_bytes": plan.published,
        "sizes": plan.sizes,
        "stages": [
            {
                "name": s.stage.name,
                "steps": s.stage.steps,
                "memory": {**asdict(s.memory), "peak": s.memory.peak},
                "server": None if s.server is None else dict(s.server),
                "tokens": asdict(s.stage.tokens),
                "flops": dict(s.flops),
                "seconds": None if s.time is None else dict(s.time),
            }
            for s in plan.stages
        ],
    }


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
