"""Keys and values of the contexts that `LocalEngine` samples, and the attention over them.

    slab of a layer      row 0   p p p a a a .        p: a prompt, a: what follows it, .: room
    (rows, H, C, D)      row 1   p p p b . . .        b: taken over p p p from row 0, computed only b
                         row 2   q q q q c c .

Each live row holds one context, the first n rows of each slab are the live ones, and a row that ends gives its place to
the last. One forward pass takes the model from what is held of every row to its last token, over one flat sequence:

    last token of row 0, of row 1, of row 2,   what is new in row 0 before its last token,   the same of row 2

The last tokens attend together, over the plain view `[:n, :, :longest]` of a slab: rows that decode have
nothing else, and so a step of n of them gathers nothing. Guesses at what comes next (`mem1.engines.lookahead`) stand
after their row's last token and attend with it. Other new tokens attend row by row. A key is computed once for
all rows with equal first tokens: a new context takes over the longest equal beginning from the row of its own last
context, another live row, or a row that was kept (`Kept`). Its tokens are at the same positions there and see the same
tokens before them.

Letters: n live rows, T tokens of a pass, N last tokens with guesses, K most of a row, H key-value heads, G queries per
key-value head, C room of a row in tokens, L longest row, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from mem1.errors import UserError

IMPLEMENTATION = "mem1_rows"
"""Name under which the attention is registered in transformers."""
SHARED = 16
"""Smallest number of equal first tokens that are taken over from another row."""
_HEADROOM = 64
"""Tokens by which rows grow at a time."""
_BLOCK = 512
"""Most queries of a row that attend at a time, which bounds the memory of their scores."""


@dataclass(eq=False, kw_only=True)
class Row:
    """A context and what has been sampled after it."""

    ids: list[int]
    held: int = 0
    """Number of first tokens whose keys and values are in the slabs."""
    guesses: list[int] = field(default_factory=list)
    """Tokens that may come next, for the next pass."""


AnyRow = TypeVar("AnyRow", bound=Row)
Slab = tuple[Tensor, Tensor]
"""Keys and values, (rows, H, C, D)."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A row that has ended."""

    ids: Sequence[int]
    layers: dict[int, Slab]
    """Keys and values by layer, (H, T, D)."""


