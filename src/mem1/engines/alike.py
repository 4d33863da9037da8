"""Where this process samples as the model itself computes: all tokens of a context are seen, beside longer contexts.

    unlike_sampler(config, 4096)    "its layers look back 512 tokens, and contexts may have 4,096: ..."; empty: alike
    longest_alike(config)           512

Elsewhere the recorded log-probabilities would be those of another model.
"""

from __future__ import annotations

from typing import Any

STATES = ("state_size", "ssm_state_size", "mamba_d_state")
"""Keys of a configuration whose model has a state that runs on."""


def unlike_sampler(config: Any, context: int) -> str:
    """Why layers of this model would compute other numbers if they saw all tokens of a context beside longer ones, as
    they do while this process samples, or have no position for some; empty: neither, up to so many tokens."""
    if exceeded := [(most, what) for most, what in _limits(config) if most < context]:
        most, what = min(exceeded)
        return f"{what.format(most)}, and contexts may have {context:,}: set budget.context={most}"
    return unlike_layers(config)


def longest_alike(config: Any) -> int | None:
    """Most tokens of a context for which they compute the same; None: any number."""
    return min((most for most, _ in _limits(config)), default=None)


def unlike_layers(config: Any) -> str:
    """Why layers of this model would compute other numbers for a context of any length; empty: they do not."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    states = [name for name in STATES if getattr(text, name, None)]
    other = sorted(kinds - {"full_attention", "sliding_attention"}) or states
    return f"it has layers of another kind than attention over all tokens ({', '.join(other)})" if other else ""


def _limits(config: Any) -> list[tuple[int, str]]:
    """Numbers of tokens beyond which a context is not for this model, and why."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None) if not kinds or "sliding_attention" in kinds else None
    rope = getattr(text, "rope_parameters", None) or {}
    positions = getattr(text, "max_position_embeddings", None)  # beyond, dynamic angles differ
    if positions and rope.get("rope_type") in ("yarn", "linear"):  # many configurations name those before scaling
        scaled = (rope.get("original_max_position_embeddings") or positions) * rope.get("factor", 1)
        positions = max(positions, int(scaled))
    limits = {
        "its layers look back {:,} tokens": window,
        "it has {:,} positions": positions,
        "it has other angles (rope_type 'longrope') beside a context of more than {:,} tokens": (
            rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None
        ),
    }
    return [(most, what) for what, most in limits.items() if most]
