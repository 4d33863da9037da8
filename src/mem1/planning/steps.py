"""One training step of a stage on fake tensors: the code that trains, with the recipe's model, packs and optimiser.

    measured(config, shape, "rl", [trajectories of a pack], ranks=8, more=True)    ->  bytes and FLOPs of a rank

The process joins `ranks` pretended ones, whose collectives do nothing, so networks are sharded, gathered and freed as
in training. Optimiser states are there before the step, and gradients too unless its pack is the only one of an
optimiser step. Nothing is sampled, and log-probs from before the update are zeros: passes without gradient need less.

Tensors are those of a CPU. FlexAttention, which a CPU cannot train with, is planned as attention by blocks: it keeps
the same tensors, but for keys and values, which blocks repeat for the query heads that share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig, PreTrainedModel

from mem1.algorithms.base import constant
from mem1.engines.device import ON_CPU, Device
from mem1.planning.fakes import BACKWARD, FORWARD, OPTIMISER, Count, counted
from mem1.planning.models import made_model
from mem1.policy.policy import Policy
from mem1.recipe.model import BLOCK, Distributed
from mem1.recipe.recipe import Recipe
from mem1.records import Trajectory
from mem1.training.gradients.samples import OldPolicyStats, TrainingSample
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.ranks.adapters import quantizable
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks
from mem1.training.rl import RlStage
from mem1.training.supervised import RecallStage, SftStage

PLANNED_GPU = Device(name="cuda:0")
"""Its tensors are a CPU's."""
AnyStage = RecallStage | SftStage | RlStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes and FLOPs of one rank."""

    parts: Mapping[str, int]
    """Bytes at the peak, by part."""
    moments: Mapping[str, int]
    """Most bytes of each moment: forward, backward, optimiser."""
    resident: Mapping[str, int]
    """Bytes of weights and optimiser states, by part."""
    gradients: int
    """Bytes of all gradients."""
    flops: Mapping[str, int]
    """FLOPs of the forward and the backward pass."""


def measured(
    config: Recipe,
    shape: PretrainedConfig,
    stage: str,
    trajectories: Sequence[Trajectory],
    *,
    ranks: int = 1,
    more: bool = False,
    gpu: bool = False,
) -> Measured:
    """A step of the stage "recall", "sft" or "rl" on a pack of trajectories, on one of `ranks` ranks.

    more    whether the optimiser step has earlier packs, so that gradients are there
    gpu     whether it is planned for a GPU, which decides the attention
    """
    recipe, config = config, _for_planning(config, ranks)
    placement = Placement.of(config, Ranks(device=PLANNED_GPU if gpu else ON_CPU))
    if gpu and recipe.model.attention == "blocks":
        placement = replace(placement, attention="products")
    with _pretended(ranks if placement.spread else 0), counted() as count:
        policy = Policy(made_model(shape), _NOTHING)
        saved = _saved(recipe, policy.model, ranks if placement.spread else 1)
        fake_buffers(policy.model)
        made = make_stage(config, stage, policy, trajectories, placement)
        if placement.separate and not placement.served and placement.sampling is not None:
            policy.model.to(placement.sampling)  # type: ignore[arg-type]  # transformers takes less
        count.gradients = lambda: storage_bytes(p.grad for p in made.optimizers.parameters if p.grad is not None)
        begin(made, more=more)
        gradients = storage_bytes(p for p in made.optimizers.parameters)
        resident = resident_bytes(made, policy.model)
        optimising = count.peaks[OPTIMISER] if stage == "rl" else 0
        count.clear()
        update(made, trajectories)
        return _read(count, resident, gradients, optimising, saved)


def fake_buffers(model: nn.Module) -> None:
    """Make the buffers fake that were computed from numbers of positions, and all that is computed from them."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(()) + buffer)


_NOTHING: Any = None
"""A step of planning neither samples nor reads."""


def _for_planning(config: Recipe, ranks: int) -> Recipe:
    """One pack at a time; the attention is chosen for the device that is planned for, not for this one."""
    sharded = config.distributed or (Distributed() if ranks > 1 else None)
    attention = "blocks" if config.model.attention == "flex" else config.model.attention
    model = config.model.model_copy(update={"attention": attention})
    lora = config.lora and config.lora.model_copy(update={"quantize": None})
    return config.model_copy(update={"workers": 1, "distributed": sharded, "model": model, "lora": lora})


