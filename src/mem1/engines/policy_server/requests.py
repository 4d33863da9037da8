"""Requests to a policy server and their answers: OpenAI's completions, with the fields of vLLM that our client sends.

    {"prompt": [5, 9, 2], "max_tokens": 40, "temperature": 1.0, "seed": 7, "stop": ["</query>"], "logprobs": 0,
     "return_token_ids": true}

Unknown fields, and values that the sampler would not honour (top-p, penalties, several samples), are refused: ignoring
them would give log-probabilities of another distribution than the one requested.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mem1.engines.base import Completion, Sampling
from mem1.engines.codec import Codec
from mem1.net.serving import Refused

_LONGEST_STOP = 40
"""Characters of the end of a text in which the local engine looks for stop strings."""
_PROMPTS = 1024
"""Most prompts of one request."""

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]


class CompletionBody(BaseModel):
    """The body of POST /v1/completions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    """One context as text or token ids, or a list of several of one kind."""
    model: str | None = None
    max_tokens: int = Field(default=16, ge=1, lt=1 << 31)
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """None: drawn anew for each request."""
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    logprobs: Literal[0] | None = None
    """0: those of the sampled tokens, the only ones available."""
    return_token_ids: bool = False
    include_stop_str_in_output: bool = False
    """Keep it in the text; token ids always include it."""

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
    add_special_tokens: Literal[False] = False
    skip_special_tokens: Literal[False] = False
    spaces_between_special_tokens: Literal[False] = False
    user: str | None = None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options that completions must share to be sampled together."""

    temperature: float
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One requested completion."""

    context: tuple[int, ...]
    max_tokens: int
    seed: int
    """In [0, 2**63). The sample depends on it alone, not on the rest of the batch."""


def batch_options(wanted: CompletionBody) -> BatchOptions:
    """The options that all completions of a request share."""
    stops = (wanted.stop,) if isinstance(wanted.stop, str) else tuple(wanted.stop or ())
    return BatchOptions(wanted.temperature, stops)


def rows(wanted: CompletionBody, codec: Codec, *, vocabulary: int, longest: int | None) -> list[Row]:
    """One row per prompt, in order. A single prompt is sampled with the request's own seed.

    vocabulary  number of tokens that the model knows
    longest     most tokens of context and completion together; None: no limit

    Raises Refused for an empty prompt, one that is too long, or a token that the model does not know.
    """
    contexts = _contexts(wanted.prompt, codec)
    if len(contexts) > _PROMPTS:
        raise Refused(413, f"{len(contexts):,} prompts; a request may have at most {_PROMPTS:,}")
    for context in contexts:
        _check(context, wanted.max_tokens, vocabulary, longest)
    seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
    seeds = (seed,) if len(contexts) == 1 else Sampling(seed=seed).seeds_for(len(contexts))
    return [Row(context, wanted.max_tokens, own) for context, own in zip(contexts, seeds, strict=True)]


def _contexts(prompt: str | list[int] | list[str] | list[list[int]], codec: Codec) -> list[tuple[int, ...]]:
    if isinstance(prompt, str):
        return [codec.encode(prompt)]
    several = [part for part in prompt if not isinstance(part, int)]
    if not several:
        return [tuple(part for part in prompt if isinstance(part, int))]
    return [codec.encode(part) if isinstance(part, str) else tuple(part) for part in several]


def _check(context: tuple[int, ...], max_tokens: int, vocabulary: int, longest: int | None) -> None:
    if not context:
        raise Refused(422, "prompt: is empty; send at least one token")
    if (largest := max(context)) >= vocabulary:
        raise Refused(422, f"prompt: token {largest} does not exist; the model has {vocabulary:,}")
    if longest is not None and len(context) + max_tokens > longest:
        raise Refused(
            422,
            f"a prompt of {len(context):,} tokens and max_tokens {max_tokens:,} exceed the model's {longest:,}",
        )


def answer(
    wanted: CompletionBody, rows: Sequence[Row], completions: Sequence[Completion], codec: Codec, *, model: str
) -> dict[str, Any]:
    """The body of the answer, one choice per prompt."""
    read, written = sum(len(r.context) for r in rows), sum(len(c.token_ids) for c in completions)
    pairs = enumerate(zip(rows, completions, strict=True))
    return {
        "object": "text_completion",
        "model": model,
        "choices": [_choice(wanted, number, row, completion, codec) for number, (row, completion) in pairs],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _choice(wanted: CompletionBody, number: int, row: Row, completion: Completion, codec: Codec) -> dict[str, Any]:
    text = codec.decode(completion.token_ids)
    stop = _stop(text, batch_options(wanted).stops) if completion.stopped else None
    if stop is not None and not wanted.include_stop_str_in_output:
        text = text[: text.rindex(stop)]
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


def _stop(text: str, stops: Sequence[str]) -> str | None:
    """The last stop string in the text."""
    place, stop = max(((text.rfind(stop), stop) for stop in stops), default=(-1, ""))
    return stop if place >= 0 else None
