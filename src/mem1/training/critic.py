"""The critic of PPO: the value of the state before each sampled token, on the same contexts as the policy.

    head       V = w h + b,  h the policy's last hidden state before the token
    separate   the same on a copy of the policy's trunk, which has weights and learning of its own

The value is read where the token's logit is read too: at the tree's `parent` of the token. So a value sees exactly
what the policy saw, in every context policy. A new critic says 0 everywhere.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.training.ranks.placement import Placement
from mem1.training.rl_config import Ppo


class Critic(nn.Module):
    """Its weights are those that `Ppo.critic_learning_rate` is for, and that a checkpoint must hold."""

    def __init__(self, config: Ppo, policy: PreTrainedModel) -> None:
        """`policy` is left as it is; "separate" copies its trunk as it stands."""
        super().__init__()
        self.trunk: PreTrainedModel | None = None
        if config.critic == "separate":
            self.trunk = copy.deepcopy(policy.get_decoder())
        self.trunk_gradient = config.trunk_gradient
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def settle(self, place: Placement) -> None:
        """Spread over the ranks, where networks are; the head keeps its precision."""
        if self.trunk is not None:
            place.shard_(self.trunk)
        place.shard_(self, full_precision=True)

    def values(self, states_MD: Tensor) -> Tensor:
        """Values (M,) of states of the trunk that this critic stands on: its own, else the policy's."""
        if self.trunk is None:
            held_MD = states_MD.detach()
            states_MD = held_MD + self.trunk_gradient * (states_MD - held_MD)
        return self.head(states_MD.to(self.head.weight.dtype))[:, 0]

    @torch.no_grad()
    def centre(self, errors_M: Tensor) -> float:
        """Move the bias to its best value on tokens whose returns exceed their values by `errors_M`; by how much.

        The mean return moves faster than an optimiser's steps. Left to them, the weights follow it along the mean of
        the states, and the values vary with whatever else varies in that direction.
        """
        shift = float(errors_M.mean().to(self.head.bias.dtype))
        self.head.bias.add_(shift)
        return shift
