"""What a recipe needs on given GPUs, as `mem1 plan` prints it.

make_plan(config, setup=setup, cluster=cluster("8xH100"))  ->  memory, tokens, FLOPs and seconds per stage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mem1.errors import UserError
from mem1.planning.gpus import Cluster
from mem1.planning.networks import Network, recipe_network
from mem1.planning.peak_memory import Memory, Needs, server_memory, stage_memory
from mem1.planning.placement import Setup
from mem1.planning.stages import Attempts, Stage, stages
from mem1.planning.step_time import StepTime, sampling_flops, step_time, training, update_flops
from mem1.planning.token_counts import limits
from mem1.training.loop.recipe import Recipe

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
    time: StepTime | None
    """None: no GPUs were given."""
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
    server = None
    if stage.samples and setup.engine == "servers":
        attempts = -(-stage.tokens.attempts // setup.server_gpus)
        server = server_memory(network, attempts=attempts, longest=stage.tokens.longest)
    return StagePlan(
        stage=stage,
        server=server,
        memory=stage_memory(network, stage.needs, setup, ranks=ranks, cuda=cluster is not None),
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
        "sizes": plan.sizes,
        "stages": [
            {
                "name": s.stage.name,
                "steps": s.stage.steps,
                "memory": {**asdict(s.memory), "peak": s.memory.peak},
                "server": None if s.server is None else dict(s.server),
                "tokens": asdict(s.stage.tokens),
                "flops": dict(s.flops),
                "seconds": None if s.time is None else dict(s.time.parts),
            }
            for s in plan.stages
        ],
    }
