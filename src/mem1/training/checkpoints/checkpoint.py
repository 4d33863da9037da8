"""Checkpoints: written whole or not at all, read back bit for bit, nothing pickled.

    save_checkpoint(run / "checkpoints", 40, model, [muon, adamw], fingerprint=fingerprint(config))

    checkpoints/checkpoint-000040/
        model/                   config.json, model.safetensors: a transformers model folder of its own
        modules/                 critic.safetensors, reference.safetensors, where there are any
        optimizers.safetensors   tensors of the optimizers' states
        state.json               step, fingerprint, extra, the rest of the optimizers' states
        manifest.json            CRC-32 of each file above

Several ranks write a folder of shards in place of each safetensors file (`checkpoint_tensors.py`), into one folder
that all of them see; any number of ranks reads either. A checkpoint is written under a name that begins with a dot,
forced to the disk and then renamed, so that a kill or a power cut at any moment leaves the one before or the new one,
never half of one. One run writes to a folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from mem1.durable import explain_full_disk, sync
from mem1.engines.weights import check_shapes
from mem1.errors import UserError, read_as_written
from mem1.training import manifest
from mem1.training.checkpoints.snapshot import (
    MODEL,
    MODULES,
    OPTIMIZERS,
    Snapshot,
    decode,
    named_tensors,
    optimizer_targets,
)
from mem1.training.checkpoints.tensors import read, shapes, write_shards, write_whole, written
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, TorchRanks

_NAME = re.compile(r"(?:\.old-)?checkpoint-(\d{6,})")
_STATE = {"step": int, "fingerprint": str, "extra": dict, "optimizer_names": list, "optimizers": list}
"""Fields of state.json that are read, with their types."""
_PARTIAL = re.compile(r"\.tmp-checkpoint-\d{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds besides the states it has put back."""

    step: int
    """Optimiser steps done."""
    extra: dict[str, Any]
    """As given to `save_checkpoint`, after a round trip through JSON."""


def save_checkpoint(
    folder: str | Path,
    step: int,
    model: PreTrainedModel,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    fingerprint: str,
    modules: Mapping[str, torch.nn.Module] | None = None,
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
    tokenizer_files: Sequence[Path] = (),
    ranks: Ranks = ONE_PROCESS,
) -> Path:
    """Write `checkpoint-<step>` into `folder`, remove all but the last `keep`, and return its path.

    step                optimiser steps done
    fingerprint         of the configuration; `load_checkpoint` insists on the same
    modules             what else has weights or buffers, by name: a critic
    extra               anything JSON can hold: counters, seeds, best scores
    tokenizer_files     copied into the model's folder

    A checkpoint of the same step is replaced, and one that holds a file of somebody else is never removed. Every rank
    must call it. Raises UserError where the disk is full; the checkpoints that were there before are then untouched.
    """
    snapshot = Snapshot.take(
        step, model, optimizers, fingerprint=fingerprint, modules=modules, extra=extra, ranks=ranks
    )
    return write_snapshot(folder, snapshot, keep=keep, tokenizer_files=tokenizer_files, ranks=ranks)


def write_snapshot(
    folder: str | Path,
    snapshot: Snapshot,
    *,
    keep: int = 2,
    tokenizer_files: Sequence[Path] = (),
    ranks: Ranks = ONE_PROCESS,
) -> Path:
    """The second half of `save_checkpoint`, which needs nothing of the training any more."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    folder = Path(folder)
    target = folder / f"checkpoint-{snapshot.step:06d}"
    partial = folder / f".tmp-{target.name}"

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with explain_full_disk(f"{target}", "the checkpoints before it are intact"):
            snapshot.write_rest(partial)
            for file in tokenizer_files:
                shutil.copyfile(file, partial / MODEL / file.name)

    def tensors() -> None:
        with explain_full_disk(f"{target}", "the checkpoints before it are intact"):
            for name, some in snapshot.tensors.items():
                if isinstance(ranks, TorchRanks) and ranks.size > 1:
                    write_shards(partial / name, some, ranks)
                else:
                    write_whole(partial / name, some)

    def end() -> None:
        with explain_full_disk(f"{target}", "the checkpoints before it are intact"):
            manifest.seal(partial)
            _put_in_place(partial, target)
        for old in _complete(folder)[:-keep]:
            _remove(old)

    try:
        ranks.on_rank_zero(begin)
        ranks.on_each_rank(tensors)
        ranks.on_rank_zero(end)
    except UserError:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The complete checkpoint with the highest step; None where there is none or no such folder."""
    return next(reversed(_complete(Path(folder))), None)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """What a checkpoint says of itself; nothing is put back. Raises UserError where it is none, or is damaged."""
    state = _read_state(Path(path))
    return Checkpoint(step=state["step"], extra=state["extra"])


