"""Dialects of OpenAI's protocol: how a completion is requested, and how its answer is read.

    TokenIds()          /completions, token ids in and out, with log-probabilities: vLLM, `mem1 serve-policy`
    ContextIds()        /completions, contexts as token ids, completions as text: llama.cpp
    Text(extras=True)   /completions, text, with the samplers' defaults turned off
    Text()              /completions, text, with nothing but OpenAI's own fields
    Chat(extras=...)    /chat/completions, the same for chat servers

The fields beyond OpenAI's are those of vLLM (vllm/entrypoints/openai/completion/protocol.py), and `weights_version` of
`mem1 serve-policy`. Some servers refuse unknown fields, others ignore them. They matter: without them vLLM samples with
the top-p, top-k and repetition penalty of the model's generation_config.json.

A dialect of your own is a subclass of one of these, named in `endpoint` as package.module:Name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mem1.engines.base import Completion
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.net.exchange import read_json, shown, whole_number
from mem1.net.spending import Usage
from mem1.registry import load
from mem1.sanitize import sound_text

PROBE = "The capital of Norway is Oslo; 12 + 30 = 42. <think> ... </think>"
"""Long enough to tell tokenizers apart."""
_SEEDS = 1 << 31
"""Seeds that any server accepts; servers that speak token ids accept all of ours."""
_LARGEST_LOGPROB = 1e-4
"""A log-probability is at most 0; rounding may add a little."""
_SMALLEST_LOGPROB = -1e6
"""At temperature 1, of a token that may have been sampled at another."""
_SMALLEST_SAMPLED = -80.0
"""Of a token at the temperature at which it was sampled: none in 1e34 is less likely. Servers write -9999 for "never",
and a ratio to it is no number that can be trained on."""
_MOST_TOKENS = 1 << 40
"""Most tokens that one request can have used."""
_EXTRAS: Mapping[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request for one completion."""

    model: str
    context: str
    """Text of the context, as the server may read it; not used where token ids are sent."""
    whole: bool = False
    """The text has all special tokens of the context, so that the server's tokenizer must add none."""
    context_ids: Sequence[int]
    opening: str = ""
    """The tag at the end of the context that the completion continues; empty: none."""
    max_tokens: int
    temperature: float
    seed: int
    stops: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionResponse:
    """A server's answer to a CompletionRequest."""

    text: str
    stopped: bool
    """False: it used all its tokens, or was interrupted."""
    interrupted: bool = False
    """The server was paused for new weights while it sampled: finish_reason "abort"."""
    stop: str | None
    """The stop string that ended it; empty: none did; None: the server does not report it."""
    token_ids: tuple[int, ...] | None = None
    """Sampled tokens; None: not reported."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The context as the server read it; None: not reported."""
    logprobs: tuple[float, ...] = ()
    """One per sampled token; empty: not reported."""
    weights_version: int | None = None
    """Version of the weights that sampled it; None: not reported."""
    usage: Usage | None = None
    """Tokens charged; None: not reported."""


