"""New weights for a server: a safetensors file inside its folder, identified by its checksum.

    {"update_info": {"path": "weights-000003/model.safetensors", "checksum": "9f3c..."}}

The weights are read from the very bytes whose checksum was compared. Only safetensors is read, which holds numbers and
no code; a path that leads out of the folder, by whatever links, is refused.
"""

from __future__ import annotations

import hmac
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load

from mem1.engines.weights import Weights, check_finite, check_fit, checksum, untied
from mem1.errors import UserError
from mem1.net.serving import Refused

_HEADER = 32 << 20
"""Most bytes of a file besides its weights."""


class UpdateInfo(BaseModel):
    """Location of the weights."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str = Field(min_length=1, max_length=4096)
    """Path of a .safetensors file, relative to the server's folder of weights."""
    checksum: str = Field(pattern="^[0-9a-f]{32}$")
    """`mem1.engines.weights.checksum` of the file."""


class Update(BaseModel):
    """The body of POST /update_weights."""

    model_config = ConfigDict(extra="forbid", strict=True)

    update_info: UpdateInfo


class Finish(BaseModel):
    """The body of POST /finish_weight_update."""

    model_config = ConfigDict(extra="forbid", strict=True)

    weight_version: str = Field(pattern="^[0-9]{1,18}$")
    """Version number of the new weights; text, as in vLLM."""


def read_update(folder: Path, info: UpdateInfo, model: torch.nn.Module) -> Weights:
    """The weights in a file of the folder. Raises Refused where it may not or cannot be read, or does not fit."""
    served = untied(model.state_dict()).values()
    data = _inside(folder, info.path, largest=sum(tensor.nbytes for tensor in served) + _HEADER)
    if not hmac.compare_digest(checksum(data), info.checksum):
        raise Refused(422, f"{info.path} does not have the checksum of the request: it is damaged, or not complete yet")
    try:
        weights = load(data)
        check_fit(weights, model, f"{info.path} does not fit the model that is served")
        check_finite(weights, info.path)
    except SafetensorError as error:
        raise Refused(422, f"{info.path} is not a safetensors file: {error}") from error
    except UserError as error:
        raise Refused(422, str(error)) from error
    return weights


def _inside(folder: Path, name: str, *, largest: int) -> bytes:
    """The bytes of a file in the folder."""
    try:
        root, path = folder.resolve(), (folder / name).resolve()
        if not path.is_relative_to(root):
            raise Refused(403, f"{name!r} is outside the folder of weights that this server was started with")
        if path.suffix != ".safetensors" or not path.is_file():
            raise Refused(404, f"{name!r} is not a .safetensors file in the folder of weights")
        if path.stat().st_size > largest:
            raise Refused(413, f"{name!r} is larger than the weights of the served model")
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, has a zero byte, or links in a ring
        raise Refused(
            404, f"{name[:200]!r} cannot be read in the folder of weights ({type(error).__name__})"
        ) from error
