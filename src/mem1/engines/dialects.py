"""OpenAI's protocol as bytes: requests for one completion, and what their answers say.

    Wire("completions", token_ids=True, extras=True)    token ids in and out, log-probabilities: vLLM
    Wire("completions", extras=True)                    text, with the samplers' defaults turned off: SGLang, llama.cpp
    Wire("completions") and Wire("chat")                nothing but OpenAI's own fields

The fields beyond OpenAI's are those of vLLM (vllm/entrypoints/openai/completion/protocol.py), and `weights_version` of
`mem1 serve-policy`. Some servers refuse
fields that they do not know, others ignore them. They matter: without them vLLM samples with the top-p, top-k and
repetition penalty of the model's generation_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mem1.net.post import number, read_json, shown, whole_number
from mem1.net.spending import Usage
from mem1.retrieval.base import sound_text

_LARGEST_LOGPROB = 1e-4
"""A log-probability is at most 0; rounding may add a little."""
_SMALLEST_LOGPROB = -1e6
"""Of a token that was sampled; servers say -9999 for "never"."""
_MOST_TOKENS = 1 << 40
"""That a request can have used."""
_EXTRAS: Mapping[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server is spoken to."""

    endpoint: Literal["completions", "chat"]
    token_ids: bool = False
    """Contexts and completions go as token ids; only with `extras`."""
    extras: bool = False
    """With the fields beyond OpenAI's."""

    @property
    def path(self) -> str:
        return "/chat/completions" if self.endpoint == "chat" else "/completions"

    def __str__(self) -> str:
        form = "token ids" if self.token_ids else "text"
        return f"{self.path}, {form}, {'with' if self.extras else 'without'} vLLM's fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One completion that is asked for."""

    model: str
    context: str
    context_ids: Sequence[int]
    opening: str = ""
    """The tag with which the context ends, where the completion goes on from it."""
    max_tokens: int
    temperature: float
    seed: int
    stops: Sequence[str]


def encode(wire: Dialect, ask: CompletionRequest) -> bytes:
    """The body of the request."""
    body: dict[str, Any] = {
        "model": ask.model,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_p": 1.0,
        "seed": ask.seed,
        "stop": list(ask.stops),
        "stream": False,
    }
    if wire.extras:
        body |= _EXTRAS
    if wire.endpoint == "chat":
        body["messages"] = _messages(ask)
        if wire.extras and ask.opening:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    elif wire.token_ids:
        body |= {"prompt": list(ask.context_ids), "return_token_ids": True, "logprobs": 0}
    else:
        body["prompt"] = sound_text(ask.context)
    return json.dumps(body).encode()


def encode_probe(wire: Dialect, ask: CompletionRequest) -> bytes:
    """The body of a first request; it asks for the token ids of the context where it can."""
    body = json.loads(encode(wire, ask))
    if wire == Dialect("completions", extras=True):
        body |= {"return_token_ids": True, "add_special_tokens": False}
    return json.dumps(body).encode()


def _messages(ask: CompletionRequest) -> list[dict[str, str]]:
    """The context as what the user says; a tag that was opened is the beginning of the reply."""
    context = sound_text(ask.context)
    if not ask.opening:
        return [{"role": "user", "content": context}]
    asked = context.rstrip().removesuffix(ask.opening).rstrip()
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": ask.opening}]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionResponse:
    """What a server says of one completion."""

    text: str
    stopped: bool
    """False: it used all its tokens, or was interrupted."""
    interrupted: bool = False
    """The server was paused for new weights while it sampled: finish_reason "abort"."""
    stop: str | None
    """The stop string that ended it; "": none did; None: the server does not say."""
    token_ids: tuple[int, ...] | None = None
    """None: the server gives none."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The context as the server read it; None: it does not say."""
    logprobs: tuple[float, ...] = ()
    """One a token; empty: not given."""
    weights_version: int | None = None
    """Of the weights that sampled it; None: the server does not say."""
    usage: Usage | None = None
    """None: the server does not say."""


def read(body: bytes, wire: Dialect, stops: Sequence[str]) -> CompletionResponse:
    """The answer's first choice. Raises ValueError saying what is wrong with it; whatever the bytes, nothing else."""
    answer = read_json(body)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError('the answer has no "choices"')
    choice = choices[0]
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length", "abort"):
        raise ValueError(f"the answer ended with finish_reason {shown(reason)}, not with stop, length or abort")
    prompt_ids = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
    return CompletionResponse(
        text=_text(choice, wire),
        stopped=reason == "stop",
        interrupted=reason == "abort",
        stop=_stop(choice, stops),
        token_ids=_ids(choice.get("token_ids")),
        prompt_token_ids=_ids(prompt_ids),
        logprobs=_logprobs(choice.get("logprobs")),
        weights_version=_version(choice.get("weights_version")),
        usage=_usage(answer.get("usage")),
    )


def _text(choice: Mapping[str, Any], wire: Dialect) -> str:
    message = choice.get("message") if wire.endpoint == "chat" else {"content": choice.get("text")}
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise ValueError("the answer's first choice has no text")
    return sound_text(text)


def _stop(choice: Mapping[str, Any], stops: Sequence[str]) -> str | None:
    """vLLM's `stop_reason` is a stop string, the id of a token that ends a text, or null for the model's own end;
    SGLang's `matched_stop` likewise."""
    for key in ("stop_reason", "matched_stop"):
        if key in choice:
            return choice[key] if choice[key] in tuple(stops) else ""
    return None


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < 2**31 for i in value):
        raise ValueError("the answer's token ids are not a list of token ids")
    return tuple(value)


def _logprobs(value: Any) -> tuple[float, ...]:
    """The sampled tokens' own; empty where one is missing. Raises ValueError for a number that is none."""
    values = value.get("token_logprobs") if isinstance(value, dict) else None
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        return ()
    read = [number(v, least=_SMALLEST_LOGPROB, most=_LARGEST_LOGPROB) for v in values]
    if None in read:
        raise ValueError(f"the answer has {shown(values[read.index(None)])} as a log-probability")
    return tuple(v for v in read if v is not None)


def _version(value: Any) -> int | None:
    return whole_number(value, most=(1 << 63) - 1)


def _usage(value: Any) -> Usage | None:
    """Raises ValueError for numbers that no request can have used: what is left to spend hangs on them."""
    if not isinstance(value, dict):
        return None
    said = value.get("prompt_tokens"), value.get("completion_tokens")
    if any(type(tokens) not in (int, float) for tokens in said):
        return None
    read, written = (whole_number(tokens, most=_MOST_TOKENS) for tokens in said)
    if read is None or written is None:
        raise ValueError(f"the answer says that it used {shown(said[0])} and {shown(said[1])} tokens")
    return Usage(read, written)