@dataclass(frozen=True)
class Text:
    """/completions with contexts and completions as text; the completion's text is encoded once."""

    extras: bool = False
    """Send the fields beyond OpenAI's."""
    path: ClassVar[str] = "/completions"
    form: ClassVar[str] = "text"
    own_template: ClassVar[bool] = False
    """The server applies its own chat template."""

    def __str__(self) -> str:
        return f"{self.path}, {self.form}, {'with' if self.extras else 'without'} vLLM's fields"

    def request(self, codec: Codec, context_ids: Sequence[int], *, seed: int, **options: Any) -> CompletionRequest:
        """A request in this dialect; `options` are the other fields of CompletionRequest."""
        # a server puts itself before a text what it must begin with, also one that ignores our fields; only a tokenizer
        # that ends texts, too, has to be told: after an end the model would begin something new
        whole = self.extras and not self.own_template and bool(codec.eos_ids)
        return CompletionRequest(
            context=codec.text_for_server(context_ids, whole=whole),  # in which no document can write a special token
            whole=whole,
            context_ids=context_ids,
            opening=opened(codec.decode(context_ids), options["stops"]),
            seed=seed % _SEEDS,
            **options,
        )

    def encode(self, request: CompletionRequest) -> bytes:
        """The body of a request."""
        return json.dumps(self._body(request)).encode()

    def probe(self, model: str, stops: Sequence[str]) -> bytes:
        """The body of a request for one token, whose answer shows what the server speaks."""
        opening = self._probe_opening(stops)
        request = CompletionRequest(
            model=model,
            context=PROBE + opening,
            context_ids=(),
            opening=opening,
            max_tokens=1,
            temperature=0.0,
            seed=0,
            stops=stops,
        )
        return json.dumps({**self._body(request), **self._probe_fields()}).encode()

    def after_probe(self, response: CompletionResponse, codec: Codec) -> Text:
        """The dialect to use with a server that gave this response to the probe: TokenIds where it reported ids,
        ContextIds, if it takes them, where it counted as many tokens as there are.

        Raises UserError where the server has another tokenizer.
        """
        theirs, ours = response.prompt_token_ids, codec.encode(PROBE)
        if theirs is None or response.token_ids is None:
            most = max(1, len(codec.bos_ids + codec.eos_ids))  # 1: a BOS of the server's own
            counted = response.usage is not None and 0 <= response.usage.input_tokens - len(ours) <= most
            return ContextIds(extras=self.extras) if counted else self
        if codec.without_added(theirs) != ours:  # a server may put it there though it was told not to
            raise UserError(
                f"the server's tokenizer is not the one given: it makes {len(theirs)} tokens of a text of which "
                f"--tokenizer makes {len(ours)}, or other ones; give the folder of the model that is served"
            )
        return TokenIds()

    def read(self, body: bytes, stops: Sequence[str]) -> CompletionResponse:
        """The answer's first choice. Raises ValueError, and nothing else, saying what is wrong with the answer."""
        answer = read_json(body)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ValueError('the answer has no "choices"')
        choice = choices[0]
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length", "abort"):
            raise ValueError(f"the answer ended with finish_reason {shown(reason)}, not with stop, length or abort")
        text = self._text(choice)
        if text is None and reason == "length":  # a model that thinks first has used its tokens up
            text = ""
        if not isinstance(text, str):
            raise ValueError("the answer's first choice has no text, as where a reasoning parser takes it: use none")
        return CompletionResponse(
            text=sound_text(text),
            stopped=reason == "stop",
            interrupted=reason == "abort",
            stop=_stop(choice, stops),
            token_ids=_ids(choice.get("token_ids")),
            prompt_token_ids=_ids(choice.get("prompt_token_ids", answer.get("prompt_token_ids"))),
            logprobs=_logprobs(choice.get("logprobs")),
            weights_version=whole_number(choice.get("weights_version"), most=(1 << 63) - 1),
            usage=_usage(answer.get("usage")),
        )

    def completion(
        self, response: CompletionResponse, request: CompletionRequest, codec: Codec, *, processed_logprobs: bool
    ) -> Completion:
        """The sampled completion. Raises ValueError for a response that does not fit the request."""
        if response.interrupted:
            raise ValueError("the answer was interrupted, and its text cannot be continued")
        text = self._without_opening(response.text, request)
        stops = tuple(request.stops)
        text = complete(text, stops, stopped=response.stopped, named=response.stop, opening=request.opening)
        # a server that does not know stop strings continues after one, possibly until its tokens are used up
        stopped = response.stopped or text.endswith(stops)
        ids = codec.encode(text)
        return Completion(token_ids=ids[: request.max_tokens], stopped=stopped and len(ids) <= request.max_tokens)

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        own = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            "seed": request.seed,
            "stop": list(request.stops),
            "stream": False,
        }
        return {**own, **(_EXTRAS if self.extras else {}), **self._context(request)}

    def _context(self, request: CompletionRequest) -> dict[str, Any]:
        told = {"add_special_tokens": False} if request.whole else {}
        return {"prompt": sound_text(request.context), **told}

    def _text(self, choice: Mapping[str, Any]) -> Any:
        return choice.get("text")

    def _without_opening(self, text: str, request: CompletionRequest) -> str:
        return text

    def _probe_opening(self, stops: Sequence[str]) -> str:
        return ""

    def _probe_fields(self) -> dict[str, Any]:
        return {"return_token_ids": True, "add_special_tokens": False} if self.extras else {}


