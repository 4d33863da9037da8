"""Whether a state came to its end: exchanges are dropped for it, so that one of which a part is missing is none.

unfinished({"content": "Known: the capital of"}, Bounds(), cut=True)    "the state was cut off by the limit of tokens"
unfinished({"content": "Known: Oslo."}, Bounds())                       ""
"""

from __future__ import annotations

from mem1.messages.bounds import Bounds
from mem1.messages.thoughts import without_thoughts
from mem1.messages.transcript import Message, texts

CUT = ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "incomplete")
"""Why a reply ended that reached a limit of tokens, in the words of APIs and frameworks, in small letters."""
FILTERED = ("content_filter", "content_filtered", "guardrail_intervened", "sensitive", "refusal", "safety")
"""Why a reply ended that a provider's filter stopped."""


def unfinished(message: Message, bounds: Bounds, *, cut: bool = False, filtered: bool = False) -> str:
    """Why a model's message is no whole state; "": it is one. Of a state that is longer than it may be the end goes in
    any case, so that it may be cut off."""
    if filtered:
        return "a filter of the provider stopped the state"
    if cut and bounds.count(without_thoughts(texts(message.get("content")))) <= bounds.state:
        return "the state was cut off by the limit of tokens"
    return ""
