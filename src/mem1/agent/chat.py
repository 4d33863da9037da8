"""A model that speaks in chat messages and calls tools: on a server of OpenAI's protocol, or any callable.

    chat = ServedChat(ModelServer(urls=("http://127.0.0.1:8000/v1",), model="qwen"))
    chat.reply([{"role": "user", "content": "Hello"}], tools=[]).message       {"role": "assistant", "content": "Hi"}
    [*chat.stream(...)]                                                        ["H", "i", Reply(...)]

What a server streams is put together again by `mem1.agent.streams`, and read as what comes whole. What a server refuses
of a request is left out by `mem1.agent.refusals`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeVar

from mem1.agent.refusals import Taken, is_of_the_reply, lasting
from mem1.agent.shapes import new_id
from mem1.agent.streams import completion_parts, refuse_errors
from mem1.agent.usage import MOST_TOKENS, Counted, counted_in
from mem1.engines.servers import BrokeOff, EngineFailed, ModelServer, Refused, Servers, base_address
from mem1.errors import UserError
from mem1.messages.asking import for_state
from mem1.messages.endings import CUT, FILTERED
from mem1.messages.text_calls import arguments_in
from mem1.messages.text_styles import plain_name
from mem1.messages.transcript import Call, Message
from mem1.net.exchange import one_line, read_json, shown, whole_number
from mem1.net.spending import LimitReached, Spending, Usage
from mem1.prices import PriceClass, cost_of

_PATH = "/chat/completions"
_READ = frozenset(("role", "content", "tool_calls", "function_call"))
"""Keys of a reply that are read by themselves; the others are kept as they are."""
_MOST_REFUSALS = 16
"""Most requests in a row of which a server refuses something that is then left out."""
Part = str | Mapping[str, Any]
"""Text, or the whole completion at the end."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's reply in one turn."""

    message: dict[str, Any]
    """As the conversation keeps it: ids are unique, and arguments JSON objects, which some servers demand back."""
    calls: tuple[Call, ...] = ()
    """Its calls, with the arguments that the model wrote."""
    cut: bool = False
    """Whether it ended at the token limit."""
    filtered: bool = False
    """Whether the provider's filter ended it."""
    counted: Counted | None = None
    """None: the provider did not count."""


class ModelFailed(UserError):
    """The model gave no usable reply: the message says who failed, and how."""


class Unreadable(ModelFailed):
    """What came is no reply; another try may bring one."""


