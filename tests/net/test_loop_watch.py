"""No message stops everybody: what a large or hostile one takes is done in threads, never in a server's event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - otherwise a loop imports it, which takes as long as the limit
import httpx
import pytest
from endpoints import attempt, in_order
from loop_watch import LIMIT_S, watched
from patterns import slowness
from policies import tiny
from proxies import body, running
from servers import app_in_a_thread
from upstreams import ANTHROPIC, CHAT
from worlds import CODEC

from mem1.engines.policy_sampler import Sampler
from mem1.engines.policy_server import make_app

BIG = 1 << 19
"""Characters, for which a tokenizer takes many times the limit."""
HOSTILE = {
    "notes": "<note>" * (BIG // 6),
    "brackets": "[" * BIG,
    "blanks": " " * BIG,
    "escapes": '\\u0041\n"' * (BIG // 8),
    "letters": "\u4e2d" * (BIG // 3),
}


@contextmanager
def unblocked() -> Iterator[None]:
    # twice what the loop may take, as machines slow down within a test
    with watched(2 * LIMIT_S * slowness()) as blocked:
        yield
    assert blocked() == []


def test_the_watch_sees_what_blocks_a_loop():
    async def work() -> None:
        json.loads("[" + "1," * 10**6 + "1]")

    with watched(LIMIT_S / 4) as blocked:
        asyncio.run(work())
    assert len(blocked()) == 1


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_large_message_does_not_stop_the_proxy(path: str, text: str):
    sent = body(path, 3)
    sent["messages"][0] = {"role": "user", "content": f"Go. {text}"}
    sent["messages"][1] = {**sent["messages"][1], "content": said(path, sent["messages"][1], text)}
    with running(policy="notes") as at, unblocked():
        assert at.post(path, sent).status_code == 200
        assert at.post(path, b"[" * BIG).status_code == 200
        assert at.proxy.counts.folded == 1


def said(path: str, message: dict[str, Any], text: str) -> Any:
    return text if path == CHAT else [{"type": "text", "text": text}, *message["content"]]


def test_many_messages_do_not_stop_the_proxy_and_neither_does_their_state():
    sent = body(CHAT, 3000)
    with running(policy="fold(2)") as at, unblocked():
        assert at.post(CHAT, sent).status_code == 200
        assert at.proxy.counts.states.calls == 1


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_large_message_does_not_stop_the_endpoint(text: str):
    with attempt(in_order("Oslo")) as at, unblocked():
        assert at.post([{"role": "user", "content": text}]).status_code == 400


def test_a_large_prompt_does_not_stop_the_policy_server():
    with app_in_a_thread(make_app(Sampler(tiny(), CODEC), chat="it has no template")) as url, unblocked():
        for prompt in ("Oslo " * (BIG // 20), [1] * 10**6, [-1] * 10**6, ["a"] * 10**5):
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": prompt}, trust_env=False, timeout=60)
            assert answer.status_code in (413, 400), answer.text[:200]
        said = {"messages": [{"role": "user", "content": "Oslo " * (BIG // 20)}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=said, trust_env=False, timeout=60).status_code == 400
