"""A proxy between a test and a scripted upstream, and conversations to send through it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from servers import app_in_a_thread
from upstreams import ANTHROPIC, CHAT, Upstream

from mem1.extras.proxy import upstream as to_upstream
from mem1.extras.proxy.app import Limits, Proxy
from mem1.messages import Bounds, Memory

SECRET = "sk-abcdefghijklmnop123"
LONG = "Oslo has a mayor. " * 100
FORM = {CHAT: "chat", ANTHROPIC: "anthropic"}
HTTP = httpx.Client(trust_env=False, timeout=60)


@dataclass
class Running:
    upstream: Upstream
    url: str
    proxy: Proxy
    memories: list[Memory]

    def written(self) -> bool:
        """Whether the writer has read all that it was given, after waiting for it."""
        return all([memory.flush(30) for memory in self.memories])

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """A body that is no dictionary is sent as it is."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        given = {"content-type": "application/json", "authorization": f"Bearer {SECRET}", **headers}
        return HTTP.post(self.url + path, content=content, headers=given)

    @property
    def last(self) -> bytes:
        """The body that the upstream got last."""
        return self.upstream.raw[-1]


@contextlib.contextmanager
def running(
    behave: Any = None,
    policy: str = "fold(2)",
    *,
    events: Path | None = None,
    limits: Limits | None = None,
    state_s: float = 60.0,
    wrong: bool = False,
    **memory: Any,
) -> Iterator[Running]:
    """`wrong`: the test sends what the API refuses; otherwise nothing may be refused, not even where the proxy then
    sends the request whole."""
    upstream = Upstream(behave) if behave else Upstream()
    memories: list[Memory] = []

    def memory_of(form: str, on_event: Any) -> Memory:
        settings = {"bounds": Bounds(handles=False), "only_if_cheaper": True, **memory}
        memories.append(Memory(policy, form=form, on_event=on_event, **settings))
        return memories[-1]

    with app_in_a_thread(upstream, accepts=None) as there:
        proxy = Proxy(to_upstream.Upstream(there, state_s=state_s), memory_of, events=events, limits=limits or Limits())
        with app_in_a_thread(proxy, accepts=None) as here:
            yield Running(upstream, here, proxy, memories)
    assert wrong or upstream.refused == []


def task(text: str = "Find the mayor of Oslo.") -> dict[str, Any]:
    return {"role": "user", "content": text}


def exchange(path: str, number: int, result: str = LONG) -> list[dict[str, Any]]:
    if path == ANTHROPIC:
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "search", "input": {"q": number}}
        answer = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    function = {"name": "search", "arguments": f'{{"q": {number}}}'}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    return [said, {"role": "tool", "tool_call_id": f"call_{number}", "content": result}]


def history(path: str, exchanges: int) -> list[dict[str, Any]]:
    return [task(), *(each for number in range(exchanges) for each in exchange(path, number))]


SCHEMA = {"type": "object", "properties": {"q": {"type": "integer"}}}
TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}],
    ANTHROPIC: [{"name": "search", "input_schema": SCHEMA}],
}


def body(path: str, exchanges: int, **more: Any) -> dict[str, Any]:
    settings = {"model": "m", "temperature": 0.3, "max_tokens": 100, "tools": TOOLS[path]}
    return {**settings, **more, "messages": history(path, exchanges)}


def turn_seen(at: Running) -> int:
    """What the scripted model counts: the turns in the prompt that it saw last."""
    return sum(each["role"] == "assistant" for each in at.upstream.prompts[-1])
