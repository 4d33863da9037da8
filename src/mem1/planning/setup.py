"""How the networks are placed: sharding, adapters, and who samples.

The sections of a recipe of the same names, as far as memory and time depend on them. This is the one place that the
plan reads them from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mem1.configuration import Config


class Distributed(Config):
    """Data-parallel ranks that share weights, gradients and optimiser states (FSDP2)."""

    mixed_precision: Literal["bf16"] | None = None
    """Of forward and backward pass, from weights that are kept in fp32; None: fp32 throughout."""
    activation_checkpointing: bool = False
    """Keep the input of each layer alone, and compute the layer again in the backward pass."""
    cpu_offload: bool = False
    """Shards of weights, gradients and optimiser states live in the machine's memory."""
    reference_offload: bool = False
    """The same of the frozen reference alone."""
    reshard_after_forward: bool = True
    """Drop a layer's gathered weights after its forward pass; false: keep them until its backward pass."""


class Lora(Config):
    """Low-rank adapters beside frozen matrices."""

    rank: int = Field(default=16, ge=1)
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Matrices that get one, by transformers' names."""
    quantised: bool = False
    """Frozen matrices in 4 bits."""


class Sampling(Config):
    """Who samples."""

    engine: Literal["local", "servers"] = "local"
    """local: the trained model itself; servers: others, on GPUs of their own."""
    server_gpus: int = Field(default=1, ge=1)
    """GPUs that serve, of all; of no effect with local."""


class Setup(Config):
    """Everything; the default is one process that trains all weights in fp32 and samples itself."""

    distributed: Distributed | None = None
    """None: one process without sharding."""
    lora: Lora | None = None
    """None: all weights are trained."""
    rollout: Sampling = Sampling()

    @property
    def compute_bytes(self) -> int:
        """Of a number in the forward pass."""
        return 2 if self.distributed is not None and self.distributed.mixed_precision == "bf16" else 4

    @property
    def checkpoints(self) -> bool:
        return self.distributed is not None and self.distributed.activation_checkpointing


def assumed(overrides: Sequence[str]) -> Setup:
    """The default with `key=value` changes, such as distributed.mixed_precision=bf16. Raises UserError for mistakes."""
    import pydantic

    from mem1.configuration.mistakes import explain
    from mem1.configuration.reading import apply_override
    from mem1.errors import UserError

    data: dict[str, object] = {}
    for override in overrides:
        apply_override(data, override)
    try:
        return Setup.model_validate(data)
    except pydantic.ValidationError as error:
        raise UserError(f"--assume: {explain(error, Setup, [])}") from error
