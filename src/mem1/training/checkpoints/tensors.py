"""Named tensors of a checkpoint, whole or in shards, in safetensors files.

    on one rank     optimizers.safetensors                                      whole tensors
    on 2 ranks      optimizers/shard-00001-…safetensors, shard-00002-…          each rank's rows, with their positions

`torch.distributed.checkpoint` writes the shards and reads either kind: each rank takes the rows it needs from the files
that have them, so tensors written on some ranks can be read on any number of ranks, and on one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from mem1.training.ranks.processes import TorchRanks
from mem1.training.ranks.sharding import whole

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


def write_whole(stem: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `stem`.safetensors."""
    save_file(dict(tensors), stem.with_name(f"{stem.name}.safetensors"), metadata={"format": "pt"})


def write_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: TorchRanks) -> None:
    """Write this rank's rows into `folder`; every rank must call it. Raises the error of any rank."""
    try:
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
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


def written(folder: Path) -> Iterator[str]:
    """Names of the stems in a folder."""
    for path in sorted(folder.glob("*")):
        yield path.name.removesuffix(".safetensors")


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
