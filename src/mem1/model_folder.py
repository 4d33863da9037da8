"""Encoders and other models in folders; no pickle is opened.

asset("stand-in")                       the folder of that name in the package
model_folder("models/e5-base-v2")       Path("models/e5-base-v2")
model_folder("intfloat/e5-base-v2")     its snapshot in the cache of Hugging Face
fingerprint(folder)                     "9f1c..."     SHA-256 of everything that determines the vectors
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import importlib.util
import os
from importlib import resources
from pathlib import Path
from typing import Any

from mem1.durable import sha256_of
from mem1.errors import UserError
from mem1.hub import hub_name


def asset(name: str) -> Path:
    """A folder that comes with the package: a shipped policy, a tokenizer, the recipes."""
    return Path(str(resources.files("mem1"))) / "assets" / name


_WEIGHTS = "*.safetensors"
_SETTINGS = ("*.json", "*.txt", "*.model")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")


def load_model(name: str, *, device: str | None) -> tuple[Path, Any]:
    """(Folder, model) of sentence-transformers, without pickled weights or code from the folder.

    Raises UserError where the model is missing, incomplete or pickled, or needs code of its own to run.
    """
    if importlib.util.find_spec("sentence_transformers") is None:  # importing it takes seconds
        raise UserError("encoders need sentence-transformers: pip install 'mem1-agents[dense]'")
    folder = model_folder(name)
    import sentence_transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model = sentence_transformers.SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot load the encoder {folder}: {error}") from error
    return folder, model


def model_folder(name: str) -> Path:
    """The folder called `name`, else the snapshot of this Hugging Face id.

    Raises UserError where there is neither, or where weights are pickled, since a pickle can run code.
    """
    hub = hub_name(name)
    folder = Path(name) if hub is None else hub.folder(weights=True)
    if not os.path.isdir(folder):
        raise UserError(f"no folder {name}; check the path")
    if not any(folder.rglob(_WEIGHTS)):
        raise UserError(f"{folder} has no weights in {_WEIGHTS}; mem1 reads weights only from safetensors")
    for pattern in _PICKLES:
        for pickle in folder.rglob(pattern):
            if not any(pickle.parent.glob(_WEIGHTS)):
                raise UserError(
                    f"{pickle} may hold pickled weights, which can run code; save the model with safetensors and "
                    "delete that file"
                )
    return folder


def fingerprint(folder: Path) -> str:
    """SHA-256 over weights, tokenizer and settings with their relative paths."""
    digest = hashlib.sha256()
    files = {file for pattern in (_WEIGHTS, *_SETTINGS) for file in folder.rglob(pattern)}
    for file in sorted(files):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{sha256_of(file)}\n".encode("utf-8", "replace"))
    return digest.hexdigest()
