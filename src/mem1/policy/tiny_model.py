"""A small Qwen2 made from scratch, with heads that help it to copy.

A small transformer does not learn to copy within minutes on its own. It does with heads that look a few tokens back: in
layers 0 and 1, one per distance (such as 1 and 2), set by biases instead of training. With `induction` it copies from
the start, by induction heads whose weights are written instead of trained:

    ... and asteroid 6469 Armstrong ... and asteroid        ->   6469
    ... and asteroid ____ Armstrong ... and asteroid "->"   ->   6469, and not ____

layer 0     Four heads look one, two, five and six tokens back. Each writes a random projection of what it sees into its
            own directions, which no embedding uses.
layer 1     Copying heads compare the current token, the one before it and the one five before it with the tokens one,
            two and six before each earlier position. They find where all three occurred before, and add the token
            that followed there to the output. Three tokens that reach this far distinguish repeated phrases as well as
            five in a row would.
            The second to last head compares only the tokens before, so it finds what followed the previous tokens,
            whatever the current one is. Usually that is the current token itself, which the copying heads subtract; a
            mark such as "->" finds neither itself nor a blank, but the answer.
layer 2     The copying heads again, with a small weight: layer 1 has added the next token, so they look for that one.
            Training decides how to use it.

Embeddings of tokens that begin alike, such as capitalised words, share a part, so that what is learnt about one holds
for all. All other outputs of layers start at zero and disturb nothing. Matching uses the slowly turning half of
the rotary pairs, so it does not depend on the distance. Source: Olsson et al. 2022 (In-context learning and induction
heads, arXiv 2209.11895); the head for marks is our own.

Letters: D width, h numbers of a head, W of a projection, R directions of embeddings, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mem1.policy.tokenizers import ALIKE, TokenKinds
from mem1.recipe.model import TinyModel


def new_model(config: TinyModel, *, vocab_size: int, seed: int, kinds: TokenKinds = ALIKE) -> PreTrainedModel:
    """A Qwen2 with random weights, tied embeddings and look-back heads, determined by the seed.

    `kinds` matters only with `config.induction`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(qwen_config(config, vocab_size=vocab_size))
    for layer in model.model.layers[: 1 if config.induction else 2]:
        for head, distance in enumerate(config.look_back):
            look_back(layer.self_attn, head, distance, config)
    if config.induction:
        write_induction(model, config, kinds, seed=seed)
    return model


def qwen_config(config: TinyModel, *, vocab_size: int) -> Qwen2Config:
    """The shape of such a model."""
    return Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.feed_forward,
        max_position_embeddings=config.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )


@torch.no_grad()
def look_back(attention: Any, head: int, distance: int, config: TinyModel) -> None:
    """Set the biases of one head so that their score is largest `distance` tokens back; 0: at the token itself.

    A score of biases alone depends on the distance d only, sum_i a_i cos(theta_i (d - d0)), which has its maximum at
    d = d0.
    """
    size = attention.head_dim
    half = size // 2
    theta = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) * 2 / size)
    rows = slice(head * size, (head + 1) * size)
    strength = config.look_back_strength
    key = torch.cat([torch.full((half,), strength), torch.zeros(half)])
    # rotating the query by -theta * distance makes rotary scores peak at that distance
    query = torch.cat([strength * torch.cos(-theta * distance), strength * torch.sin(-theta * distance)])
    attention.k_proj.bias[rows] = key.to(attention.k_proj.bias.dtype)
    attention.q_proj.bias[rows] = query.to(attention.q_proj.bias.dtype)


# The weights of induction heads are written, not trained; these numbers are empirical (research/cloze.md). Widths:
_STEADY = 0.42
"""Share of a head's rotary pairs that is left out of matching: the others turn slowly enough to compare contents."""
_PROJECTED = 0.45
"""Width of a projection, as a share of a head's width."""
# Lengths of vectors, beside an embedding of length 1:
_WRITE = 0.05
"""Length of a projection that layer 0 writes into the residual stream."""
_KIND = 0.5
"""Length of the part that embeddings of tokens of one kind have in common."""
_MARK = 0.7
"""Length of the part of a mark's embedding that identifies marks."""
# Factors of queries and keys; scores grow with their squares:
_WEIGHTS = (1.2, 0.84, 0.72)
"""Weights of the compared tokens, the nearest first."""
_SHARPNESS = 3.0
"""Factor where a token is compared with a projection."""
_SHARPNESS_BEFORE = 10.0
"""Factor where both sides are projections."""
_ITSELF = 2.5
"""Factor of a token's match with itself, in the head that compares the tokens before."""
_REFUSED = 12.0
"""Factor that keeps a head away from marks."""
_SETTLED = 8.0
"""Factor that keeps a copying head on the mark itself."""
# Factors of outputs:
_COPY, _COPY_AGAIN, _COPY_BEFORE = 1.0, 0.1, 1.5
"""Output of the copying heads of layer 1, of layer 2, and of the head that compares the tokens before."""
_GAIN = 2.0
"""Gain of the last norm: puts the logit of a confident copy well above the others."""


