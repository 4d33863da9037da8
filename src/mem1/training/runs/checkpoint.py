"""Checkpoints: written whole or not at all, read back bit for bit, nothing pickled.

    write_snapshot(run / "checkpoints", Snapshot.take(40, model, [muon, adamw], fingerprint=fingerprint(config)))

    checkpoints/checkpoint-000040/
        model/                   config.json, model.safetensors: a transformers model folder of its own
        modules/                 critic.safetensors, reference.safetensors, where the run has them
        optimizers.safetensors   states of the optimizers, by the names of their parameters
        state.json               step, fingerprint, extra, which optimizer has which parameters
        manifest.json            size and CRC-32 of each file above

Several ranks write a folder of shards in place of each safetensors file (`snapshot.py`), into one folder that all of
them see; any number of ranks reads either. `mem1.durable` says how a checkpoint survives a kill. One run writes to a
folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from mem1.configuration import load_toml
from mem1.durable import (
    MANIFEST,
    explain_full_disk,
    put_folder,
    read_manifest,
    remove_listed,
    restore_within,
    seal,
    set_aside,
)
from mem1.engines.weights import check_shapes
from mem1.errors import UserError, read_as_written
from mem1.lock import alone_in
from mem1.policy.policy import make_policy
from mem1.recipe.recipe import Recipe
from mem1.run_folder import check_empty, pin_model
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, TorchRanks
from mem1.training.runs.snapshot import (
    MODEL,
    MODULES,
    OPTIMIZERS,
    Snapshot,
    named_tensors,
    optimizer_parameters,
    optimizer_states,
    parameter_names,
    read,
    shapes,
    write_tensors,
)

KIND = "checkpoint"
FORMAT = 3
"""Version of the layout of a checkpoint."""
KEPT = 2
"""Number of checkpoints that a run keeps."""
_NAME = re.compile(r"checkpoint-(\d{6,})")
_PARTIAL = re.compile(r"\.tmp-checkpoint-\d{6,}")
"""Name of a checkpoint that is being written or removed; the same on all ranks."""
_STATE = {"step": int, "fingerprint": str, "extra": dict, "optimizers": list}
"""Fields of state.json, with their types."""


def write_snapshot(folder: str | Path, snapshot: Snapshot, *, ranks: Ranks = ONE_PROCESS) -> Path:
    """Write `checkpoint-<step>` into `folder`, remove all but the last two, and return its path.

    A checkpoint of the same step is replaced; one that holds somebody else's file is never removed. Every rank must
    call it. Raises UserError where the disk is full; the checkpoints that were there before are then untouched.
    """
    folder = Path(folder)
    target = folder / f"checkpoint-{snapshot.step:06d}"
    partial = folder / f".tmp-{target.name}"

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        snapshot.write_rest(partial)

    def tensors() -> None:
        for name, some in snapshot.tensors.items():
            write_tensors(partial / name, some, ranks)

    def end() -> None:
        seal(partial, kind=KIND, format=FORMAT)
        put_folder(partial, target)
        for old in _complete(folder)[:-KEPT]:
            _remove(old)

    explained = explain_full_disk(f"{target}", "the checkpoints before it are intact")
    try:
        ranks.on_rank_zero(explained(begin))
        ranks.on_each_rank(explained(tensors))
        ranks.on_rank_zero(explained(end))
    except UserError:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


class BackgroundSaves:
    """Writes checkpoints to one folder in a thread, while training continues; every rank has one.

        with BackgroundSaves(run.checkpoints, ranks) as saves:
            saves.save(take)            copies the state; returns at once, unless the save before is not finished

    An error of one save is raised by the next `save`, or at the end of the block.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, on_saved: Callable[[Path], None] | None = None) -> None:
        """`on_saved` is called on rank 0, in the thread, with the path of each finished checkpoint."""
        self.folder = folder
        self.ranks = ranks.new_group() if isinstance(ranks, TorchRanks) else ranks
        self.on_saved = on_saved
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Write the copy that `take` makes once the save before is finished: there is one copy at a time."""
        self.wait()
        self._writing = self._pool.submit(self._write, take())

    def wait(self) -> None:
        """Wait until everything is written. Raises what writing raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, snapshot: Snapshot) -> None:
        path = write_snapshot(self.folder, snapshot, ranks=self.ranks)
        if self.on_saved is not None and self.ranks.rank == 0:
            self.on_saved(path)

    def __enter__(self) -> BackgroundSaves:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            # after an error of the training other ranks may be gone, and a save would wait for them
            if kind is None or self.ranks.size == 1:
                self.wait()
        finally:
            self._pool.shutdown(wait=kind is None or self.ranks.size == 1)


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The complete checkpoint with the highest step; None: there is none, or no such folder."""
    folder = Path(folder)
    if folder.is_dir():
        restore_within(folder)
    return next(reversed(_complete(folder)), None)


def load_checkpoint(
    path: str | Path,
    model: PreTrainedModel,
    optimizers: Sequence[Optimizer],
    *,
    fingerprint: str,
    modules: Mapping[str, nn.Module] | None = None,
    ranks: Ranks = ONE_PROCESS,
) -> None:
    """Load the weights and the optimizers' states in place.

    model, optimizers, modules      made as those that were saved: same shapes, order and names; on any number of ranks

    Every rank must call it. Raises UserError where the folder is no checkpoint, is damaged, was written under another
    configuration, or does not fit model and optimizers.
    """
    path = Path(path)
    state: dict[str, Any] = ranks.on_rank_zero(lambda: read_state(path))
    if state["fingerprint"] != fingerprint:
        raise UserError(
            f"{path} was written under another configuration (fingerprint {state['fingerprint'][:12]}, "
            f"now {fingerprint[:12]}); use the run's own config.toml, or start a new run with another --out"
        )
    wanted = dict(modules or {})
    saved = sorted(file.name.removesuffix(".safetensors") for file in (path / MODULES).glob("*"))
    if saved != sorted(wanted):
        raise UserError(f"{path} holds the modules {saved}, this run has {sorted(wanted)}")
    names = parameter_names(model, wanted)
    with _understood(path):
        there = _shown(state["optimizers"])
    if (parameters := optimizer_parameters(optimizers, names)) != state["optimizers"]:
        raise UserError(
            f"{path} holds the optimizers {there}, this run has {_shown(parameters)}; "
            "use the mem1 that wrote it, or start a new run with another --out"
        )
    _load_weights(path, path / MODEL / "model", model)
    for name, module in wanted.items():
        _load_weights(path, path / MODULES / name, module)
    with _understood(path):
        tensors, states = optimizer_states(shapes(path / OPTIMIZERS), optimizers, names)
        read(path / OPTIMIZERS, tensors)
    for optimizer, loaded in zip(optimizers, states, strict=True):
        optimizer.state.clear()
        optimizer.state.update(loaded)


def load_weights(path: str | Path, model: PreTrainedModel) -> None:
    """Load the weights of the policy alone. Raises UserError as `load_checkpoint`, on one process."""
    read_state(Path(path))
    _load_weights(Path(path), Path(path) / MODEL / "model", model)


def read_state(path: Path) -> dict[str, Any]:
    """step, fingerprint, extra and optimizers of a checkpoint. Raises UserError where it is none, or is damaged."""
    manifest = read_manifest(path)
    if manifest is None or manifest.kind != KIND:
        raise UserError(
            f"{path} is not a checkpoint of this mem1, or its manifest.json is damaged; give a folder such as "
            "runs/quickstart/checkpoints/checkpoint-000040"
        )
    if manifest.format != FORMAT:
        raise UserError(
            f"{path} has format {manifest.format}; this mem1 reads format {FORMAT}; use the mem1 that wrote it"
        )
    for name in manifest.files:
        if not manifest.intact(path, name):
            raise UserError(
                f"{path} is damaged: {name} is missing or not as it was written; remove that folder to continue from "
                f"the checkpoint before it in {path.parent}, or start a new run"
            )
    with _understood(path):
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        for name, kind in _STATE.items():
            if type(state[name]) is not kind:
                raise TypeError(f"{name} is a {type(state[name]).__name__}")
        return state


def _understood(path: Path) -> AbstractContextManager[None]:
    """Raises UserError in place of whatever a reader raises on hand-made files with a fitting manifest."""
    return read_as_written(f"{path} is no checkpoint", "use another one", besides=(SafetensorError,))


def _shown(optimizers: Sequence[Any]) -> str:
    """[["AdamW", ["model.lm_head.weight", ...]]]  ->  AdamW of 12 parameters"""
    return ", ".join(f"{kind} of {len(names)} parameters" for kind, names in optimizers) or "none"


def _sweep(folder: Path) -> None:
    """Remove what a killed run has left: half-written checkpoints, and replaced ones whose successor is there."""
    restore_within(folder)
    for path in folder.iterdir():
        if _PARTIAL.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    for old, successor in set_aside(folder):
        if successor.exists():
            remove_listed(old)


def _remove(checkpoint: Path) -> None:
    """Renamed first, so that a kill in the middle leaves no half of a checkpoint under its name.

    A checkpoint with a file that was not written with it stays: that file is somebody's.
    """
    manifest = read_manifest(checkpoint)
    if checkpoint.is_symlink() or manifest is None or manifest.foreign(checkpoint):
        return
    doomed = checkpoint.with_name(f".tmp-{checkpoint.name}")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _complete(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps."""
    paths = [p for p in folder.glob("*") if _NAME.fullmatch(p.name) and (p / MANIFEST).is_file()]
    return sorted(paths, key=lambda p: int(p.name.rpartition("-")[2]))


def _load_weights(path: Path, stem: Path, module: nn.Module) -> None:
    """Raises UserError, before anything is changed, where names, types or shapes differ."""
    tensors = named_tensors(module)
    needed = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    with _understood(path):
        found = shapes(stem)
    check_shapes(needed, found, f"{path} does not fit this run's {stem.name}")
    with torch.no_grad(), _understood(path):
        read(stem, tensors)


def export_checkpoint(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint of a run, by any number of ranks, to `out` as a transformers folder; adapters are merged.

    Raises UserError where there is no run around it, the checkpoint is damaged, or `out` is not empty.
    """
    recipe = checkpoint.absolute().parent.parent / "config.toml"
    if not recipe.is_file():
        raise UserError(
            f"{checkpoint} is in no run's folder: {recipe} is missing; give a folder such as "
            "runs/quickstart/checkpoints/checkpoint-000040"
        )
    check_empty(out)
    config = load_toml(recipe, Recipe)
    pin_model(recipe.parent)
    policy = make_policy(config)
    placement = Placement(lora=config.lora, applied=config.lora is not None)
    trained = placement.trained(policy.model)
    load_weights(checkpoint, trained)
    placement.hand_back(trained, policy.model)
    with alone_in(out):
        policy.save_sealed(out)
