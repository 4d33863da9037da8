"""The layers of a network, and how training computes them: once more in the backward pass, or as one compiled graph.

    with compiled(model), recomputed(model):        both: the compiled layer is computed again
        loss = ...                                  the backward pass may run outside

A compiled layer is one graph for all layers and lengths of a network (`fullgraph`, `dynamic`): FlexAttention takes the
plan of a tree as tensors, so a new tree compiles nothing. Other back-ends cut a tree into parts, each a shape of its
own; they are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

GRAPHS = 32
"""Graphs that one kind of layer may have: with and without gradient, of policy, critic and reference, on one block of
128 tokens and on more."""


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers of each transformer inside: the modules that transformers says must not be split."""
    names = {name for part in module.modules() for name in (getattr(part, "_no_split_modules", None) or ())}
    return [part for part in module.modules() if class_name(part) in names]


def class_name(module: nn.Module) -> str:
    """Name of the module's class, without the prefix that FSDP adds."""
    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def recomputed(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, the module's layers keep no activations: the backward pass, also outside, computes them again.

    Their random numbers are not kept, which would wait for a GPU: nothing may drop at random.
    """
    return _computed_by(
        module, lambda layer: partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    )


def compiled(module: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> AbstractContextManager[None]:
    """Inside, each of the module's layers is one compiled graph; `backend` as of `torch.compile`."""
    return _computed_by(module, lambda layer: MethodType(_graph(type(layer).forward, backend), layer))


@cache
def _graph(forward: Callable[..., Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    settings: Any = torch._dynamo.config  # there is no other way to it
    settings.recompile_limit = max(settings.recompile_limit, GRAPHS)
    return torch.compile(forward, fullgraph=True, dynamic=True, backend=backend)


@contextmanager
def _computed_by(module: nn.Module, made: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    before = [(layer, vars(layer).get("forward")) for layer in layers(module)]
    for layer, _ in before:
        layer.forward = made(layer)
    try:
        yield
    finally:
        for layer, own in before:
            if own is None:
                del layer.forward
            else:
                layer.forward = own
