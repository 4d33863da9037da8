"""Sampling for a policy server: requests as rows, batches of rows, and weights that change between two batches.

    {"prompt": [5, 9, 2], "max_tokens": 40, "temperature": 1.0, "seed": 7, "stop": ["</query>"], "logprobs": 0,
     "return_token_ids": true}          OpenAI's completions, with the fields of vLLM that our client sends; chat
                                        completions: policy_chat.py

    with sampler.turn():                no other weights, nobody else samples
        sampler.stream(...)             each completion is marked with the version of its weights
    sampler.stage(weights)              keep them beside those in use
    sampler.change(version=3)           use them from the next turn on; no completion sees both
    sampler.pause(abort=False)          returns when the turn under way is over; the next one waits for resume()
    sampler.pause(abort=True)           the same, but interrupts the completions under way

Unknown fields, and values that the sampler would not honour (top-p, penalties, several samples), are refused: ignoring
them would give log-probabilities of another distribution than the one requested.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from uuid import uuid4

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from mem1.engines.alike import longest_alike, unlike_layers
from mem1.engines.base import Completion, Follow, Request, Sampling, Script, ScriptedEngine, Streaming, stream_rounds
from mem1.engines.codec import Codec
from mem1.engines.request_queue import Row
from mem1.engines.weights import Weights, put
from mem1.engines.workers import local_engine
from mem1.errors import UserError
from mem1.net.requests import Refused

_LONGEST_STOP = 40
"""Characters of a stop string."""
_LEAST_TEMPERATURE = 1e-6
"""Above 0; by less, logits are divided to infinity."""
_PROMPTS = 1024
"""Most prompts of one request."""

FIRST = Field(fail_fast=True)
"""Of a list: the first error ends its validation; a million of them took half a minute."""
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[TokenId], FIRST]
Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]


def _computable(temperature: float) -> float:
    if 0 < temperature < _LEAST_TEMPERATURE:
        raise ValueError(f"must be 0, which is greedy, or at least {_LEAST_TEMPERATURE}")
    return temperature


Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_computable)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]


class CompletionBody(BaseModel):
    """The body of POST /v1/completions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: str | Tokens | Annotated[list[str], FIRST] | Annotated[list[Tokens], FIRST]
    """One context as text or token ids, or a list of several of one kind."""
    model: str | None = None
    max_tokens: int = Field(default=16, ge=1, lt=1 << 31)
    temperature: Temperature = Field(default=1.0, le=100)
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """None: drawn anew for each request."""
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    logprobs: Literal[0] | None = None
    """0: those of the sampled tokens, the only ones available."""
    return_token_ids: bool = False
    include_stop_str_in_output: bool = False
    """Keep it in the text; token ids always include it."""
    add_special_tokens: bool = True
    """Put before a prompt that is text what the tokenizer puts before every text, unless it is there already."""

    # other fields that clients send, accepted with the values that change nothing
    stream: Literal[False] = False
    echo: Literal[False] = False
    n: Literal[1] = 1
    best_of: Literal[1] | None = None
    top_p: One = 1.0
    top_k: int = Field(default=-1, ge=-1, le=0)
    min_p: Zero = 0.0
    repetition_penalty: One = 1.0
    frequency_penalty: Zero = 0.0
    presence_penalty: Zero = 0.0
    skip_special_tokens: Literal[False] = False
    spaces_between_special_tokens: Literal[False] = False
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options that completions must share to be sampled together."""

    temperature: float
    stops: tuple[str, ...]


def rows(wanted: CompletionBody, codec: Codec, *, vocabulary: int, longest: int | None) -> list[Row]:
    """One row per prompt, in order. A single prompt is sampled with the request's own seed.

    vocabulary  number of tokens that the model knows
    longest     most tokens of context and completion together; None: no limit

    Raises Refused for an empty prompt, one that is too long, or a token that the model does not know.
    """
    contexts = _contexts(wanted, codec)
    if len(contexts) > _PROMPTS:
        raise Refused(413, f"{len(contexts):,} prompts; a request may have at most {_PROMPTS:,}")
    for context in contexts:
        check_row(context, wanted.max_tokens, vocabulary, longest)
    seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
    seeds = (seed,) if len(contexts) == 1 else Sampling(seed=seed).seeds_for(len(contexts))
    return [Row(context, wanted.max_tokens, own) for context, own in zip(contexts, seeds, strict=True)]


def _contexts(wanted: CompletionBody, codec: Codec) -> list[tuple[int, ...]]:
    def encoded(text: str) -> tuple[int, ...]:
        ids = codec.encode(text)
        return codec.with_bos(ids) if wanted.add_special_tokens and ids else ids

    prompt = wanted.prompt
    if isinstance(prompt, str):
        return [encoded(prompt)]
    several = [part for part in prompt if not isinstance(part, int)]
    if not several:
        return [tuple(part for part in prompt if isinstance(part, int))]
    return [encoded(part) if isinstance(part, str) else tuple(part) for part in several]


def check_row(
    context: tuple[int, ...], max_tokens: int, vocabulary: int, longest: int | None, *, what: str = "prompt"
) -> None:
    """Raises Refused for a context that is empty, has tokens that the model does not know, or leaves no room. `what`:
    the field that gave it."""
    if not context:
        raise Refused(422, f"{what}: is empty; send at least one token")
    if (largest := max(context)) >= vocabulary:
        raise Refused(422, f"{what}: token {largest} does not exist; the model has {vocabulary:,}")
    if longest is not None and len(context) + max_tokens > longest:
        raise Refused(
            422, f"a prompt of {len(context):,} tokens and max_tokens {max_tokens:,} exceed the model's {longest:,}"
        )


def answer(
    wanted: CompletionBody, rows: Sequence[Row], completions: Sequence[Completion], codec: Codec, *, model: str
) -> dict[str, Any]:
    """The body of the answer, one choice per prompt."""
    read, written = sum(len(r.context) for r in rows), sum(len(c.token_ids) for c in completions)
    pairs = enumerate(zip(rows, completions, strict=True))
    return {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(wanted, number, row, completion, codec) for number, (row, completion) in pairs],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _choice(wanted: CompletionBody, number: int, row: Row, completion: Completion, codec: Codec) -> dict[str, Any]:
    text = codec.decode(completion.token_ids)
    stop = ending(text, wanted.stops) if completion.stopped else None
    if stop is not None and not wanted.include_stop_str_in_output:
        text = text[: text.index(stop)]
    choice: dict[str, Any] = {
        "index": number,
        "text": text,
        "finish_reason": "stop" if completion.stopped else "abort" if completion.interrupted else "length",
        "stop_reason": stop,
        "logprobs": None if wanted.logprobs is None else {"token_logprobs": list(completion.logprobs)},
        "weights_version": completion.weights_versions[0][0] if completion.weights_versions else None,
    }
    if wanted.return_token_ids:
        choice |= {"token_ids": list(completion.token_ids), "prompt_token_ids": list(row.context)}
    return choice


def ending(text: str, stops: Sequence[str]) -> str | None:
    """The first stop string in the text, which ended it; None: it has none."""
    return min((stop for stop in stops if stop in text), key=text.index, default=None)


_ENGINES = 8
"""Most engines kept, one per list of stop strings; they share the model."""


class Sampler:
    """Thread-safe; `mem1.engines.request_queue` takes turns."""

    def __init__(self, model: PreTrainedModel, codec: Codec, *, workers: int = 1) -> None:
        """Raises UserError for a model that this process cannot sample."""
        self.model, self.codec = model, codec
        self.version: int | None = None
        """Version of the weights in use; None: those that the server was started with."""
        self.paused = False
        self.workers = workers
        self._staged: Weights | None = None
        self._changing = False
        self._interrupt = torch.zeros((), dtype=torch.bool).share_memory_()
        """Seen by all processes that sample."""
        self._turn = threading.Condition()
        """Held while a turn lasts or weights change."""
        self._engines: OrderedDict[tuple[str, ...], Streaming] = OrderedDict()
        self._check()

    def _check(self) -> None:
        if why := unlike_layers(self.model.config):
            raise UserError(f"{type(self.model).__name__} cannot be sampled in this process: {why}")
        with self.turn():  # some models cannot be told before
            self._streaming(()).stream(
                [Request(context=[0], max_tokens=1, seed=0, key=0)], lambda _: (), sampling=Sampling(temperature=0)
            )

    @property
    def longest(self) -> int | None:
        """Most tokens of context and completion together; None: the model's configuration has no limit."""
        return longest_alike(self.model.config)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return self.model.get_input_embeddings().weight.shape[0]  # type: ignore[index, union-attr]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, nobody else samples, and weights stay as they are; waits while they change or sampling is paused."""
        with self._turn:
            self._turn.wait_for(lambda: not (self.paused or self._changing))
            try:
                yield
            finally:
                self._interrupt.fill_(False)

    def stream(self, requests: Sequence[Request], follow: Follow, options: BatchOptions) -> None:
        """Within a turn: complete these requests and those that `follow` returns, as `Streaming.stream`."""

        def marked(finished: Sequence[tuple[Request, Completion]]) -> Sequence[Request]:
            return follow([(request, self._marked(completion)) for request, completion in finished])

        self._streaming(options.stops).stream(requests, marked, sampling=Sampling(temperature=options.temperature))

    @property
    def yields(self) -> bool:
        """Whether the turn must end as soon as what is under way has ended."""
        return self.paused or self._changing or bool(self._interrupt)

    def interrupt(self) -> None:
        """End the completions under way where they are."""
        self._interrupt.fill_(True)

    def _marked(self, completion: Completion) -> Completion:
        if self.version is None:
            return completion
        return replace(completion, weights_versions=((self.version, len(completion.token_ids)),))

    def pause(self, *, abort: bool = False) -> None:
        """Begin nothing further; returns when what is under way is done, or interrupted by `abort`."""
        self.paused = True  # before taking the lock, or waiting turns could go first, one after the other
        if abort:
            self.interrupt()
        with self._turn:
            self._interrupt.fill_(False)

    def resume(self) -> None:
        """Begin again; returns at once where nothing was paused."""
        if not self.paused:
            return
        with self._turn:
            self.paused = False
            self._turn.notify_all()

    def discard(self) -> None:
        """Drop staged weights."""
        self._staged = None

    def stage(self, weights: Weights) -> None:
        """Hold weights that fit the model for `change`."""
        self._staged = weights

    def change(self, *, version: int) -> bool:
        """Use the staged weights from the next turn on; False where none are staged."""
        weights, self._staged = self._staged, None
        if weights is None:
            return False
        self._changing = True  # before taking the lock, or waiting turns could go first
        try:
            with self._turn:
                put(weights, self.model)
                self.version = version
        finally:
            with self._turn:
                self._changing = False
                self._turn.notify_all()
        return True

    def _streaming(self, stops: tuple[str, ...]) -> Streaming:
        if stops not in self._engines:
            self._engines[stops] = local_engine(
                self.model, self.codec, stops, workers=self.workers, interrupt=self._interrupt
            )
            if len(self._engines) > _ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(stops)
        return self._engines[stops]


class ScriptedSampler(Sampler):
    """The same for a script in the place of a model; it takes no weights."""

    def __init__(self, codec: Codec, script: Script) -> None:
        self._scripted = ScriptedEngine(codec, script)
        super().__init__(None, codec)  # type: ignore[arg-type]  # only sampling and new weights need one

    def _check(self) -> None:
        pass

    @property
    def longest(self) -> int | None:
        return None

    @property
    def vocabulary(self) -> int:
        return self.codec.vocab_size

    def stream(self, requests: Sequence[Request], follow: Follow, options: BatchOptions) -> None:
        """All at once."""
        stream_rounds(self._scripted, requests, follow, Sampling(temperature=options.temperature))
