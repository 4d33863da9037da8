"""`[lora]` of a recipe: reinforcement learning moves adapters beside the layers, not the layers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mem1.configuration import Config

BLOCK = 64
"""Weights of a row that share a scale where they are quantised."""


class Lora(Config):
    """Size and place of the adapters."""

    rank: int = Field(default=16, ge=1, le=65_536)
    """Rows of A, columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """The product B A is scaled by alpha / rank."""
    layers: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Last parts of the names of linear layers, such as q_proj; None: all of them but the head."""
    quantize: Literal["nf4"] | None = None
    """Hold the frozen linear layers, the head aside, in 4 bits a weight (QLoRA); None: as they are. The policy that
    samples gets the quantised weights too, so both are the same policy. Needs mem1[qlora]."""
