"""The shape of a recipe's transformer, and how it is placed: sharding, adapters, and who samples.

    recipe_network(config)       ->  Network(kind="qwen2", hidden=3584, layers=28, ...)
    known("models/Qwen2.5-7B")   ->  the row of Qwen2.5-7B, by the folder's name
    made_model(small(network, vocabulary=100))   ->  a transformers model of the same family with random weights

Nothing is downloaded. Memory and FLOPs are computed from these numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mem1.errors import UserError
from mem1.evaluation.tokens import ModelShape
from mem1.packing.attention import PACKABLE
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.tokenizers import words_of
from mem1.protocol import vocabulary
from mem1.recipe.model import Distributed, Lora, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Shape of a dense transformer of the Llama family: grouped queries, gated feed-forward, RMS norms."""

    kind: str
    """transformers' model_type: qwen2, qwen3 or llama."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    """Rows of the embedding, possibly more than the tokenizer's tokens."""
    tied: bool
    """The output matrix is the embedding."""
    biases: bool
    """Whether queries, keys and values have biases."""
    source: str = ""
    """Where the numbers come from."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def norms_queries(self) -> bool:
        """Whether the queries and keys of each head are normalised, as in Qwen3."""
        return self.kind == "qwen3"

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """(inputs, outputs) of a layer's matrices, by transformers' names."""
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
        """Parameters of one layer's matrices, without biases and norms."""
        return sum(rows * columns for rows, columns in self.matrices.values())

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        biases = (self.query_width + 2 * self.kv_width) * self.biases
        norms = 2 * self.hidden + 2 * self.head_size * self.norms_queries
        return self.matrix_parameters + biases + norms

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def trunk_parameters(self) -> int:
        """Parameters without a separate output matrix."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def parameters(self) -> int:
        return self.trunk_parameters + self.embedding_parameters * (not self.tied)

    @property
    def flops(self) -> ModelShape:
        """The shape as `evaluation/tokens.py` needs it."""
        return ModelShape(
            parameters=self.layers * self.matrix_parameters,
            output_parameters=self.embedding_parameters,
            layers=self.layers,
            width=self.query_width,
        )


def read_network(folder: Path) -> Network:
    """The shape in a model folder's config.json. Raises UserError where it is unreadable or of another family."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the model again") from error
    kind = config.get("model_type")
    if kind not in PACKABLE:
        raise UserError(f"{path}: mem1 plan supports the architectures {', '.join(PACKABLE)}, not {kind!r}")
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
"""Name in lower case -> shape. Fine-tuned models whose names begin so have the same shape."""


def known(name: str) -> Network:
    """The shape of the model, or folder, with this name. Raises UserError where it is not in the table."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    fitting = [key for key in KNOWN if last == key or last.startswith(f"{key}-")]
    if not fitting:
        raise UserError(
            f"{name} is neither a folder with a config.json nor known ({', '.join(KNOWN)}); set model.path to a "
            "folder with the model or only its config.json"
        )
    return KNOWN[max(fitting, key=len)]


def recipe_network(config: Recipe) -> Network:
    """The network of a recipe's policy: that of its model folder, a new small one, or a known one by name.

    Raises UserError where the folder does not exist and the name is unknown, or the network is of another family.
    """
    if config.model.new is not None:
        return _new(config.model.new, config)
    folder = policy_folder(config.model.path or SHIPPED)
    return read_network(folder) if (folder / "config.json").is_file() else known(str(folder))


def _new(new: TinyModel, config: Recipe) -> Network:
    """The network that `new_model` makes; its vocabulary is that of its tokenizer."""
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
    words = words_of(new.tokenizer, vocabulary(config.vocabulary), new.labels)
    return replace(made, vocabulary=words.get_vocab_size())


def transformers_config(network: Network, *, positions: int = 32768) -> PretrainedConfig:
    """The transformers configuration of the network's family."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    shape = {
        "vocab_size": network.vocabulary,
        "hidden_size": network.hidden,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads,
        "head_dim": network.head_size,
        "intermediate_size": network.feed_forward,
        "tie_word_embeddings": network.tied,
        "max_position_embeddings": positions,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if network.kind == "qwen2":
        return Qwen2Config(**shape)
    if network.kind == "qwen3":
        return Qwen3Config(**shape, attention_bias=network.biases)
    return LlamaConfig(**shape, attention_bias=network.biases)


