"""Products of few rows with weights in bf16 on a CPU: W x^T in place of x W^T.

    linear(x_MK, W_NK)      (x_MK @ W_NK^T)          brings W into the order of its units, each time
    quick_for_few(model)    (W_NK @ x_MK^T)^T        brings x into it, and reads W once, as it lies

A step of sampling reads all weights for a token of each row. With that order it takes as long as their way through
memory, where bringing them into another takes half as long again (`benchmarks/bfloat16.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW = range(2, 65)
"""Rows for which it is quicker."""


@contextmanager
def quick_for_few(model: nn.Module) -> Iterator[None]:
    """Inside, the linear layers of a model in bf16 on a CPU compute products of few rows in the other order."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _gains(layer)]
    for layer in layers:
        layer.forward = partial(_product, layer)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and "forward" not in vars(layer)


def _product(layer: nn.Linear, x_1MK: Tensor) -> Tensor:
    if x_1MK.ndim != 3 or x_1MK.shape[0] != 1 or x_1MK.shape[1] not in _FEW or x_1MK.dtype != torch.bfloat16:
        return F.linear(x_1MK, layer.weight, layer.bias)
    x_KM = x_1MK[0].t()
    y_NM = layer.weight @ x_KM if layer.bias is None else torch.addmm(layer.bias[:, None], layer.weight, x_KM)
    return y_NM.t().contiguous()[None]