@dataclass(frozen=True)
class ContextIds(Text):
    """/completions with contexts as token ids and completions as text.

    Text would be cut into other tokens than those of training where two pieces of a context meet: "</query>" and
    "<info>" share a token of "><" in many vocabularies, after which a small policy writes no state.
    """

    form: ClassVar[str] = "contexts as token ids"

    def taken(self, response: CompletionResponse, context_ids: Sequence[int]) -> bool:
        """Whether a server that gave this response read these ids as what they are."""
        return response.usage is not None and response.usage.input_tokens == len(context_ids)

    def _context(self, request: CompletionRequest) -> dict[str, Any]:
        return {"prompt": list(request.context_ids)}


@dataclass(frozen=True)
class Chat(Text):
    """/chat/completions: the context is the user's message, and a tag that it opened the beginning of the reply."""

    path: ClassVar[str] = "/chat/completions"
    own_template: ClassVar[bool] = True

    def after_probe(self, response: CompletionResponse, codec: Codec) -> Text:
        """Always this dialect: the server's chat template comes between our tokens and the model's."""
        return self

    def _context(self, request: CompletionRequest) -> dict[str, Any]:
        context = sound_text(request.context)
        if not request.opening:
            return {"messages": [{"role": "user", "content": context}]}
        user = context.rstrip().removesuffix(request.opening).rstrip()
        messages = [{"role": "user", "content": user}, {"role": "assistant", "content": request.opening}]
        extras = {"continue_final_message": True, "add_generation_prompt": False} if self.extras else {}
        return {"messages": messages, **extras}

    def _text(self, choice: Mapping[str, Any]) -> Any:
        message = choice.get("message")
        return message.get("content") if isinstance(message, dict) else None

    def _without_opening(self, text: str, request: CompletionRequest) -> str:
        # a server that does not continue the opened tag writes it once more
        return text.lstrip().removeprefix(request.opening) if request.opening else text

    def _probe_opening(self, stops: Sequence[str]) -> str:
        return next(iter(stops), "").replace("</", "<", 1)

    def _probe_fields(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class TokenIds(Text):
    """/completions with token ids both ways: contexts and completions are exactly the server's."""

    extras: bool = True
    form: ClassVar[str] = "token ids"

    def request(self, codec: Codec, context_ids: Sequence[int], *, seed: int, **options: Any) -> CompletionRequest:
        """A request in this dialect."""
        return CompletionRequest(context="", context_ids=context_ids, seed=seed, **options)

    def completion(
        self, response: CompletionResponse, request: CompletionRequest, codec: Codec, *, processed_logprobs: bool
    ) -> Completion:
        """The sampled completion. Raises ValueError for a response that does not fit the request."""
        ids, logprobs = response.token_ids, response.logprobs
        if ids is None or response.prompt_token_ids is None:
            raise ValueError("the answer has no token ids")
        if response.prompt_token_ids != tuple(request.context_ids):
            raise ValueError("the answer is to another context than the one sent")
        if len(ids) > request.max_tokens:
            raise ValueError(f"the answer has {len(ids)} tokens for {request.max_tokens} requested")
        if not codec.within(ids):
            raise ValueError(f"the answer has token {max(ids)}, but the model knows {codec.rows} tokens")
        # by default vLLM's log-probabilities are those at temperature 1, as ours are at temperature 0
        exact = (processed_logprobs or request.temperature in (0, 1)) and len(logprobs) == len(ids)
        if processed_logprobs and not exact:
            raise ValueError(f"the answer has {len(logprobs)} log-probabilities for {len(ids)} tokens")
        if processed_logprobs and logprobs and min(logprobs) < _SMALLEST_SAMPLED:
            raise ValueError(f"the answer has {min(logprobs):g} as the log-probability of a token that was sampled")
        version = response.weights_version
        return Completion(
            token_ids=ids,
            logprobs=logprobs if exact else (),
            stopped=response.stopped,
            interrupted=response.interrupted and len(ids) < request.max_tokens,
            weights_versions=((version, len(ids)),) if version is not None and ids else (),
        )

    def _context(self, request: CompletionRequest) -> dict[str, Any]:
        return {"prompt": list(request.context_ids), "return_token_ids": True, "logprobs": 0}


DIALECTS: Mapping[str, tuple[Text, ...]] = {
    "completions": (Text(extras=True), Text()),
    "chat": (Chat(extras=True), Chat()),
}
"""Endpoint -> the dialects to try with a server, the most exact first."""


def dialects(endpoint: str) -> tuple[Text, ...]:
    """The dialects of an endpoint: a name of DIALECTS, auto for all of them, or the class at package.module:Name.

    Raises UserError for anything else.
    """
    if endpoint == "auto":
        return tuple(dialect for known in DIALECTS.values() for dialect in known)
    if endpoint in DIALECTS:
        return DIALECTS[endpoint]
    if ":" in endpoint:
        return (load(endpoint)(),)
    raise UserError(
        f"unknown endpoint {endpoint!r}; known: auto, {', '.join(DIALECTS)}, or package.module:Name of a dialect"
    )


def openings(stops: Sequence[str]) -> dict[str, str]:
    """Opening tag -> the stop string that closes it.   ["</query>"]  ->  {"<query>": "</query>"}"""
    return {stop.replace("</", "<", 1): stop for stop in stops if stop.startswith("</")}


def opened(context: str, stops: Sequence[str]) -> str:
    """The opening tag at the end of a context, which the completion continues; empty: none."""
    end = context.rstrip()
    return next((opening for opening in openings(stops) if end.endswith(opening)), "")


def complete(text: str, stops: Sequence[str], *, stopped: bool, named: str | None = None, opening: str = "") -> str:
    """The text up to and including its stop string, as a model that stops there would have written it.

    A model that ends its text by itself means the stop string that is no tag, the end of a message, if there is one.

    stopped   the server reports that the model ended by itself
    named     the stop string that the server reports; empty: none, the model ended its text; None: the server does not
              report it, and the tag that is still open is closed
    opening   the tag at the end of the context
    """
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        return text[: min(ends)]
    if not stopped:
        return text
    own_end = next((stop for stop in stops if not stop.startswith("</")), "")
    if named is not None:
        return text + (named or own_end)
    whole = opening + text
    position, stop = max(((whole.rfind(tag), stop) for tag, stop in openings(stops).items()), default=(-1, ""))
    return text + (own_end if position < 0 else stop)


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
    if not isinstance(value, list) or set(map(type, value)) - {int} or (value and not _are_ids(value)):
        raise ValueError("the answer's token ids are not a list of token ids")
    return tuple(value)


def _are_ids(value: Sequence[int]) -> bool:
    return min(value) >= 0 and max(value) < 2**31


def _logprobs(value: Any) -> tuple[float, ...]:
    """Those of the sampled tokens; empty where one is missing. Raises ValueError for a number out of range."""
    values = value.get("token_logprobs") if isinstance(value, dict) else None
    if not isinstance(values, list) or set(map(type, values)) - {int, float}:
        return ()
    wrong = [v for v in values if not _SMALLEST_LOGPROB <= v <= _LARGEST_LOGPROB]  # NaN included
    if wrong:
        raise ValueError(f"the answer has {shown(wrong[0])} as a log-probability")
    return tuple(map(float, values))


def _usage(value: Any) -> Usage | None:
    """Raises ValueError for numbers that no request can have used: the spending limit depends on them."""
    if not isinstance(value, dict):
        return None
    reported = value.get("prompt_tokens"), value.get("completion_tokens")
    if any(type(tokens) not in (int, float) for tokens in reported):
        return None
    read, written = (whole_number(tokens, most=_MOST_TOKENS) for tokens in reported)
    if read is None or written is None:
        raise ValueError(f"the answer claims a usage of {shown(reported[0])} and {shown(reported[1])} tokens")
    return Usage(read, written) if read else None  # some report 0, though they have read a context
