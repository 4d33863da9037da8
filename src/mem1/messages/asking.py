"""What of an agent's settings stays in a request for a state: all but what would spoil the answer.

    for_state({"model": "m", "tool_choice": "required", "stop": ["\\n\\n"], "max_tokens": 100}, 1_000)
    ->  {"model": "m", "max_tokens": 2_000}

A state is text, whole and in one piece. So what makes it a call, another form, speech, half or several leaves: a call
that is demanded, a schema, stop words, a stream, a second choice. All else stays, as the provider serves the beginning
of the request from its cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mem1.messages.transcript import MAPPING

_SPOILS = frozenset(
    (
        *("stream", "stream_options", "n", "prediction", "modalities", "audio"),
        *("stop", "stop_sequences", "stop_token_ids", "stop_regex"),
        *("response_format", "output_format", "structured_outputs", "json_schema", "grammar", "regex", "ebnf"),
        *("structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    )
)
"""Names of OpenAI, Anthropic, vLLM, SGLang, TGI, llama.cpp and of frameworks. An open list."""
_CHOICES = ("tool_choice", "function_call")
_FREE = ("auto", "none")
"""Choices of tools, or their types, that let a model answer with text, as does none."""
_BESIDE = ("extra_body", "extra_args", "model_kwargs")
"""What frameworks put into the request beside their own settings."""
_TOKENS = ("max_tokens", "max_completion_tokens")
_MOST_THOUGHT = 16_000
"""Tokens of a budget for thoughts that a state has room for: no model thinks longer about one, and providers limit
max_tokens."""


def for_state(settings: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The settings of a request for a state of at most so many tokens; its thoughts have as much room again, or their
    budget."""
    kept = {name: value for name, value in settings.items() if name not in _SPOILS}
    for name in _CHOICES:
        if not _allows_text(kept.get(name)):
            del kept[name]
    if isinstance(config := kept.get("output_config"), MAPPING):
        kept["output_config"] = {name: value for name, value in config.items() if name != "format"}
    for name in _BESIDE:
        if isinstance(beside := kept.get(name), MAPPING):
            kept[name] = for_state(beside, tokens)
    thinking = kept.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, MAPPING) else None
    least = 2 * tokens + (min(budget, _MOST_THOUGHT) if type(budget) is int else 0)
    for name in _TOKENS:
        if type(given := kept.get(name)) is int:
            kept[name] = max(given, least)
    return kept


def _allows_text(choice: Any) -> bool:
    return choice is None or (choice.get("type") if isinstance(choice, MAPPING) else choice) in _FREE
