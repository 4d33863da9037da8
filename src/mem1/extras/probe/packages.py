"""Memories of other packages as a probe calls them, each with the probe's model and, where it has one, the same limit.

    OTHERS["langchain"](write).shown(messages)   ->   what LangChain would send

langchain           SummarizationMiddleware: a summary in the place of old messages, from a number of tokens on
deepagents          its own SummarizationMiddleware, which also writes old messages to a file that the agent can read
openai              ToolOutputTrimmer of openai-agents: previews in the place of old results
inspect-summary     CompactionSummary: a summary in the place of all that was said
inspect-edit        CompactionEdit: old results and thoughts leave
inspect-trim        CompactionTrim: old messages leave
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mem1.errors import UserError
from mem1.extras.probe.memories import Message, Replacing, Shortener, Tracking
from mem1.extras.probe.writers import Write
from mem1.messages.bounds import tokens_of

_FROM = 4_000
"""Tokens of a conversation from which it is made shorter."""
_KEPT = 4
"""Messages that stay whole, where a package asks for a number."""


def _langchain(write: Write | None) -> Shortener:
    try:
        from langchain.agents.middleware import SummarizationMiddleware
        from langchain_core.messages import RemoveMessage, convert_to_messages, convert_to_openai_messages
    except ImportError as error:
        raise _missing("langchain", "langchain", error) from error
    model = _langchain_model(_needed(write, "langchain"))
    middleware = SummarizationMiddleware(model, trigger=("tokens", _FROM), keep=("messages", _KEPT))

    def shorten(history: list[Message]) -> list[Message]:
        messages = convert_to_messages([dict(message) for message in history])
        changed = middleware.before_model({"messages": messages}, None)  # type: ignore[arg-type, typeddict-item]
        if changed is None:
            return history
        left = [message for message in changed["messages"] if not isinstance(message, RemoveMessage)]
        return convert_to_openai_messages(left)  # type: ignore[return-value]

    return Replacing(shorten)


def _langchain_model(write: Write) -> Any:
    from langchain_core.language_models import SimpleChatModel
    from langchain_core.messages import convert_to_openai_messages

    class Writer(SimpleChatModel):
        """The probe's model, as LangChain calls one."""

        @property
        def _llm_type(self) -> str:
            return "probe"

        def _call(self, messages: list[Any], *arguments: Any, **settings: Any) -> str:
            return write(convert_to_openai_messages(messages))  # type: ignore[arg-type]

    return Writer()


def _deepagents(write: Write | None) -> Shortener:
    try:
        from deepagents.backends import FilesystemBackend
        from deepagents.middleware.summarization import SummarizationMiddleware
        from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
        from langchain_core.messages import AIMessage, SystemMessage, convert_to_messages, convert_to_openai_messages
    except ImportError as error:
        raise _missing("deepagents", "deepagents", error) from error
    model = _langchain_model(_needed(write, "deepagents"))
    folder = TemporaryDirectory(prefix="mem1-probe-")
    backend = FilesystemBackend(folder.name, virtual_mode=True)
    limits: dict[str, Any] = {"trigger": ("tokens", _FROM), "keep": ("messages", _KEPT)}
    middleware = SummarizationMiddleware(model, backend=backend, trim_tokens_to_summarize=None, **limits)
    state: dict[str, Any] = {}

    def shown(messages: Sequence[Message]) -> list[Message]:
        own = convert_to_messages([dict(message) for message in messages])
        system = own.pop(0) if isinstance(own[0], SystemMessage) else None
        sent: list[Any] = []

        def handler(request: Any) -> Any:
            sent[:] = request.messages
            return ModelResponse(result=[AIMessage("")])

        request = ModelRequest(model=model, messages=own, system_message=system, state={"messages": own, **state})  # type: ignore[typeddict-item]
        reply = middleware.wrap_model_call(request, handler)
        if isinstance(reply, ExtendedModelResponse) and reply.command is not None:
            state.update(reply.command.update)  # type: ignore[arg-type]
        return convert_to_openai_messages([*([system] if system else ()), *sent])  # type: ignore[return-value]

    def behind(messages: Sequence[Message]) -> str:
        said = str(messages)
        files = [path for path in Path(folder.name).rglob("*.md") if path.name in said]
        return "\n".join(path.read_text("utf-8") for path in files)

    return Tracking(shown, behind)


