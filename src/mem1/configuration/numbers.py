"""The numbers that settings take: finite, and no larger than arithmetic and memory bear.

    class Run(Config):
        seed: Seed = 0
        steps: int = Field(ge=1)        # and at most LARGEST, like every number without a bound of its own
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

LARGEST = 10**12
"""Largest number of a setting that has no upper bound of its own; sums and products of a few stay below 2**63."""
LARGEST_SEED = 2**32 - 1
"""What every random generator takes that a seed may reach: NumPy's old one has 32 bits."""

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""What random draws follow from."""
Sizes = Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)]
"""Numbers of objectives, at least one of them."""
Probability = Annotated[float, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
"""Step length of an optimiser."""
Temperature = Annotated[float, Field(ge=0.01, le=100)]
"""Divides the logits that are sampled from; nearer to 0 they overflow."""


def check_value(value: Any, *, bounded: bool) -> None:
    """Raises ValueError for text that no file can hold and, in what has no bound of its own, for a huge number."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("text must not hold the character NUL")
    elif isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise ValueError("a number must be finite")
        if not bounded and abs(value) > LARGEST:
            raise ValueError(f"a number must be at most {LARGEST:,}")
    elif isinstance(value, Mapping):
        for inner in (*value, *value.values()):
            check_value(inner, bounded=bounded)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            check_value(inner, bounded=bounded)
