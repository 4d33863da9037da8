"""Chat completions of a policy server: a request as rows of its sampler, and the samples as messages.

    {"messages": [{"role": "user", "content": "Who is it?"}], "tools": [...], "max_tokens": 40, "n": 2, "seed": 7,
     "logprobs": true, "return_token_ids": true}       OpenAI's chat completions, with vLLM's return_token_ids

    chat_rows(body, chat, ...)          the context in the policy's own protocol (`ChatMessages`), once per sample
    chat_reply(body, rows, done, chat)  messages with calls of tools, log-probabilities and token ids on request

What the sampler does not honour is refused by name, and so are fields that it does not know: ignoring them would give
other samples than those requested. Values that change nothing are accepted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mem1.engines.base import Completion, Sampling
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.chat_replies import Choice, Reply, message_of
from mem1.engines.codec import Codec
from mem1.engines.policy_sampler import Stop, Temperature, check_row, ending
from mem1.engines.request_queue import Row
from mem1.errors import UserError
from mem1.messages import check
from mem1.net.exchange import shown
from mem1.net.requests import Refused

_MESSAGES = 10_000
_LONGEST = 4096
"""Tokens of a completion where neither the request nor the model's configuration has a limit."""
_MOST = 1 << 17
"""Tokens of all completions of such a request at most, whatever the model has room for."""
_DISTRIBUTION = "the sampler draws from the model's whole distribution"
_TEXT = "the policy writes text: ask for the form in a message"
_DECIDES = "the policy decides what it calls"


def only(*values: Any, why: str) -> BeforeValidator:
    """For a field of a request: only these values, and null, are accepted; the refusal says `why`."""

    def checked(value: Any) -> Any:
        if value is not None and not any(type(value) is type(one) and value == one for one in values):
            raise ValueError(f"{shown(value)} is not supported: {why}; leave it out")
        return value

    return BeforeValidator(checked)


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Function(_Given):
    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Given):
    type: Literal["function"]
    function: Function


class _Called(_Given):
    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str


class ToolCall(_Given):
    """Clients that put streamed calls together send their index back."""

    model_config = ConfigDict(extra="ignore")

    id: str
    type: Literal["function"] = "function"
    function: _Called


