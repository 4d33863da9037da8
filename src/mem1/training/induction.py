"""A small transformer that copies before it has learnt anything: induction heads, written down and not trained.

    ... and asteroid 6469 Armstrong ... and asteroid   ->   6469

layer 0         two heads look one and two tokens back and write what they see, by a random projection, into directions
                that no embedding has, each into its own
layers 1, 2     heads that compare the current token and the one before it with the two tokens before each other place:
                they find where both stood earlier, and add the token that followed them there to the output
layer 2         the last half of its heads compare the tokens before instead: they find what followed the previous
                token, whatever the current one is ("asteroid =" is followed by 6469)

All other outputs of layers begin at zero, so that nothing disturbs it. Matching uses the slowly turning half of the
rotary pairs, so it does not depend on the distance. Source: Olsson et al. 2022 (In-context learning and induction
heads, arXiv 2209.11895).

Letters: D width, h of a head, W of a projection, R of the directions of embeddings, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.training.model_config import TinyModel

_STEADY = 0.42
"""From this share of a head's rotary pairs on, they turn so slowly that they compare contents."""
_PROJECTED = 2 / 3
"""Numbers of a projection, over those of a head."""
_WRITE = 0.1
"""Of a projection, beside an embedding of length 1."""
_SHARPNESS = 4.0
"""Of queries and of keys; scores of matches grow with its square."""


@torch.no_grad()
def write_induction(model: PreTrainedModel, config: TinyModel, *, seed: int) -> None:
    """Set the weights of a new model, in place; its look-back heads of layer 0 are there already (`models.py`)."""
    draw = torch.Generator().manual_seed(seed)
    D, h = config.hidden_size, config.hidden_size // config.heads
    W = int(h * _PROJECTED)
    whole_DD = torch.linalg.qr(torch.randn(D, D, generator=draw))[0]
    first_DW, second_DW, rest_DR = whole_DD.split((W, W, D - 2 * W), dim=1)
    embedding: Any = model.get_input_embeddings()
    drawn_VR = torch.randn(len(embedding.weight), rest_DR.shape[1], generator=draw) / math.sqrt(rest_DR.shape[1])
    embedding.weight.copy_(drawn_VR @ rest_DR.T)
    layers: Any = model.get_decoder().layers
    for layer in layers:
        layer.mlp.down_proj.weight.zero_()
        layer.self_attn.o_proj.weight.zero_()
        layer.self_attn.v_proj.bias.zero_()
    read_WD = _directions(rest_DR, W, draw).T
    back = layers[0].self_attn
    for head, write_DW in enumerate((first_DW, second_DW)):
        rows, used = slice(head * h, (head + 1) * h), slice(head * h, head * h + W)
        for projection in (back.q_proj, back.k_proj, back.v_proj):
            projection.weight[rows] = 0.0
        back.v_proj.weight[used], back.o_proj.weight[:, used] = read_WD, _WRITE * write_DW
    steady = _steady(h)
    for number in (1, 2):
        for head in range(config.heads):
            one, two = (torch.randn(len(steady), W, generator=draw) / math.sqrt(W) for _ in range(2))
            if number == 2 and head >= config.heads // 2:
                query = key = one @ first_DW.T
            else:
                query, key = one @ read_WD + two @ first_DW.T, one @ first_DW.T + two @ second_DW.T
            attention, rows = layers[number].self_attn, slice(head * h, (head + 1) * h)
            copied_Dh = _directions(rest_DR, h, draw)
            attention.q_proj.weight[rows] = _SHARPNESS * _placed(query, steady, h)
            attention.k_proj.weight[rows] = _SHARPNESS * _placed(key, steady, h)
            attention.v_proj.weight[rows], attention.o_proj.weight[:, rows] = copied_Dh.T, copied_Dh


def _directions(within_DR: Tensor, h: int, draw: torch.Generator) -> Tensor:
    """(D, h) orthonormal columns, drawn from the span of those given."""
    return within_DR @ torch.linalg.qr(torch.randn(within_DR.shape[1], h, generator=draw))[0]


def _steady(h: int) -> list[int]:
    """Numbers of a head that turn slowly; rotary embeddings pair number i with i + h / 2."""
    half = h // 2
    pairs = range(int(half * _STEADY), half)
    return [*pairs, *(i + half for i in pairs)]


def _placed(rows: Tensor, numbers: list[int], h: int) -> Tensor:
    """(h, D) with these rows at these numbers, and zeros elsewhere."""
    placed = torch.zeros(h, rows.shape[1])
    placed[numbers] = rows
    return placed
