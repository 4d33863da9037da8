"""`[model]`, `[lora]` and `[distributed]` of a recipe: which weights, what of them is trained, and where they live.

[model]                             [model.new]             [lora]              [distributed]
path = "models/Qwen2.5-0.5B"        layers = 4              rank = 16           cpu_offload = true
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS
from mem1.tasks.prompts import LABELS


class Distributed(Config):
    """`[distributed]`: how the networks are sharded over the ranks. It does not change what is learnt."""

    cpu_offload: bool = False
    """Keep weights, gradients and optimiser states in the computer's memory, not on the GPU; no effect on a CPU."""
    reference_offload: bool = False
    """`cpu_offload` for the frozen reference policy alone."""
    reshard_after_forward: bool = True
    """Free a layer's gathered weights between forward and backward pass. False: faster, with more memory."""


BLOCK = 64
"""Weights of a row that share a scale when they are quantised."""


class Lora(Config):
    """`[lora]`: `[sft]` and `[rl]` train adapters beside the layers, not the layers."""

    rank: int = Field(default=16, ge=1, le=65_536)
    """Rank of the adapters: rows of A, columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters, times the rank: the product B A is multiplied by alpha / rank."""
    layers: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Last parts of the names of linear layers, such as q_proj; None: all of them but the head."""
    quantize: Literal["nf4"] | None = None
    """Hold the frozen linear layers, except the head, in 4 bits per weight (QLoRA); None: as they are. The policy that
    samples gets the quantised weights too, so both are the same policy. Needs mem1-agents[qlora]."""


DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")]
"""auto: CUDA where there is one, else the CPU, or for sampling and evaluation alone Apple's GPU."""


DtypeName = Literal["auto", "float32", "bfloat16"]
"""auto: see `mem1.engines.device.sampling_dtype`."""


AttentionName = Literal["auto", "blocks", "flex"]
"""auto: see `mem1.packing.attention.choose_attention`."""


class TinyModel(Config):
    """`[model.new]`: a small Qwen2 made from scratch."""

    hidden_size: int = Field(default=128, gt=0, le=65_536)
    layers: int = Field(default=4, gt=0, le=1_000)
    heads: int = Field(default=4, gt=0, le=1_000)
    feed_forward: int = Field(default=384, gt=0, le=1_000_000)
    max_positions: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    rope_theta: float = Field(default=10000.0, gt=0)
    look_back: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (1, 2)
    """Distances, in tokens, at which heads of layers 0 and 1 look back, one head per distance; empty: none."""
    look_back_strength: float = Field(default=3.0, gt=0)
    """Scale of the look-back biases; attention scores grow with its square."""
    induction: bool = False
    """Start with heads that copy what followed the same tokens before (`mem1.policy.tiny_model`). Needs at
    least three layers and four heads, and look_back = [1, 2, 5, 6]; works best with a look_back_strength of about 6 and
    a rope_theta of about 1e6."""
    tokenizer: Literal["atlas", "shop", "bpe"] = "atlas"
    """atlas, shop: a token per word of the invented worlds or shops; bpe: byte-level, trained on the tasks' texts."""
    labels: int = Field(default=LABELS, ge=1, le=1000)
    """Questions whose labels have tokens in atlas, beginning with Q1."""
    vocab_size: int = Field(default=2000, ge=300, le=1_000_000)
    """Number of tokens of a bpe tokenizer; the other tokenizers have a fixed number."""

    @model_validator(mode="after")
    def _heads_have_room(self) -> TinyModel:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even number of times heads {self.heads}")
        if self.induction and (self.layers < 3 or self.heads < 4 or self.look_back != (1, 2, 5, 6)):
            raise ValueError("induction needs layers = 3 or more, heads = 4 or more, and look_back = [1, 2, 5, 6]")
        return self


class ModelConfig(Config):
    """`[model]`: which weights, and what computes with them. Give `path`, `new`, or neither for the shipped policy."""

    path: str | None = None
    """Folder of a transformers model with safetensors weights and tokenizer.json; a Hugging Face id (owner/name,
    owner/name@revision); a GGUF file (FILE.gguf, owner/name:FILE.gguf); smollm2, or a shipped policy."""
    new: TinyModel | None = None
    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N or mps. Under torchrun, auto and cuda mean the GPU of each process's own rank."""
    dtype: DtypeName = "auto"
    """Precision of the policy that samples and is evaluated: auto, float32 or bfloat16. Trained weights are float32;
    with bfloat16 a copy of the policy samples. auto in training: as `training_dtype`."""
    training_dtype: DtypeName = "auto"
    """Precision of products and activations in training: auto, float32 or bfloat16; sums of gradients, the optimiser
    and the weights that it updates are float32. auto: bfloat16 on CUDA and on a CPU with units for it (AVX512-BF16,
    AMX), but float32 for new models, shipped ones and others with a hidden size below 512, which gain nothing."""
    activation_checkpointing: bool | None = None
    """Recompute each layer in the backward pass instead of keeping its activations: less memory, a third more work.
    None: no, but `mem1 train` does where the plan of a GPU does not fit otherwise."""
    compile: bool = False
    """Compile the layers in training, each as one graph for all lengths (torch.compile): the first step takes minutes
    longer. With FlexAttention alone."""
    attention: AttentionName = "auto"
    """Attention over the token tree in training: blocks, flex (FlexAttention, on CUDA), or auto: flex on CUDA, blocks
    elsewhere."""

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        return "the recipe's new model" if self.new is not None else self.path or "the shipped policy"

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.new is not None:
            raise ValueError("give model.path or model.new, not both; model.new=null drops the recipe's new model")
        return self