@torch.no_grad()
def write_induction(model: PreTrainedModel, config: TinyModel, kinds: TokenKinds, *, seed: int) -> None:
    """Set the weights of a new model, in place; it has its look-back heads in layer 0 already."""
    decoder: Any = model.get_decoder()
    for layer in decoder.layers:
        layer.mlp.down_proj.weight.zero_()
        layer.self_attn.o_proj.weight.zero_()
        layer.self_attn.v_proj.bias.zero_()
    decoder.norm.weight.fill_(_GAIN)
    space = _Space.drawn(config, seed)
    embedding: Any = model.get_input_embeddings()
    embedding.weight.copy_(space.embeddings(len(embedding.weight), kinds))
    back = _Heads(decoder.layers[0].self_attn, space)
    for head, write_DW in enumerate(space.before):
        back.write(head, space.read_WD.T, _WRITE * write_DW)
    for number in (1, 2):
        heads = _Heads(decoder.layers[number].self_attn, space)
        found_D = None if kinds.found is None else embedding.weight[kinds.found]
        for head in range(config.heads - 2):
            heads.copy_what_followed(head, found_D, _COPY if number == 1 else _COPY_AGAIN)
        if number == 1:
            heads.copy_what_followed_the_tokens_before(config.heads - 2, config)


@dataclass(frozen=True)
class _Space:
    """What each direction of the residual stream holds."""

    draw: torch.Generator
    head_size: int
    before: Sequence[Tensor]
    """(D, W) each: directions for the token one, two, five and six back."""
    mark_D: Tensor
    """Direction of marks, which are never answers."""
    found_D: Tensor
    """Direction of the mark that precedes an answer."""
    rest_DR: Tensor
    """Directions of embeddings."""
    read_WD: Tensor
    """Projection of an embedding, as layer 0 writes it for later tokens."""

    @classmethod
    def drawn(cls, config: TinyModel, seed: int) -> _Space:
        draw = torch.Generator().manual_seed(seed)
        D, h = config.hidden_size, config.hidden_size // config.heads
        W = int(h * _PROJECTED)
        whole_DD = torch.linalg.qr(torch.randn(D, D, generator=draw))[0]
        *before, mark_D1, found_D1, rest_DR = whole_DD.split([W] * 4 + [1, 1, D - 4 * W - 2], dim=1)
        read_WD = _directions(rest_DR, W, draw).T
        return cls(draw, h, before, mark_D1[:, 0], found_D1[:, 0], rest_DR, read_WD)

    def embeddings(self, V: int, kinds: TokenKinds) -> Tensor:
        """(V, D), of length about 1."""
        R = self.rest_DR.shape[1]
        drawn_VR = torch.randn(V, R, generator=self.draw) / math.sqrt(R)
        if kinds.kind:
            common = torch.randn(max(kinds.kind) + 1, R, generator=self.draw)
            common_VR = torch.nn.functional.normalize(common, dim=1)[list(kinds.kind)]
            drawn_VR = math.sqrt(1 - _KIND**2) * drawn_VR + _KIND * common_VR
        embeddings_VD = drawn_VR @ self.rest_DR.T
        for token in kinds.blank:
            embeddings_VD[token] = _MARK * (embeddings_VD[token] + self.mark_D)
        if kinds.found is not None:
            half_D = (self.mark_D + self.found_D) / math.sqrt(2)
            embeddings_VD[kinds.found] = _MARK * (embeddings_VD[kinds.found] + half_D)
        return embeddings_VD


