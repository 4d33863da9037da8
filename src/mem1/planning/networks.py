"""The shape of a transformer, as the config.json of its folder has it.

Only the numbers that memory and FLOPs follow from; nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.evaluation.flops import ModelShape
from mem1.packing.exactness import PACKABLE


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
