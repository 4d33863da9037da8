"""Associative recall on random tokens: the exercise that gives a small transformer its copying heads.

    a b X Y  c d Z W  |  c d -> Z W  a b -> X Y

K pairs of a two-token key and a two-token value, then the same pairs in another order; only the values of the second
half are predicted. The exercise contains nothing about any task.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.training.loop.recipe import Recall
from mem1.training.ranks.sharding import as_forward

FIRST_TOKEN = 2
"""Padding and the unknown token, which come first, are never drawn."""


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
