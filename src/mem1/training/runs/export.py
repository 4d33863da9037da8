"""Policies for others: as a transformers folder with a model card, as a GGUF file, or on the Hugging Face hub.

source = Source.of("runs/quick")            or a checkpoint, a policy's folder, a name of `policy_folder`
source.write_folder(Path("out"))            weights (adapters merged), tokenizer, protocol.json, README.md
source.write_gguf(Path("out.gguf"))         for llama.cpp
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mem1.durable import MANIFEST, explain_full_disk, partial_of, read_manifest, seal
from mem1.engines.chat_template import is_tokenizer_file
from mem1.errors import UserError
from mem1.evaluation.report.card import license_of, model_card
from mem1.evaluation.report.run_folders import examined_policy, training_folder
from mem1.hub import upload
from mem1.policy.folders import POLICY, check_whole, policy_folder
from mem1.policy.gguf_export import GgufType, write_gguf
from mem1.policy.protocol import SAVED
from mem1.run_folder import check_empty
from mem1.training.runs.checkpoint import KIND, export_checkpoint, latest_checkpoint
from mem1.version import __version__

_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
_NOT_COPIED = (MANIFEST, "README.md", ".*", "*.bin", "*.pt", "*.pth", "*.pkl", "*.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A policy and the run that has trained it."""

    path: Path
    """A checkpoint, or a transformers folder."""
    checkpoint: bool
    run: Path | None
    """The folder with the config.toml; None: not known."""
    name: str
    """Name of the policy for its readers."""

    @classmethod
    def of(cls, given: str) -> Source:
        """What `given` names: a run (its examined policy, else its last checkpoint), a checkpoint, a policy by path or
        name.

        Raises UserError where there is no such thing.
        """
        path = Path(given)
        run = training_folder(path) if path.is_dir() else None
        if run is not None:
            policy = examined_policy(run)
            done = (run / "policy" / "config.json").is_file()
            found = policy if done else latest_checkpoint(run / "checkpoints")
            if found is None:
                raise UserError(f"{path} has neither a policy nor a checkpoint yet; train it first")
            return cls(path=found, checkpoint=not done, run=run, name=path.resolve().name)
        manifest = read_manifest(path)
        if path.is_dir() and (path.parent.name == "checkpoints" or (manifest is not None and manifest.kind == KIND)):
            run = path.absolute().parent.parent
            known = run if (run / "config.toml").is_file() else None
            return cls(path=path, checkpoint=True, run=known, name=f"{run.name}-{path.name}")
        folder = policy_folder(given, weights=True)
        if not (folder / "config.json").is_file():
            raise UserError(f"{given} is neither a run nor a checkpoint nor a policy: it has no config.json")
        around = folder.absolute().parent
        run = around if (around / "config.toml").is_file() else None
        name = os.path.basename(os.path.abspath(given)) if run is None else around.name
        return cls(path=folder, checkpoint=False, run=run, name=name)

    def write_folder(self, out: Path, *, name: str = "") -> None:
        """Write `out`, which must be empty; `name` of its card, empty: its own.

        Raises UserError where it is not empty, or the policy or checkpoint is damaged.
        """
        check_empty(out)
        card = model_card(name or self.name, run=self.run, folder=self.path, at=name or ".")
        if self.checkpoint:
            export_checkpoint(self.path, out)
        else:
            check_whole(self.path)
            full = explain_full_disk(f"{out}", "nothing else is lost", "free some space, or give another folder")
            out.parent.mkdir(parents=True, exist_ok=True)
            partial = partial_of(out)
            try:
                with full:
                    shutil.copytree(self.path, partial, ignore=shutil.ignore_patterns(*_NOT_COPIED))
                    seal(partial, kind=POLICY, format=1)
                    partial.rename(out)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        (out / "README.md").write_text(card, encoding="utf-8")  # after the manifest: everybody may change it

    def write_gguf(self, out: Path, *, kind: GgufType) -> None:
        """Write the file `out`. Raises UserError as `mem1.policy.gguf_export.write_gguf`, and for a damaged policy."""
        facts = {"name": self.name, "license": license_of(self.run, self.path)}
        if not self.checkpoint or out.exists():
            check_whole(self.path)
            write_gguf(self.path, out, kind=kind, **facts)
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
            export_checkpoint(self.path, Path(beside) / "policy")
            write_gguf(Path(beside) / "policy", out, kind=kind, **facts)

    def push(self, repo: str, *, public: bool) -> str:
        """Upload it to the repository owner/name, in place of a policy that is there; returns its address.

        Raises UserError where the hub refuses it, and where it is public although `public` is not said.
        """
        with tempfile.TemporaryDirectory(prefix="mem1-push-") as folder:
            self.write_folder(Path(folder) / "policy", name=repo)
            message = f"{self.name}, by mem1 {__version__}"
            return upload(Path(folder) / "policy", repo, public=public, message=message, replaces=_is_of_a_policy)


def _is_of_a_policy(file: str) -> bool:
    """Whether a file of a repository would be loaded with a new policy, or instead of it, if an old one left it."""
    settings = ("config.json", "generation_config.json", "adapter_config.json", SAVED, MANIFEST)
    return file in settings or is_tokenizer_file(file) or _WEIGHTS.fullmatch(file) is not None
