"""Stages of a long benchmark, each a command of mem1 on a recipe: demonstrations, RL, an examination.

What is finished is not repeated; a training that was stopped is resumed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"


class Stages:
    """Runs the recipes of a folder, with the same changes, in another folder; paths of recipes are relative to it."""

    def __init__(self, recipes: Path, folder: Path, changes: Sequence[str]) -> None:
        self.recipes, self.folder, self.changes = recipes, folder, tuple(changes)

    def train(self, name: str, *changes: str, evaluate: bool = True) -> None:
        """Train the recipe of this name into the folder of this name, and evaluate the policy there as it says."""
        run = self.folder / name
        if (run / "result.json" if evaluate else run / "policy").exists():
            return
        options = (*("--resume",) * (run / "config.toml").exists(), *("--no-evaluate",) * (not evaluate))
        self._mem1("train", str(self.recipes / f"{name}.toml"), *self.changes, *changes, "--out", name, *options)

    def examine(self, name: str, policy: str) -> None:
        """Examine a policy by eval.toml into evaluation/NAME, from where `mem1 eval` takes what is finished."""
        recipe, out = self.recipes / "eval.toml", f"evaluation/{name}"
        self._mem1("eval", str(recipe), "--model", policy, "--out", out, *self.changes)

    def _mem1(self, *arguments: str) -> None:
        path = os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "mem1", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, env={**os.environ, "PYTHONPATH": path})
