"""OpenAI's chat completions as the endpoint takes them: requests within what it can honour.

    {"messages": [...], "tools": [...], "max_tokens": 200, "temperature": 0.2}

Samples are drawn as the recipe says, so temperature, top_p, seed, penalties and all other settings that only shape the
sample are ignored; `max_tokens` is honoured below the recipe's budget. A request is refused where what it asks for
would be missing from the reply: several choices, stop words, a schema, a forced call, log-probabilities. Replies are
in `mem1.engines.chat_replies`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mem1.engines.chat_replies import MODEL, Message

_MESSAGES = 10_000


class ChatRequest(BaseModel):
    """The body of POST .../chat/completions; what is not named here is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=_MESSAGES)
    model: str = MODEL
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=_MESSAGES)
    tool_choice: Any = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: Any = None
    stop: Any = None
    logit_bias: Any = None
    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    modalities: Any = None

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of the completion; None: as many as the recipe allows."""
        given = [most for most in (self.max_tokens, self.max_completion_tokens) if most is not None]
        return min(given, default=None)

    @property
    def offered(self) -> Sequence[Message]:
        """The tools that the model may call."""
        return () if self.tool_choice == "none" else self.tools or ()

    @property
    def counts_streamed(self) -> bool:
        """Whether a streamed reply ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    def refusal(self) -> str | None:
        """Why it cannot be honoured; None: it can."""
        form = self.response_format.get("type") if isinstance(self.response_format, Mapping) else self.response_format
        reasons = {
            "n": (self.n not in (None, 1), "each call is one sample: call again for another"),
            "stop": (bool(self.stop), "a completion ends where the policy ends it"),
            "logit_bias": (bool(self.logit_bias), "it would train another policy than the one that sampled"),
            "response_format": (form not in (None, "text"), "the policy writes text: ask for the form in a message"),
            "tool_choice": (self.tool_choice not in (None, "auto", "none"), "the policy decides what it calls"),
            "functions": (bool(self.functions or self.function_call), "give tools"),
            "logprobs": (bool(self.logprobs), "they are recorded, not sent"),
            "modalities": (self.modalities not in (None, ["text"]), "the policy writes text"),
        }
        return next((f"{name} is not supported here: {why}" for name, (wrong, why) in reasons.items() if wrong), None)


def models() -> dict[str, Any]:
    """The body of GET .../models."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "mem1"}]}
