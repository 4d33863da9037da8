"""Where the networks of a run live: in this process as they are, or sharded over the ranks.

one process                 the policy that samples is the one that is trained
several, or [distributed]   every rank samples with a whole policy of its own; a copy, sharded over the ranks, is
                            trained, and `sync_to_sampler` copies its weights back
[lora]                      likewise; the trained copy has adapters, and the policy that samples has them merged
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from mem1.engines.device import Computed, dtype_name
from mem1.errors import UserError
from mem1.packing.attention import Backend, choose_attention
from mem1.training.loop.recipe import Distributed, Lora, Recipe
from mem1.training.loop.rl_config import ServerRollouts
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, shard
from mem1.training.weights.adapters import merged, with_adapters

M = TypeVar("M", bound=nn.Module)


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
    """Precision of the policy that samples, where it is a copy; None: that of the trained model."""

    @classmethod
    def of(cls, config: Recipe, ranks: Ranks) -> Placement:
        """The placement of a recipe's run. Raises UserError where `model.attention` or `model.dtype` cannot work."""
        trees = config.sft is not None or (config.rl is not None and config.rl.packed)
        attention = choose_attention(config.model.attention, ranks.device.at, gradients=trees)
        placement = cls(ranks=ranks, config=config.distributed, lora=config.lora, attention=attention)
        if config.model.dtype != "bfloat16":
            return placement
        if isinstance(config.rollout, ServerRollouts):
            raise UserError(
                "model.dtype = 'bfloat16' is for a policy that samples in this process; with [rollout] engine = "
                "'servers' leave it out, and start the servers with the precision you want"
            )
        if not placement.separate or ranks.device.workers(config.workers) > 1:
            raise UserError(
                "model.dtype = 'bfloat16' needs a policy that samples as a copy of the one trained in float32: add "
                "[lora] or [distributed], with workers = 1, or leave model.dtype out"
            )
        return replace(placement, sampling=torch.bfloat16)

    @property
    def computed(self) -> Computed:
        apart = "" if self.sampling is None else f", sampling in {dtype_name(self.sampling)}"
        return Computed(device=str(self.ranks.device), dtype=f"float32{apart}", attention=self.attention)

    @property
    def spread(self) -> bool:
        """Whether the trained networks are sharded over the ranks."""
        return self.ranks.size > 1 or self.config is not None

    @property
    def separate(self) -> bool:
        """Whether the trained model is a copy of the policy that samples."""
        return self.spread or self.lora is not None

    def trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model for the optimiser: the policy itself, or a copy with adapters, sharded over the ranks."""
        if not self.separate:
            return model
        trained = copy.deepcopy(model)
        if self.lora is not None:  # before it moves to a device that may lack memory for unquantised weights
            trained = with_adapters(trained, self.lora)
        return self.shard_(trained)

    def shard_(self, module: M, *, offload: bool = False, full_precision: bool = False) -> M:
        """The module on this rank's device, spread over the ranks where networks are; options as of `shard`."""
        module.to(self.ranks.device.at)
        if self.spread:
            shard(module, self.config or Distributed(), offload=offload, full_precision=full_precision)
        return module

    def workers(self, wanted: int) -> int:
        """Packs at a time: layers that come and go, or whose adapters do, can serve one only."""
        return 1 if self.separate else self.ranks.device.workers(wanted)

    @torch.no_grad()
    def sync_to_sampler(self, trained: PreTrainedModel, policy: PreTrainedModel, *, exactly: bool = False) -> None:
        """Copy the weights of `trained` into `policy`; every rank must call it.

        exactly     in their own precision, to be saved or trained further; else in the precision of sampling
        """
        if trained is policy:
            return
        dtype = trained.dtype if exactly or self.sampling is None else self.sampling
        policy.to(dtype)  # type: ignore[arg-type]  # transformers takes less
        ours = dict(policy.named_parameters())
        for name, weight in merged(trained):
            ours.pop(name).copy_(weight)
        assert not ours


SINGLE_PROCESS = Placement()
"""No sharding, no copy."""
