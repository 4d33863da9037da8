"""Where the networks of a run live: in this process as they are, or sharded over the ranks.

one process                 the policy that samples is the one that is trained
several, or [distributed]   every rank samples with a whole policy of its own; a copy, sharded over the ranks, is
                            trained, and `sync_to_sampler` copies its weights back
[lora]                      in one process the policy gets adapters and samples with them: nothing is copied. Sharded,
                            in bf16 or with workers, it samples as a copy in which they are merged
model.dtype = "bfloat16"    a copy in bf16 samples
servers sample              the trained model takes the policy's weights over, which has none until `hand_back`

Where training computes in bf16, one process does so by autocast, and sharded networks by FSDP's own mixed precision.
What is left in fp32 is no work: norms, softmax, the rotary angles. So TF32 stays off. It would gain nothing, and round
the positions beyond 2,048 from which transformers computes the angles by a product (transformers #48428).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from mem1.engines.device import Computed, Device, Machine, dtype_name
from mem1.errors import UserError
from mem1.packing.attention import Backend, choose_attention
from mem1.policy.folders import SHIPPED, SHIPPED_FOLDERS, policy_folder
from mem1.policy.policy import load_config
from mem1.recipe.model import Distributed, Lora
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.training.ranks.adapters import gather_along, merge_adapters, merged, with_adapters
from mem1.training.ranks.layers import compiled, recomputed
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, joined, shard

M = TypeVar("M", bound=nn.Module)


def joined_for(config: Recipe, machine: Machine | None = None) -> AbstractContextManager[Ranks]:
    """The processes that train this recipe together, as `joined` has them; [distributed] makes even one a group."""
    return joined(grouped=config.distributed is not None, device=config.model.device, machine=machine)


NARROW = 512
"""Hidden size below which a model is trained in fp32 unless told otherwise."""


def trains_in_bfloat16(config: Recipe, device: Device) -> bool:
    """What `model.training_dtype` means on this device."""
    if config.model.training_dtype != "auto":
        return config.model.training_dtype == "bfloat16"
    return device.bfloat16 and not _is_narrow(config)


def _is_narrow(config: Recipe) -> bool:
    """Whether the model's products are too small to gain from bf16; one that is not there is taken for wide."""
    path = config.model.path or SHIPPED
    if config.model.new is not None or path in SHIPPED_FOLDERS:
        return True
    try:
        shape = load_config(policy_folder(path)).get_text_config()
    except UserError:  # what loads it will say so
        return False
    return getattr(shape, "hidden_size", NARROW) < NARROW


