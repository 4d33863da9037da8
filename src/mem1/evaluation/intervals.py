"""How sure a mean is: the percentile bootstrap.

    bootstrap_interval([0.0, 1.0, 1.0, 0.5])  ->  (low, high) around 0.625
    bootstrap_interval([1.0, 1.0])            ->  (1.0, 1.0)

Source: Efron, "Bootstrap methods: another look at the jackknife", 1979.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_INDICES_AT_ONCE = 2_000_000
"""Largest number of resampled indices held at a time: 16 MB."""


def bootstrap_interval(values: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of `values`, by resampling them with replacement.

    Deterministic from `seed`. Raises ValueError without values.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    rows = max(1, _INDICES_AT_ONCE // len(array))
    for start in range(0, resamples, rows):
        size = (min(rows, resamples - start), len(array))
        means.append(array[generator.integers(0, len(array), size=size)].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)
