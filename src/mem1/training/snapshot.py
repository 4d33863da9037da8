"""All that a checkpoint holds, copied at one moment, so that it can be written while the training goes on.

Letters: none; a stem is the path of a safetensors file without its suffix, in the checkpoint's folder.
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

from mem1.training.checkpoint_tensors import Shape, copied
from mem1.training.distributed import ALONE, Ranks
from mem1.training.optimizer_state import encode
from mem1.training.quantized import quantized_weights
from mem1.training.sharding import class_name

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
        ranks: Ranks = ALONE,
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
