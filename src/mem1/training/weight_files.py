"""The shared folder through which weights go to the servers of a policy.

weights/
    weights-000003/model.safetensors        whole from the moment it has this name
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from mem1.engines.published import PublishedWeights
from mem1.engines.weights import checksum, untied
from mem1.errors import UserError
from mem1.training.files import explain_full_disk, sync

_NAME = re.compile(r"(?:\.tmp-)?weights-\d{6,}")
_FILE = "model.safetensors"


def write_weights(folder: Path, model: nn.Module, version: int) -> PublishedWeights:
    """Put the model's weights into the folder under the name of their version. Raises UserError for a full disk."""
    target = folder / f"weights-{version:06d}"
    partial = folder / f".tmp-{target.name}"
    for old in (partial, target):  # of a run that was broken off; what had this number may have been other weights
        _remove(old)
        if os.path.lexists(old):
            raise UserError(f"{old} holds something that is no weights of mem1; move it away or choose another folder")
    with explain_full_disk(f"{target}", "the last checkpoint is intact"):
        partial.mkdir(parents=True)
        file = partial / _FILE
        save_file(untied(model.state_dict()), file, metadata={"format": "pt"})
        sync(file)
        summed = checksum(file)
        partial.rename(target)
        sync(folder)
    return PublishedWeights(version=version, path=target / file.name, checksum=summed)


def remove_others(folder: Path, kept: PublishedWeights) -> None:
    """Remove all weights from the folder but these; files that are not ours stay."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path != kept.path.parent:
            _remove(path)


def _remove(weights: Path) -> None:
    """The file that `write_weights` puts into such a folder, and the folder if nothing else is in it."""
    with suppress(OSError):
        if not weights.is_symlink():
            (weights / _FILE).unlink(missing_ok=True)
            weights.rmdir()
