"""The cost of one trajectory: its tokens, and the forward FLOPs of its model calls.

    turn 1: context p q           completion a b      result i          2 + 2 tokens
    turn 2: context p q a b i     completion c d                        5 + 2 tokens
    peak_tokens = 7, without prompt 5; total_tokens = 11; dependency = 2 * (2 + 1) + 2 * (5 + 1) = 18
    cached_by_turn = [0, 4], as turn 1 has processed p q a b

Peak and dependency follow MEM1 (arXiv 2506.15841), section 4; its evaluator excludes the prompt from the peak, so both
variants are given here.

    shape = model_shape(load_policy("shipped").model)    ->  ModelShape(parameters=851968, output_parameters=68608, ...)
    forward_flops(trajectory, shape)                     ->  31_000_000

A call with n tokens, the first c of them cached and o sampled, needs this many multiplications and additions:

    2 * parameters * (n - c)                      each processed token times every matrix of the layers
    2 * output_parameters * o                     one row of logits per sampled token
    4 * layers * width * pairs                    scores and weighted sums, 2 each per (token, visible token) pair

    pairs = (c + 1) + (c + 2) + ... + n = n (n + 1) / 2 - c (c + 1) / 2

Norms, biases, rotations and softmax are left out, as usual; together they are below one per cent. The last sampled
token of a call counts as processed, as in `total_tokens`. Sources: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1,
which counts only the scores of attention; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B, for the weighted sums.
Here a token attends to itself and to earlier tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import TYPE_CHECKING

from mem1.memory import memory_spans
from mem1.prices import PriceClass, cost_of
from mem1.protocol import SUMMARY
from mem1.records import Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_BLOCK = 64
"""Tokens compared per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSizes:
    """Tokens of one turn."""

    state: int
    """Memory, in a turn that has to write one."""
    action: int
    result: int
    """The environment's reply; after the last turn it is not read."""
    thought: int = 0
    """Written in every turn and kept in no later context, if the protocol has a tag for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of one attempt, independent of the memory it is priced under. Raises ValueError without turns."""

    prompt: int
    turns: tuple[TurnSizes, ...]

    def __post_init__(self) -> None:
        if not self.turns or self.prompt < 1:
            raise ValueError("an attempt has a prompt of at least one token, and at least one turn")
        if any(min(turn.state, turn.action, turn.result, turn.thought) < 0 for turn in self.turns):
            raise ValueError("sizes are numbers of tokens and must not be negative")


def even_sizes(*, prompt: int, state: int, action: int, result: int, turns: int) -> Sizes:
    """An attempt with identical turns."""
    return Sizes(prompt=prompt, turns=(TurnSizes(state=state, action=action, result=result),) * turns)


def peak_tokens(trajectory: Trajectory, *, prompt: bool = True) -> int:
    """Largest context + completion of any turn, in tokens; 0 if the policy was never called.

    With `prompt=False` each turn's prompt tokens are subtracted; raises ValueError if a turn did not record them.
    """
    return max((t.num_tokens - (0 if prompt else _prompt_tokens(t)) for t in trajectory.turns), default=0)


def dependency(trajectory: Trajectory) -> float:
    """Sum over turns of n_o * (n_p + n_o / 2), for n_o tokens generated after n_p given ones: the cost of attention."""
    return sum(len(t.completion_ids) * (len(t.context_ids) + len(t.completion_ids) / 2) for t in trajectory.turns)


def total_tokens(trajectory: Trajectory) -> int:
    """Context and completion tokens summed over turns, without a prefix cache."""
    return sum(turn.num_tokens for turn in trajectory.turns)


def cached_by_turn(trajectory: Trajectory) -> list[int]:
    """Per turn, the number of leading context tokens that the previous call processed, as context or completion.

    0 in the first turn, because calls for other tasks are ignored. A server that keeps keys and values of the previous
    call need not process these tokens again; it may find fewer, because caches work in blocks of tokens.
    """
    before: tuple[int, ...] = ()
    cached: list[int] = []
    for turn in trajectory.turns:
        cached.append(_shared_prefix(before, turn.context_ids))
        before = turn.context_ids + turn.completion_ids
    return cached


