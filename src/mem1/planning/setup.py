"""How the networks are placed: sharding, adapters, and who samples, as far as memory and time depend on them.

This is the one place where the plan reads a recipe's [distributed], [lora] and [rollout].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mem1.training.loop.recipe import Distributed, Lora, TrainConfig

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a network but its head, which have adapters where `Lora.layers` names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The default is one process that trains all weights in fp32 and samples itself."""

    distributed: Distributed | None = None
    """None: one process without sharding."""
    lora: Lora | None = None
    """None: all weights are trained."""
    engine: Literal["local", "servers"] = "local"
    """Who samples: the trained model itself, or servers on GPUs of their own."""
    server_gpus: int = 1
    """GPUs that serve, of all; of no effect with local."""
    half: bool = False
    """A policy that samples in the trainer's own process does so in bf16."""
    blocks: bool = False
    """Attention by blocks on a GPU too, where its scores are tensors; else FlexAttention, which holds none."""

    @classmethod
    def of(cls, config: TrainConfig, *, server_gpus: int = 1) -> Setup:
        """As the recipe says; how many GPUs serve it does not say."""
        return cls(
            distributed=config.distributed,
            lora=config.lora,
            engine=config.rollout.engine,
            server_gpus=server_gpus,
            half=config.model.dtype == "bfloat16",
            blocks=config.model.attention == "blocks",
        )

    @property
    def compute_bytes(self) -> int:
        """Of a number in the forward pass."""
        return 2 if self.distributed is not None and self.distributed.mixed_precision == "bf16" else 4

    @property
    def sampling_bytes(self) -> int:
        """Of a number where a policy samples; servers do so in bf16."""
        return 2 if self.half or self.engine == "servers" else 4

    @property
    def separate(self) -> bool:
        """Whether what is trained is another model than the one that samples, as in `mem1.training.ranks.placement`."""
        return self.distributed is not None or self.lora is not None

    @property
    def quantized(self) -> bool:
        """Whether the matrices of the layers are in 4 bits, frozen and whole on every rank."""
        return self.lora is not None and self.lora.quantize is not None

    @property
    def checkpoints(self) -> bool:
        return self.distributed is not None and self.distributed.activation_checkpointing

    @property
    def adapted(self) -> tuple[str, ...]:
        """Linear layers with adapters, by transformers' names; empty without."""
        return () if self.lora is None else self.lora.layers or LAYERS