def _saved(config: Recipe, model: PreTrainedModel, shards: int) -> int:
    """Bytes that weights in 4 bits need less, which every rank holds whole: they cannot be fake, and were fp32."""
    if config.lora is None or config.lora.quantize is None:
        return 0
    numbers = sum(layer.weight.numel() for layer in quantizable(model).values())
    return numbers * 4 // shards - (numbers // 2 + numbers // BLOCK * 4)


@contextmanager
def _pretended(ranks: int) -> Iterator[None]:
    """Inside, a process group of so many ranks, of which only this one is there; 0: no group."""
    if not ranks:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def make_stage(
    config: Recipe, stage: str, policy: Policy, trajectories: Sequence[Trajectory], placement: Placement
) -> AnyStage:
    """The stage of this name, which trains the trajectories; it cannot sample."""
    if stage == "rl":
        assert config.rl is not None
        return RlStage(policy, config.rl, _NOTHING, _NOTHING, config.seed, placement=placement)
    if stage == "sft":
        assert config.sft is not None
        sft = config.sft.model_copy(update={"steps": 1, "tokens": config.sft.pack_tokens})
        return SftStage(policy, sft, lambda: trajectories, config.seed, placement=placement)
    assert config.recall is not None
    codec: Any = SimpleNamespace(vocab_size=policy.model.config.vocab_size)
    return RecallStage(replace(policy, codec=codec), config.recall, config.seed, placement=placement)


def begin(stage: AnyStage, *, more: bool) -> None:
    """Make the optimiser's states, by a step with gradients and rate 0; `more`: leave gradients of 0."""
    for parameter in stage.optimizers.parameters:
        parameter.grad = torch.zeros_like(parameter)
    stage.optimizers.step(scale=0.0)
    if more:
        for parameter in stage.optimizers.parameters:
            parameter.grad = torch.zeros_like(parameter)


def update(stage: AnyStage, trajectories: Sequence[Trajectory]) -> None:
    """The passes over the trajectories; with [recall] and [sft] the whole step."""
    if not isinstance(stage, RlStage):
        stage.step(0)
        return
    networks, samples = stage.networks, []
    for number, trajectory in enumerate(trajectories):
        zeros_K = constant(0.0, trajectory)
        values_K = zeros_K if networks.critic is not None else None
        samples.append(
            TrainingSample(
                trajectory=trajectory,
                old=OldPolicyStats(
                    sampler_K=zeros_K,
                    old_K=zeros_K,
                    reference_K=zeros_K if networks.reference is not None else None,
                    values_K=values_K,
                ),
                advantages_K=constant(1.0 - 2.0 * (number % 2), trajectory),
                returns_K=values_K,
                weights_K=zeros_K if stage.config.importance is not None else None,
            )
        )
    accumulate(networks, [samples], PassStats())


def storage_bytes(tensors: Any) -> int:
    """Bytes of the tensors' storages, each once; of sharded ones this rank's."""
    own = (t._local_tensor if isinstance(t, DTensor) else t for t in tensors)
    found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in own if t.device.type != "meta"}
    return sum(found.values())


def _tensors(module: nn.Module | None) -> list[Tensor]:
    return [] if module is None else [*module.parameters(), *module.buffers()]


def resident_bytes(stage: AnyStage, sampling: nn.Module) -> dict[str, int]:
    """Weights of each network, and the optimisers' states."""
    states = [s for o in stage.optimizers.members for state in o.state.values() for s in state.values()]
    trained = storage_bytes(_tensors(stage.model))
    return {
        "weights: policy": trained,
        "weights: critic": storage_bytes(_tensors(stage.modules.get("critic"))),
        "weights: reference": storage_bytes(_tensors(stage.modules.get("reference"))),
        "weights: sampling": storage_bytes([*_tensors(stage.model), *sampling.parameters()]) - trained,
        "optimiser": storage_bytes(s for s in states if isinstance(s, Tensor)),
    }


def _read(count: Count, resident: dict[str, int], gradients: int, optimising: int, saved: int) -> Measured:
    moments = {name: count.peaks[name] - saved for name in (FORWARD, BACKWARD)}
    moments[OPTIMISER] = max(optimising, count.peaks[OPTIMISER]) - saved
    resident = {**resident, "weights: policy": resident["weights: policy"] - saved}
    peak = max(moments.values())
    held = gradients if moments[OPTIMISER] == peak else count.peak_gradients
    parts = {**resident, "gradients": held, "activations": peak - sum(resident.values()) - held}
    return Measured(
        parts={name: size for name, size in parts.items() if size},
        moments=moments,
        resident=resident,
        gradients=gradients,
        flops={name: count.flops[name] for name in (FORWARD, BACKWARD)},
    )
