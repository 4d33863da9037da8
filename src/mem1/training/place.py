"""Where the networks of a run live: in this process as they are, or spread over the ranks.

one process                 the policy that samples is the one that is trained
several, or [distributed]   every rank samples with a whole policy of its own; what is trained is a copy, spread
                            over the ranks, and `publish` brings what it has learnt to the whole one
[lora]                      likewise; what is trained has adapters, and the one that samples has them merged
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from mem1.training.adapters import merged, with_adapters
from mem1.training.distributed import ALONE, Ranks
from mem1.training.distributed_config import Distributed
from mem1.training.lora_config import Lora
from mem1.training.sharding import shard

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One for all stages of a run."""

    ranks: Ranks = ALONE
    config: Distributed | None = None
    """None: as the defaults say on several ranks, and nothing is spread on one."""
    lora: Lora | None = None
    """None: all weights are trained."""

    @property
    def spread(self) -> bool:
        """Whether what is trained is spread over the ranks."""
        return self.ranks.size > 1 or self.config is not None

    @property
    def separate(self) -> bool:
        """Whether what is trained is another model than the policy that samples."""
        return self.spread or self.lora is not None

    def trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """What an optimiser is to move: the model itself, or a copy of it with adapters, spread over the ranks."""
        if not self.separate:
            return model
        trained = copy.deepcopy(model)
        if self.lora is not None:  # before it comes to a device that may have no room for unquantised weights
            trained = with_adapters(trained, self.lora)
        return self.settled(trained.to(self.ranks.device))  # type: ignore[arg-type]  # transformers takes less

    def settled(self, module: M, *, offload: bool = False, full_precision: bool = False) -> M:
        """The module, spread over the ranks in place where networks are; the options are those of `shard`."""
        if self.spread:
            shard(module, self.config or Distributed(), offload=offload, full_precision=full_precision)
        return module

    def workers(self, wanted: int) -> int:
        """Packs at a time: layers that come and go, or whose adapters do, can serve one only."""
        return 1 if self.separate else wanted

    @torch.no_grad()
    def publish(self, trained: PreTrainedModel, policy: PreTrainedModel) -> None:
        """Bring the weights of `trained` to `policy`, in place; every rank must call it."""
        if trained is policy:
            return
        ours = dict(policy.named_parameters())
        for name, weight in merged(trained):
            ours.pop(name).copy_(weight)
        assert not ours


HERE = Place()
"""This process, as it is."""
