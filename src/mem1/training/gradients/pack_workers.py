"""Computes the packs of an optimiser step: several at a time in threads, and shared out over the ranks.

Ranks that share weights run in lockstep: in each round every rank computes one pack, and the round takes as long as
its most expensive. So packs of similar cost make a round. Where the last round has too few, a rank repeats the
cheapest pack with a loss of weight 0, since the others wait for its part of the weights.

    costs 9 2 8 1 3 on 2 ranks  ->  rounds (0, 2), (4, 1), (3, 3 with weight 0)

Results come back in the order of the packs, so sums over them do not depend on the number of ranks. Nor do they
depend on the number of threads, bit for bit, from 2 on, and for 1 where torch has one thread. Threads pay for small
models, whose products are too small to be shared: two threads of torch on one pack gain less than two packs on one
thread each (`benchmarks/workers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from mem1.engines.workers import one_thread
from mem1.packing import Pack
from mem1.packing.attention import tree_attention
from mem1.training.ranks.layers import layers
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement

UNPACKED_ALONE = (
    "one context a row (rl.packed = false, or a model that cannot be packed) is not supported with [distributed]: "
    "ranks would run different numbers of forward passes; train in one process without [distributed]"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of a rank."""

    pack: int
    """Index among the packs of the step."""
    weight: float = 1.0
    """0.0: a padding pass with zero loss, so that all ranks run the same number of collectives."""


@dataclass(frozen=True, kw_only=True)
class PackWorkers:
    """The threads and ranks that compute packs."""

    models: Sequence[PreTrainedModel]
    """All models that run on token trees; the first one's size decides what a pack costs."""
    placement: Placement = SINGLE_PROCESS
    threads: int = 1
    """Packs computed at a time on one rank."""

    @torch.no_grad()
    def forward(self, packs: Sequence[Pack], function: Callable[[Pack], dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The named tensors that `function` returns for each pack; from several ranks they come on the CPU."""
        passes = self._passes(packs)
        with self._tree_attention() if self._threads(passes) > 1 else ExitStack():
            found = list(self._in_order(lambda one: function(packs[one.pack]), passes))
        if self.placement.ranks.size == 1:
            return found
        flat = {
            f"{one.pack}/{name}": x.detach().cpu().clone()
            for one, tensors in zip(passes, found, strict=True)
            if one.weight
            for name, x in tensors.items()
        }
        by_pack: list[dict[str, Tensor]] = [{} for _ in packs]
        for data in self.placement.ranks.gather(save(flat)):
            for key, tensor in load(data).items():
                number, _, name = key.partition("/")
                by_pack[int(number)][name] = tensor
        return by_pack

    def backward(
        self,
        packs: Sequence[Pack],
        loss_of: Callable[[Pack], tuple[Tensor, Mapping[str, Tensor | float]]],
        parameters: Sequence[Tensor],
    ) -> list[dict[str, float]]:
        """Add the gradients of all packs' losses to `parameters`; return each pack's statistics, of all ranks.

        Statistics are numbers and scalars, which are read when all packs are done: until then nothing waits for the
        device.
        """
        passes = self._passes(packs)

        def weighted(one: Pass) -> tuple[Tensor, Mapping[str, Tensor | float]]:
            loss, stats = loss_of(packs[one.pack])
            return loss * one.weight, stats

        def gradients(one: Pass) -> tuple[tuple[Tensor | None, ...], Mapping[str, Tensor | float]]:
            loss, stats = weighted(one)
            return torch.autograd.grad(loss, parameters, allow_unused=True), stats

        waiting: list[Mapping[str, Tensor | float]] = []
        with self._tree_attention():  # layers that were not kept are computed again in the backward pass
            if self._threads(passes) == 1:
                for one in passes:
                    loss, stats = weighted(one)
                    loss.backward()
                    waiting.append(stats)
            else:
                for gradient_of_pack, stats in self._in_order(gradients, passes):
                    for parameter, gradient in zip(parameters, gradient_of_pack, strict=True):
                        if gradient is not None:
                            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
                    waiting.append(stats)
        found = _read(waiting)
        if self.placement.ranks.size == 1:
            return found
        own = [(one.pack, x) for one, x in zip(passes, found, strict=True) if one.weight]
        by_pack = dict(pair for pairs in self.placement.ranks.gather_json(own) for pair in pairs)
        return [by_pack[number] for number in sorted(by_pack)]

    def _passes(self, packs: Sequence[Pack]) -> list[Pass]:
        """Those of this rank."""
        ranks = self.placement.ranks
        if ranks.size == 1:
            return [Pass(number) for number in range(len(packs))]
        return assign(costs(packs, self.models[0]), ranks.size)[ranks.rank]

    def _threads(self, passes: Sequence[Pass]) -> int:
        return self.placement.workers(self.threads) if len(passes) > 1 else 1

    def _in_order(self, function: Callable[[Pass], T], passes: Sequence[Pass]) -> Iterator[T]:
        """`function` of each pass, up to `threads` at a time, in order. Each thread has the caller's gradient mode."""
        threads = self._threads(passes)
        if threads == 1:
            yield from map(function, passes)
            return
        with_gradient = torch.is_grad_enabled()
        failed = Event()

        def in_thread(one: Pass) -> T:
            if failed.is_set():  # passes begin in order, so the caller meets the one that failed before this one
                raise CancelledError
            try:
                with torch.set_grad_enabled(with_gradient):
                    return function(one)
            except BaseException:
                failed.set()
                raise

        with one_thread(), ThreadPoolExecutor(threads) as pool:
            try:
                yield from pool.map(in_thread, passes)
            finally:
                pool.shutdown(cancel_futures=True)

    @contextmanager
    def _tree_attention(self) -> Iterator[None]:
        """Held around threads too, none of which may restore the ordinary attention while another runs."""
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(tree_attention(model))
            yield


def _read(waiting: Sequence[Mapping[str, Tensor | float]]) -> list[dict[str, float]]:
    """All numbers, for which the device is waited for once."""
    scalars = [x.detach().double() for stats in waiting for x in stats.values() if isinstance(x, Tensor)]
    read = iter(torch.stack(scalars).tolist() if scalars else ())
    return [{name: next(read) if isinstance(x, Tensor) else x for name, x in stats.items()} for stats in waiting]


def assign(costs: Sequence[float], ranks: int) -> list[list[Pass]]:
    """Each rank's passes, equally many; none if there are no packs."""
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    passes: list[list[Pass]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), ranks):
        own = order[start : start + ranks]
        for rank in range(ranks):
            passes[rank].append(Pass(own[rank]) if rank < len(own) else Pass(order[-1], weight=0.0))
    return passes


def costs(packs: Sequence[Pack], model: PreTrainedModel) -> list[float]:
    """Multiplications in each pack's forward pass, in units of those of one token with all weights of the layers.

    A token costs the layers' weights, a pair of tokens that see one another 2 D per layer (scores and values; D the
    width of all heads).
    """
    per_token = max(1.0, float(sum(p.numel() for layer in layers(model) for p in layer.parameters() if p.ndim == 2)))
    text = model.config.get_text_config()
    width = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    per_pair = 2.0 * width * text.num_hidden_layers / per_token
    return [len(pack.tree) + int((pack.tree.position_ids + 1).sum()) * per_pair for pack in packs]