class ServedChat:
    """A model behind /chat/completions. Failed requests are tried again, at the next address where there are several.

    `settings` go into every request beside messages and tools: temperature, max_tokens, reasoning_effort, ... One that
    is None is left out, and turns off what is sent otherwise: {"stream_options": None}. The limit of `server` counts a
    request before it is sent by the provider's tokens so far, and by max_tokens; so does `spending`, kept together with
    others, which gets the money that requests cost by `prices` and limits nothing without max_tokens.
    """

    def __init__(
        self,
        server: ModelServer,
        settings: Mapping[str, Any] | None = None,
        *,
        prices: PriceClass | None = None,
        spending: Spending | None = None,
    ) -> None:
        """Connects with the first request. Raises UserError where the key is missing, or what `spending` counts by."""
        self.settings = dict(settings or {})
        filled = {"messages", "model", "tools"} & self.settings.keys()
        filled |= {"stream"} if self.settings.get("stream") is not None else set()
        if filled:
            raise UserError(f"settings must not hold {', '.join(sorted(filled))}: the agent fills them")
        if spending is not None and not _most_written({k: v for k, v in self.settings.items() if v is not None}):
            raise UserError(
                "a limit of what requests may cost counts the most that each may write; set max_tokens or "
                "max_completion_tokens to a number, such as 4000"
            )
        self._server, self._prices = server, prices
        self._taken = Taken(server.urls[0], self.settings)
        self._servers = Servers(server, spending=spending, lasting=lasting)
        self._tokens_per_byte = 0.25

    @classmethod
    def at(cls, url: str, name: str | None, settings: Mapping[str, Any] | None, **server: Any) -> ServedChat:
        """The model called `name` at this base URL, or the only one there; `server`: other fields of `ModelServer`.

        Raises UserError where it is none.
        """
        patient = ModelServer(urls=(base_address(url),), model=name or "?", **server)
        return cls(patient if name else patient.model_copy(update={"model": _only_model(patient)}), settings)

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        *,
        within_s: float | None = None,
        state_tokens: int | None = None,
    ) -> Reply:
        """`state_tokens`: a state of at most so many tokens is asked for, without settings that would spoil it; None: a
        turn."""
        with _explained():
            return read_completion(self.complete(messages, tools, within_s=within_s, state_tokens=state_tokens)[0])

    def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        *,
        within_s: float | None = None,
        state_tokens: int | None = None,
    ) -> tuple[Mapping[str, Any], Usage]:
        """The whole chat completion, as the server sent it, and what it used. Raises as `Servers.ask` does."""
        settings = self.settings if state_tokens is None else for_state(self.settings, state_tokens)

        def ask(body: bytes, at_most: Usage, within_s: float | None) -> tuple[Mapping[str, Any], Usage]:
            def read(answer: bytes) -> tuple[tuple[Mapping[str, Any], Usage], Usage]:
                completion = read_json(answer)
                refuse_errors(completion)
                if "choices" not in completion:
                    raise ValueError(f"the answer is no chat completion: {shown(completion)}")
                used = self._used(body, completion, at_most)
                return (completion, used), used

            return self._servers.ask(_PATH, body, read, at_most=at_most, within_s=within_s)

        return self._accepted({"messages": list(messages), "tools": list(tools) or None, **settings}, ask, within_s)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[Message], *, within_s: float | None = None
    ) -> Iterator[str | Reply]:
        def ask(body: bytes, at_most: Usage, within_s: float | None) -> tuple[Part, Iterator[Part]]:
            def used(last: Part | None) -> Usage:
                return self._used(body, last if isinstance(last, Mapping) else {}, at_most)

            parts = self._servers.stream(_PATH, body, completion_parts, used, at_most=at_most, within_s=within_s)
            return next(parts), parts

        request = {"messages": list(messages), "tools": list(tools) or None}
        request |= {"stream": True, "stream_options": {"include_usage": True}, **self.settings}
        with _explained():
            first, parts = self._accepted(request, ask, within_s)
            for part in chain((first,), parts):
                yield part if isinstance(part, str) else read_completion(part)

    def close(self) -> None:
        """End the connections."""
        self._servers.close()

    def _accepted(
        self,
        request: Mapping[str, Any],
        ask: Callable[[bytes, Usage, float | None], T],
        within_s: float | None,
    ) -> T:
        """What `ask` makes of (body, most that it uses, seconds left), without what the server refuses of the request.

        Raises as `ask` does.
        """
        whole = {"model": self._server.model, **request}
        ends = None if within_s is None else time.monotonic() + within_s
        for refusals in count(1):
            sent = self._taken.part(whole)
            body = json.dumps(sent, ensure_ascii=False).encode("utf-8", "replace")
            left_s = None if ends is None else max(0.0, ends - time.monotonic())
            try:
                return ask(body, self._at_most(sent, body), left_s)
            except Refused as refused:
                if refusals == _MOST_REFUSALS:
                    raise
                self._taken.learn(sent, refused)
        raise AssertionError("count() ends")

    def _at_most(self, sent: Mapping[str, Any], body: bytes) -> Usage:
        return self._usage(math.ceil(len(body) * self._tokens_per_byte), 0, _most_written(sent))

    def _used(self, body: bytes, completion: Mapping[str, Any], at_most: Usage) -> Usage:
        counted = counted_in(completion.get("usage"))
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

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        *,
        within_s: float | None = None,
        state_tokens: int | None = None,
    ) -> Reply:
        """`state_tokens` is for servers: a function is asked for a state by the messages alone."""
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


