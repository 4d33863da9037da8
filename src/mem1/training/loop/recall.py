"""Associative recall on random tokens: the exercise that gives a small transformer its copying heads.

    a b X Y  c d Z W  |  c d -> Z W  a b -> X Y

K pairs of a two-token key and a two-token value, then the same pairs in another order; only the values of the second
half are predicted. The exercise contains nothing about any task.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.training.loop.recipe import Recall
from mem1.training.loop.run_folder import Metrics
from mem1.training.ranks.optimizers import muon, warmup
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.ranks.sharding import as_forward
from mem1.training.weights.policy import Policy

FIRST_TOKEN = 2
"""Padding and the unknown token, which come first, are never drawn."""


@dataclass
class RecallStage:
    """Associative recall on random tokens; step i is a pure function of the weights, the seed and i."""

    policy: Policy
    config: Recall
    seed: int
    placement: Placement = SINGLE_PROCESS
    name: str = "recall"
    modules: Mapping[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.placement.trained(self.policy.model)
        self.optimizers = muon(self.model, self.config.learning_rate, self.config.adam_learning_rate)

    @property
    def steps(self) -> int:
        return self.config.steps

    def step(self, index: int) -> Metrics:
        """One optimiser step."""
        seed = self.seed * 1_000_003 + index
        ids_BT, predicted_BT = recall_batch(self.config, self.policy.codec.vocab_size, seed=seed)
        rows, share = self._share(len(ids_BT))
        loss, right = recall_loss(self.model, ids_BT[rows], predicted_BT[rows])
        (loss * share).backward()
        norm = self.optimizers.step(scale=warmup(index, self.config.warmup))
        parts = self.placement.ranks.gather_json([share * loss.item(), share * right])
        losses, shares_right = zip(*parts, strict=True)
        return {"loss": sum(losses), "token_accuracy": sum(shares_right), "grad_norm": norm}

    def _share(self, rows: int) -> tuple[slice, float]:
        """This rank's rows and their share of all rows, which have equally many tokens to predict."""
        rank, size = self.placement.ranks.rank, self.placement.ranks.size
        start, stop = rows * rank // size, rows * (rank + 1) // size
        if start == stop:  # fewer rows than ranks: compute the first with weight 0, as every rank must take part
            return slice(0, 1), 0.0
        return slice(start, stop), (stop - start) / rows


def recall_batch(config: Recall, vocab_size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences (B, 8K) and a mask of the tokens to predict, of the same shape."""
    pairs = random.Random(f"recall/{seed}").choice(config.pairs)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, config.tokens // (8 * pairs))
    shown_BK4 = torch.randint(FIRST_TOKEN, vocab_size, (rows, pairs, 4), generator=generator)
    order_BK = torch.rand(rows, pairs, generator=generator).argsort(dim=1)
    shuffled_BK4 = shown_BK4.gather(1, order_BK[:, :, None].expand(-1, -1, 4))
    ids_BT = torch.cat([shown_BK4.flatten(1), shuffled_BK4.flatten(1)], dim=1)
    predicted_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    predicted_BT[:, 4 * pairs :] = torch.tensor([False, False, True, True]).repeat(pairs)
    return ids_BT, predicted_BT


def recall_loss(model: PreTrainedModel, ids_BT: Tensor, predicted_BT: Tensor) -> tuple[Tensor, float]:
    """Mean cross-entropy of the tokens to predict, and the share that is predicted correctly."""
    at_BT = predicted_BT[:, 1:]
    targets_M = ids_BT[:, 1:][at_BT].to(model.device)

    def logits() -> Tensor:
        head = model.get_output_embeddings()
        assert head is not None  # a causal language model has one
        hidden_BTD = model.get_decoder()(input_ids=ids_BT.to(model.device), use_cache=False).last_hidden_state
        return head(hidden_BTD[:, :-1][at_BT]).float()

    logits_MV = as_forward(model, logits)
    right = float((logits_MV.argmax(-1) == targets_M).float().mean())
    return torch.nn.functional.cross_entropy(logits_MV, targets_M), right
