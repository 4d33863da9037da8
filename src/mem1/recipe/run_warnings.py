"""`[warnings]` of a recipe: limits beyond which a run of [rl] is said to go wrong (`mem1.training.monitoring`).

[warnings]
off = ["long_outputs"]
entropy = 0.05
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mem1.configuration import Config

RuleName = Literal[
    "equal_rewards", "long_outputs", "cut_attempts", "malformed", "entropy", "sampler_trainer", "critic", "all"
]


class RunWarnings(Config):
    """`[warnings]`: from where on `mem1 train` says that a run of [rl] goes wrong. Each is said once."""

    off: tuple[RuleName, ...] = ()
    """Warnings that are not wanted, by name; ["all"]: none."""
    steps: int = Field(default=5, ge=1)
    """Steps that must look wrong in a row, or over which the means are taken."""
    equal_rewards: float = Field(default=0.05, ge=0, le=1)
    """Largest share of groups with variance that is too low to learn from."""
    long_outputs: float = Field(default=3.0, gt=1)
    """Growth of the sampled tokens per turn, as a factor of those at the start of the phase."""
    cut_attempts: float = Field(default=0.3, gt=0, le=1)
    """Rise of the share of attempts that a limit of turns or tokens ended."""
    malformed: float = Field(default=0.2, gt=0, le=1)
    """Rise of the share of malformed turns."""
    entropy: float = Field(default=0.1, gt=0, lt=1)
    """Fall of the entropy, as a share of that at the start of the phase."""
    sampler_trainer: float | None = Field(default=None, gt=0)
    """Largest `sampler_trainer_mean` in nats. None: 0.001, or 0.1 where bfloat16 is involved."""
    critic: float = Field(default=-0.1, lt=1)
    """Explained variance of the returns at which a critic does harm; 0 is that of a constant."""
