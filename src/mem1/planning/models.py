"""The model of a recipe without its weights: its tokenizer, transformers' configuration, and models that it makes.

recipe_shape(config)                        ->  the model folder's config.json, or that of `[model.new]`
known("models/Qwen2.5-7B")                  ->  the row of Qwen2.5-7B, by the folder's name
made_model(small(shape, vocab_size=100))    ->  a model of the same family with random weights
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.hub import not_here
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.policy import load_config
from mem1.policy.protocol import resolve
from mem1.policy.tiny_model import qwen_config
from mem1.policy.tokenizers import words_of
from mem1.recipe.recipe import Recipe

_COLUMNS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
)
_NO_ENDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
KNOWN: Mapping[str, tuple[int, ...]] = {
    "Qwen2.5-0.5B": (896, 24, 14, 2, 64, 4864, 151936, True),
    "Qwen2.5-1.5B": (1536, 28, 12, 2, 128, 8960, 151936, True),
    "Qwen2.5-3B": (2048, 36, 16, 2, 128, 11008, 151936, True),
    "Qwen2.5-7B": (3584, 28, 28, 4, 128, 18944, 152064, False),
    "Qwen3-0.6B": (1024, 28, 16, 8, 128, 3072, 151936, True),
    "Qwen3-1.7B": (2048, 28, 16, 8, 128, 6144, 151936, True),
    "Qwen3-8B": (4096, 36, 32, 8, 128, 12288, 151936, False),
}
"""Shapes by name, from https://huggingface.co/Qwen/<name>/blob/main/config.json in copies read 2026-11-22. Fine-tuned
models whose names begin so have the same."""


def known(name: str) -> PretrainedConfig:
    """The shape of the model, or folder, with this name. Raises UserError where it is not in the table."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    fitting = [key for key in KNOWN if last == key.lower() or last.startswith(f"{key.lower()}-")]
    if not fitting:
        raise UserError(
            not_here(name)
            or f"{name} is neither a folder with a config.json nor known ({', '.join(KNOWN)}); set model.path to a "
            "folder with the model or only its config.json"
        )
    found = max(fitting, key=len)
    kind: type[Any] = Qwen3Config if found.startswith("Qwen3") else Qwen2Config
    return kind(**dict(zip(_COLUMNS, KNOWN[found], strict=True)), **_NO_ENDS)


def recipe_shape(config: Recipe) -> tuple[PretrainedConfig, str]:
    """The configuration of a recipe's policy, and where it is from.

    Raises UserError where the folder does not exist and the name is unknown.
    """
    if (new := config.model.new) is not None:
        rows = new.vocab_size
        if new.tokenizer != "bpe":
            rows = words_of(new.tokenizer, resolve(config).tags, new.labels).get_vocab_size()
        return qwen_config(new, vocab_size=rows), "model.new of the recipe"
    folder = policy_folder(config.model.path or SHIPPED)
    if (folder / "config.json").is_file():
        return load_config(folder), str(folder / "config.json")
    return known(str(folder)), "a table"


def recipe_codec(config: Recipe) -> Codec | None:
    """The tokenizer of a recipe's policy; None: it is missing, or will be trained on the tasks' texts."""
    if (new := config.model.new) is not None:
        tags = resolve(config).tags
        return None if new.tokenizer == "bpe" else Codec(words_of(new.tokenizer, tags, new.labels))
    folder = policy_folder(config.model.path or SHIPPED)
    return Codec.load(folder) if (folder / "tokenizer.json").is_file() else None


def made_model(shape: PretrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """A model with random fp32 weights, equal for equal seeds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(shape, trust_remote_code=False).eval()


def small(shape: PretrainedConfig, *, vocab_size: int) -> PretrainedConfig:
    """A small model's shape of the same family: two layers of width 32, with the same grouping, ties and biases."""
    grouped = shape.num_key_value_heads < shape.num_attention_heads
    kept = {name: getattr(shape, name) for name in ("tie_word_embeddings", "attention_bias") if hasattr(shape, name)}
    sizes = dict(zip(_COLUMNS, (32, 2, 4, 2 if grouped else 4, 8, 64, vocab_size), strict=False))
    kind: type[Any] = type(shape)
    return kind(**sizes, **kept, **_NO_ENDS)
