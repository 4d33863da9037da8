"""Several packs of an optimiser step at a time, each on a Python thread with one thread of torch's.

The products of a small model are too small to be shared: two threads of torch's on one pack gain less than two packs
on one thread each (`benchmarks/workers.py`). What each pack gives is taken in the order of the packs, so the sum of
the gradients is the same, bit for bit, for every number of workers from 2 on, and for 1 where torch has one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.engines.workers import one_thread
from mem1.packing.attention import tree_attention

T = TypeVar("T")
P = TypeVar("P")
"""A pack, or which."""


def in_order(
    function: Callable[[P], T], packs: Sequence[P], *, models: Sequence[PreTrainedModel], workers: int
) -> Iterator[T]:
    """`function` of each pack, up to `workers` at a time, in the order of the packs.

    `models` are all that it runs on token trees. Gradient mode is the caller's, in each thread.
    """
    if workers == 1 or len(packs) < 2:
        yield from map(function, packs)
        return
    with_gradient = torch.is_grad_enabled()

    def with_the_callers_mode(pack: P) -> T:
        with torch.set_grad_enabled(with_gradient):
            return function(pack)

    with ExitStack() as stack:
        stack.enter_context(one_thread())
        for model in models:  # a thread must not put the ordinary attention back while another is within
            stack.enter_context(tree_attention(model))
        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(with_the_callers_mode, packs)


def backward_in_order(
    loss_of: Callable[[P], tuple[Tensor, T]],
    packs: Sequence[P],
    *,
    models: Sequence[PreTrainedModel],
    parameters: Sequence[Tensor],
    workers: int,
) -> Iterator[T]:
    """Add the gradient of each pack's loss to `parameters`; what else `loss_of` returns is given back, in order."""
    if workers == 1 or len(packs) < 2:
        with ExitStack() as stack:
            for model in models:  # layers that were not kept are computed again in the backward pass
                stack.enter_context(tree_attention(model))
            for pack in packs:
                loss, said = loss_of(pack)
                loss.backward()
                yield said
        return

    def gradients(pack: P) -> tuple[tuple[Tensor | None, ...], T]:
        loss, said = loss_of(pack)
        return torch.autograd.grad(loss, parameters, allow_unused=True), said

    for found, said in in_order(gradients, packs, models=models, workers=workers):
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        yield said
