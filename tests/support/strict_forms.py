"""Whether a provider would refuse messages that a memory shows, by the strict server of their form.

refused("responses", shown, given)    "No tool call found for ...", or "" where they are taken

`given` is the conversation as the provider remembers it: its thoughts come back as they were, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import strict_anthropic
import strict_chat
import strict_gemini
import strict_responses
from server_replies import Reply

Messages = Sequence[Any]


def refused(kind: str, shown: Messages, given: Messages = ()) -> str:
    """The body of the refusal; kinds are those of `every_kind`."""
    # as they arrive: a tuple is a list, a text that is cut within an emoji is sent all the same
    reply = _REFUSALS[kind](json.loads(json.dumps([*shown])), given)
    return "" if reply is None or reply.body is None else reply.body.decode()


def _chat(shown: Messages, given: Messages) -> Reply | None:
    return strict_chat.refusal({"model": "m", "messages": shown}, unknown=True)


def _gemini(shown: Messages, given: Messages) -> Reply | None:
    return strict_gemini.refusal({"model": "m", "messages": shown})


def _responses(shown: Messages, given: Messages) -> Reply | None:
    """Kept nowhere, as `mem1.messages` needs it."""
    body = {"model": "m", "input": shown, "store": False}
    return strict_responses.refusal(body, reasoned=strict_responses.reasoned_of(given))


def _anthropic(shown: Messages, given: Messages) -> Reply | None:
    """With thinking enabled where the model has thought."""
    blocks = [block for message in given if isinstance(message["content"], list) for block in message["content"]]
    thought = any(block["type"] in strict_anthropic.THOUGHTS for block in blocks)
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thought else {}
    return strict_anthropic.refusal({"model": "m", "max_tokens": 4000, "messages": shown, **thinking}, said=given)


_REFUSALS = {"chat": _chat, "gemini": _gemini, "responses": _responses, "anthropic": _anthropic}
