"""A model that speaks in chat messages and calls tools: on a server of OpenAI's protocol, or any callable.

    chat = ServedChat(ModelServer(urls=("http://127.0.0.1:8000/v1",), model="qwen"))
    chat.reply([{"role": "user", "content": "Hello"}], tools=[]).message       {"role": "assistant", "content": "Hi"}
    [*chat.stream(...)]                                                        ["H", "i", Reply(...)]

What a server streams is put together again: text as it comes, calls by their index, usage from the last chunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from mem1.engines.servers import EngineFailed, ModelServer, Servers, base_address
from mem1.errors import UserError
from mem1.messages.transcript import Call, Message
from mem1.net.exchange import one_line, read_json, shown, whole_number
from mem1.net.spending import LimitReached, Spending, Usage
from mem1.prices import PriceClass, cost_of

_MOST_TOKENS = 1 << 40
_PATH = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Tokens of one call, as the provider counted them."""

    prompt: int
    """Tools and system message included."""
    cached: int | None
    """Prompt tokens served from the provider's cache; None: it does not say."""
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's reply in one turn."""

    message: dict[str, Any]
    """As the conversation keeps it: ids are unique, and arguments JSON objects, which some servers demand back."""
    calls: tuple[Call, ...] = ()
    """Its calls, with the arguments that the model wrote."""
    cut: bool = False
    """Whether it ended at the token limit."""
    counted: Counted | None = None
    """None: the provider did not count."""


class ModelFailed(UserError):
    """The model gave no usable reply: the message says who failed, and how."""


class Unreadable(ModelFailed):
    """What came is no reply; another try may bring one."""


class ChatModel(Protocol):
    """The interface of a model that an agent calls."""

    def reply(self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None) -> Reply:
        """The model's next message. Raises ModelFailed."""
        ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None
    ) -> Iterator[str | Reply]:
        """Its text as it comes, then the whole reply. Raises ModelFailed."""
        ...


class ServedChat:
    """A model behind /chat/completions. Failed requests are tried again, at the next address where there are several.

    `settings` go into every request beside messages and tools: temperature, max_tokens, reasoning_effort, ... The limit
    of `server` counts a request before it is sent by the provider's tokens so far, and by max_tokens; so does
    `spending`, kept together with others, which gets the money that requests cost by `prices`.
    """

    def __init__(
        self,
        server: ModelServer,
        settings: Mapping[str, Any] | None = None,
        *,
        prices: PriceClass | None = None,
        spending: Spending | None = None,
    ) -> None:
        """Connects with the first request. Raises UserError where the key is missing."""
        self.settings = dict(settings or {})
        if taken := sorted({"messages", "model", "stream", "stream_options", "tools"} & self.settings.keys()):
            raise UserError(f"settings must not hold {', '.join(taken)}: the agent fills them")
        self._server, self._prices = server, prices
        self._servers = Servers(server, spending=spending)
        self._tokens_per_byte = 0.25

    @classmethod
    def at(cls, url: str, name: str | None, api_key_env: str | None, settings: Mapping[str, Any] | None) -> ServedChat:
        """The model called `name` at this base URL, or the only one there. Raises UserError where it is none."""
        patient = ModelServer(urls=(base_address(url),), model=name or "?", api_key_env=api_key_env)
        return cls(patient if name else patient.model_copy(update={"model": _only_model(patient)}), settings)

    def reply(self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None) -> Reply:
        with _explained():
            return read_completion(self.complete(messages, tools, within_s=within_s)[0])

    def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None
    ) -> tuple[Mapping[str, Any], Usage]:
        """The whole chat completion, as the server sent it, and what it used. Raises as `Servers.ask` does."""

        def read(answer: bytes) -> tuple[tuple[Mapping[str, Any], Usage], Usage]:
            completion = read_json(answer)
            if not isinstance(completion, Mapping) or "choices" not in completion:
                raise ValueError(f"the answer is no chat completion: {shown(completion)}")
            used = self._used(body, _counted(completion.get("usage")), at_most)
            return (completion, used), used

        body = self._body(messages, tools)
        at_most = self._at_most(body)
        return self._servers.ask(_PATH, body, read, at_most=at_most, within_s=within_s)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None
    ) -> Iterator[str | Reply]:
        body = self._body(messages, tools, stream=True, stream_options={"include_usage": True})
        assembled, at_most = _Assembled(), self._at_most(body)

        def used() -> Usage:
            return self._used(body, assembled.counted, at_most)

        with _explained():
            for data in _events(self._servers.stream(_PATH, body, used, at_most=at_most, within_s=within_s)):
                yield from assembled.add(read_json(data))
            yield assembled.reply()

    def close(self) -> None:
        """End the connections."""
        self._servers.close()

    def _body(self, messages: Sequence[Message], tools: Sequence[Message], **more: Any) -> bytes:
        given = {"tools": list(tools)} if tools else {}
        request = {"model": self._server.model, "messages": list(messages), **given, **self.settings, **more}
        return json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")

    def _at_most(self, body: bytes) -> Usage:
        most = self.settings.get("max_tokens", self.settings.get("max_completion_tokens"))
        return self._usage(math.ceil(len(body) * self._tokens_per_byte), 0, whole_number(most, most=_MOST_TOKENS) or 0)

    def _used(self, body: bytes, counted: Counted | None, at_most: Usage) -> Usage:
        if counted is None:
            return at_most
        self._tokens_per_byte = max(self._tokens_per_byte, counted.prompt / len(body))
        return self._usage(counted.prompt, counted.cached or 0, counted.output)

    def _usage(self, prompt: int, cached: int, output: int) -> Usage:
        by = self._prices
        return Usage(
            prompt, output, money=0.0 if by is None else cost_of(prompt, cached, output, by.prices, by.cache) / 1e6
        )


