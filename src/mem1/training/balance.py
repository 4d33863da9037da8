"""Which rank computes which packs of an optimiser step.

Ranks that share weights go through a step in lockstep: in each round every rank has one pack, and the round takes as
long as its dearest. So packs of like cost make a round: sorted by cost, dealt in turn. Where the last round has too
few, a rank goes through the cheapest pack again, with a loss of weight 0, since the others wait for its part of the
weights.

    costs 9 2 8 1 3 on 2 ranks  ->  rounds (0, 2), (4, 1), (3, 3 again)

Cost is work, not number: products with the weights for each token, and with keys and values for each pair of tokens
that see one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from mem1.packing import Pack, pack
from mem1.records import Trajectory
from mem1.training.ranks.sharding import layers


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of a rank."""

    pack: int
    """Which of the step's packs."""
    counts: bool = True
    """False: another rank's, gone through again for company."""


def deal(costs: Sequence[float], ranks: int) -> list[list[Pass]]:
    """Per rank its passes, as many for each; no packs, no passes."""
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    passes: list[list[Pass]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), ranks):
        own = order[start : start + ranks]
        for rank in range(ranks):
            passes[rank].append(Pass(own[rank]) if rank < len(own) else Pass(order[-1], counts=False))
    return passes


def costs(packs: Sequence[Pack], trajectories: Sequence[Trajectory], model: PreTrainedModel) -> list[float]:
    """Multiplications of each pack's forward pass, in units of those of one token with all weights of the layers.

    A pair of tokens costs 2 D a layer (scores and values; D the width of all heads), a token the layer's weights.
    """
    per_token = max(1.0, float(sum(p.numel() for layer in layers(model) for p in _matrices(layer))))
    text = model.config.get_text_config()
    width = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    per_pair = 2.0 * width * text.num_hidden_layers / per_token
    sizes = [_size([piece.of(trajectories) for piece in packed]) for packed in packs]
    return [tokens + pairs * per_pair for tokens, pairs in sizes]


def _matrices(layer: nn.Module) -> list[nn.Parameter]:
    return [p for p in layer.parameters() if p.ndim == 2]


def _size(trajectories: Sequence[Trajectory]) -> tuple[int, int]:
    """Tokens of the tree, and pairs of them of which one sees the other."""
    tree = pack(trajectories)
    return len(tree), int((tree.position_ids + 1).sum())
