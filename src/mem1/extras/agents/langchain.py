"""A memory as a middleware of LangChain's agents.

    from mem1.extras.agents.langchain import MemoryMiddleware
    agent = create_agent(model, tools, middleware=[MemoryMiddleware("fold(4)")])

The messages of the agent's state stay whole; only what the model is sent is folded. The model writes a state in a call
with the same model, tools, system message and settings, which streams nothing.
Documentation: docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, ending_in, finished, memory_of
from mem1.memory import MemoryPolicy
from mem1.messages import Memory
from mem1.messages.asking import for_state
from mem1.messages.transcript import Message

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain.tools import ToolRuntime, tool
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_core.runnables.config import ensure_config, var_child_runnable_config
    from langgraph.constants import TAG_NOSTREAM
except ImportError as error:
    raise UserError(
        f"a memory for LangChain needs langchain 1.0 ({error}): pip install 'mem1-agents[langchain]'"
    ) from error


class MemoryMiddleware(AgentMiddleware):
    """Folds what the model is sent, by a memory of `mem1.memory`; one object serves any number of conversations.

    Settings as of `mem1.messages.Memory`. Where the model may see handles, the agent gets the tool `recall`.

    name      deepagents takes a middleware with the name of one of its own for a replacement: "SummarizationMiddleware"
              comes in the place of its summaries, also in its general sub-agent
    """

    def __init__(self, policy: str | MemoryPolicy = "fold(4)", *, name: str = "mem1", **settings: Any) -> None:
        super().__init__()
        self.memory = memory_of(policy, settings)
        self.tools = [_recall_of(self.memory)] if self.memory.shows_handles else []
        self._name = name

    @property
    def name(self) -> str:
        """Not the name of the class, which one of deepagents' own has."""
        return self._name

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> Any:
        """Send the model the folded messages."""
        conversation = Conversation.of(KIND, request.messages)

        def write(messages: list[Message]) -> Message:
            with _unseen():
                return _state(handler(self._for_state(request, conversation.written(messages))), self.memory)

        shown = self.memory.prompt(conversation.read, write=write, owner=request.system_prompt or "")
        response = handler(request.override(messages=conversation.written(shown)))
        self._observe(response, shown)
        return response

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """The same for agents that are awaited."""
        conversation = Conversation.of(KIND, request.messages)

        async def write(messages: list[Message]) -> Message:
            with _unseen():
                asked = self._for_state(request, conversation.written(messages))
                return _state(await handler(asked), self.memory)

        shown = await self.memory.aprompt(conversation.read, write=write, owner=request.system_prompt or "")
        response = await handler(request.override(messages=conversation.written(shown)))
        self._observe(response, shown)
        return response

    def _for_state(self, request: ModelRequest, messages: list[BaseMessage]) -> ModelRequest:
        """The request for a state, which is text."""
        kept = for_state({**request.model_settings, "tool_choice": request.tool_choice}, self.memory.bounds.state)
        choice = kept.pop("tool_choice", None)
        return request.override(messages=messages, response_format=None, tool_choice=choice, model_settings=kept)

    def _observe(self, response: Any, shown: list[Message]) -> None:
        said = _said(response)
        if said is not None and said.usage_metadata:
            self.memory.observe(said.usage_metadata["input_tokens"], shown)


@contextmanager
def _unseen() -> Iterator[None]:
    """Keep a call of the model out of what the agent streams."""
    config = ensure_config()
    token = var_child_runnable_config.set({**config, "tags": [*(config.get("tags") or ()), TAG_NOSTREAM]})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _said(response: Any) -> AIMessage | None:
    """What the model said; other middleware may have wrapped the response."""
    response = getattr(response, "model_response", response)
    found = [response] if isinstance(response, AIMessage) else getattr(response, "result", ())
    return next((message for message in found if isinstance(message, AIMessage)), None)


def _state(response: Any, memory: Memory) -> Message:
    said = _said(response)
    if said is None:
        return {}
    return finished(_chat(said), ending_in(said.response_metadata), memory)


def _chat(message: BaseMessage) -> Message:
    content: Any = message.content
    if not isinstance(content, str):
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    if isinstance(message, AIMessage):
        calls = [*message.tool_calls, *(call for call in message.invalid_tool_calls if call["id"])]
        return {"role": "assistant", "content": content, "tool_calls": [_call(call) for call in calls]}
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    return {"role": "system" if isinstance(message, SystemMessage) else "user", "content": content}


def _call(call: Any) -> Message:
    given = call["args"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _copied(message: BaseMessage, changed: Message) -> BaseMessage:
    return message.model_copy(update={"content": changed["content"]})


def _made(message: Message) -> BaseMessage:
    if message["role"] == "tool":
        return ToolMessage(content=message["content"], tool_call_id=message["tool_call_id"], status="error")
    return HumanMessage(content=message["content"])


KIND = Kind(read=_chat, copied=_copied, made=_made)
"""LangChain's messages."""


def _recall_of(memory: Memory) -> Any:
    """The tool `recall` of a memory."""
    about = memory.recall_tool["function"]

    @tool(about["name"], description=about["description"])
    def recall(handle: str, runtime: ToolRuntime, start: int = 0) -> Any:
        try:
            return Conversation.of(KIND, runtime.state["messages"]).recall(memory, handle, start)
        except UserError as error:
            return f"error: {error}"

    return recall
