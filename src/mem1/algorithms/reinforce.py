"""REINFORCE: an attempt's reward less a baseline that does not look at the attempt.

    A_i = r_i - b

Source: Williams 1992, "Simple statistical gradient-following algorithms", section 4. `baseline` may be any number
that was known before the attempt (a running mean of earlier steps, say). One number a *trajectory*, compared with
nothing: the only member of the family that takes single attempts. Use it with the plain policy gradient.
"""

from __future__ import annotations

from collections.abc import Sequence


def reinforce_advantages(rewards_G: Sequence[float], *, baseline: float = 0.0) -> tuple[float, ...]:
    """Advantage of each attempt."""
    return tuple(r - baseline for r in rewards_G)
