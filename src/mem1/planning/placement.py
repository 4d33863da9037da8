"""How the networks are placed: sharding, adapters, and who samples, as far as memory and time depend on them.

This is the one place where the plan reads a recipe's [distributed], [lora] and [rollout].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mem1.training.loop.recipe import Distributed, Lora, Recipe

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
    """Number of GPUs that serve; ignored with local."""
    half: bool = False
    """Whether sampling in the trainer's own process uses bf16."""
    blocks: bool = False
    """Attention by blocks on a GPU too, whose scores are tensors, instead of FlexAttention, which stores none."""

    @classmethod
    def of(cls, config: Recipe, *, server_gpus: int = 1) -> Setup:
        """The recipe's placement; the number of serving GPUs is not part of a recipe."""
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
        """Bytes of a number in the forward pass."""
        return 2 if self.distributed is not None and self.distributed.mixed_precision == "bf16" else 4

    @property
    def sampling_bytes(self) -> int:
        """Bytes of a number in the sampling policy; servers use bf16."""
        return 2 if self.half or self.engine == "servers" else 4

    @property
    def separate(self) -> bool:
        """Whether separate models train and sample, as in `mem1.training.ranks.placement`."""
        return self.distributed is not None or self.lora is not None

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
