"""An optimizer's `state_dict` as JSON and named tensors, and back, exactly and without pickle.

    tensors = {}
    encode({"state": {0: {"step": tensor(3.)}}, "betas": (0.9, 0.999)}, tensors, "0")
        ->  {"dict": [["state", {"dict": [[0, {"dict": [["step", {"tensor": "0.state.0.step"}]]}]]}],
                      ["betas", {"tuple": [0.9, 0.999]}]]}        tensors: {"0.state.0.step": tensor(3.)}

JSON alone would turn tuples into lists and the integer keys of `state` into strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def encode(value: Any, tensors: dict[str, torch.Tensor], name: str) -> Any:
    """`value` as JSON; its tensors are put into `tensors` under names that begin with `name`.

    Raises TypeError, with the name, on anything but dicts, lists, tuples, tensors, strings, numbers, None.
    """
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, encode(v, tensors, f"{name}.{key}")] for key, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [encode(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{name}: a checkpoint cannot hold a {type(value).__name__} of an optimizer's state")


def decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Inverse of `encode`."""
    if isinstance(value, list):
        return [decode(v, tensors) for v in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "tuple":
            return tuple(decode(v, tensors) for v in content)
        return {key: decode(v, tensors) for key, v in content}
    return value