def chat_of(
    model: Any, name: str | None, settings: Mapping[str, Any] | None, server: Mapping[str, Any]
) -> ServedChat | CalledChat:
    """The model that a user names: a base URL, a server, or a function. Raises UserError for what does not fit it."""
    if isinstance(model, str):
        return ServedChat.at(model, name, settings, **server)
    if name is not None or server:
        raise UserError(f"{', '.join(('name', *server))} go with a base URL; this model has its own")
    if isinstance(model, ModelServer):
        return ServedChat(model, settings)
    if settings:
        raise UserError("settings go with a model on a server; give a function its own")
    if not callable(model):
        raise UserError(f"{model!r:.80} is no model; give a base URL, a ModelServer or a function")
    return CalledChat(model)


@contextmanager
def _explained(unreadable: type[ModelFailed] = Unreadable) -> Iterator[None]:
    """Raises ModelFailed for no answer, and `unreadable` for one that cannot be read."""
    try:
        yield
    except ValueError as error:
        raise unreadable(f"the model's answer cannot be read: {error}") from error
    except (EngineFailed, LimitReached) as error:
        of_reply = isinstance(error, BrokeOff) or (isinstance(error, Refused) and is_of_the_reply(error.detail))
        raise (unreadable if of_reply else ModelFailed)(f"the model gives no reply: {error}") from error


def read_completion(value: Any) -> Reply:
    """The reply in a chat completion, or in a message, which may be empty. Raises ValueError for anything else."""
    completion: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    message: Any = completion if completion else None
    finish: Any = None
    if "choices" in completion:
        try:
            message, finish = completion["choices"][0]["message"], completion["choices"][0].get("finish_reason")
        except (LookupError, TypeError, AttributeError):
            message = None
    if not isinstance(message, Mapping) or message.get("role", "assistant") != "assistant":
        raise ValueError(f"the reply has no message of an assistant: {shown(value)}")
    calls = message.get("tool_calls") or _deprecated(message.get("function_call"))
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"the reply's tool_calls are {shown(calls)}, not a list of calls")
    content = message.get("content")
    parts = [] if content is None or isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not all(isinstance(part, Mapping) for part in parts):
        raise ValueError(f"the reply's content is {shown(content)}, neither text nor a list of parts")
    rest = {key: part for key, part in message.items() if part and key not in _READ}
    whole = {"role": "assistant", "content": content or None, **rest}
    called = _called(calls)
    if called:
        whole["tool_calls"] = [_kept(call, raw) for call, raw in zip(called, calls, strict=True)]
    return Reply(
        message=whole,
        calls=called,
        cut=finish in CUT,
        filtered=finish in FILTERED,
        counted=counted_in(completion.get("usage")),
    )


def _most_written(request: Mapping[str, Any]) -> int:
    """Most tokens of the reply; 0: the request does not limit them."""
    most = request.get("max_tokens", request.get("max_completion_tokens"))
    return whole_number(most, most=MOST_TOKENS) or 0


def _deprecated(call: Any) -> list[Mapping[str, Any]]:
    """The call of a server that still writes the one function_call of earlier protocols."""
    return [{"function": call}] if isinstance(call, Mapping) and call.get("name") else []


def _called(calls: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """The calls, each with an id of its own, which some servers leave out."""
    called = dict[str, Call]()
    for call in calls:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        id, arguments = call.get("id"), function.get("arguments")
        if not isinstance(id, str) or not id or id in called:
            id = new_id()
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        called[id] = Call(id, plain_name(str(function.get("name"))), text)
    return tuple(called.values())


def _kept(call: Call, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The call as a message holds it. Servers that parse its arguments refuse a conversation with broken ones."""
    try:
        sound = isinstance(read_json(call.arguments), dict)
    except ValueError:
        sound = False
    function = raw.get("function")
    extras = function.items() if isinstance(function, Mapping) else ()
    named = {
        **{key: part for key, part in extras if part},
        "name": call.name,
        "arguments": call.arguments if sound else json.dumps(arguments_in(call.arguments) or {}, ensure_ascii=False),
    }
    # its index belongs to the stream, and strict servers refuse it
    rest = {key: part for key, part in raw.items() if part and key != "index"}
    return {**rest, "id": call.id, "type": "function", "function": named}


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
