"""A memory as a capability of pydantic-ai's agents.

    from mem1.extras.agents.pydantic_ai import MemoryCapability
    agent = Agent("openai:...", tools=[...], capabilities=[MemoryCapability("fold(4)")])

The message history stays whole; only what the model is sent is folded. The model writes a state in a request with the
same model, settings, tools and instructions, whose tokens count in the run's usage. Documentation:
docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, finished, memory_of
from mem1.memory import MemoryPolicy
from mem1.messages import Memory
from mem1.messages.asking import for_state
from mem1.messages.transcript import Message

try:
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext
except ImportError as error:
    raise UserError(
        f"a memory for pydantic-ai needs pydantic-ai-slim 1.80 ({error}): pip install 'mem1-agents[pydantic-ai]'"
    ) from error


class MemoryCapability(AbstractCapability[Any]):
    """Folds what the model is sent, by a memory of `mem1.memory`; one object serves any number of runs.

    Settings as of `mem1.messages.Memory`. Where the model may see handles, the agent gets the tool `recall`.
    """

    def __init__(self, policy: str | MemoryPolicy = "fold(4)", **settings: Any) -> None:
        super().__init__()
        self.memory = memory_of(policy, settings)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: a memory with its callbacks is not written into agent specifications."""
        return None

    def get_toolset(self) -> Any:
        """The tool `recall`."""
        if not self.memory.shows_handles:
            return None
        tools = FunctionToolset()
        about = self.memory.recall_tool["function"]
        tools.add_function(_recall_of(self.memory), name=about["name"], description=about["description"])
        return tools

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Callable[..., Any]
    ) -> ModelResponse:
        """Send the model the folded messages."""
        sent = request_context.messages
        conversation = _conversation(sent)

        async def write(messages: list[Message]) -> Message:
            response = await request_context.model.request(
                _messages(conversation.written(messages), sent),
                *_for_state(request_context, self.memory.bounds.state),
            )
            ctx.usage.incr(response.usage)
            return finished(_said(response), response.finish_reason, self.memory)

        instructions = _last_request(sent).instructions or ""
        shown = await self.memory.aprompt(conversation.read, write=write, owner=instructions)
        folded = _messages(conversation.written(shown), sent)
        response = await handler(replace(request_context, messages=folded))
        if response.usage.input_tokens:
            self.memory.observe(response.usage.input_tokens, shown)
        return response


def _for_state(request_context: ModelRequestContext, tokens: int) -> tuple[Any, Any]:
    """(settings, parameters) of the request for a state, which is text, with the same tools."""
    settings, parameters = request_context.model_settings, request_context.model_request_parameters
    settings = None if settings is None else for_state(settings, tokens)
    mode = parameters.output_mode
    if mode == "auto":  # left to the model, which would forbid text where it chooses tools
        mode = request_context.model.prepare_request(settings, parameters)[1].output_mode
    if mode in ("native", "prompted"):
        parameters = replace(parameters, output_mode="text", output_object=None)
    elif parameters.output_mode == "auto":
        parameters = replace(parameters, output_mode="tool")
    return settings, replace(parameters, allow_text_output=True)


class _Piece(NamedTuple):
    """A response, or a part of a request."""

    message: int | None
    """Place of its message in the history; None: mem1 made it."""
    parts: tuple[Any, ...]
    """Parts of a request; more than one where a text was added to a part that cannot take it."""
    response: ModelResponse | None = None


def _conversation(messages: Sequence[ModelMessage]) -> Conversation[_Piece]:
    return Conversation.of(KIND, list(_pieces(messages)))


def _pieces(messages: Sequence[ModelMessage]) -> Iterator[_Piece]:
    for at, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            yield _Piece(at, (), message)
        else:
            yield from [_Piece(at, (part,)) for part in sorted(message.parts, key=_order)]