def _openai(_write: Write | None) -> Shortener:
    try:
        from agents.extensions import ToolOutputTrimmer
        from agents.run_config import CallModelData, ModelInputData
    except ImportError as error:
        raise _missing("openai-agents", "openai-agents", error) from error
    trimmer = ToolOutputTrimmer()

    def shorten(history: list[Message]) -> list[Message]:
        items = _items(history)
        data = CallModelData(model_data=ModelInputData(input=items, instructions=None), agent=None, context=None)  # type: ignore[arg-type]
        outputs = {item["call_id"]: item["output"] for item in trimmer(data).input if "output" in item}  # type: ignore[typeddict-item, index]
        return [
            {**message, "content": outputs[message["tool_call_id"]]} if message["role"] == "tool" else message
            for message in history
        ]

    return Replacing(shorten)


def _items(history: Sequence[Message]) -> list[Any]:
    """Chat messages as items of the Responses API."""
    items: list[Any] = []
    for message in history:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or ():
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _inspect(kind: str, write: Write | None) -> Shortener:
    try:
        from inspect_ai.model import (
            CompactionEdit,
            CompactionSummary,
            CompactionTrim,
            ModelOutput,
            compaction,
            get_model,
        )

        from mem1.extras.agents.inspect import KIND
    except (ImportError, UserError) as error:
        raise _missing("inspect-ai", "inspect-ai", error) from error
    strategies: dict[str, Any] = {"summary": CompactionSummary, "edit": CompactionEdit, "trim": CompactionTrim}
    writing = _needed(write, "inspect-summary") if kind == "summary" else None

    def said(messages: list[Any], *_: Any) -> Any:
        assert writing is not None
        return ModelOutput.from_content("mockllm", writing([KIND.read(message) for message in messages]))

    async def counted(text: str) -> int:
        return tokens_of([{"content": text}])

    model = get_model("mockllm/model", custom_outputs=said, memoize=False)
    model.api.count_text_tokens = counted  # as all tokens of a probe; Inspect's own count needs a download
    own: list[Any] = []
    handlers: list[Any] = []

    def shown(messages: Sequence[Message]) -> list[Message]:
        own.extend(_inspect_message(message, first=not handlers) for message in messages[len(own) :])
        if not handlers:
            handlers.append(compaction(strategies[kind](threshold=_FROM, memory=False), list(own), model=model))
        sent, _ = asyncio.run(handlers[0].compact_input(own))
        return [KIND.read(message) for message in sent]

    return Tracking(shown)


def _inspect_message(message: Message, *, first: bool) -> Any:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolCall

    content = message.get("content") or ""
    if message["role"] == "tool":
        return ChatMessageTool(content=content, tool_call_id=message["tool_call_id"])
    if message["role"] == "assistant":
        calls = [
            ToolCall(
                id=call["id"],
                function=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls") or ()
        ]
        return ChatMessageAssistant(content=content, tool_calls=calls)
    if message["role"] == "system":
        return ChatMessageSystem(content=content)
    return ChatMessageUser(content=content, source="input" if first else None)


def _needed(write: Write | None, name: str) -> Write:
    if write is None:
        raise UserError(f"{name} needs a model that writes summaries")
    return write


def _missing(package: str, install: str, error: Exception) -> UserError:
    return UserError(f"{package} is not installed ({error}); pip install {install}")


OTHERS: Mapping[str, Callable[[Write | None], Shortener]] = {
    "langchain": _langchain,
    "deepagents": _deepagents,
    "openai": _openai,
    "inspect-summary": lambda write: _inspect("summary", write),
    "inspect-edit": lambda write: _inspect("edit", write),
    "inspect-trim": lambda write: _inspect("trim", write),
}
"""Memories by the names that `mem1 probe` takes."""