def made_model(network: Network, *, seed: int = 0) -> PreTrainedModel:
    """A model with random fp32 weights, equal for equal seeds."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(transformers_config(network)).eval()


def meta_parameters(network: Network) -> int:
    """Parameters of transformers' model with this shape, counted on the meta device; tied ones count once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(transformers_config(network))
    return sum(parameter.numel() for parameter in model.parameters())


def small(network: Network, vocabulary: int) -> Network:
    """A small network of the same family: two layers of width 32, with the same grouping, ties and biases."""
    grouped = network.kv_heads < network.heads
    return replace(
        network,
        hidden=32,
        layers=2,
        heads=4,
        kv_heads=2 if grouped else 4,
        head_size=8,
        feed_forward=64,
        vocabulary=vocabulary,
        source="small",
    )


LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""A network's linear layers except its head; they get adapters where `Lora.layers` names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """By default, one process that trains all weights in fp32 and samples itself."""

    distributed: Distributed | None = None
    """None: one process without sharding."""
    lora: Lora | None = None
    """None: all weights are trained."""
    engine: Literal["local", "servers"] = "local"
    """Who samples: the trained model itself, or servers on GPUs of their own."""
    server_gpus: int = 1
    """Number of GPUs that serve; ignored with local, and where servers sleep on the trainer's GPUs."""
    sleep: bool = False
    """Whether every GPU has a server that sleeps in the trainer's turn."""
    half: bool = False
    """Whether sampling in the trainer's own process uses bf16."""
    publish_bytes: int = 2
    """Bytes of a published weight, and of a number on the servers; ignored with local."""
    summed: bool = False
    """Whether trainer and servers compute a checksum of published weights, as of kind mem1; ignored with local."""
    blocks: bool = False
    """Attention by blocks on a GPU too, whose scores are tensors, instead of FlexAttention, which stores none."""

    @classmethod
    def of(cls, config: Recipe, *, server_gpus: int = 1) -> Setup:
        """The recipe's placement; the number of serving GPUs is not part of a recipe."""
        rollout = config.rollout
        served = isinstance(rollout, ServerRollouts)
        return cls(
            distributed=config.distributed,
            lora=config.lora,
            engine=rollout.engine,
            server_gpus=server_gpus,
            half=config.model.dtype == "bfloat16",
            blocks=config.model.attention == "blocks",
            publish_bytes=4 if served and rollout.published_dtype == "float32" else 2,
            summed=served and rollout.kind == "mem1",
            sleep=served and rollout.sleep,
        )

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the forward pass."""
        return 2 if self.distributed is not None and self.distributed.mixed_precision == "bf16" else 4

    @property
    def sampling_bytes(self) -> int:
        """Bytes of a number in the sampling policy."""
        if self.engine == "servers":
            return self.publish_bytes
        return 2 if self.half else 4

    @property
    def separate(self) -> bool:
        """Whether a copy of the trained model samples, as in `mem1.training.ranks.placement` with one worker."""
        return self.distributed is not None or self.half

    @property
    def quantized(self) -> bool:
        """Whether the layers' matrices are in 4 bits, frozen and complete on every rank."""
        return self.lora is not None and self.lora.quantize is not None

    @property
    def checkpoints(self) -> bool:
        return self.distributed is not None and self.distributed.activation_checkpointing

    @property
    def adapted(self) -> tuple[str, ...]:
        """Linear layers with adapters, by transformers' names; empty without adapters."""
        return () if self.lora is None else self.lora.layers or LAYERS