def _messages(pieces: Sequence[_Piece], sent: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Messages of these pieces; requests of which all parts stay are the same objects."""
    written: list[ModelMessage] = []
    last = _last_request(sent)
    for at, group in groupby(pieces, key=lambda piece: piece.message):
        found = list(group)
        if found[0].response is not None:
            written.append(found[0].response)
            continue
        parts = [part for piece in found for part in piece.parts]
        own: Any = last if at is None else sent[at]
        if len(parts) == len(own.parts) and all(any(part is other for other in own.parts) for part in parts):
            written.append(own)
        else:
            written.append(replace(own, parts=parts))
    return written


def _last_request(sent: Sequence[ModelMessage]) -> ModelRequest:
    return next(message for message in reversed(sent) if isinstance(message, ModelRequest))


def _order(part: Any) -> int:
    """Results first, as the files of a result are parts of the user behind it; last what nobody wrote."""
    return 0 if _is_result(part) else 1 if isinstance(part, SystemPromptPart | UserPromptPart) else 2


def _is_result(part: Any) -> bool:
    return isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name is not None)


def _read(piece: _Piece) -> Message:
    if piece.response is not None:
        return _said(piece.response)
    (part,) = piece.parts
    if _is_result(part):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": _content(part)}
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _prompt(part)}
    return {"role": "user", "content": "", "part": part}  # feedback and the like: stays as it is, before added text


def _said(response: ModelResponse) -> Message:
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    content: list[Message] = []
    for part in response.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.content})
        elif isinstance(part, ThinkingPart):
            content.append({"type": "thinking", "thinking": part.content})
    return {"role": "assistant", "content": content, "tool_calls": [_call(call) for call in calls]}


def _call(call: ToolCallPart) -> Message:
    function = {"name": call.tool_name, "arguments": call.args_as_json_str()}
    return {"id": call.tool_call_id, "type": "function", "function": function}


def _content(part: ToolReturnPart | RetryPromptPart) -> Any:
    if isinstance(part, RetryPromptPart):
        return part.model_response()
    files, rest = part.files, part.content if isinstance(part.content, list) else [part.content]
    rest = [each for each in rest if not any(each is file for file in files)]
    text = "\n".join(rest) if all(isinstance(each, str) for each in rest) else part.model_response_str()
    return [{"type": "text", "text": text}, *map(_block, files)] if files else text


def _prompt(part: UserPromptPart) -> Any:
    return part.content if isinstance(part.content, str) else [_block(each) for each in part.content]


@dataclass(frozen=True)
class _File:
    """A file, an image, a link: whatever is no text."""

    own: Any


def _block(content: Any) -> Message:
    if isinstance(content, str):
        return {"type": "text", "text": content}
    return {"type": "file", "file": _File(content)}


def _contents(content: Any) -> Any:
    """The framework's own content."""
    if isinstance(content, str):
        return content
    return [block["file"].own if "file" in block else block["text"] for block in content]


def _copied(piece: _Piece, changed: Message) -> _Piece:
    if piece.response is not None:  # its text without a thought
        said = [TextPart(block["text"]) for block in changed["content"]]
        rest = [part for part in piece.response.parts if not isinstance(part, TextPart)]
        return piece._replace(response=replace(piece.response, parts=[*said, *rest]))
    (part,) = piece.parts
    content = _contents(changed["content"])
    if _is_result(part) and not isinstance(content, str):  # several texts would be shown as a list in JSON
        files = [each for each in content if not isinstance(each, str)]
        text = "\n".join(each for each in content if isinstance(each, str))
        content = [text, *files] if files else text
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        return piece._replace(parts=(ToolReturnPart(part.tool_name, content, part.tool_call_id),))
    if isinstance(part, ToolReturnPart | UserPromptPart | SystemPromptPart):
        return piece._replace(parts=(replace(part, content=content),))
    return piece._replace(parts=(part, UserPromptPart(content)))


def _made(message: Message) -> _Piece:
    if message["role"] == "tool":
        return _Piece(None, (ToolReturnPart("unknown", message["content"], message["tool_call_id"]),))
    return _Piece(None, (UserPromptPart(message["content"]),))


KIND = Kind(read=_read, copied=_copied, made=_made)
"""pydantic-ai's messages, piece by piece."""


def _recall_of(memory: Memory) -> Callable[..., Any]:
    """The tool `recall` of a memory."""

    def recall(ctx: RunContext[Any], handle: str, start: int = 0) -> Any:
        try:
            return _contents(_conversation(ctx.messages).recall(memory, handle, start))
        except UserError as error:
            return f"error: {error}"

    return recall
