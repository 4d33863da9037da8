"""Where the networks of a run live: in this process as they are, or spread over the ranks.

one process                 the policy that samples is the one that is trained
several, or [distributed]   every rank samples with a whole policy of its own; what is trained is a copy, spread
                            over the ranks, and `publish` brings what it has learnt to the whole one
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from mem1.training.distributed import ALONE, Ranks
from mem1.training.distributed_config import Distributed
from mem1.training.sharding import shard, whole

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One for all stages of a run."""

    ranks: Ranks = ALONE
    config: Distributed | None = None
    """None: as the defaults say on several ranks, and nothing is spread on one."""

    @property
    def spread(self) -> bool:
        """Whether what is trained is spread over the ranks."""
        return self.ranks.size > 1 or self.config is not None

    def trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """What an optimiser is to move: the model itself, or a copy of it that is spread over the ranks."""
        return self.settled(copy.deepcopy(model)) if self.spread else model

    def settled(self, module: M, *, offload: bool = False, full_precision: bool = False) -> M:
        """The module, spread over the ranks in place where networks are; the options are those of `shard`."""
        if self.spread:
            shard(module, self.config or Distributed(), offload=offload, full_precision=full_precision)
        return module

    def workers(self, wanted: int) -> int:
        """Packs at a time: layers that come and go can serve one only."""
        return 1 if self.spread else wanted

    @torch.no_grad()
    def publish(self, trained: PreTrainedModel, policy: PreTrainedModel) -> None:
        """Bring the weights of `trained` to `policy`, in place; every rank must call it."""
        if trained is policy:
            return
        for ours, theirs in zip(policy.parameters(), trained.parameters(), strict=True):
            ours.copy_(whole(theirs))


HERE = Place()
"""This process, as it is."""
