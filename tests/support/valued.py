"""A device that is not the CPU, with values: for finding tensors that are on the wrong device where there is no GPU.

    with other_device():
        model.to("meta")        its weights are on the device "meta", and keep their values
        model(ids)              RuntimeError: aten.embedding: tensors on meta and cpu

torch's own meta tensors have no values, so that no training step can run on them. Here each stands for a tensor on the
CPU, which computes. As on CUDA, one operation may not have tensors of both devices, but for scalars (0-dim) of the CPU,
masks and indices that index a tensor, and copies.

    with other_device(), synchronisations() as waits:
        loss.item()
    waits       ->  {"aten._local_scalar_dense": 1}

A GPU works on while the CPU prepares what follows, unless the CPU waits for it: to read a number, to learn how many
elements a mask has, and with every copy that is not said to be `non_blocking`, in either direction.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")
_COPIES = {
    "aten._to_copy",
    "aten.to",
    "aten.copy_",
    "aten.index",
    "aten.index_put",
    "aten.index_put_",
    "aten._index_put_impl_",
}


_READS = {"aten._local_scalar_dense", "aten.item", "aten.is_nonzero", "aten.equal"}
_SIZED_BY_VALUES = {"aten.nonzero", "aten.masked_select", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive"}
_waits: list[Counter[str]] = []


@contextmanager
def synchronisations() -> Iterator[Counter[str]]:
    """Inside `other_device`, how often the CPU would wait for a GPU, by the operation and the line of mem1."""
    found: Counter[str] = Counter()
    _waits.append(found)
    try:
        yield found
    finally:
        _waits.remove(found)


def _waited(name: str) -> None:
    if _waits:
        frames = [f for f in traceback.extract_stack() if "/src/mem1/" in f.filename]
        where = f" at {frames[-1].filename.rpartition('/src/')[2]}: {frames[-1].line}" if frames else ""
        for found in _waits:
            found[name + where] += 1


def _waits_for(name: str, args: Any, kwargs: dict[str, Any], there: bool) -> bool:
    """Whether the CPU waits in this operation; `there`: it has tensors of the device."""
    if name in ("aten._to_copy", "aten.to"):
        moves = kwargs.get("device") is not None and (kwargs["device"] == META) != isinstance(args[0], Valued)
        return moves and (there or not kwargs.get("non_blocking"))
    if name == "aten.copy_":
        moves = isinstance(args[0], Valued) != isinstance(args[1], Valued)
        blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        return moves and (isinstance(args[1], Valued) or blocks)
    if name.startswith("aten.index") and there and isinstance(args[1], list | tuple):
        return any(x is not None and (x.dtype is torch.bool or not isinstance(x, Valued)) for x in args[1])
    if name == "aten.repeat_interleave":
        each_alike = len(args) > 1 and isinstance(args[1], int)
        return there and not each_alike and kwargs.get("output_size") is None
    return there and name in _READS | _SIZED_BY_VALUES


class Valued(Tensor):
    """On the device "meta"; `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Valued:
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=META, storage_offset=held.storage_offset()
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        _waited("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    there = any(isinstance(x, Valued) for x in given)
    name = f"{function.namespace}.{function._opname}"
    if there and name not in _COPIES and any(not isinstance(x, Valued) and x.dim() for x in given):
        raise RuntimeError(f"{name}: tensors on meta and cpu")
    if _waits_for(name, args, kwargs, there):
        _waited(name)
    devices = [x for x in (*args, kwargs.get("device")) if isinstance(x, torch.device)]
    if devices:
        there = devices[0] == META
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    found = function(*plain_args, **plain_kwargs)
    if function._schema.is_mutable and given and isinstance(args[0], Tensor):  # in place: the same tensor again
        return args[0] if isinstance(found, Tensor) else found
    return tree_map(lambda x: Valued(x) if isinstance(x, Tensor) else x, found) if there else found


def _plain(value: Any) -> Any:
    if isinstance(value, Valued):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) else value


class _Factories(TorchDispatchMode):
    """What is made on the device, or moved there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """`torch.tensor` makes a tensor of "meta" without values before anybody is asked."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        return function(*args, **kwargs)


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Inside, "meta" is a device whose tensors have values."""
    known, autocast = torch.is_autocast_enabled, torch.autocast
    with (
        # torch knows no autocast on "meta"
        patch.object(torch, "is_autocast_enabled", lambda kind="cpu": kind != "meta" and known(kind)),
        patch.object(torch, "autocast", lambda kind, **given: autocast("cpu" if kind == "meta" else kind, **given)),
        _Factories(),
        _Literals(),
    ):
        yield META
