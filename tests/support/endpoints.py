"""Attempts at the endpoint whose policy says what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from chat_templates import QWEN25_LIKE, tokenizer_with
from worlds import shelf, task

from mem1.endpoint.recording import Bounds, Recording
from mem1.endpoint.sampling import JoinedCalls
from mem1.endpoint.server import Endpoint
from mem1.engines.base import Completion, Sampling
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.request_queue import Row
from mem1.messages import Memory
from mem1.records import Turn

CALL = '<tool_call>\n{{"name": "search", "arguments": {{"query": "{}"}}}}\n</tool_call>'
SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}
END = "<|im_end|>"


def chat_of(template: str = QWEN25_LIKE, **options: Any) -> ChatMessages:
    tokenizer, codec = tokenizer_with(template)
    return ChatMessages.of(tokenizer, codec, where="the test", **options)


def letters(chat: ChatMessages, text: str) -> tuple[int, ...]:
    """Tokens as no encoder would choose them: letter by letter."""
    body = text.removesuffix(chat.end)
    ids = [i for letter in body for i in chat.codec.encode(letter)]
    return (*ids, *(chat.codec.encode(chat.end) if body != text else ()))


@dataclass
class Says:
    """An engine that says what `script` makes of the seed and the context, letter by letter."""

    chat: ChatMessages
    script: Callable[[int, str], str]
    batches: list[int] = field(default_factory=list)

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        self.batches.append(len(contexts))
        made = []
        for context, most, seed in zip(contexts, max_tokens, sampling.seeds_for(len(contexts)), strict=True):
            ids = letters(self.chat, self.script(seed, self.chat.codec.decode(context)))
            made.append(Completion(token_ids=ids[:most], logprobs=(-0.5,) * len(ids[:most]), stopped=len(ids) <= most))
        return made


def in_order(*texts: str) -> Callable[[int, str], str]:
    left = iter(texts)
    return lambda _seed, _context: next(left)


@dataclass
class Attempt:
    """A client of one attempt."""

    recording: Recording
    client: httpx.Client
    engine: Any

    def post(self, messages: list[Any], **more: Any) -> httpx.Response:
        return self.client.post("chat/completions", json={"model": "any", "messages": messages, **more})

    def say(self, messages: list[Any], **more: Any) -> dict[str, Any]:
        answer = self.post(messages, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    def refused(self, messages: list[Any], **more: Any) -> tuple[int, str]:
        answer = self.post(messages, **more)
        assert answer.headers["x-should-retry"] == "false"
        return answer.status_code, answer.json()["error"]["message"]

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.recording.end()

    def text(self, number: int) -> str:
        """The context of a turn."""
        return self.recording.chat.codec.decode(self.turns[number].context_ids)


@contextmanager
def attempt(
    script: Callable[[int, str], str] | Any,
    *,
    chat: ChatMessages | None = None,
    bounds: Bounds | None = None,
    memory: Memory | None = None,
    seed: int = 0,
) -> Iterator[Attempt]:
    """One attempt whose policy says what `script` says; or an engine of its own."""
    chat = chat or chat_of()
    engine: Any = script if hasattr(script, "complete") else Says(chat, script)
    with JoinedCalls(engine, shelf("Oslo is a city."), Sampling()) as calls:
        recording = Recording(
            task=task("Oslo"),
            number=0,
            chat=chat,
            bounds=bounds or Bounds(calls=50, completion=200, context=4000),
            seed=seed,
            sample=lambda context, most, own: calls.complete(Row(context, most, own)),
            memory=memory,
        )
        with (
            Endpoint.here().open(recording, calls.observe) as base_url,
            httpx.Client(base_url=base_url, trust_env=False, timeout=60, verify=False) as client,
        ):
            yield Attempt(recording, client, engine)
