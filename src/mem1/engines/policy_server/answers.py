"""What a policy server answers: OpenAI's `text_completion`, with vLLM's token ids and the version of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mem1.engines.base import Completion
from mem1.engines.codec import Codec
from mem1.engines.policy_server.requests import CompletionRequest, Row, how


def answer(
    asked: CompletionRequest, rows: Sequence[Row], completions: Sequence[Completion], codec: Codec, *, model: str
) -> dict[str, Any]:
    """The body of the answer, one choice a prompt."""
    read, written = sum(len(r.context) for r in rows), sum(len(c.token_ids) for c in completions)
    pairs = enumerate(zip(rows, completions, strict=True))
    return {
        "object": "text_completion",
        "model": model,
        "choices": [_choice(asked, number, row, completion, codec) for number, (row, completion) in pairs],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _choice(asked: CompletionRequest, number: int, row: Row, completion: Completion, codec: Codec) -> dict[str, Any]:
    text = codec.decode(completion.token_ids)
    stop = _stop(text, how(asked).stops) if completion.stopped else None
    if stop is not None and not asked.include_stop_str_in_output:
        text = text[: text.rindex(stop)]
    choice: dict[str, Any] = {
        "index": number,
        "text": text,
        "finish_reason": "stop" if completion.stopped else "abort" if completion.interrupted else "length",
        "stop_reason": stop,
        "logprobs": None if asked.logprobs is None else {"token_logprobs": list(completion.logprobs)},
        "weights_version": completion.weights_versions[0][0] if completion.weights_versions else None,
    }
    if asked.return_token_ids:
        choice |= {"token_ids": list(completion.token_ids), "prompt_token_ids": list(row.context)}
    return choice


def _stop(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that stands last in the text."""
    place, stop = max(((text.rfind(stop), stop) for stop in stops), default=(-1, ""))
    return stop if place >= 0 else None
