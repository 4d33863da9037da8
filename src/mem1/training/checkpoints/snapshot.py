"""Everything a checkpoint holds, copied at one moment, so that it can be written while training continues.

    snapshot = Snapshot.take(40, model, [muon, adamw], fingerprint=..., ranks=ranks)
    write_snapshot(run / "checkpoints", snapshot)

A stem is the path of a safetensors file in the checkpoint's folder, without its suffix.

An optimizer's `state_dict` becomes JSON and named tensors, exactly and without pickle:

    tensors = {}
    encode({"state": {0: {"step": tensor(3.)}}, "betas": (0.9, 0.999)}, tensors, "0")
        ->  {"dict": [["state", {"dict": [[0, {"dict": [["step", {"tensor": "0.state.0.step"}]]}]]}],
                      ["betas", {"tuple": [0.9, 0.999]}]]}        tensors: {"0.state.0.step": tensor(3.)}

JSON alone would turn tuples into lists and the integer keys of `state` into strings.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from mem1.training.checkpoints.tensors import Shape, copied
from mem1.training.ranks.processes import ONE_PROCESS, Ranks
from mem1.training.ranks.sharding import class_name
from mem1.training.weights.adapters import quantized_weights


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


MODEL = "model"
MODULES = "modules"
OPTIMIZERS = "optimizers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Of one rank; nothing in it changes any more."""

    step: int
    """Optimiser steps done."""
    tensors: dict[str, dict[str, Tensor]]
    """Stem -> tensors by name, in the computer's memory; on several ranks, this rank's rows."""
    config: PreTrainedConfig
    generation: GenerationConfig | None
    """None: the model cannot generate."""
    state: dict[str, Any]
    """What JSON can hold: counters, and the optimizers' states without their tensors."""

    @classmethod
    def take(
        cls,
        step: int,
        model: PreTrainedModel,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        fingerprint: str,
        modules: Mapping[str, torch.nn.Module] | None = None,
        extra: Mapping[str, Any] | None = None,
        ranks: Ranks = ONE_PROCESS,
    ) -> Snapshot:
        """As `save_checkpoint` says. Raises TypeError for an optimizer's state that a checkpoint cannot hold."""
        of_optimizers: dict[str, Tensor] = {}
        encoded = [encode(o.state_dict(), of_optimizers, str(i)) for i, o in enumerate(optimizers)]
        tensors = {f"{MODEL}/model": named_tensors(model), OPTIMIZERS: of_optimizers}
        tensors |= {f"{MODULES}/{name}": named_tensors(module) for name, module in (modules or {}).items()}
        config = copy.deepcopy(model.config)
        config.architectures = [class_name(model)]
        config.dtype = model.dtype
        state = {
            "step": step,
            "fingerprint": fingerprint,
            "extra": dict(extra or {}),
            "optimizer_names": [type(o).__name__ for o in optimizers],
            "optimizers": encoded,
        }
        return cls(
            step=step,
            tensors={stem: copied(some, in_shards=ranks.size > 1) for stem, some in tensors.items()},
            config=config,
            generation=copy.deepcopy(model.generation_config) if model.can_generate() else None,
            state=state,
        )

    def write_rest(self, folder: Path) -> None:
        """All but the tensors; the folders that they go to are made."""
        for stem in self.tensors:
            (folder / stem).parent.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder / MODEL)
        if self.generation is not None:
            self.generation.save_pretrained(folder / MODEL)
        (folder / "state.json").write_text(json.dumps(self.state), encoding="utf-8")


def named_tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """Weights and buffers that a checkpoint must hold; of tied weights the first name only, of quantised ones none."""
    rounded = quantized_weights(module)  # anew, from the same start, whenever the module is made
    state = module.state_dict(keep_vars=True)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(rounded)}
    first: dict[int, str] = {}
    for name, tensor in kept.items():
        first.setdefault(id(tensor), name)
    return {name: kept[name] for name in first.values()}


def optimizer_targets(saved: Mapping[str, Shape], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Where an optimizer's saved tensors are to be read into: spread as the parameter is that they belong to.

    saved       by the names of `optimizer_state.encode`: "1.state.7.exp_avg" is of the parameter 7 of optimizer 1
    """
    parameters = [[p for group in o.param_groups for p in group["params"]] for o in optimizers]
    return {name: _target(name, *shape, parameters) for name, shape in saved.items()}


def _target(name: str, dtype: torch.dtype, shape: tuple[int, ...], parameters: Sequence[Sequence[Tensor]]) -> Tensor:
    optimizer, kind, number, *_ = name.split(".")
    if kind == "state" and int(number) < len(parameters[int(optimizer)]):
        parameter = parameters[int(optimizer)][int(number)]
        if isinstance(parameter, DTensor) and tuple(parameter.shape) == shape:
            return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype)
