"""What a provider of chat completions counts of a call, in the ways in which they do.

counted_in({"prompt_tokens": 9, "completion_tokens": 1})              ->  Counted(prompt=9, cached=None, output=1)
counted_in({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 30,
            "completion_tokens_details": {"reasoning_tokens": 20}})   ->  Counted(prompt=9, cached=None, output=21)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mem1.net.exchange import whole_number

MOST_TOKENS = 1 << 40
"""A larger count is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Tokens of one call, as the provider counted them."""

    prompt: int
    """Tools and system message included."""
    cached: int | None
    """Prompt tokens served from the provider's cache; None: it does not say."""
    output: int
    """Thoughts included."""


def counted_in(usage: Any) -> Counted | None:
    """None: it does not count a call's prompt and reply."""
    if not isinstance(usage, Mapping):
        return None
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if prompt is None or output is None:
        return None
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens")  # DeepSeek's
    thoughts = _count(usage.get("completion_tokens_details"), "reasoning_tokens") or 0
    apart = (_count(usage, "total_tokens") or 0) - prompt - output
    if cached and (cached > prompt or apart in (cached, cached + thoughts)):  # a server that counts them apart
        prompt += cached
        apart -= cached
    if apart > 0 and (apart == thoughts or not (thoughts or cached or _names_a_cache(usage))):
        output += apart  # thoughts, as xAI and gateways to Gemini count them
    return Counted(prompt=prompt, cached=cached, output=output)


def _names_a_cache(usage: Mapping[str, Any]) -> bool:
    return any("cache" in key and value for key, value in usage.items())


def _count(usage: Any, key: str) -> int | None:
    return whole_number(usage.get(key), most=MOST_TOKENS) if isinstance(usage, Mapping) else None
