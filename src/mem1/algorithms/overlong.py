"""DAPO's soft penalty for overlong attempts, to be added to the reward before advantages are computed.

    tokens <= limit - buffer            0
    in the buffer                       (limit - buffer - tokens) / buffer
    tokens > limit                      -1                limit 100, buffer 20:  80 -> 0, 90 -> -0.5, 100 -> -1

Source: DAPO (arXiv 2503.14476), equation 13. Use it where attempts are cut by a budget of sampled tokens, which
otherwise punishes a good attempt that was cut exactly like a bad one.
"""

from __future__ import annotations


def overlong_penalty(tokens: int, *, limit: int, buffer: int) -> float:
    """Between 0 and -1, for the tokens that a trajectory sampled in all its turns.

    Raises ValueError unless 0 <= buffer <= limit.
    """
    if not 0 <= buffer <= limit:
        raise ValueError(f"the buffer must lie between 0 and the limit of {limit} tokens, not be {buffer}")
    if tokens > limit:
        return -1.0
    if tokens <= limit - buffer:
        return 0.0
    return (limit - buffer - tokens) / buffer
