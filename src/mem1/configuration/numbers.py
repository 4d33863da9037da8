"""Bounds of settings: numbers are finite and small enough for arithmetic and memory.

class Run(Config):
    seed: Seed = 0
    steps: int = Field(ge=1)        # and at most LARGEST, like every number without a bound of its own
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

LARGEST = 10**12
"""Largest value of a setting without an upper bound of its own; sums and products of a few stay finite."""
LARGEST_SEED = 2**32 - 1
"""Largest seed that every random generator accepts: NumPy's legacy one has 32 bits."""
MOST_TOKENS = 2**31 - 1
"""Maximum tokens of a context, a pack or a step."""
MOST_WORKERS = 256
"""Maximum parallel processes on one machine."""
MOST_TASKS = 1_000_000
"""Maximum tasks of one size."""
MOST_OBJECTIVES = 10_000
"""Maximum questions per task."""
COLDEST = 0.01
"""Lowest temperature: it divides the logits, and nearer to 0 they overflow."""
WARMEST = 100.0


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        raise ValueError(f"a temperature is 0 (greedy) or at least {COLDEST}")
    return temperature


Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""Seed of random draws."""
Sizes = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_OBJECTIVES)], ...], Field(min_length=1)]
"""One or more numbers of objectives."""
Probability = Annotated[float, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
"""Step length of an optimiser."""
Temperature = Annotated[float, Field(ge=COLDEST, le=WARMEST)]
"""Divisor of the logits before sampling."""
GreedyOrWarm = Annotated[float, AfterValidator(_greedy_or_warm), Field(ge=0, le=WARMEST)]
"""A temperature, or 0 for greedy choices."""


def check_value(value: Any, *, bounded: bool) -> None:
    """Raises ValueError for text with NUL and, unless the setting is `bounded` itself, for a huge number."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("text must not hold the character NUL")
    elif isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number must be finite")
        if not bounded and abs(value) > LARGEST:
            raise ValueError(f"a number must be at most {LARGEST:,}")
    elif isinstance(value, Mapping):
        for inner in (*value, *value.values()):
            check_value(inner, bounded=bounded)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            check_value(inner, bounded=bounded)
