"""Weights of a model as safetensors: tied ones saved once, and loaded only where names, types and shapes match.

save_file(untied(model.state_dict()), "model.safetensors")
saved = load_file("model.safetensors")
check_fit(saved, model, "model.safetensors does not fit")        raises before anything changes
put(saved, model)
checksum("model.safetensors")                                    lets a server check that it reads what was written

`write_one_by_one` writes such a file from tensors that exist one at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from mem1.durable import chunks
from mem1.errors import UserError

Weights = Mapping[str, torch.Tensor]
Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Types of weights by their names in safetensors."""


def untied(weights: Weights) -> dict[str, torch.Tensor]:
    """The weights with tensors that share memory under their first name only."""
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in weights.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: weights[name].contiguous() for name in first.values()}


def check_fit(saved: Weights, module: torch.nn.Module, refusal: str) -> None:
    """Raises UserError beginning with `refusal` where names, types or shapes differ from the module's."""
    check_shapes(_shapes(untied(module.state_dict())), _shapes(saved), refusal)


def check_shapes(needed: Shapes, found: Shapes, refusal: str) -> None:
    """`check_fit` for types and shapes without tensors."""
    if needed != found:
        name = min(n for n in needed.keys() | found.keys() if needed.get(n) != found.get(n))
        raise UserError(f"{refusal}: {name} is {found.get(name)} there and {needed.get(name)} here")


def check_finite(weights: Weights, where: str) -> None:
    """Raises UserError naming the tensor and `where` it comes from if one contains NaN or infinity."""
    for name, tensor in weights.items():
        # a sum reads once and needs no memory; finite numbers may overflow in it, so the second test decides
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise UserError(
                f"{where}: the weights {name} contain NaN or infinity; copy the model again or use an older checkpoint"
            )


def put(saved: Weights, module: torch.nn.Module) -> None:
    """Copy weights that fit into the module, in place."""
    # strict=False: tied weights are saved once, under their first name
    module.load_state_dict(saved, strict=False)


def num_bytes(shapes: Shapes) -> int:
    """Bytes of the tensors together."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())


def write_one_by_one(
    path: Path, shapes: Shapes, tensors: Iterable[torch.Tensor], digest: hashlib.blake2b | None = None
) -> None:
    """Write a safetensors file; the tensors come in the order of `shapes` and are converted to its types.

    digest      is updated with all bytes of the file
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + num_bytes({name: (dtype, shape)})
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:

        def put_bytes(piece: memoryview) -> None:
            file.write(piece)
            if digest is not None:
                digest.update(piece)

        put_bytes(memoryview(len(text).to_bytes(8, "little") + text))
        for (dtype, _), tensor in zip(shapes.values(), tensors, strict=True):
            plain = tensor.detach().to("cpu", dtype).contiguous()
            put_bytes(plain.flatten().view(torch.uint8).numpy().data)


def checksum(source: Path | bytes) -> str:
    """BLAKE2b (hexadecimal) of a file or of bytes."""
    digest = new_checksum()
    for piece in (source,) if isinstance(source, bytes) else chunks(source):
        digest.update(piece)
    return digest.hexdigest()


def new_checksum() -> hashlib.blake2b:
    """A checksum to be computed piece by piece."""
    return hashlib.blake2b(digest_size=16)


def _shapes(weights: Weights) -> Shapes:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in weights.items()}
