"""The files of the policy's weights in the folder that trainer and servers share.

weights/weights-000003/model.safetensors        a version is complete once it has this name
weights/model/                                  what a server of the run's own starts from

write_weights(Path("weights"), model, 3)        written while the weights are gathered, one at a time
remove_others(Path("weights"), kept)
"""

from __future__ import annotations

import copy
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import torch
from torch import nn

from mem1.durable import explain_full_disk, sync
from mem1.engines.weight_update import PublishedWeights
from mem1.engines.weights import Shapes, new_checksum, write_one_by_one
from mem1.errors import UserError
from mem1.policy.policy import Policy
from mem1.training.ranks.adapters import merged, plain_weights

TOKENIZER = "tokenizer"
"""The folder of the tokenizer within that of the model. Beside a model's config.json, transformers goes by its type and
makes a tokenizer of its own from parts of tokenizer.json."""
_NAME = re.compile(r"(?:\.tmp-)?weights-\d{6,}")
_FILE = "model.safetensors"


def published_shapes(model: nn.Module, dtype: torch.dtype | None = None, *, untied: bool = False) -> Shapes:
    """Types and shapes of the weights in the file; `dtype` None: the model's own types."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, weight in plain_weights(model).items():
        for each in (name, *(second_names(model).get(name, ()) if untied else ())):
            shapes[each] = (dtype or weight.dtype, weight.shape)
    return shapes


def second_names(model: nn.Module) -> dict[str, list[str]]:
    """Name of a parameter -> its other names: {"model.embed_tokens.weight": ["lm_head.weight"]}"""
    first: dict[int, str] = {}
    others: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            others.setdefault(first[id(parameter)], []).append(name)
    return others


def write_weights(
    folder: Path,
    model: nn.Module,
    version: int,
    *,
    dtype: torch.dtype | None = None,
    summed: bool = True,
    untied: bool = False,
) -> PublishedWeights:
    """Put the model's weights, converted to `dtype`, into the folder under the name of their version.

    summed      compute the checksum, which vLLM does not compare, on the way
    untied      under all their names, also where two are the same

    Raises UserError for a full disk. Other ranks of a sharded model iterate over `merged(model)` in the meantime; they
    are not left waiting by an error.
    """
    weights = merged(model)
    try:
        return _write(
            folder, version, published_shapes(model, dtype, untied=untied), _named(weights, model, untied), summed
        )
    finally:
        deque(weights, maxlen=0)


def _named(weights: Iterator[tuple[str, torch.Tensor]], model: nn.Module, untied: bool) -> Iterator[torch.Tensor]:
    """In the order of `published_shapes`; a weight with several names is gathered once."""
    others = second_names(model) if untied else {}
    for name, weight in weights:
        yield from repeat(weight, 1 + len(others.get(name, ())))


def write_model(folder: Path, policy: Policy, *, dtype: torch.dtype | None, untied: bool) -> None:
    """A folder from which vLLM starts: configuration, weights as `write_weights` publishes them, and the tokenizer."""
    shutil.rmtree(folder, ignore_errors=True)
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    if untied:
        config.tie_word_embeddings = False
    with explain_full_disk(str(folder), "nothing was trained yet"):
        config.save_pretrained(folder)
        if policy.model.generation_config is not None:  # at whose ends a server stops, as our own sampler does
            policy.model.generation_config.to_json_file(folder / "generation_config.json")
        tokenizer = folder / TOKENIZER
        tokenizer.mkdir()
        policy.codec.tokenizer.save(str(tokenizer / "tokenizer.json"))
        (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
        (tokenizer / "config.json").write_text("{}")
        shapes = published_shapes(policy.model, dtype, untied=untied)
        write_one_by_one(folder / _FILE, shapes, _named(merged(policy.model), policy.model, untied))


def _write(
    folder: Path, version: int, shapes: Shapes, weights: Iterator[torch.Tensor], summed: bool
) -> PublishedWeights:
    target = folder / f"weights-{version:06d}"
    partial = folder / f".tmp-{target.name}"
    for old in (partial, target):  # of a run that was broken off; what had this number may have been other weights
        _remove_weights(old)
        if os.path.lexists(old):
            raise UserError(f"{old} holds something that is no weights of mem1; move it away or choose another folder")
    with explain_full_disk(f"{target}", "the last checkpoint is intact"):
        partial.mkdir(parents=True)
        file = partial / _FILE
        digest = new_checksum() if summed else None
        write_one_by_one(file, shapes, weights, digest)
        sync(file)
        partial.rename(target)
        sync(folder)
    return PublishedWeights(version=version, path=target / file.name, checksum=digest and digest.hexdigest())


def remove_others(folder: Path, kept: PublishedWeights) -> None:
    """Remove all weights from the folder but these; files that are not ours stay."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path != kept.path.parent:
            _remove_weights(path)


def _remove_weights(weights: Path) -> None:
    """The file that `write_weights` puts into such a folder, and the folder if nothing else is in it."""
    with suppress(OSError):
        if not weights.is_symlink():
            (weights / _FILE).unlink(missing_ok=True)
            weights.rmdir()