def load_checkpoint(
    path: str | Path,
    model: PreTrainedModel,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    fingerprint: str,
    modules: Mapping[str, torch.nn.Module] | None = None,
    ranks: Ranks = ONE_PROCESS,
) -> Checkpoint:
    """Put the weights and the optimizers' states back, in place.

    model, optimizers, modules      made as those that were saved: same shapes, same order, same names; on any ranks

    Every rank must call it. Raises UserError where the folder is no checkpoint, is damaged, was written under another
    configuration, or does not fit model and optimizers.
    """
    path = Path(path)
    state: dict[str, Any] = ranks.on_rank_zero(lambda: _read_state(path))
    if state["fingerprint"] != fingerprint:
        raise UserError(
            f"{path} was written under another configuration (fingerprint {state['fingerprint'][:12]}, "
            f"now {fingerprint[:12]}); use the run's own config.toml, or start a new run with another --out"
        )
    names = [type(o).__name__ for o in optimizers]
    if names != state["optimizer_names"]:
        raise UserError(f"{path} holds the optimizers {state['optimizer_names']}, this run has {names}")
    wanted = dict(modules or {})
    saved = sorted(written(path / MODULES))
    if saved != sorted(wanted):
        raise UserError(f"{path} holds the modules {saved}, this run has {sorted(wanted)}")
    _load_weights(path, path / MODEL / "model", model)
    for name, module in wanted.items():
        _load_weights(path, path / MODULES / name, module)
    stem = path / OPTIMIZERS
    with _understood(path):
        tensors = optimizer_targets(shapes(stem), optimizers)
        read(stem, tensors)
        states = [decode(encoded, tensors) for encoded in state["optimizers"]]
        pairs = list(zip(optimizers, states, strict=True))
    for optimizer, decoded in pairs:
        try:
            optimizer.load_state_dict(decoded)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} does not fit this run's {type(optimizer).__name__}: {error}") from error
    return Checkpoint(step=state["step"], extra=state["extra"])


def load_weights(path: str | Path, model: PreTrainedModel) -> None:
    """Put the weights of the policy back and nothing else. Raises UserError as `load_checkpoint`, on one process."""
    _read_state(Path(path))
    _load_weights(Path(path), Path(path) / MODEL / "model", model)


def _read_state(path: Path) -> dict[str, Any]:
    manifest.verify(path)
    with _understood(path):
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        for name, kind in _STATE.items():
            if type(state[name]) is not kind:
                raise TypeError(f"{name} is a {type(state[name]).__name__}")
        return state


def _understood(path: Path) -> AbstractContextManager[None]:
    """Raises UserError in place of whatever files that are whole, but hand-made, make a reader raise."""
    return read_as_written(f"{path} is no checkpoint", "use another one", besides=(SafetensorError,))


def _put_in_place(partial: Path, target: Path) -> None:
    """A folder cannot be renamed over another: the old one steps aside first, under a name that still counts."""
    if target.exists():
        target.rename(target.with_name(f".old-{target.name}"))
    partial.rename(target)
    sync(target.parent)
    _sweep(target.parent)


def _sweep(folder: Path) -> None:
    """Remove what a killed run has left: half-written checkpoints, and replaced ones whose successor is there."""
    for path in folder.iterdir():
        replaced = path.name.startswith(".old-") and path.with_name(path.name.removeprefix(".old-")).exists()
        if replaced and _NAME.fullmatch(path.name):
            _remove(path)
        elif _PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _remove(checkpoint: Path) -> None:
    """Renamed first, so that a kill in the middle leaves no half of a checkpoint under its name.

    One with a file in it that was not written with it stays: that file is somebody's.
    """
    if checkpoint.is_symlink() or manifest.foreign(checkpoint):
        return
    doomed = checkpoint.with_name(f".tmp-{checkpoint.name.removeprefix('.old-')}")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _complete(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps; of a replaced one and its successor, the successor comes last."""
    paths = [p for p in folder.glob("*") if _NAME.fullmatch(p.name) and (p / manifest.NAME).is_file()]
    return sorted(paths, key=lambda p: (int(p.name.rpartition("-")[2]), not p.name.startswith(".old-")))


def _load_weights(path: Path, stem: Path, module: torch.nn.Module) -> None:
    """Raises UserError, before anything is changed, where names, types or shapes differ."""
    tensors = named_tensors(module)
    needed = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    with _understood(path):
        found = shapes(stem)
    check_shapes(needed, found, f"{path} does not fit this run's {stem.name}")
    with torch.no_grad(), _understood(path):
        read(stem, tensors)


class BackgroundSaves:
    """A thread that writes to one folder; every rank has one."""

    def __init__(self, folder: Path, ranks: Ranks, *, on_saved: Callable[[Path], None] | None = None) -> None:
        """`on_saved` is called on rank 0, in the thread, with the path of each checkpoint that is in place."""
        self.folder = folder
        self.ranks = ranks.new_group() if isinstance(ranks, TorchRanks) else ranks
        self.on_saved = on_saved
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Write what `take` copies; called when the one before is written, so that there is one copy at a time."""
        self.wait()
        self._writing = self._pool.submit(self._write, take())

    def wait(self) -> None:
        """Until all is written. Raises what writing raised."""
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
            # The training's own error is the one to be told; on several ranks the others may be gone by now.
            if kind is None or self.ranks.size == 1:
                self.wait()
        finally:
            self._pool.shutdown(wait=kind is None or self.ranks.size == 1)