class KeptRows:
    """The last rows that have ended, at most `limit` tokens of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: list[Kept] = []

    @property
    def tokens(self) -> int:
        """Number of tokens kept."""
        return sum(len(kept.ids) for kept in self._rows)

    def clear(self) -> None:
        """Keep nothing."""
        self._rows.clear()

    def add(self, kept: Kept) -> None:
        """Keep this row, and forget the oldest ones beyond the limit."""
        self._rows.append(kept)
        while self.tokens > self.limit:
            del self._rows[0]

    def take(self, context: Sequence[int], more_than: int) -> tuple[int, Kept | None]:
        """The row with the longest equal beginning, if it has `more_than` so many tokens, which is no longer kept."""
        length, found = max(
            ((_equal(kept.ids, context), kept) for kept in self._rows), key=lambda pair: pair[0], default=(0, None)
        )
        if found is None or length <= more_than:
            return 0, None
        self._rows.remove(found)
        return length, found


class Rows(Generic[AnyRow]):
    """The live rows of one model."""

    def __init__(self, model: PreTrainedModel, kept: KeptRows) -> None:
        self.model, self.kept = model, kept
        self.live: list[AnyRow] = []
        """The row in each place of the slabs."""
        self.slabs: dict[int, Slab] = {}
        """By layer; they are made with the first keys and values."""
        self.places, self.room = 0, 0
        """Number of rows of a slab, and tokens of each."""
        self._shared: list[tuple[AnyRow, AnyRow, int]] = []
        """(from, to, tokens): what rows take over from others that are computed in the same pass."""

    def reserve(self, places: int, longest: int) -> None:
        """Make room for so many live rows, of at most so many tokens."""
        if places <= self.places and longest <= self.room:
            return
        self.places, self.room = places, longest + _HEADROOM
        for number, pair in self.slabs.items():
            keys, values = map(self._empty, pair)
            for slab, old in zip((keys, values), pair, strict=True):
                held = min(self.room, old.shape[2])
                slab[: len(self.live), :, :held] = old[: len(self.live), :, :held]
            self.slabs[number] = keys, values

    def add(self, row: AnyRow, *, instead_of: AnyRow | None = None) -> None:
        """Make a row live, in the place of one that has ended or in a new one, and take over an equal beginning.

        The room must have been reserved. The last token is never taken over, as its logits are wanted.
        """
        most = len(row.ids) - 1
        if instead_of is None:
            self.live.append(row)
        else:
            row.held = min(_equal(instead_of.ids, row.ids), most)
            self.live[self.live.index(instead_of)] = row
        if row.held >= SHARED:
            return
        others = ((_equal(other.ids, row.ids), other) for other in self.live if other is not row)
        length, source = max(others, key=lambda pair: pair[0], default=(0, None))
        more, kept = self.kept.take(row.ids, max(length, SHARED - 1))
        if kept is not None:
            row.held = min(more, most)
            self._load(kept, row)
        elif source is not None and length >= SHARED:
            row.held = min(length, most)
            # of a source that itself takes over its beginning in the next pass, nothing is there yet
            if row.held > source.held or any(target is source for _, target, _ in self._shared):
                self._shared.append((source, row, row.held))
            else:
                copy_row(self._tensors(), self.live.index(source), self.live.index(row), row.held)

    def _load(self, kept: Kept, row: AnyRow) -> None:
        place = self.live.index(row)
        for number, pair in kept.layers.items():
            if number not in self.slabs:
                self.slabs[number] = self._empty(pair[0][None]), self._empty(pair[1][None])
            for slab, held in zip(self.slabs[number], pair, strict=True):
                slab[place, :, : row.held] = held[:, : row.held]

    def end(self, row: AnyRow, *, keep: bool) -> None:
        """Free the place of a row; with `keep`, its keys and values can be taken over later."""
        place = self.live.index(row)
        if keep:
            part = partial(_part, place=place, tokens=row.held)
            self.kept.add(Kept(row.ids, {n: (part(keys), part(values)) for n, (keys, values) in self.slabs.items()}))
        last = self.live.pop()
        if last is not row:
            copy_row(self._tensors(), len(self.live), place, last.held)
            self.live[place] = last

    def logits(self) -> Tensor:
        """Of each live row's last token and guesses after it, (N, V); afterwards all of a row is held.

        The keys of guesses stand after those of their row. Who appends a guess to its row, as it was right, adds it to
        what is held; others are overwritten.
        """
        self.reserve(len(self.live), max(len(row.ids) + len(row.guesses) for row in self.live))
        step = self._step()
        with _attention(self.model):
            output = self.model(
                input_ids=step.flat_3T[:1],
                position_ids=step.flat_3T[1:2],
                use_cache=False,
                logits_to_keep=slice(0, sum(step.lasts)),
                row_step=step,
            )
        if len(self.slabs) != self.model.config.get_text_config().num_hidden_layers:
            raise UserError(_refusal(self.model, "it has layers that do not attend to earlier tokens"))
        self._shared.clear()
        for row in self.live:
            row.held = len(row.ids)
        return output.logits[0].float()

    def _step(self) -> Step:
        flat = [
            (token, len(row.ids) - 1 + after, place)
            for place, row in enumerate(self.live)
            for after, token in enumerate((row.ids[-1], *row.guesses))
        ]
        bodies: list[Body] = []
        for place, row in enumerate(self.live):
            for start in range(row.held, len(row.ids) - 1, _BLOCK):
                stop = min(start + _BLOCK, len(row.ids) - 1)
                bodies.append(Body(place, start, stop, slice(len(flat), len(flat) + stop - start)))
                flat += zip(row.ids[start:stop], range(start, stop), [place] * (stop - start), strict=True)
        flat_T3 = torch.tensor(flat).to(self.model.device, non_blocking=True)
        shared = [(self.live.index(a), self.live.index(b), length) for a, b, length in self._shared]
        lasts = [1 + len(row.guesses) for row in self.live]
        longest = max(len(row.ids) + len(row.guesses) for row in self.live)
        return Step(self, flat_T3.T.contiguous(), lasts, longest, bodies, shared)

    def slab(self, number: int, keys_1HTD: Tensor, values_1HTD: Tensor) -> Slab:
        """Keys and values of a layer that makes such ones."""
        if number not in self.slabs:
            self.slabs[number] = self._empty(keys_1HTD), self._empty(values_1HTD)
        return self.slabs[number]

    def _empty(self, like: Tensor) -> Tensor:
        # zeros: what is not visible gets the weight 0, which would not make up for a NaN
        return like.new_zeros(self.places, like.shape[1], self.room, like.shape[3])

    def _tensors(self) -> Iterator[Tensor]:
        return chain.from_iterable(self.slabs.values())


def _part(slab: Tensor, place: int, tokens: int) -> Tensor:
    return slab[place, :, :tokens].clone()


def copy_row(slabs: Iterable[Tensor], source: int, target: int, tokens: int) -> None:
    """Copy the first tokens of a row to another row."""
    for slab in slabs:
        slab[target, :, :tokens] = slab[source, :, :tokens]


@dataclass(frozen=True, slots=True)
class Body:
    """New tokens of a row before its last one."""

    place: int
    start: int
    """Position of the first."""
    stop: int
    """Position after the last."""
    flat: slice
    """Where they are in the flat sequence."""


class Step:
    """One forward pass over the rows: what is the same for all of its layers."""

    def __init__(
        self,
        rows: Rows[Any],
        flat_3T: Tensor,
        lasts: Sequence[int],
        longest: int,
        bodies: Sequence[Body],
        shared: Sequence[tuple[int, int, int]],
    ) -> None:
        """flat_3T: token, position and place of each; lasts: last tokens and guesses of each row, n numbers that add up
        to N; longest: L; shared: places from and to, tokens."""
        self.rows, self.flat_3T, self.lasts, self.longest = rows, flat_3T, lasts, longest
        self.count, self.widest = len(lasts), max(lasts)
        self.bodies, self.shared = bodies, shared
        self._attended: set[int] = set()
        """Numbers of layers."""
        self._written: dict[int, Tensor] = {}
        """Number of key-value heads -> lines of a slab, taken as (rows * H * C, D), for each token and head."""
        self._masks: dict[tuple[int, int, torch.dtype], tuple[Tensor, ...]] = {}
        """By heads and precision; 0 where a query sees a key, else -inf: for last tokens (n, H, 1 or K * G, L), for
        each body (1, H, G * its tokens, its keys)."""
        self._spread, self._back = self._grid() if self.widest > 1 else (None, None)

    def attend(
        self, number: int, q_1QTD: Tensor, k_1HTD: Tensor, v_1HTD: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """Write a layer's new keys and values, and attend: (1, T, Q, D) for Q = G * H query heads.

        Raises UserError for a layer that attends twice, whose values would be those of the second time.
        """
        if number in self._attended:
            raise UserError(_refusal(self.rows.model, "a layer attends twice"))
        self._attended.add(number)
        keys, values = self.rows.slab(number, k_1HTD, v_1HTD)
        heads, group = k_1HTD.shape[1], q_1QTD.shape[1] // k_1HTD.shape[1]
        for slab, new in (keys, k_1HTD), (values, v_1HTD):
            new_TD = new[0].transpose(0, 1).reshape(-1, new.shape[-1])
            slab.view(-1, new.shape[-1]).index_copy_(0, self._lines(heads), new_TD)
        for source, target, tokens in self.shared:
            copy_row((keys, values), source, target, tokens)
        masks = self._visible(heads, group, q_1QTD.dtype)
        n, q_TQD = self.count, q_1QTD[0].transpose(0, 1)
        k_nHLD, v_nHLD = (slab[:n, :, : self.longest] for slab in (keys, values))
        if self._spread is None or self._back is None:
            q_nHGD = q_TQD[:n].reshape(n, heads, group, -1)
            parts = [_attended(q_nHGD, k_nHLD, v_nHLD, masks[0], scaling, softcap).reshape(n, heads * group, -1)]
        else:
            q_nKHGD = q_TQD[self._spread].view(n, self.widest, heads, group, -1)
            q_nHkD = q_nKHGD.transpose(1, 2).reshape(n, heads, self.widest * group, -1)
            last = _attended(q_nHkD, k_nHLD, v_nHLD, masks[0], scaling, softcap)
            out_nKHGD = last.unflatten(2, (self.widest, group)).transpose(1, 2)
            parts = [out_nKHGD.reshape(n * self.widest, heads * group, -1)[self._back]]
        for body, mask in zip(self.bodies, masks[1:], strict=True):
            q_1HtD = q_1QTD[:, :, body.flat].reshape(1, heads, -1, q_TQD.shape[-1])
            k_1HtD, v_1HtD = (slab[body.place, None, :, : body.stop] for slab in (keys, values))
            out = _attended(q_1HtD, k_1HtD, v_1HtD, mask, scaling, softcap)
            parts.append(out.reshape(heads * group, body.stop - body.start, -1).transpose(0, 1))
        return torch.cat(parts)[None] if self.bodies else parts[0][None]

    def _grid(self) -> tuple[Tensor, Tensor]:
        """Rows of last tokens and guesses as wide as the widest: the flat token at each of the n * K places, a row's
        last one again where it has fewer, and the places (N,) of the flat tokens."""
        spread: list[int] = []
        back: list[int] = []
        start = 0
        for row, last in enumerate(self.lasts):
            spread += (start + min(after, last - 1) for after in range(self.widest))
            back += range(row * self.widest, row * self.widest + last)
            start += last
        device = self.flat_3T.device
        return torch.tensor(spread).to(device, non_blocking=True), torch.tensor(back).to(device, non_blocking=True)

    def _lines(self, heads: int) -> Tensor:
        if heads not in self._written:
            _, position_T, place_T = self.flat_3T
            head_H = torch.arange(heads, device=place_T.device)
            line_TH = (place_T[:, None] * heads + head_H) * self.rows.room + position_T[:, None]
            self._written[heads] = line_TH.flatten()
        return self._written[heads]

    def _visible(self, heads: int, group: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if (heads, group, dtype) not in self._masks:
            device = self.flat_3T.device
            key_L = torch.arange(self.longest, device=device)
            if self._spread is None:
                position = self.flat_3T[1, : self.count, None, None]
            else:
                position = self.flat_3T[1, self._spread].view(self.count, -1, 1).repeat_interleave(group, 1)
            hidden_nKL = key_L > position
            last_nKL = torch.zeros(hidden_nKL.shape, dtype=dtype, device=device).masked_fill_(hidden_nKL, -torch.inf)
            bodies = [
                torch.full((body.stop - body.start, body.stop), -torch.inf, dtype=dtype, device=device)
                .triu_(body.start + 1)
                .repeat(group, 1)
                .expand(1, heads, -1, -1)
                for body in self.bodies
            ]
            self._masks[heads, group, dtype] = last_nKL[:, None].repeat_interleave(heads, 1), *bodies
        return self._masks[heads, group, dtype]


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """Softmax attention, (rows, H, queries, D): fused on a CPU, elsewhere by plain products."""
    if fused(q.device.type, softcap):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    q_1, k_1, v_1, mask_1 = (x.flatten(0, 1) for x in (q, k, v, mask))
    return _products(q_1, k_1, v_1, mask_1, scaling, softcap).unflatten(0, q.shape[:2])


def fused(kind: str, softcap: float | None) -> bool:
    """Whether one kernel attends, on this kind of device."""
    return kind == "cpu" and softcap is None


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, softcap: float | None) -> Tensor:
    if k.device.type == "cpu" and k.dtype != torch.float32:
        k = k.contiguous()  # else the product transposes a copy of its own, which takes ten times as long
    if softcap is None:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=scaling)
    else:
        scores = mask + softcap * torch.tanh(torch.bmm(q, k.transpose(1, 2)) * (scaling / softcap))
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return torch.bmm(weights.to(v.dtype), v)


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    row_step: Step | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: (1, heads, T, D) in, (1, T, heads, D) out."""
    if row_step is None or attention_mask is not None:
        raise UserError(_refusal(module, "its layers attend by a mask of their own, or without what they are given"))
    number: Any = module.layer_idx
    return row_step.attend(number, query, key, value, scaling, softcap), None


AttentionInterface.register(IMPLEMENTATION, row_attention)


@contextmanager
def _attention(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def check_rows(model: PreTrainedModel) -> None:
    """Raises UserError for a model whose attention is not the one above, as far as can be told before it runs."""
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        raise UserError(_refusal(model, "transformers cannot exchange its attention"))
    if getattr(config, "num_kv_shared_layers", None):
        raise UserError(_refusal(model, f"layers share keys (num_kv_shared_layers = {config.num_kv_shared_layers})"))
    if any(name.rsplit(".", 1)[-1] == "sinks" for name, _ in model.named_parameters()):
        raise UserError(_refusal(model, "it has attention sinks"))


def _refusal(model: nn.Module, why: str) -> str:
    return f"{type(model).__name__} cannot be sampled in this process: {why}; sample on servers, or take another model"


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal first tokens, found by halving: slices are compared much faster than tokens."""
    low, high = 0, min(len(one), len(other))
    if one[:SHARED] != other[:SHARED] and high >= SHARED:
        high = SHARED - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
