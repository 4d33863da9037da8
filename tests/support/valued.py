"""A device that is not the CPU, with values: for finding tensors that are on the wrong device where there is no GPU.

    with other_device():
        model.to("meta")        its weights are on the device "meta", and keep their values
        model(ids)              RuntimeError: aten.embedding: tensors on meta and cpu

torch's own meta tensors have no values, so that no training step can run on them. Here each stands for a tensor on the
CPU, which computes. As on CUDA, one operation may not have tensors of both devices, but for scalars (0-dim) of the CPU,
masks and indices that index a tensor, and copies.
"""

from __future__ import annotations

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
