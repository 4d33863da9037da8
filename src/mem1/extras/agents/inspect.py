"""A memory as a compaction strategy of Inspect's agents.

    from mem1.extras.agents.inspect import MemoryCompaction
    react(tools=[...], compaction=MemoryCompaction(threshold=8_000))

Inspect decides when, by the threshold; the policy decides what stays. The model writes a state in a call with the same
model and tools. The messages of the sample stay whole. Documentation: docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, finished, memory_of
from mem1.memory import MemoryPolicy
from mem1.messages import RECALL_TOOL
from mem1.messages.assembly import handle_of
from mem1.messages.forms import CHAT
from mem1.messages.transcript import PLACE, Exchange, Message, handle

try:
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        CompactionStrategy,
        ContentReasoning,
        ContentText,
        Model,
    )
    from inspect_ai.tool import Tool, ToolInfo, tool
    from inspect_ai.util import store
except ImportError as error:
    raise UserError(f"a memory for Inspect needs inspect-ai ({error}): pip install 'mem1-agents[inspect]'") from error

_RECALL = RECALL_TOOL["function"]
_WRITER_S = 120.0
"""Longest wait for a writer."""


class MemoryCompaction(CompactionStrategy):
    """Folds the messages, by a memory of `mem1.memory`, whenever they exceed `threshold`: tokens, or a share.

    Other settings as of `mem1.messages.Memory`. Where the model may see handles, the agent needs the tool `recall()`.
    """

    def __init__(
        self,
        policy: str | MemoryPolicy = "fold(1)",
        *,
        threshold: int | float = 0.9,
        **settings: Any,
    ) -> None:
        super().__init__(type="summary", threshold=threshold, memory=False)
        self.folding = memory_of(policy, settings)
        self._has_writer = settings.get("writer") is not None

    async def compact(
        self, model: Model, messages: list[ChatMessage], tools: list[ToolInfo]
    ) -> tuple[list[ChatMessage], ChatMessageUser | None]:
        """The folded messages, and no message for the history."""
        if self.folding.shows_handles and all(tool.name != _RECALL["name"] for tool in tools):
            raise UserError(
                "the memory names handles, but the agent lacks the tool for them: add recall() of "
                "mem1.extras.agents.inspect to its tools, or give Bounds(handles=False)"
            )
        conversation = Conversation.of(KIND, messages)

        async def write(request: list[Message]) -> Message:
            output = await model.generate(conversation.written(request), tools)
            return finished(_read(output.message), output.stop_reason, self.folding)

        shown = await self.folding.aprompt(conversation.read, write=write)
        if self._has_writer:  # it was given what is new just now, and Inspect ends a sample that is not folded at once
            await asyncio.to_thread(self.folding.flush, _WRITER_S)
            shown = await self.folding.aprompt(conversation.read)
        if self.folding.shows_handles:
            _keep_left_out(conversation, shown)
            self._keep_notes(conversation)
        return conversation.written(shown), None

    def _keep_notes(self, conversation: Conversation[Any]) -> None:
        """Keep all notes in the sample's store, and what each of a writer's was written about."""
        notes = self.folding.recall("notes", messages=conversation.read).splitlines()
        if self._has_writer:
            all_notes = store().get(_key("notes"), "").splitlines()
            for note in notes:
                with suppress(UserError):  # it has noted nothing yet
                    store().set(_key(note), self.folding.recall(note, messages=conversation.read))
                    all_notes.append(note)
            notes = dict.fromkeys(all_notes)
        if notes:
            store().set(_key("notes"), "\n".join(notes))


@tool(name=_RECALL["name"])
def recall() -> Tool:
    """The tool by which the model sees a dropped result again."""

    async def execute(handle: str, start: int = 0) -> Any:
        """Shows a tool result that was dropped or shortened, by the handle in its place; or all notes. Also shows what
        a line of your memory was written about, by its text as the handle.

        Args:
            handle: Such as "r1a2b3c4d"; "notes": all notes.
            start: Characters to skip, for a result that was shortened.
        """
        content = store().get(_key(handle))
        if content is None:
            return f"error: no result has the handle {handle!r:.40}"
        return ChatMessageTool(content=content).text[start:] if start else content

    return execute


def _keep_left_out(conversation: Conversation[Any], shown: list[Message]) -> None:
    """Keep what is not shown whole in the sample's store: Inspect passes on only what was shown."""
    whole = {at for message in shown if (at := message.get(PLACE)) is not None and message is conversation.read[at]}
    for part in CHAT.read(conversation.read).parts:
        for result in part.results if isinstance(part, Exchange) else ():
            content, at = CHAT.content_of(result), result.message.get(PLACE)
            name = handle(result, content)
            if at is not None and at not in whole and handle_of(result, CHAT) == name:
                store().set(_key(name), conversation.own[at].content)


def _key(handle: str) -> str:
    return f"mem1:{' '.join(handle.split()).casefold()}"


@dataclass(frozen=True)
class _Own:
    """Inspect's own content."""

    content: Any


def _read(message: ChatMessage) -> Message:
    content = message.content if isinstance(message.content, str) else [_block(each) for each in message.content]
    if isinstance(message, ChatMessageTool):
        if message.error is not None and not message.content:
            content = message.error.message
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    if isinstance(message, ChatMessageAssistant):
        return {
            "role": "assistant",
            "content": content,
            "tool_calls": [_call(call) for call in message.tool_calls or ()],
        }
    return {"role": "system" if isinstance(message, ChatMessageSystem) else "user", "content": content}


def _call(call: Any) -> Message:
    arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
    return {"id": call.id, "type": "function", "function": {"name": call.function, "arguments": arguments}}


def _block(content: Any) -> Message:
    if isinstance(content, ContentText):
        text = {"type": "text", "text": content.text}
        return text if content == ContentText(text=content.text) else {**text, "own": _Own(content)}
    if isinstance(content, ContentReasoning):
        return {"type": "thinking", "thinking": content.reasoning}
    return {"type": "file", "own": _Own(content)}


def _copied(message: ChatMessage, changed: Message) -> ChatMessage:
    content = changed["content"]
    if not isinstance(content, str):
        content = [block["own"].content if "own" in block else ContentText(text=block["text"]) for block in content]
    return message.model_copy(update={"content": content, **({"error": None} if message.role == "tool" else {})})


def _made(message: Message) -> ChatMessage:
    if message["role"] == "tool":
        return ChatMessageTool(content=message["content"], tool_call_id=message["tool_call_id"])
    return ChatMessageUser(content=message["content"])


KIND = Kind(read=_read, copied=_copied, made=_made)
"""Inspect's messages."""
