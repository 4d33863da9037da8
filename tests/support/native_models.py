"""A small model with a chat template in a folder, and what `mem1 verify` must find with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chat_templates import QWEN3_LIKE, tokenizer_with
from tomli_w import dumps
from typer.testing import CliRunner

from mem1.cli.main import app
from mem1.policy.policy import Policy
from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel


def model_folder(folder: Path, template: str) -> Path:
    tokenizer, codec = tokenizer_with(template)
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    Policy(new_model(shape, vocab_size=codec.vocab_size, seed=0), codec).save(folder)
    tokenizer.save_pretrained(str(folder))
    return folder


def check_exact(recipe: Path) -> dict[str, Any]:
    """What `mem1 verify` finds; asserts that sampler and trainer agree and that no token was encoded again."""
    done = CliRunner().invoke(app, ["verify", str(recipe), "--limit", "1", "--attempts", "2", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["sampler and trainer, largest"]["measured"] <= 1e-4
    assert checks["re-encoded tokens"]["measured"] == 0 and checks["re-encoded tokens"]["compared"] > 0
    return found


def check_episodes(folder: Path, tasks: Mapping[str, Any]) -> None:
    """The same for tasks in which the environment decides when an attempt is over."""
    recipe = {
        "protocol": "tools",
        "model": {"path": str(model_folder(folder / "model", QWEN3_LIKE))},
        "tasks": tasks,
        "budget": {"completion_extra": 40},
        "rl": {"curriculum": [{"steps": 1, "objectives": [1]}], "tasks_per_step": 1, "group_size": 2},
        "evaluation": {"objectives": [1], "tasks": 1},
    }
    (folder / "recipe.toml").write_text(dumps(recipe), encoding="utf-8")
    check_exact(folder / "recipe.toml")