def samples_in_bfloat16(config: Recipe, device: Device) -> bool:
    """What `model.dtype` means for the policy that samples while another is trained on this device."""
    if config.model.dtype != "auto":
        return config.model.dtype == "bfloat16"
    return trains_in_bfloat16(config, device)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The same for all stages of a run."""

    ranks: Ranks = ONE_PROCESS
    config: Distributed | None = None
    """None: the defaults on several ranks, no sharding on one."""
    lora: Lora | None = None
    """None: all weights are trained."""
    attention: Backend = "blocks"
    """Attention back-end over token trees, for every network."""
    sampling: torch.dtype | None = None
    """Precision of the policy that samples, where it is a copy or on servers; None: that of the trained model."""
    applied: bool = False
    """Whether the policy samples with its adapters applied, not merged into a copy; it is then the trained model."""
    half: bool = False
    """Whether the passes of training compute in bf16; weights, gradients and optimiser are fp32 all the same."""
    recompute: bool = False
    """Whether layers are computed again in the backward pass, which then needs no activations of theirs."""
    compile: bool = False
    """Whether layers are computed as compiled graphs."""
    served: bool = False
    """Whether servers sample, and this process needs no policy besides the trained one."""

    @classmethod
    def of(cls, config: Recipe, ranks: Ranks) -> Placement:
        """The placement of a recipe's run. Raises UserError where `model.attention` or `model.dtype` cannot work."""
        trees = config.sft is not None or (config.rl is not None and config.rl.packed)
        attention = choose_attention(config.model.attention, ranks.device.at, gradients=trees)
        placement = cls(
            ranks=ranks,
            config=config.distributed,
            lora=config.lora,
            attention=attention,
            half=trains_in_bfloat16(config, ranks.device),
            recompute=bool(config.model.activation_checkpointing),
            compile=config.model.compile,
        )
        if placement.compile and (attention != "flex" or not trees):
            raise UserError(
                "model.compile is for FlexAttention over token trees, on CUDA; elsewhere each pack would be compiled "
                "anew: leave it out"
            )
        if placement.compile and config.lora is not None and config.lora.quantize is not None:
            raise UserError("layers in 4 bits are not compiled: leave out model.compile or lora.quantize")
        if isinstance(config.rollout, ServerRollouts):
            if config.model.dtype == "bfloat16":
                raise UserError(
                    "model.dtype = 'bfloat16' is for a policy that samples in this process; with [rollout] engine = "
                    "'servers' set rollout.publish_dtype, and start the servers with the precision you want"
                )
            published = torch.bfloat16 if config.rollout.published_dtype == "bfloat16" else None
            return replace(placement, served=config.rl is not None, sampling=published)
        if samples_in_bfloat16(config, ranks.device):
            return replace(placement, sampling=torch.bfloat16)
        alone = config.lora is not None and not placement.spread and ranks.device.workers(config.workers) == 1
        return replace(placement, applied=alone)

    @property
    def computed(self) -> Computed:
        apart = ", training in bfloat16" if self.half else ""
        if self.sampling is not None:
            apart += f", sampling in {dtype_name(self.sampling)}{' on servers' if self.served else ''}"
        how = f"{self.attention}, compiled" if self.compile else self.attention
        return Computed(device=str(self.ranks.device), dtype=f"float32{apart}", attention=how)

    @property
    def spread(self) -> bool:
        """Whether the trained networks are sharded over the ranks."""
        return self.ranks.size > 1 or self.config is not None

    @property
    def separate(self) -> bool:
        """Whether the trained model is a copy of the policy that samples."""
        if self.applied:
            return False
        return self.spread or self.lora is not None or (self.sampling is not None and not self.served)

    def trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model for the optimiser: the policy itself, or a copy with adapters, sharded over the ranks."""
        if self.applied and self.lora is not None:
            return self.shard_(with_adapters(model, self.lora))
        if not self.separate:
            return model
        trained = _take_over(model) if self.served else self.copied(model)
        if self.lora is not None:  # before it moves to a device that may lack memory for unquantised weights
            trained = with_adapters(trained, self.lora)
        return self.shard_(trained)

    def shard_(self, module: M, *, offload: bool = False, full_precision: bool = False) -> M:
        """The module on this rank's device, spread over the ranks where networks are; options as of `shard`."""
        if not self.spread or any(not p.is_floating_point() for p in module.parameters()):
            module.to(self.ranks.device.at)  # weights in 4 bits too, which are not sharded
        if self.spread:  # moves one layer at a time, and keeps this rank's rows of it
            config, device = self.config or Distributed(), self.ranks.device.at
            shard(module, config, device=device, offload=offload, half=self.half and not full_precision)
        return module

    @contextmanager
    def passes(self, model: nn.Module) -> Iterator[None]:
        """Inside, this network computes as training has it, in its precision; its backward pass may run outside."""
        kind = next(model.parameters()).device.type
        graphs = compiled(model) if self.compile else nullcontext()
        precision = nullcontext()
        if self.half and not self.spread:  # each weight is used once: a cache would only hold them all in bf16
            precision = torch.autocast(kind, torch.bfloat16, cache_enabled=False)
        with graphs, recomputed(model) if self.recompute else nullcontext(), precision:
            yield

    def copied(self, module: M) -> M:
        """A copy for `shard_`; where that spreads it, weights share the memory of `module` until rows are taken."""
        if not self.spread:
            return copy.deepcopy(module)
        shared = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in module.parameters()}
        return copy.deepcopy(module, shared)

    def workers(self, wanted: int) -> int:
        """Packs at a time: layers that come, go or change, or whose adapters do, can serve one only."""
        return (
            1 if self.separate or self.applied or self.recompute or self.compile else self.ranks.device.workers(wanted)
        )

    def sync_to_sampler(self, trained: PreTrainedModel, policy: PreTrainedModel) -> None:
        """Copy the weights of `trained` into `policy`, in the precision of sampling; every rank must call it."""
        self._copy(trained, policy, self.sampling or trained.dtype)

    def hand_back(self, trained: PreTrainedModel, policy: PreTrainedModel, *, last: bool = True) -> None:
        """Give `policy` the weights of `trained` exactly, to be saved or trained further; every rank must call it.

        last    whether no stage follows; where servers sample, only rank 0 then holds the whole policy
        """
        if self.applied:
            merge_adapters(policy)
        elif not (self.served and self.separate):
            self._copy(trained, policy, trained.dtype)
        elif last and self.ranks.rank:
            gather_along(trained)
        else:
            ours = dict(policy.named_parameters())
            given = {ours[name]: nn.Parameter(weight.detach().cpu()) for name, weight in merged(trained)}
            _exchange(policy, given)

    def exact_weights(self, trained: PreTrainedModel, policy: PreTrainedModel) -> dict[str, torch.Tensor] | None:
        """The exact weights of the plain policy, to be saved while training goes on; every rank must call it.

        None: `policy` itself has them now.
        """
        if self.applied:
            return {name: weight.detach().cpu() for name, weight in merged(trained)}
        self.hand_back(trained, policy)
        return None

    @torch.no_grad()
    def _copy(self, trained: PreTrainedModel, policy: PreTrainedModel, dtype: torch.dtype) -> None:
        if trained is policy:
            return
        policy.to(dtype)  # type: ignore[arg-type]  # transformers takes less
        ours = dict(policy.named_parameters())
        for name, weight in merged(trained):
            ours.pop(name).copy_(weight)
        assert not ours


def _take_over(model: M) -> M:
    """A model with the parameters of `model`, which is left with the meta device's."""
    parameters = list(model.parameters())
    taken = copy.deepcopy(model, {id(p): p for p in parameters})
    _exchange(model, {p: nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in parameters})
    return taken


def _exchange(model: nn.Module, others: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Put another parameter in the place of each, in place; tied ones stay tied."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, others[parameter])


SINGLE_PROCESS = Placement()
"""No sharding, no copy."""