@dataclass(frozen=True)
class _Heads:
    """The heads of one layer."""

    attention: Any
    space: _Space

    def write(self, head: int, value_Dw: Tensor, output_Dw: Tensor) -> None:
        """Copy from the position that the biases alone select."""
        for projection in (self.attention.q_proj, self.attention.k_proj):
            projection.weight[self._rows(head)] = 0.0
        self.write_values(head, value_Dw, output_Dw)

    def write_values(self, head: int, value_Dw: Tensor, output_Dw: Tensor) -> None:
        """Set what is read at the selected position and what is written; numbers of the head beyond w stay zero."""
        first, w = head * self.space.head_size, value_Dw.shape[1]
        self.attention.v_proj.weight[self._rows(head)] = 0.0
        self.attention.v_proj.weight[first : first + w] = value_Dw.T
        self.attention.o_proj.weight[:, first : first + w] = output_Dw

    def copy_what_followed(self, head: int, found_D: Tensor | None, strength: float) -> None:
        """Copy the token that followed where the current token and those one and five before it occurred earlier; after
        the mark with this embedding, nothing."""
        space, steady = self.space, _steady(self.space.head_size)
        one, two, six = projections = self._projections(len(steady))
        one_back, _, five_back, _ = space.before
        key = self._of_the_tokens_before(projections)
        query = one @ space.read_WD + two @ one_back.T + six @ five_back.T
        copied_Dh = _directions(space.rest_DR, space.head_size, space.draw)
        self._compare(head, _SHARPNESS * query, _SHARPNESS * key)
        if found_D is not None:  # the mark attends to itself, where nothing is copied
            for projection in (self.attention.q_proj, self.attention.k_proj):
                projection.weight[head * space.head_size + steady[-2]] = _SETTLED * space.found_D
            mark_D = torch.nn.functional.normalize(space.rest_DR @ (space.rest_DR.T @ found_D), dim=0)
            copied_Dh = copied_Dh - torch.outer(mark_D, mark_D @ copied_Dh)
        self.write_values(head, copied_Dh, strength * copied_Dh)

    def copy_what_followed_the_tokens_before(self, head: int, config: TinyModel) -> None:
        """Copy the token that followed where the tokens before the current one occurred earlier; the next head
        subtracts it where that is the current token itself."""
        space, steady = self.space, _steady(self.space.head_size)
        h = space.head_size
        before = self._of_the_tokens_before(self._projections(len(steady)))
        itself = torch.randn(len(steady), len(space.read_WD), generator=space.draw) / math.sqrt(len(space.read_WD))
        compared = _SHARPNESS_BEFORE * before + _ITSELF * itself @ space.read_WD
        copied_Dh = _directions(space.rest_DR, h, space.draw)
        self.write_values(head, copied_Dh, _COPY_BEFORE * copied_Dh)
        self._compare(head, compared, compared)
        row = head * h + steady[-1]
        self.attention.q_proj.weight[row], self.attention.q_proj.bias[row] = 0.0, _REFUSED
        self.attention.k_proj.weight[row] = -_REFUSED * space.mark_D
        look_back(self.attention, head + 1, 0, config)
        self.write(head + 1, copied_Dh, -_COPY_BEFORE * copied_Dh)

    def _projections(self, rows: int) -> list[Tensor]:
        """(rows, W) for each compared token, times its weight; columns are orthogonal, so that a token matches itself
        best."""
        W = len(self.space.read_WD)
        return [w * torch.linalg.qr(torch.randn(rows, W, generator=self.space.draw))[0] for w in _WEIGHTS]

    def _of_the_tokens_before(self, projections: Sequence[Tensor]) -> Tensor:
        """(rows, D) that compares the tokens one, two and six back."""
        one, two, six = projections
        one_back, two_back, _, six_back = self.space.before
        return one @ one_back.T + two @ two_back.T + six @ six_back.T

    def _compare(self, head: int, query: Tensor, key: Tensor) -> None:
        h = self.space.head_size
        self.attention.q_proj.weight[self._rows(head)] = _placed(query, _steady(h), h)
        self.attention.k_proj.weight[self._rows(head)] = _placed(key, _steady(h), h)

    def _rows(self, head: int) -> slice:
        h = self.space.head_size
        return slice(head * h, (head + 1) * h)


def _directions(within_DR: Tensor, h: int, draw: torch.Generator) -> Tensor:
    """(D, h) orthonormal columns, drawn from the span of those given."""
    return within_DR @ torch.linalg.qr(torch.randn(within_DR.shape[1], h, generator=draw))[0]


def _steady(h: int) -> list[int]:
    """Indices of a head's slowly turning numbers; rotary embeddings pair number i with i + h / 2."""
    half = h // 2
    pairs = range(int(half * _STEADY), half)
    return [*pairs, *(i + half for i in pairs)]


def _placed(rows: Tensor, numbers: list[int], h: int) -> Tensor:
    """(h, D) with these rows at these indices, and zeros elsewhere."""
    placed = torch.zeros(h, rows.shape[1])
    placed[numbers] = rows
    return placed
