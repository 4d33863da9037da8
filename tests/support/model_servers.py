"""A server of OpenAI's protocol whose model is a script, and which can be told to misbehave."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from sites import Site, as_json, content, cut, site, status

from mem1.engines.base import Script
from mem1.engines.codec import Codec

PLAIN = {"model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "prompt", "messages"}
"""Fields of OpenAI's own; a plain server refuses others."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Model:
    """What the server says: `script` writes for a context; with `vllm`, token ids go both ways."""

    codec: Codec
    script: Script
    vllm: bool = False
    prefill: bool = False
    """Goes on from the assistant's message, as vLLM does when it is asked to."""
    by_ids: bool = False
    """Reads contexts as token ids, too, and answers with text, as llama.cpp does."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer at /completions."""
        if not self.vllm and (unknown := sorted(set(body) - PLAIN)):
            return 422, {"detail": f"Unexpected fields in the request: {unknown}"}
        if self.vllm and body["temperature"] > 2:
            return 400, {"error": {"message": f"temperature must be in [0, 2], got {body['temperature']}."}}
        prompt = body["prompt"]
        if isinstance(prompt, list) and not (self.vllm or self.by_ids):
            return 400, {"detail": "prompt must be a string."}
        context = prompt if isinstance(prompt, str) else self.codec.decode(prompt)
        given = list(self.codec.encode(prompt)) if isinstance(prompt, str) else prompt
        ids, text, reason, stop = self._write(context, body)
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason}
        if body.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": given, "stop_reason": stop}
            choice["logprobs"] = {"token_logprobs": [self._logprob(body["top_k"])] * len(ids)}
        usage = {"prompt_tokens": len(given), "completion_tokens": len(ids)}
        return 200, {"object": "text_completion", "choices": [choice], "usage": usage}

    def chat(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer at /chat/completions."""
        if not self.vllm and (unknown := sorted(set(body) - PLAIN)):
            return 422, {"detail": f"Unexpected fields in the request: {unknown}"}
        context = " ".join(message["content"] for message in body["messages"])
        ids, text, reason, _ = self._write(context, body)
        if body["messages"][-1]["role"] == "assistant" and not self.prefill:
            text = f"{body['messages'][-1]['content']} {text}"  # a new message, which begins anew
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": len(ids)}}

    def _logprob(self, top_k: int) -> float:
        """Of every token, as with --logprobs-mode processed_logprobs."""
        return 0.0 if top_k == 1 else -0.5

    def _write(self, context: str, body: Mapping[str, Any]) -> tuple[list[int], str, str, str | None]:
        """Ids, text, finish_reason and stop string; the stop string is left out of the text unless asked for."""
        text = self.script(context) if body["max_tokens"] > 1 else "a"
        ids = list(self.codec.encode(text))
        if len(ids) > body["max_tokens"]:
            ids = ids[: body["max_tokens"]]
            return ids, self.codec.decode(ids), "length", None
        stop = next((s for s in body["stop"] if text.endswith(s)), None)
        if stop is not None and not body.get("include_stop_str_in_output"):
            text = text.removesuffix(stop)
        return ids, text, "stop", stop


Fault = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Faults:
    """A share of the answers goes wrong, evenly spread, each kind of fault in its turn."""

    kinds: Mapping[str, Fault]
    share: float
    given: Counter[str] = field(default_factory=Counter)
    answers: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def draw(self) -> Fault | None:
        with self._lock:
            self.answers += 1
            if self.given.total() + 1 > self.answers * self.share:
                return None
            kind = sorted(self.kinds)[self.given.total() % len(self.kinds)]
            self.given[kind] += 1
            return self.kinds[kind]


@contextmanager
def model_site(model: Model, faults: Faults | None = None, *, chat_only: bool = False) -> Iterator[Site]:
    """A running server. A request for one token, by which a client finds out what it speaks, always goes well."""

    def answering(write: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]) -> Fault:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            body = json.loads(handler.body)  # type: ignore[attr-defined]
            fault = faults.draw() if faults is not None and body["max_tokens"] > 1 else None
            if fault is not None:
                return fault(handler)
            model.bodies.append(body)
            code, said = write(body)
            if code != 200:
                return content_with(code, said)(handler)
            as_json(said)(handler)

        return answer

    pages = {CHAT: answering(model.chat)}
    if not chat_only:
        pages[COMPLETIONS] = answering(model.completion)
    with site(pages) as running:
        yield running


def content_with(code: int, value: Any) -> Fault:
    """JSON with another status than 200."""
    from sites import send

    return lambda handler: send(handler, json.dumps(value).encode(), code, {"Content-Type": "application/json"})


def all_faults(over: threading.Event, *, slow_s: float) -> dict[str, Fault]:
    """What servers and networks do: `slow` sends nothing for `slow_s` seconds, or until the test is over."""
    half = b'HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [{"text": "<IS> a'

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(half)
        handler.wfile.flush()
        over.wait(slow_s)

    def choice(**fields: Any) -> Fault:
        return as_json({"choices": [{"index": 0, **fields}]})

    return {
        "busy": status(429, Retry_After="0"),
        "broken": status(500),
        "overloaded": status(503),
        "cut": cut(half),
        "hung up": cut(b""),
        "slow": slow,
        "no json": content("<html>gateway</html>"),
        "half json": content('{"choices": [', "application/json"),
        "no choices": as_json({"choices": []}),
        "no text": choice(finish_reason="stop"),
        "aborted": choice(text="<IS> a", finish_reason="abort"),
        "repeats for ever": choice(text="Oslo " * 20_000, finish_reason="length"),
    }
