"""Everything a checkpoint holds, copied at one moment, so that it can be written while training continues.

    snapshot = Snapshot.take(40, model, [muon, adamw], fingerprint=..., ranks=ranks)
    write_snapshot(run / "checkpoints", snapshot)

    on one rank     optimizers.safetensors                                      whole tensors
    on 2 ranks      optimizers/shard-00001-…safetensors, shard-00002-…          each rank's rows, with their positions

`torch.distributed.checkpoint` writes the shards and reads either kind: each rank takes the rows it needs from the files
that have them, so tensors written on some ranks can be read on any number of ranks, and on one. A stem is the path of
such a file in the checkpoint's folder, without its suffix. The states of the optimizers go by the names of their
parameters: model.layers.0.mlp.up_proj.weight/exp_avg, critic.head.weight/step, ...

Hyperparameters of optimizers are not saved: they follow from the configuration and the step. torch's own
`get_optimizer_state_dict` is not used, because it takes a step with an optimizer that has not taken one yet (a policy
that waits for its critic), so that the resumed run would differ.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from mem1.training.ranks.adapters import quantized_weights
from mem1.training.ranks.layers import class_name
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, TorchRanks, whole

Shape = tuple[torch.dtype, tuple[int, ...]]

_COPY = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)


def copied(tensors: Mapping[str, Tensor], *, in_shards: bool) -> dict[str, Tensor]:
    """Copies in the computer's memory, whole unless `in_shards`."""
    if not in_shards:
        return {name: whole(tensor).detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    staged: Any = DefaultStager(_COPY).stage({name: tensor.detach() for name, tensor in tensors.items()})
    return staged


def write_tensors(stem: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write `stem`.safetensors, or on several ranks this rank's rows into the folder `stem`; every rank must call it.

    Raises the error of any rank.
    """
    if not (isinstance(ranks, TorchRanks) and ranks.size > 1):
        save_file(dict(tensors), stem.with_name(f"{stem.name}.safetensors"), metadata={"format": "pt"})
        return
    try:
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(stem), save_distributed=True),
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=ranks.group,
        )
    except CheckpointException as failed:
        raise next(iter(failed.failures.values()))[0] from failed


def shapes(stem: Path) -> dict[str, Shape]:
    """Types and whole shapes of the tensors at `stem`."""
    found = _reader(stem).read_metadata().state_dict_metadata
    return {name: (kept.properties.dtype, tuple(kept.size)) for name, kept in found.items()}  # type: ignore[union-attr]


def read(stem: Path, into: Mapping[str, Tensor]) -> None:
    """Fill these tensors in place; sharded ones with this rank's rows. Does not wait for other ranks."""
    if into:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        targets = {name: tensor.detach() for name, tensor in into.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended
            load(targets, storage_reader=_reader(stem), planner=planner, no_dist=True)


class _These(FileSystem):
    """A folder that seems to hold only these files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = [str(file) for file in files]

    def ls(self, path: str) -> list[str]:  # type: ignore[override]
        return self.files


def _reader(stem: Path) -> HuggingFaceStorageReader:
    file = stem.with_name(f"{stem.name}.safetensors")
    reader = HuggingFaceStorageReader(str(stem.parent if file.is_file() else stem))
    reader.fs = _These([file] if file.is_file() else sorted(stem.glob("*.safetensors")))
    return reader


MODEL = "model"
MODULES = "modules"
OPTIMIZERS = "optimizers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of one rank; nothing in it changes any more."""

    step: int
    """Optimiser steps taken so far."""
    tensors: dict[str, dict[str, Tensor]]
    """Stem -> tensors by name, in the computer's memory; on several ranks, this rank's rows."""
    config: PreTrainedConfig
    generation: GenerationConfig | None
    """None: the model cannot generate."""
    state: dict[str, Any]
    """Content of state.json."""

    @classmethod
    def take(
        cls,
        step: int,
        model: PreTrainedModel,
        optimizers: Sequence[Optimizer],
        *,
        fingerprint: str,
        modules: Mapping[str, nn.Module] | None = None,
        extra: Mapping[str, Any] | None = None,
        ranks: Ranks = ONE_PROCESS,
    ) -> Snapshot:
        """Copy the state; every rank must call it.

        step                optimiser steps taken
        fingerprint         fingerprint of the configuration; `load_checkpoint` insists on the same
        modules             other networks with weights or buffers, by name, such as a critic
        extra               anything JSON can hold: counters, seeds, best scores
        """
        modules = dict(modules or {})
        names = parameter_names(model, modules)
        tensors = {f"{MODEL}/model": named_tensors(model), OPTIMIZERS: optimizer_tensors(optimizers, names)}
        tensors |= {f"{MODULES}/{name}": named_tensors(module) for name, module in modules.items()}
        config = copy.deepcopy(model.config)
        config.architectures = [class_name(model)]
        config.dtype = model.dtype
        return cls(
            step=step,
            tensors={stem: copied(some, in_shards=ranks.size > 1) for stem, some in tensors.items()},
            config=config,
            generation=copy.deepcopy(model.generation_config) if model.can_generate() else None,
            state={
                "step": step,
                "fingerprint": fingerprint,
                "extra": dict(extra or {}),
                "optimizers": optimizer_parameters(optimizers, names),
            },
        )

    def write_rest(self, folder: Path) -> None:
        """Write everything but the tensors, and make the folders that the tensors go to."""
        for stem in self.tensors:
            (folder / stem).parent.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder / MODEL)
        if self.generation is not None:
            self.generation.save_pretrained(folder / MODEL)
        (folder / "state.json").write_text(json.dumps(self.state), encoding="utf-8")


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers that a checkpoint must hold: tied weights under their first name, quantised ones not."""
    quantized = quantized_weights(module)  # made anew, from the same weights, whenever the module is made
    state = module.state_dict(keep_vars=True)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(quantized)}
    first: dict[int, str] = {}
    for name, tensor in kept.items():
        first.setdefault(id(tensor), name)
    return {name: kept[name] for name in first.values()}


def parameter_names(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[Tensor, str]:
    """Name of each parameter of a run: "model.<name in the model>", "<module>.<name in the module>"."""
    named = {MODEL: model, **modules}
    return {p: f"{prefix}.{name}" for prefix in reversed(named) for name, p in named[prefix].named_parameters()}


def optimizer_parameters(optimizers: Sequence[Optimizer], names: Mapping[Tensor, str]) -> list[list[Any]]:
    """[type, names of its parameters] of each optimizer; a checkpoint fits where they are the same."""
    return [[type(o).__name__, [names[p] for group in o.param_groups for p in group["params"]]] for o in optimizers]


def optimizer_tensors(optimizers: Sequence[Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The tensors of the states: "model.lm_head.weight/exp_avg", ...; an optimizer has none before its first step."""
    return {
        f"{names[parameter]}/{key}": tensor
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def optimizer_states(
    saved: Mapping[str, Shape], optimizers: Sequence[Optimizer], names: Mapping[Tensor, str]
) -> tuple[dict[str, Tensor], list[dict[Tensor, dict[str, Tensor]]]]:
    """(tensors by their saved names, to be read into; the same as the state of each optimizer).

    A tensor of its parameter's shape is on the parameter's device, and sharded as the parameter is. Raises LookupError
    for a saved name that belongs to no parameter of the optimizers.
    """
    owners = {names[p]: (i, p) for i, o in enumerate(optimizers) for group in o.param_groups for p in group["params"]}
    tensors: dict[str, Tensor] = {}
    states: list[dict[Tensor, dict[str, Tensor]]] = [{} for _ in optimizers]
    for name, (dtype, shape) in saved.items():
        owner, _, key = name.rpartition("/")
        number, parameter = owners[owner]
        if tuple(parameter.shape) == shape:
            tensors[name] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensors[name] = torch.empty(shape, dtype=dtype)
        states[number].setdefault(parameter, {})[key] = tensors[name]
    return tensors, states