class ChatMessage(_Given):
    """Further fields, such as a name or what others call a thought, are for the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(_Given):
    include_usage: bool | None = None


class ChatBody(_Given):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=_MESSAGES)
    model: str | None = None
    tools: list[Tool] | None = Field(default=None, max_length=_MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    """Neither given: as many as the model has room for."""
    temperature: Temperature | None = Field(default=None, le=2)
    """0: greedy; log-probabilities are then those at temperature 1. None: 1."""
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """None: drawn anew for each request."""
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    logprobs: bool | None = None
    """Those of the sampled tokens, at the sampling temperature."""
    return_token_ids: bool | None = None
    """Add `prompt_token_ids` to the answer and `token_ids` to each choice."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    tool_choice: Annotated[Any, only("auto", "none", why=_DECIDES)] = None
    parallel_tool_calls: Annotated[Any, only(True, why=_DECIDES)] = None
    top_logprobs: Annotated[Any, only(0, why="only the sampled tokens have log-probabilities")] = None
    top_p: Annotated[Any, only(1, 1.0, why=_DISTRIBUTION)] = None
    top_k: Annotated[Any, only(-1, 0, why=_DISTRIBUTION)] = None
    min_p: Annotated[Any, only(0, 0.0, why=_DISTRIBUTION)] = None
    frequency_penalty: Annotated[Any, only(0, 0.0, why=_DISTRIBUTION)] = None
    presence_penalty: Annotated[Any, only(0, 0.0, why=_DISTRIBUTION)] = None
    repetition_penalty: Annotated[Any, only(1, 1.0, why=_DISTRIBUTION)] = None
    logit_bias: Annotated[Any, only({}, why=_DISTRIBUTION)] = None
    response_format: Annotated[Any, only({"type": "text"}, why=_TEXT)] = None
    modalities: Annotated[Any, only(["text"], why=_TEXT)] = None
    functions: Annotated[Any, only([], why="give tools")] = None
    function_call: Annotated[Any, only("auto", "none", why="give tools")] = None
    store: Annotated[Any, only(False, why="nothing is stored")] = None
    service_tier: Annotated[Any, only("auto", "default", why="there is one")] = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _streamed(self) -> ChatBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of a completion; None: not said."""
        return min((most for most in (self.max_tokens, self.max_completion_tokens) if most is not None), default=None)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else [tool.model_dump(exclude_unset=True) for tool in self.tools or ()]

    @property
    def counts_streamed(self) -> bool:
        """Whether a streamed reply ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def chat_rows(wanted: ChatBody, chat: ChatMessages, *, vocabulary: int, longest: int | None) -> list[Row]:
    """One row per choice. A single one is sampled with the request's own seed.

    vocabulary  number of tokens that the model knows
    longest     most tokens of context and completion together; None: no limit

    Raises Refused for messages that a provider would refuse, those that the template cannot write, and too many tokens.
    """
    messages = [message.model_dump(exclude_unset=True) for message in wanted.messages]
    try:
        check(messages)
        context, hidden = chat.encode(messages, wanted.offered), bool(wanted.offered) and not chat.shows_tools
    except UserError as error:
        raise Refused(400, f"messages: {error}", field="messages") from error
    if hidden:
        raise Refused(400, f"tools: {chat.where} does not write them, so the model would not see them", field="tools")
    number = wanted.n or 1
    room = _LONGEST if longest is None else max(1, min(longest - len(context), max(_LONGEST, _MOST // number)))
    most = wanted.most_tokens or room
    check_row(context, most, vocabulary, longest, what="messages")
    seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
    seeds = (seed,) if number == 1 else Sampling(seed=seed).seeds_for(number)
    return [Row(context, most, own) for own in seeds]


def chat_reply(wanted: ChatBody, rows: Sequence[Row], completions: Sequence[Completion], chat: ChatMessages) -> Reply:
    """The answer, one choice per row. Raises Refused where it lacks log-probabilities that were requested."""
    name = uuid4().hex
    choices = [_choice(wanted, one, chat, f"{name[:16]}_{place}") for place, one in enumerate(completions)]
    context = rows[0].context
    extras = {"prompt_token_ids": list(context)} if wanted.return_token_ids else {}
    return Reply(id=f"chatcmpl-{name}", choices=choices, prompt_tokens=len(context), extras=extras)


def _choice(wanted: ChatBody, completion: Completion, chat: ChatMessages, name: str) -> Choice:
    ids, codec = completion.token_ids, chat.codec
    text = codec.decode(ids)
    stop = ending(text, wanted.stops) if completion.stopped else None
    text = text if stop is None else text[: text.index(stop)]
    message = message_of(chat.read(text), chat.body(text), name=name, callable_=bool(wanted.offered))
    versions = completion.weights_versions
    extras: dict[str, Any] = {"stop_reason": stop, "weights_version": versions[0][0] if versions else None}
    if wanted.return_token_ids:
        extras["token_ids"] = list(ids)
    if wanted.logprobs:
        extras["logprobs"] = _logprobs(completion, codec)
    unfinished = "abort" if completion.interrupted else "length"
    finish = unfinished if not completion.stopped else "tool_calls" if "tool_calls" in message else "stop"
    return Choice(message=message, finish=finish, tokens=len(ids), extras=extras)


def _logprobs(completion: Completion, codec: Codec) -> Mapping[str, Any]:
    if len(completion.logprobs) != len(completion.token_ids):
        raise Refused(400, "logprobs: this server has none, as what it serves is a script; leave it out")
    pairs = zip(map(codec.decode, ([token] for token in completion.token_ids)), completion.logprobs, strict=True)
    return {"content": [{"token": token, "logprob": p, "bytes": None, "top_logprobs": []} for token, p in pairs]}
