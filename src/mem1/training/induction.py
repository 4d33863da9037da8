"""A small transformer that copies before it has learnt anything: induction heads, written down and not trained.

    ... and asteroid 6469 Armstrong ... and asteroid   ->   6469

layer 0         one head looks one token back and writes what it sees, by a random projection, into directions that
                no embedding has
layers 1, 2     heads whose query is the current token and whose key is the token before: they find where the current
                token stood earlier, and add the token that followed it there to the output
layer 2         the last half of its heads compare the tokens before instead: they find what followed the previous
                token, whatever the current one is ("asteroid =" is followed by 6469)

All other outputs of layers begin at zero, so that nothing disturbs it. Matching uses the slowly turning half of the
rotary pairs, so it does not depend on the distance. Source: Olsson et al. 2022 (In-context learning and induction
heads, arXiv 2209.11895).

Letters: D width, h of a head, R of the directions of embeddings, V vocabulary.
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
_WRITE = 0.1
"""Of the previous token's projection, beside an embedding of length 1."""
_SHARPNESS = 5.0
"""Of queries and of keys; scores of matches grow with its square."""
_COPY = 0.25
"""Of what a head adds to the output."""


@torch.no_grad()
def write_induction(model: PreTrainedModel, config: TinyModel, *, seed: int) -> None:
    """Set the weights of a new model, in place; its look-back head of distance 1 is there already (`models.py`)."""
    draw = torch.Generator().manual_seed(seed)
    D, h = config.hidden_size, config.hidden_size // config.heads
    whole_DD = torch.linalg.qr(torch.randn(D, D, generator=draw))[0]
    write_Dh, rest_DR = whole_DD[:, :h], whole_DD[:, h:]
    embedding: Any = model.get_input_embeddings()
    drawn_VR = torch.randn(len(embedding.weight), D - h, generator=draw) / math.sqrt(D - h)
    embedding.weight.copy_(drawn_VR @ rest_DR.T)
    layers: Any = model.get_decoder().layers
    for layer in layers:
        layer.mlp.down_proj.weight.zero_()
        layer.self_attn.o_proj.weight.zero_()
        layer.self_attn.v_proj.bias.zero_()
    read_hD = _directions(rest_DR, h, draw).T
    back = layers[0].self_attn
    back.q_proj.weight[:h], back.k_proj.weight[:h] = 0.0, 0.0
    back.v_proj.weight[:h], back.o_proj.weight[:, :h] = read_hD, _WRITE * write_Dh
    steady = _steady(h)
    for number in (1, 2):
        attention = layers[number].self_attn
        for head in range(config.heads):
            previous = number == 2 and head >= config.heads // 2
            compared = torch.randn(len(steady), h, generator=draw) / math.sqrt(h)
            rows = slice(head * h, (head + 1) * h)
            key_hD = _placed(compared @ write_Dh.T, steady, h)
            query_hD = key_hD if previous else _placed(compared @ read_hD, steady, h)
            copied_Dh = _directions(rest_DR, h, draw)
            attention.q_proj.weight[rows] = _SHARPNESS * query_hD
            attention.k_proj.weight[rows] = _SHARPNESS * key_hD
            attention.v_proj.weight[rows] = copied_Dh.T
            attention.o_proj.weight[:, rows] = _COPY * copied_Dh


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
