"""A memory for smolagents, as a model around the agent's model.

    from mem1.extras.agents.smolagents import MemoryModel
    agent = CodeAgent(tools=[...], model=MemoryModel(OpenAIModel("..."), "fold(4)"))

The steps of the agent stay whole; only what the model is sent is folded. smolagents sends its calls and observations as
texts, so a step is an exchange here: what the model said and called, and all that it observed. Documentation:
docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, ending_in, finished, memory_of
from mem1.memory import MemoryPolicy
from mem1.messages.transcript import Message

try:
    from smolagents.models import ApiModel, ChatMessage, MessageRole, Model
except ImportError as error:
    raise UserError(
        f"a memory for smolagents needs smolagents 1.22 ({error}): pip install 'mem1-agents[smolagents]'"
    ) from error

_SAID = (MessageRole.ASSISTANT, MessageRole.TOOL_CALL)


class MemoryModel(Model):
    """Folds what a model is sent, by a memory of `mem1.memory`; it is a model itself, for any number of agents.

    Settings as of `mem1.messages.Memory`. It has no tool `recall`, so bounds need `handles=False`.
    """

    def __init__(self, model: Model, policy: str | MemoryPolicy = "fold(4)", **settings: Any) -> None:
        super().__init__(
            flatten_messages_as_text=model.flatten_messages_as_text,
            tool_name_key=model.tool_name_key,
            tool_arguments_key=model.tool_arguments_key,
            model_id=model.model_id,
        )
        self.model = model
        self.memory = memory_of(policy, settings)
        if self.memory.shows_handles:
            or_else = "" if settings.get("writer") else ", or a memory that writes states, such as fold(4)"
            raise UserError(
                f"smolagents has no tool for the handles that {policy} names: give Bounds(handles=False){or_else}"
            )

    def __getattr__(self, name: str) -> Any:
        """What only some models have; streaming is one of these, and agents look for it."""
        if name == "model":  # copied or pickled, it is not there yet
            raise AttributeError(name)
        found = getattr(self.model, name)
        return self._stream if name == "generate_stream" else found

    def to_dict(self) -> dict[str, Any]:
        """Raises UserError: smolagents makes only models of its own from what it saved."""
        raise UserError(
            "an agent with a memory cannot be saved: save it with its own model, and put that into MemoryModel after "
            "loading (agent.model = MemoryModel(agent.model))"
        )

    def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatMessage:
        """Send the model the folded messages."""
        sent, shown = self._folded(messages, kwargs)
        reply = self.model.generate(sent, *args, **kwargs)
        if reply.token_usage is not None:
            self.memory.observe(reply.token_usage.input_tokens, shown)
        return reply

    def _stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        sent, shown = self._folded(messages, kwargs)
        for delta in self.model.generate_stream(sent, *args, **kwargs):
            if delta.token_usage is not None and delta.token_usage.input_tokens:
                self.memory.observe(delta.token_usage.input_tokens, shown)
            yield delta

    def _folded(self, messages: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[ChatMessage], list[Message]]:
        """(what the model is sent, the same for the memory)"""
        own = [ChatMessage.from_dict(dict(each)) if isinstance(each, dict) else each for each in messages]
        conversation = Conversation.of(KIND, list(pieces_of(own)))
        tools = kwargs.get("tools_to_call_from") if isinstance(self.model, ApiModel) else None
        # smolagents demands a call wherever it gives tools
        with_tools = {"tools_to_call_from": tools, "tool_choice": "auto"} if tools else {}

        def write(request: list[Message]) -> Message:
            said = self.model.generate(_messages(conversation.written(request)), **with_tools)
            return finished(_reply(said), _ended(said.raw), self.memory)

        shown = self.memory.prompt(conversation.read, write=write)
        return _messages(conversation.written(shown)), shown


class _Piece(NamedTuple):
    """What the model said in a step, all that it observed, or another message."""

    role: str
    messages: tuple[ChatMessage, ...]
    call: str | None = None
    """Id of the call of a step that observed something."""


def pieces_of(messages: Sequence[ChatMessage]) -> Iterator[_Piece]:
    roles = iter(_roles(messages))
    runs = [(role, tuple(run)) for role, run in groupby(messages, key=lambda message: next(roles))]
    for at, (role, run) in enumerate(runs):
        after = runs[at + 1][0] if at + 1 < len(runs) else ""
        if role == "assistant":
            yield _Piece(role, run, f"step_{at}" if after == "tool" else None)
        elif role == "tool" and at and runs[at - 1][0] == "assistant":
            yield _Piece(role, run, f"step_{at - 1}")
        else:  # an error before the model said anything is no answer to it
            yield from [_Piece("user" if role == "tool" else role, (message,)) for message in run]


def _roles(messages: Sequence[ChatMessage]) -> Iterator[str]:
    before = ""
    for message in messages:
        if message.role in _SAID:
            before = "assistant"
        elif before == "assistant" and all(block["type"] == "image" for block in _blocks_of(message)):
            before = "tool"  # what a step has seen stands before what it has read
        else:
            before = {MessageRole.TOOL_RESPONSE: "tool", MessageRole.SYSTEM: "system"}.get(message.role, "user")
        yield before


def _blocks_of(message: ChatMessage) -> list[dict[str, Any]]:
    if isinstance(message.content, list):
        return message.content
    return [{"type": "text", "text": message.content}] if message.content else []


def _messages(pieces: Sequence[_Piece]) -> list[ChatMessage]:
    return [message for piece in pieces for message in piece.messages]


def _read(piece: _Piece) -> Message:
    content = [block for message in piece.messages for block in _blocks(message)]
    read: Message = {"role": piece.role, "content": content}
    if piece.call is None:
        return read
    if piece.role == "tool":
        return {**read, "tool_call_id": piece.call}
    function = {"name": "step", "arguments": "{}"}
    return {**read, "tool_calls": [{"id": piece.call, "type": "function", "function": function}]}


@dataclass(frozen=True)
class _Own:
    """An image, or whatever is no text; equal images look alike."""

    block: dict[str, Any] = field(repr=False)
    seen: str


def _blocks(message: ChatMessage) -> list[Message]:
    return [dict(block) if block["type"] == "text" else _file(block) for block in _blocks_of(message)]


def _file(block: dict[str, Any]) -> Message:
    image: Any = block.get("image")
    seen = sha256(image.tobytes()).hexdigest() if hasattr(image, "tobytes") else repr(block)
    return {"type": "file", "own": _Own(block, seen)}


def _contents(content: Any) -> list[dict[str, Any]]:
    """smolagents' own content, with one text for those in a row: of several, some of its models see only the first."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    made: list[dict[str, Any]] = []
    for is_text, run in groupby(content, key=lambda block: block["type"] == "text"):
        if is_text:
            made.append({"type": "text", "text": "\n".join(block["text"] for block in run)})
        else:
            made += [block["own"].block for block in run]
    return made


def _copied(piece: _Piece, changed: Message) -> _Piece:
    role = MessageRole.TOOL_RESPONSE if piece.role == "tool" else piece.messages[0].role
    return piece._replace(messages=(ChatMessage(role=role, content=_contents(changed["content"])),))


def _made(message: Message) -> _Piece:
    role = MessageRole.TOOL_RESPONSE if message["role"] == "tool" else MessageRole.USER
    return _Piece(message["role"], (ChatMessage(role=role, content=_contents(message["content"])),))


def _reply(said: ChatMessage) -> Message:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": "{}"}}
        for call in said.tool_calls or ()
    ]
    return {"role": "assistant", "content": _blocks(said), "tool_calls": calls}


def _ended(raw: Any) -> Any:
    """Why a reply ended, as the provider's answer says it; models on this machine give none."""
    choices = raw.get("choices") if isinstance(raw, dict) else getattr(raw, "choices", None)
    answer = choices[0] if choices else raw
    return ending_in(answer if isinstance(answer, dict) else getattr(answer, "__dict__", {}))


KIND = Kind(read=_read, copied=_copied, made=_made)
"""smolagents' messages, step by step."""
