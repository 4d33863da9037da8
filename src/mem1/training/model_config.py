"""Which policy: the shipped one, a folder, or a new small one with a tokenizer of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import MOST_TOKENS

DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")]
"""auto: CUDA where there is one, else the CPU, or for sampling and evaluation alone Apple's GPU."""
DtypeName = Literal["auto", "float32", "bfloat16"]
"""auto: see `mem1.engines.device.sampling_dtype`."""
AttentionName = Literal["auto", "blocks", "flex"]
"""auto: see `mem1.packing.attention.choose_attention`."""


class TinyModel(Config):
    """Shape of a small Qwen2 made from nothing."""

    hidden_size: int = Field(default=128, gt=0, le=65_536)
    layers: int = Field(default=4, gt=0, le=1_000)
    heads: int = Field(default=4, gt=0, le=1_000)
    feed_forward: int = Field(default=384, gt=0, le=1_000_000)
    max_positions: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    rope_theta: float = Field(default=10000.0, gt=0)
    look_back: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (1, 2)
    """Distances at which heads of layers 0 and 1 look back, one head a distance; empty: none."""
    look_back_strength: float = Field(default=3.0, gt=0)
    """Scale of the biases; the attention scores grow with its square."""
    induction: bool = False
    """Begin with heads that copy what followed the same tokens before (`mem1.training.induction`); for three
    layers and four heads or more, with look_back = [1, 2, 5, 6], a strength of about 6 and a rope_theta of about
    1e6."""
    tokenizer: Literal["atlas", "shop", "bpe"] = "atlas"
    """atlas, shop: a token a word of the invented worlds or shops; bpe: byte-level, trained on the tasks' corpus."""
    vocab_size: int = Field(default=2000, ge=300, le=1_000_000)
    """Tokens of a bpe tokenizer; the others have their own number."""

    @model_validator(mode="after")
    def _heads_have_room(self) -> TinyModel:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even number of times heads {self.heads}")
        if self.induction and (self.layers < 3 or self.heads < 4 or self.look_back != (1, 2, 5, 6)):
            raise ValueError("induction needs layers = 3 or more, heads = 4 or more, and look_back = [1, 2, 5, 6]")
        return self


class ModelConfig(Config):
    """Which weights, and what computes with them. Give `path`, or `new`, or neither for the shipped policy."""

    path: str | None = None
    """Folder of a transformers model with safetensors weights and tokenizer.json."""
    new: TinyModel | None = None
    chat_template: bool = False
    """Put every prompt into the chat template of the model's folder, and let all that follows be the model's reply: for
    models that were trained on chats. The template's tokens are in the contexts and are never trained."""
    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N or mps. Under torchrun auto and cuda are the GPU of each process's own rank."""
    dtype: DtypeName = "auto"
    """Precision of the policy that samples and is evaluated: auto, float32 or bfloat16. What is trained is float32;
    bfloat16 therefore needs [lora], [distributed] or several ranks, where the policy that samples is a copy of it."""
    attention: AttentionName = "auto"
    """Attention over the token tree, in training: blocks, flex (FlexAttention, on CUDA), or auto, which takes flex on
    CUDA and blocks elsewhere."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the recipe's new model" if self.new is not None else self.path or "the shipped policy"

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.new is not None:
            raise ValueError("give model.path or model.new, not both")
        if self.chat_template and self.new is not None:
            raise ValueError("model.new has no chat template; leave out model.chat_template, or give model.path")
        return self
