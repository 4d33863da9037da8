"""`local`: a transformers model in this process, sampled in batches, with log-probabilities.

Contexts are sorted by length and sampled batch by batch; rows that are done leave the batch. The random number of a
token depends only on its context's seed and its place in the completion, not on what else is sampled.

Tokens are drawn from the whole softmax at the sampling temperature; top-p or top-k would make the importance ratios of
training wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from mem1.engines.base import Completion, Sampling
from mem1.engines.codec import Codec
from mem1.engines.device import flushed_denormals, with_float64
from mem1.engines.kept_prefixes import KeptPrefixes, load

_SHORT = 1024
"""Longest context, in tokens, that plain matrix products attend on a CPU: up to there they beat the fused kernel."""
_SAME_TASK = 16
"""Number of equal first tokens that make contexts count as contexts of one task."""
Steering = Callable[[Sequence[int], Sequence[int], int, int], int]
"""(context, sampled so far, drawn token, token budget) -> the token that replaces the drawn one."""


class LocalEngine:
    """Samples from `model`; a completion ends after one of `stop_strings` or with its token budget."""

    def __init__(
        self,
        model: PreTrainedModel,
        codec: Codec,
        stop_strings: Sequence[str],
        *,
        batch_tokens: int = 24576,
        interrupt: Tensor | None = None,
        steering: Steering | None = None,
    ) -> None:
        """A sampler of completions.

        batch_tokens    most rows times tokens of the longest context in one batch; affects memory, not results
        interrupt       a boolean scalar in shared memory: as soon as another thread or process sets it, completions
                        end where they are; None: they are never interrupted
        steering        replaces drawn tokens, for checks; its tokens get log-probabilities like any others
        """
        self.interrupt = interrupt
        self.steering = steering
        self.model = model
        self.codec = codec
        self.stop_strings = tuple(stop_strings)
        # elsewhere a text may also end within a token
        whole = codec.unknown_id is not None or all(stop in codec.added_tokens for stop in stop_strings)
        self.stop_ids = codec.single_tokens(stop_strings) if whole else None
        """Ids of the stop strings where they are words or added tokens; None: the text is looked at."""
        self.batch_tokens = batch_tokens
        self.kept = KeptPrefixes(limit=2 * batch_tokens)
        takes = inspect.signature(model.get_decoder().forward).parameters
        self.cache_argument = "cache" if "cache" in takes else "past_key_values"
        """Name of the argument for what the model has read; transformers renamed it in version 5.24."""

    @torch.inference_mode()
    @flushed_denormals()
    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, each of at most its own `max_tokens`."""
        if not contexts:
            return []
        noise_BT = draw_noise(sampling.seeds_for(len(contexts)), max(max_tokens))
        completions: list[Completion | None] = [None] * len(contexts)
        kept = self.kept if self.kept.begin(sampling.session) else None
        was_training = self.model.training
        self.model.eval()
        for rows in self._batches(contexts):
            batch = _Batch(
                self,
                [contexts[i] for i in rows],
                [max_tokens[i] for i in rows],
                noise_BT[rows],
                sampling.temperature,
                kept,
            )
            for row, completion in zip(rows, batch.run(), strict=True):
                completions[row] = completion
        self.model.train(was_training)
        return [c for c in completions if c is not None]

    def _batches(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Row numbers of each batch: similar lengths together, at most `batch_tokens`."""
        batches: list[list[int]] = []
        for row in sorted(range(len(contexts)), key=lambda i: len(contexts[i])):
            if not batches or (len(batches[-1]) + 1) * len(contexts[row]) > self.batch_tokens:
                batches.append([])
            batches[-1].append(row)
        return batches

    @property
    def interrupted(self) -> bool:
        """Whether completions under way must end now."""
        return self.interrupt is not None and bool(self.interrupt)

    def stops(self, token: int, sampled: Sequence[int]) -> bool:
        """Whether `token`, the last of `sampled`, ends the completion."""
        if self.stop_ids is not None:
            return token in self.stop_ids
        return self.codec.meets(sampled, self.stop_strings)


def draw_noise(seeds: Sequence[int], length: int) -> Tensor:
    """Random numbers in [0, 1), (rows, length), float64: each a function of its row's seed and its place alone.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), which is cheap to
    restart for each row and computes the number at any place directly.
    """
    places_T = np.arange(1, length + 1, dtype=np.uint64)
    mixed_BT = np.array(seeds, dtype=np.uint64)[:, None] + places_T * np.uint64(0x9E3779B97F4A7C15)
    mixed_BT = (mixed_BT ^ (mixed_BT >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_BT = (mixed_BT ^ (mixed_BT >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_BT ^= mixed_BT >> np.uint64(31)
    return torch.from_numpy((mixed_BT >> np.uint64(11)) * 2.0**-53)


def _split(contexts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int], list[Sequence[int]]]:
    """(prefixes, each row's number of its prefix, suffixes), so that shared beginnings are computed once.

        p q a   p q b c   x y z    ->   prefixes  p q   x      numbers  0 0 1      suffixes  a   b c   y z

    Attempts at one task share their prompt, and all of the first context; a suffix has at least one token.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, context in enumerate(contexts):
        groups.setdefault(tuple(context[:_SAME_TASK]), []).append(row)
    shared = {key: _common(contexts, rows) if len(rows) > 1 else 0 for key, rows in groups.items()}
    longest = max((len(contexts[r]) - shared[k] for k, rows in groups.items() for r in rows if shared[k]), default=None)
    prefixes: list[Sequence[int]] = []
    prefix_of, cut = [0] * len(contexts), [0] * len(contexts)
    for key, rows in groups.items():
        for row in rows if not shared[key] else rows[:1]:
            # a single context is cut where the others' suffixes begin, so that it adds no padding
            length = shared[key] or (max(0, len(contexts[row]) - longest) if longest else 0)
            prefixes.append(contexts[row][:length])
            for r in rows if shared[key] else [row]:
                prefix_of[r], cut[r] = len(prefixes) - 1, length
    return prefixes, prefix_of, [c[n:] for c, n in zip(contexts, cut, strict=True)]


def _common(contexts: Sequence[Sequence[int]], rows: Sequence[int]) -> int:
    """Length of the common beginning of these contexts, without their last tokens."""
    # of all rows, the smallest and the largest differ first
    low, high = min(tuple(contexts[r]) for r in rows), max(tuple(contexts[r]) for r in rows)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return min(same, min(len(contexts[r]) for r in rows) - 1)


class _Batch:
    """The sampling of one batch; prefixes and suffixes are left-padded to a common length each."""

    def __init__(
        self,
        engine: LocalEngine,
        contexts: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        noise_BT: Tensor,
        temperature: float,
        kept: KeptPrefixes | None,
    ) -> None:
        self.engine, self.model, self.temperature = engine, engine.model, temperature
        self.device = engine.model.device
        self.max_tokens, self.noise_BT, self.kept = max_tokens, noise_BT, kept
        self.contexts = contexts
        self.position_B = torch.tensor([len(c) - 1 for c in contexts], device=self.device)
        self.real_BT = torch.zeros(len(contexts), 0, dtype=torch.bool, device=self.device)
        """Columns of the cache that hold a row's tokens, not padding."""
        self.sampled: list[list[int]] = [[] for _ in contexts]
        self.logprobs: list[list[float]] = [[] for _ in contexts]
        self.stopped = [False] * len(contexts)

    def run(self) -> list[Completion]:
        """Sample until every row has stopped or used its budget, or until the engine is interrupted."""
        if not self.engine.interrupted:
            self._sample_all()
        return [
            Completion(
                token_ids=tuple(ids),
                logprobs=tuple(logprobs),
                stopped=stopped,
                interrupted=not stopped and len(ids) < budget,
            )
            for ids, logprobs, stopped, budget in zip(
                self.sampled, self.logprobs, self.stopped, self.max_tokens, strict=True
            )
        ]

    def _sample_all(self) -> None:
        cache = Cache(layers=[_BufferedLayer() for _ in range(self.model.config.num_hidden_layers)])
        rows = list(range(len(self.sampled)))
        logits_BV = self._prefill(cache)
        if self.kept is not None:
            self.kept.add(self.contexts, cache, self.real_BT)
        while True:
            tokens_B, keep = self._sample(rows, logits_BV)
            if not any(keep) or self.engine.interrupted:
                return
            if sum(keep) <= 0.8 * len(keep):
                index = torch.tensor([i for i, k in enumerate(keep) if k], device=self.device)
                rows = [rows[i] for i in index.tolist()]
                tokens_B, self.position_B, self.real_BT = (x[index] for x in (tokens_B, self.position_B, self.real_BT))
                cache.batch_select_indices(index)
            logits_BV = self._step(tokens_B, cache)

    def _prefill(self, cache: Cache) -> Tensor:
        found = [] if self.kept is None else self.kept.find(self.contexts)
        if found:
            self.real_BT = load(found, cache, self.device)
            suffixes = [context[length:] for context, (length, _) in zip(self.contexts, found, strict=True)]
            return self._append(suffixes, self.real_BT.sum(-1), cache)
        prefixes, prefix_of, suffixes = _split(self.contexts)
        if any(prefixes):
            self.real_BT = self.real_BT.new_zeros(len(prefixes), 0)
            self._append(prefixes, torch.zeros(len(prefixes), dtype=torch.long, device=self.device), cache)
            rows = torch.tensor(prefix_of, device=self.device)
            cache.batch_select_indices(rows)
            self.real_BT = self.real_BT[rows]
        return self._append(suffixes, self.real_BT.sum(-1), cache)

    def _append(self, pieces: Sequence[Sequence[int]], first_B: Tensor, cache: Cache) -> Tensor:
        """Run pieces that begin at positions `first_B` through the model, after the contents of the cache."""
        longest = max(len(p) for p in pieces)
        ids_BT = torch.tensor([[0] * (longest - len(p)) + list(p) for p in pieces], device=self.device)
        padding_B = torch.tensor([longest - len(p) for p in pieces], device=self.device)
        real_BT = torch.arange(longest, device=self.device)[None] >= padding_B[:, None]
        positions_BT = (first_B[:, None] + real_BT.cumsum(-1) - 1).clamp(min=0)
        causal_BTT = torch.ones(longest, longest, dtype=torch.bool, device=self.device).tril() & real_BT[:, None, :]
        # a padded query must attend to something, or its softmax is 0/0; its output is not used
        causal_BTT |= torch.eye(longest, dtype=torch.bool, device=self.device)
        before_BTK = self.real_BT[:, None, :].expand(-1, longest, -1)
        self.real_BT = torch.cat([self.real_BT, real_BT], dim=1)
        with _attention(self.model, "eager" if self.device.type == "cpu" and longest <= _SHORT else None):
            return self._forward(ids_BT, positions_BT, torch.cat([before_BTK, causal_BTT], dim=2), cache)

    def _step(self, tokens_B: Tensor, cache: Cache) -> Tensor:
        self.position_B = self.position_B + 1
        self.real_BT = torch.cat([self.real_BT, self.real_BT.new_ones(len(tokens_B), 1)], dim=1)
        # plain matrix products beat the fused CPU kernel where there is one query per row
        with _attention(self.model, "eager" if self.device.type == "cpu" else None):
            return self._forward(tokens_B[:, None], self.position_B[:, None], self.real_BT[:, None, :], cache)

    def _forward(self, ids_BT: Tensor, positions_BT: Tensor, visible_BTK: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) at each row's last token."""
        dtype = self.model.dtype
        mask = torch.zeros(visible_BTK.shape, dtype=dtype, device=self.device)
        mask = mask.masked_fill_(~visible_BTK, torch.finfo(dtype).min)[:, None]
        output = self.model(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{self.engine.cache_argument: cache},
        )
        return output.logits[:, -1].float()

    def _sample(self, rows: Sequence[int], logits_BV: Tensor) -> tuple[Tensor, list[bool]]:
        """One token per row and whether the row continues; records tokens and log-probabilities."""
        logprobs_BV = torch.log_softmax(logits_BV / (self.temperature or 1.0), dim=-1)
        if self.temperature == 0:
            tokens_B = logprobs_BV.argmax(dim=-1)
        else:
            place, wide = [len(self.sampled[r]) for r in rows], with_float64(self.device)
            noise_B = self.noise_BT[list(rows), [min(p, self.noise_BT.shape[1] - 1) for p in place]].to(wide)
            cumulative_BV = logprobs_BV.to(wide).double().exp().cumsum(-1)
            threshold_B1 = (noise_B * cumulative_BV[:, -1])[:, None]
            tokens_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True)[:, 0].to(self.device)
        tokens_B = self._steered(rows, tokens_B)
        chosen = logprobs_BV.gather(1, tokens_B[:, None])[:, 0].tolist()
        keep = []
        for row, token, logprob in zip(rows, tokens_B.tolist(), chosen, strict=True):
            ids = self.sampled[row]
            if self.stopped[row] or len(ids) >= self.max_tokens[row]:
                keep.append(False)  # done earlier, but still in the batch
                continue
            ids.append(token)
            self.logprobs[row].append(logprob)
            self.stopped[row] = self.engine.stops(token, ids)
            keep.append(not self.stopped[row] and len(ids) < self.max_tokens[row])
        return tokens_B, keep

    def _steered(self, rows: Sequence[int], tokens_B: Tensor) -> Tensor:
        steering = self.engine.steering
        if steering is None:
            return tokens_B
        steered = [
            steering(self.contexts[row], self.sampled[row], drawn, self.max_tokens[row])
            for row, drawn in zip(rows, tokens_B.tolist(), strict=True)
        ]
        return torch.tensor(steered, device=self.device)


class _BufferedLayer(DynamicLayer):
    """Keys and values in a buffer that grows in steps, so that appending a token copies only that token."""

    _HEADROOM = 64

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) keys and values; returns all of them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers: list[Tensor] | None = None
        length = self.get_seq_length()
        total = length + key_states.shape[-2]
        if self._buffers is None or total > self._buffers[0].shape[-2]:
            self._grow(key_states, total + self._HEADROOM, length)
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length:total] = new
        self.keys, self.values = (buffer[:, :, :total] for buffer in self._buffers)
        return self.keys, self.values

    def _grow(self, like: Tensor, size: int, length: int) -> None:
        batch, heads, _, width = like.shape
        old = self._buffers
        self._buffers = [like.new_empty(batch, heads, size, width) for _ in range(2)]
        for buffer, values in zip(self._buffers, old or (), strict=old is not None):
            buffer[:, :, :length] = values[:, :, :length]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch only."""
        length = self.get_seq_length()
        assert self._buffers is not None
        self._buffers = [buffer[indices] for buffer in self._buffers]
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


@contextmanager
def _attention(model: PreTrainedModel, name: str | None):
    """Run with another attention implementation of transformers, then restore the model's own."""
    if name is None:
        yield
        return
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before
