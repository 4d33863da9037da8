"""The shape of a transformer, from a model's folder, from a recipe's `model.new`, or from a table of known models.

    known("models/Qwen2.5-7B")   ->  the row of Qwen2.5-7B, by the folder's name, where there is no folder to read

Only the numbers that memory and FLOPs follow from; nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.evaluation.flops import ModelShape
from mem1.packing.exactness import PACKABLE
from mem1.training.config import TrainConfig
from mem1.training.model_config import TinyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A dense transformer of the Llama family: grouped queries, gated feed-forward, RMS norms."""

    kind: str
    """transformers' model_type: qwen2, qwen3 or llama."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    """Rows of the embedding, which are more than the tokenizer has."""
    tied: bool
    """The output matrix is the embedding."""
    biases: bool
    """Queries, keys and values have some."""
    source: str = ""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def norms_queries(self) -> bool:
        """Qwen3 has norms on the queries and keys of each head."""
        return self.kind == "qwen3"

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """(inputs, outputs) of those of a layer, by transformers' names."""
        D, F = self.hidden, self.feed_forward
        return {
            "q_proj": (D, self.query_width),
            "k_proj": (D, self.kv_width),
            "v_proj": (D, self.kv_width),
            "o_proj": (self.query_width, D),
            "gate_proj": (D, F),
            "up_proj": (D, F),
            "down_proj": (F, D),
        }

    @property
    def matrix_parameters(self) -> int:
        """Of one layer, without biases and norms."""
        return sum(rows * columns for rows, columns in self.matrices.values())

    @property
    def layer_parameters(self) -> int:
        """Of one layer."""
        biases = (self.query_width + 2 * self.kv_width) * self.biases
        norms = 2 * self.hidden + 2 * self.head_size * self.norms_queries
        return self.matrix_parameters + biases + norms

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def trunk_parameters(self) -> int:
        """Everything but an output matrix of its own."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def parameters(self) -> int:
        return self.trunk_parameters + self.embedding_parameters * (not self.tied)

    @property
    def flops(self) -> ModelShape:
        """What `evaluation/flops.py` counts with."""
        return ModelShape(
            parameters=self.layers * self.matrix_parameters,
            output_parameters=self.embedding_parameters,
            layers=self.layers,
            width=self.query_width,
        )


def _qwen(name: str, shape: tuple[int, ...], *, tied: bool) -> tuple[str, Network]:
    hidden, layers, heads, kv_heads, head_size, feed_forward, vocabulary = shape
    third = name.startswith("Qwen3")
    return name.lower(), Network(
        kind="qwen3" if third else "qwen2",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        tied=tied,
        biases=not third,
        source=f"table: https://huggingface.co/Qwen/{name}/blob/main/config.json, in copies read 2026-11-22",
    )


KNOWN: Mapping[str, Network] = dict(
    (
        _qwen("Qwen2.5-0.5B", (896, 24, 14, 2, 64, 4864, 151936), tied=True),
        _qwen("Qwen2.5-1.5B", (1536, 28, 12, 2, 128, 8960, 151936), tied=True),
        _qwen("Qwen2.5-3B", (2048, 36, 16, 2, 128, 11008, 151936), tied=True),
        _qwen("Qwen2.5-7B", (3584, 28, 28, 4, 128, 18944, 152064), tied=False),
        _qwen("Qwen3-1.7B", (2048, 28, 16, 8, 128, 6144, 151936), tied=True),
        _qwen("Qwen3-8B", (4096, 36, 32, 8, 128, 12288, 151936), tied=False),
    )
)
"""Small letters -> shape. Fine-tuned models that carry the name have the shape."""


def recipe_network(config: TrainConfig) -> Network:
    """The network of a recipe's policy.

    Raises UserError where its folder is not there and its name is not known, or it is of another family.
    """
    if config.model.new is not None:
        return _new(config.model.new, config)
    from mem1.training.policy import SHIPPED, policy_folder

    folder = policy_folder(config.model.path or SHIPPED)
    return read_network(folder) if (folder / "config.json").is_file() else known(str(folder))


def known(name: str) -> Network:
    """The shape of a model of this name, or of a folder of this name. Raises UserError where there is none."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    fitting = [key for key in KNOWN if last == key or last.startswith(f"{key}-")]
    if not fitting:
        raise UserError(
            f"{name} is no folder with a config.json here, and no model of the table ({', '.join(KNOWN)}); "
            "give the folder, or one that holds its config.json alone, by model.path=FOLDER"
        )
    return KNOWN[max(fitting, key=len)]


def read_network(folder: Path) -> Network:
    """From the config.json of a model's folder. Raises UserError where it is unreadable or of another family."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the model again") from error
    kind = config.get("model_type")
    if kind not in PACKABLE:
        raise UserError(f"{path}: the plan knows the architectures {', '.join(PACKABLE)}, not {kind!r}")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Network(
            kind=kind,
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            feed_forward=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            biases=kind == "qwen2" or bool(config.get("attention_bias", False)),
            source=str(path),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks {error}; copy the model again") from error


def _new(new: TinyModel, config: TrainConfig) -> Network:
    """As `training.models.new_model` makes it; its vocabulary is that of its tokenizer."""
    made = Network(
        kind="qwen2",
        hidden=new.hidden_size,
        layers=new.layers,
        heads=new.heads,
        kv_heads=new.heads,
        head_size=new.hidden_size // new.heads,
        feed_forward=new.feed_forward,
        vocabulary=new.vocab_size,
        tied=True,
        biases=True,
        source="model.new of the recipe",
    )
    if new.tokenizer == "bpe":
        return made
    from mem1.protocol import vocabulary
    from mem1.training.tokenizers import atlas_tokenizer, shop_tokenizer

    make = atlas_tokenizer if new.tokenizer == "atlas" else shop_tokenizer
    return replace(made, vocabulary=make(vocabulary(config.vocabulary)).get_vocab_size())