def attempt_cost(trajectory: Trajectory, prices: PriceClass) -> float:
    """What a server of this class takes for all calls of an attempt, in the unit of its prices."""
    calls = zip(trajectory.turns, cached_by_turn(trajectory), strict=True)
    return (
        sum(
            cost_of(
                len(turn.context_ids), prices.cache.kept(found), len(turn.completion_ids), prices.prices, prices.cache
            )
            for turn, found in calls
        )
        / 1e6
    )


def appended_tokens(trajectory: Trajectory, *, prompt: bool = True) -> list[int]:
    """Per turn, context + completion in tokens if every earlier completion and result were still there.

    For the memory `full` these are the actual sizes. A requested summary adds nothing, because an agent that
    appends writes none. Raises ValueError if a turn did not record its prompt.
    """
    sizes: list[int] = []
    history = 0
    for turn in trajectory.turns:
        head = _prompt_tokens(turn) if prompt else 0
        if turn.action == SUMMARY:
            sizes.append(head + history)
            continue
        sizes.append(head + history + len(turn.prefill_ids) + len(turn.completion_ids))
        history += len(turn.completion_ids) + len(turn.observation_ids)
    return sizes


def appended_peak_tokens(trajectory: Trajectory, *, prompt: bool = True) -> int:
    """Peak that the same turns would have had if everything had been appended; 0 without turns."""
    return max(appended_tokens(trajectory, prompt=prompt), default=0)


def state_tokens(turn: Turn) -> int | None:
    """Length of the memory written in a turn, tags included: its state and notes, or a summary; None: there is none."""
    if turn.action == SUMMARY:
        return len(turn.prefill_ids) + len(turn.completion_ids)
    spans = memory_spans(turn)
    return sum(stop - start for start, stop in spans) if spans else None


def _shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix, found block by block because slices compare faster than single tokens."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    for start in range(0, shorter, _BLOCK):
        if one[start : start + _BLOCK] != other[start : start + _BLOCK]:
            return next(compress(count(start), map(ne, one[start:shorter], other[start:shorter])), shorter)
    return shorter


def _prompt_tokens(turn: Turn) -> int:
    if "prompt" not in turn.context_spans:
        raise ValueError('a turn did not record which context tokens are its prompt: context_spans has no "prompt"')
    return turn.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense transformer with full causal attention, as the formula needs them."""

    parameters: int
    """Weights in the matrices of all layers, without embeddings, output matrix, norms and biases."""
    output_parameters: int
    """Weights of the output matrix (vocabulary times width), even if it is shared with the embedding."""
    layers: int
    width: int
    """Query heads times the dimension of a head."""


def forward_flops(trajectory: Trajectory, shape: ModelShape, *, cached: Sequence[int] | None = None) -> int:
    """FLOPs of all model calls; `cached` are the tokens that each finds in a prefix cache; None: no cache."""
    return sum(
        _flops(shape, cached=c, tokens=turn.num_tokens, sampled=len(turn.completion_ids))
        for c, turn in zip(cached or [0] * len(trajectory.turns), trajectory.turns, strict=True)
    )


def _flops(shape: ModelShape, *, cached: int, tokens: int, sampled: int) -> int:
    pairs = (tokens * (tokens + 1) - cached * (cached + 1)) // 2
    matrices = shape.parameters * (tokens - cached) + shape.output_parameters * sampled
    return 2 * matrices + 4 * shape.layers * shape.width * pairs


def model_shape(model: PreTrainedModel) -> ModelShape | None:
    """The shape of a transformers model, from its actual matrices, so that no list of architectures is needed.

    None where the formula would be wrong: experts, convolutions, sliding windows, no output matrix.
    """
    from torch import nn

    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    layers = [p for p in model.parameters() if id(p) not in tables and (head is None or p is not head.weight)]
    experts = any("expert" in name for name, _ in model.named_modules())
    if head is None or experts or _windows(config) or any(p.ndim > 2 for p in layers):
        return None
    heads = config.num_attention_heads
    return ModelShape(
        parameters=sum(p.numel() for p in layers if p.ndim == 2),
        output_parameters=math.prod(head.weight.shape),
        layers=config.num_hidden_layers,
        width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
    )


def _windows(config: PretrainedConfig) -> bool:
    """Whether some layer attends only to a window, or not at all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return any(kind != "full_attention" for kind in kinds)


def config_shape(config: PretrainedConfig) -> ModelShape | None:
    """The shape of a model given only its configuration; no memory is allocated for weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return model_shape(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
