"""`[distributed]` of a recipe: how the networks are spread over the ranks.

[distributed]
mixed_precision = "bf16"
activation_checkpointing = true
"""

from __future__ import annotations

from typing import Literal

from mem1.configuration import Config


class Distributed(Config):
    """Of no effect on what is learnt, but for `mixed_precision`."""

    mixed_precision: Literal["bf16"] | None = None
    """Weights and activations of forward and backward pass in it; sums of gradients, optimiser and the weights that
    it moves stay in fp32. None: everything in the model's own type."""
    activation_checkpointing: bool = False
    """Each layer is computed again in the backward pass instead of kept: less memory, a third more work."""
    cpu_offload: bool = False
    """Weights, gradients and optimiser states rest in the computer's memory, not on the GPU; of no effect on a CPU."""
    reference_offload: bool = False
    """The same of the frozen reference policy alone."""
    reshard_after_forward: bool = True
    """Let go of a layer's whole weights between forward and backward pass. False: faster, and more memory."""
