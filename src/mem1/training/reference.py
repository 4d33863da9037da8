"""The policy from which reinforcement learning started, frozen, and what the distance from it costs.

A module, so that a checkpoint holds both: a resumed run must not take the policy that it finds for the reference.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.algorithms.kl import adapted
from mem1.training.ranks.placement import Placement
from mem1.training.rl_config import Kl


class Reference(nn.Module):
    """A frozen copy of the policy, with the coefficient of the KL penalty."""

    coefficient: Tensor
    """Scalar, float64; adapted after each step where there is a target."""

    def __init__(self, config: Kl, policy: PreTrainedModel | None) -> None:
        """`policy` None: the policy without its adapters is the reference, and no copy is needed."""
        super().__init__()
        self.config = config
        self.model = None if policy is None else copy.deepcopy(policy).requires_grad_(False)
        self.register_buffer("coefficient", torch.tensor(config.coefficient, dtype=torch.float64))

    def settle(self, place: Placement) -> None:
        """Spread over the ranks, where networks are."""
        if self.model is None:
            return
        place.shard_(self.model, offload=place.config is not None and place.config.reference_offload)

    def adapt(self, measured: float) -> None:
        """After a step whose mean KL was `measured`, in nats a token."""
        if self.config.target is None:
            return
        after = adapted(
            self.coefficient.item(), measured=measured, target=self.config.target, horizon=self.config.horizon
        )
        self.coefficient.fill_(after)
