"""A script in the place of a model, to try agents and memories without one: `mem1 serve-policy stand-in`.

    user: Read 3 pages about Oslo.          assistant: search("Read 3 pages about Oslo, page 1")
    tool: Nothing is known. ...             assistant: search("Read 3 pages about Oslo, page 2")
    user: Write your memory now. ...        assistant: I have read as far as page 2. It says: Nothing is known.
    ...                                     assistant: I have read 3 pages. The last one says: Nothing is known.

It calls the first tool that takes a text, page by page, and understands nothing; what it says at the end goes to a tool
`submit`, if there is one. What it says follows from the context
alone, so it goes on from its state or its notes as a model would. Its tokens are those of the stand-in tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from mem1.engines.chat_messages import ChatMessages
from mem1.engines.codec import Codec
from mem1.engines.config import STAND_IN
from mem1.engines.tool_calls import HERMES
from mem1.messages.transcript import ASK
from mem1.model_folder import asset

_BEGIN, _END = "<|im_start|>", "<|im_end|>"
_PAGES = 12
"""Pages that it reads where the task names no number."""
_FINAL = "submit"


def stand_in_chat() -> ChatMessages:
    """How its messages are written."""
    tokenizer = Tokenizer.from_str(Codec.load(asset(STAND_IN)).tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in (_BEGIN, _END)])
    return ChatMessages(
        codec=Codec(tokenizer), write=_written, calls=HERMES, end=_END, where="the stand-in", name=STAND_IN
    )


def stand_in(context: str) -> str:
    """Its reply in this context."""
    parts = [part.removesuffix("\n").removesuffix(_END).partition("\n") for part in context.split(_BEGIN)[1:-1]]
    messages = [(role, text) for role, _, text in parts if role != "tools"]
    tools = next((json.loads(text) for role, _, text in parts if role == "tools"), [])
    wants_state = messages[-1][0] == "user" and messages[-1][1].startswith(ASK)
    messages = messages[:-1] if wants_state else messages
    task = max((place for place, (role, _) in enumerate(messages) if role == "user"), default=0)
    said, results = _split(messages[task:])
    done = max(map(int, re.findall(r"page (\d{1,6})", said)), default=0)
    last = results[-1].partition(". ")[0].strip().removesuffix(".") if results else ""
    says = f": {last[:200]}." if last else " nothing."
    if wants_state:
        return f"I have read as far as page {done}. It says{says}{_END}"
    asked = messages[task][1].partition("<memory>")[0]
    pages = next(map(int, re.findall(r"(?<!\d)(\d{1,6}) pages", asked)), _PAGES)
    texts = [tool for tool in tools if tool["function"]["name"] not in ("recall", _FINAL)]
    called = _call(texts, f"{asked.strip().rstrip('.?!')[:80]}, page {done + 1}")
    if called is None:
        return f"I stand in for a model and can only call a tool that takes a text; there is none.{_END}"
    if done >= pages:
        answer = f"I have read {done} pages." + (f" The last one says{says}" if last else "")
        final = [tool for tool in tools if tool["function"]["name"] == _FINAL]
        return f"{_call(final, answer) or answer}{_END}"
    wants_notes = any("<note>" in text for role, text in messages if role in ("system", "user"))
    note = f"<note>page {done} says{says}</note>\n" if wants_notes and done else ""
    return f"{note}{called}{_END}"


def _split(messages: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """Texts of user and model, and results of tools."""
    said = "\n".join(text for role, text in messages if role != "tool")
    return said, [text for role, text in messages if role == "tool"]


def _call(tools: Sequence[Mapping[str, Any]], text: str) -> str | None:
    """A call of the first tool that takes a text, as Hermes writes it; None: there is none."""
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        taken = {name: each for name, each in (schema.get("properties") or {}).items() if isinstance(each, Mapping)}
        names = [name for name in schema.get("required") or taken if taken.get(name, {}).get("type") == "string"]
        if names:
            before, after = HERMES.around(function["name"], names[0])
            return f"{before}{json.dumps(text, ensure_ascii=False)[1:-1]}{after}"
    return None


def _written(messages: list[dict[str, Any]], tools: list[dict[str, Any]], prompt: bool) -> str:
    parts = [("tools", json.dumps(tools, ensure_ascii=False))] if tools else []
    for message in messages:
        calls = (
            f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
            for call in message.get("tool_calls", ())
        )
        parts.append((message["role"], "\n".join([message["content"], *calls]).strip()))
    text = "".join(f"{_BEGIN}{role}\n{text}{_END}\n" for role, text in parts)
    return f"{text}{_BEGIN}assistant\n" if prompt else text
