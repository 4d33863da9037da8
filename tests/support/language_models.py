"""A language model for English worlds that is made in a moment and knows nothing."""

from __future__ import annotations

from pathlib import Path

from mem1.policy.policy import make_policy
from mem1.recipe.recipe import Recipe


def language_model(folder: Path) -> Path:
    """The folder, with a model of two small layers and a tokenizer for any text."""
    new = {"hidden_size": 32, "layers": 2, "feed_forward": 64, "tokenizer": "bpe", "vocab_size": 600}
    tasks = {"kind": "english", "worlds": 1, "entities": 80}
    recipe = {"model": {"new": new}, "tasks": tasks, "protocol": "tags", "memory": "notebook(4)"}
    make_policy(Recipe.model_validate(recipe)).save(folder)
    return folder