class CalledChat:
    """A model that is a function: (messages, tools) -> a message, or a whole chat completion with its usage."""

    def __init__(self, call: Callable[[list[Message], list[Message]], Any]) -> None:
        self._call = call

    def reply(self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None) -> Reply:
        try:
            answer = self._call(list(messages), list(tools))
        except UserError:
            raise
        except Exception as error:  # whatever the caller's client raises
            raise ModelFailed(f"the model gives no reply: {type(error).__name__}: {one_line(str(error))}") from error
        with _explained(ModelFailed):  # a function that errs once errs again
            return read_completion(answer)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None
    ) -> Iterator[str | Reply]:
        reply = self.reply(messages, tools)
        if isinstance(reply.message.get("content"), str) and reply.message["content"]:
            yield reply.message["content"]
        yield reply

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def _explained(unreadable: type[ModelFailed] = Unreadable) -> Iterator[None]:
    """Raises ModelFailed for no answer, and `unreadable` for one that cannot be read."""
    try:
        yield
    except ValueError as error:
        raise unreadable(f"the model's answer cannot be read: {error}") from error
    except (EngineFailed, LimitReached) as error:
        raise ModelFailed(f"the model gives no reply: {error}") from error


def read_completion(value: Any) -> Reply:
    """The reply in a chat completion, or in a message, which may be empty. Raises ValueError for anything else."""
    completion: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    message: Any = completion if completion else None
    cut = False
    if "choices" in completion:
        try:
            message, cut = (
                completion["choices"][0]["message"],
                completion["choices"][0].get("finish_reason") == "length",
            )
        except (LookupError, TypeError, AttributeError):
            message = None
    if not isinstance(message, Mapping) or message.get("role", "assistant") != "assistant":
        raise ValueError(f"the reply has no message of an assistant: {shown(value)}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"the reply's tool_calls are {shown(calls)}, not a list of calls")
    content = message.get("content")
    parts = [] if content is None or isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not all(isinstance(part, Mapping) for part in parts):
        raise ValueError(f"the reply's content is {shown(content)}, neither text nor a list of parts")
    rest = {key: part for key, part in message.items() if part and key not in ("role", "content", "tool_calls")}
    whole = {"role": "assistant", "content": content or None, **rest}
    called = _called(calls)
    if called:
        whole["tool_calls"] = [_kept(call, raw) for call, raw in zip(called, calls, strict=True)]
    return Reply(message=whole, calls=called, cut=cut, counted=_counted(completion.get("usage")))


def _called(calls: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """The calls, each with an id of its own, which some servers leave out."""
    called = dict[str, Call]()
    for call in calls:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        id, arguments = call.get("id"), function.get("arguments")
        if not isinstance(id, str) or not id or id in called:
            id = f"call_{uuid4().hex[:16]}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        called[id] = Call(id, str(function.get("name")), text)
    return tuple(called.values())


def _kept(call: Call, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The call as a message holds it. Servers that parse its arguments refuse a conversation with broken ones."""
    try:
        sound = isinstance(read_json(call.arguments), dict)
    except ValueError:
        sound = False
    function = raw.get("function")
    extras = function if isinstance(function, Mapping) else {}
    named = {**extras, "name": call.name, "arguments": call.arguments if sound else "{}"}
    return {**raw, "id": call.id, "type": "function", "function": named}


def _counted(usage: Any) -> Counted | None:
    if not isinstance(usage, Mapping):
        return None
    prompt, output = (whole_number(usage.get(key), most=_MOST_TOKENS) for key in ("prompt_tokens", "completion_tokens"))
    if prompt is None or output is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = whole_number(details.get("cached_tokens"), most=prompt) if isinstance(details, Mapping) else None
    return Counted(prompt=prompt, cached=cached, output=output)


def _only_model(server: ModelServer) -> str:
    """The name of the only model of a server. Raises UserError unless exactly one is served."""

    def read(body: bytes) -> tuple[list[str], Usage]:
        try:
            return [str(model["id"]) for model in read_json(body)["data"]], Usage()
        except (LookupError, TypeError) as error:
            raise ValueError("no list of models") from error

    servers = Servers(server.model_copy(update={"tries": 1}))
    try:
        names = servers.ask("/models", b"", read, at_most=Usage(), method="GET")
    except EngineFailed as error:
        raise UserError(f"give the model's name; the server does not tell it: {error}") from error
    finally:
        servers.close()
    if len(names) != 1:
        raise UserError(f"give the model's name; {server.urls[0]} serves {', '.join(names) or 'none'}")
    return names[0]


def _events(answer: Iterable[bytes]) -> Iterator[bytes]:
    """The data of server-sent events; the whole body of a server that does not stream."""
    left, plain = bytearray(), list[bytes]()
    for piece in answer:
        left += piece
        if b"\n" not in piece:
            continue
        *lines, left = left.split(b"\n")
        for line in map(bytes, lines):
            if line.startswith(b"data:"):
                if (data := line[5:].strip()) != b"[DONE]":
                    yield data
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                plain.append(line)
    if left.startswith(b"data:"):
        if left[5:].strip() != b"[DONE]":
            yield bytes(left[5:])
    elif left or plain:
        yield b"\n".join([*plain, left])


class _Assembled:
    """A reply put together from its chunks."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Any = None
        self._finish: str | None = None
        self._whole: Mapping[str, Any] | None = None
        """A completion that came in one piece."""

    @property
    def counted(self) -> Counted | None:
        return _counted(self._usage)

    def add(self, chunk: Any) -> Iterator[str]:
        """The text in a chunk. Raises ValueError for an error in its place."""
        if not isinstance(chunk, Mapping) or "error" in chunk:
            raise ValueError(f"the server sent {shown(chunk['error'] if isinstance(chunk, Mapping) else chunk)}")
        self._usage = chunk.get("usage") or self._usage
        try:
            yield from self._add(chunk)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"the server sent {shown(chunk)}") from error

    def _add(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        for choice in (chunk.get("choices") or ())[:1]:
            self._finish = choice.get("finish_reason") or self._finish
            if "message" in choice:
                self._whole = chunk
            delta = choice.get("delta") or choice.get("message") or {}
            for key, part in delta.items():
                if key == "tool_calls":
                    self._add_calls(part or ())
                elif key != "role" and isinstance(part, str):
                    self._message[key] = self._message.get(key, "") + part
            if isinstance(delta.get("content"), str) and delta["content"]:
                yield delta["content"]

    def _add_calls(self, parts: Iterable[Mapping[str, Any]]) -> None:
        for number, part in enumerate(parts):
            index = part.get("index")
            call = self._calls.setdefault(index if isinstance(index, int) else number, {"function": {}})
            call |= {key: value for key, value in part.items() if value and key not in ("index", "function")}
            for key, value in (part.get("function") or {}).items():
                if key == "arguments" and isinstance(value, str):
                    call["function"][key] = call["function"].get(key, "") + value
                elif value:
                    call["function"][key] = value

    def reply(self) -> Reply:
        """The whole. Raises ValueError where it is none."""
        if self._whole is not None:
            return read_completion(self._whole)
        calls = [self._calls[index] for index in sorted(self._calls)]
        message = {**self._message, **({"tool_calls": calls} if calls else {})}
        choice = {"message": message, "finish_reason": self._finish}
        if self._finish is None and not message:
            raise ValueError("it broke off before its first word")
        return read_completion({"choices": [choice], "usage": self._usage})
