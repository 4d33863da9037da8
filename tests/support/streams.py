"""Many streams at a time: a scripted upstream that sends each client bytes of its own, and clients that compare them.

server = Streams(open_at_once=50)             an ASGI application; no stream ends before 50 are open
asyncio.run(all_streams(url, 50))             what went wrong, by name of the stream; nothing went wrong: {}
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any
from urllib.parse import urlsplit

from upstreams import ANTHROPIC, CHAT

from mem1.messages.transcript import ASK

_NAME = re.compile(rb"stream-\d+")


def pieces_of(name: str) -> list[bytes]:
    """What the upstream sends to the client of this name."""
    random = Random(name)
    return [random.randbytes(random.randint(1, 3_000)) for _ in range(random.randint(5, 40))]


class Streams:
    """See the module. A request whose messages name another client than its header gets bytes that nobody expects."""

    def __init__(self, open_at_once: int) -> None:
        self._wanted, self._open = open_at_once, 0
        self._all = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = b""
        while (message := await receive()).get("more_body"):
            raw += message["body"]
        raw += message.get("body", b"")
        name = dict(scope["headers"])[b"x-name"]
        pieces = pieces_of(name.decode())
        if {*_NAME.findall(raw)} != {name}:
            pieces = [b"mixed up"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if ASK.encode() in raw:
            await send({"type": "http.response.body", "body": _state(scope["path"], f"The memory of {name.decode()}.")})
            return
        self._open += 1
        if self._open == self._wanted:
            self._all.set()
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await self._all.wait()
        await send({"type": "http.response.body", "body": pieces[-1]})


def _state(path: str, text: str) -> bytes:
    if path == ANTHROPIC:
        return json.dumps({"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}).encode()
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


async def all_streams(url: str, number: int) -> dict[str, str]:
    """Streams of both APIs, of conversations of 1 to 8 messages, all at the same time."""
    names = [f"stream-{at}" for at in range(number)]
    found = await asyncio.gather(
        *(_stream(url, name, at % 4, (CHAT, ANTHROPIC)[at % 2]) for at, name in enumerate(names))
    )
    return {name: wrong for name, wrong in zip(names, found, strict=True) if wrong}


async def _stream(url: str, name: str, exchanges: int, path: str) -> str:
    """What is wrong with the stream that the client of this name gets."""
    place = urlsplit(url)
    body = json.dumps({"stream": True, "max_tokens": 9, "messages": _conversation(name, exchanges, path)}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\nx-name: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        received = bytearray()
        while size := int(await reader.readline(), 16):
            received += (await reader.readexactly(size + 2))[:-2]
    except (asyncio.IncompleteReadError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    folded = b"mem1-prompt: folded" in answer
    if not answer.startswith(b"http/1.1 200") or folded != (exchanges == 3):
        return answer.decode()
    return "" if received == b"".join(pieces_of(name)) else f"{len(received)} bytes that differ"


def _conversation(name: str, exchanges: int, path: str) -> Sequence[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"The task of {name}."}]
    for number in range(exchanges):
        id, result = f"{name}-{number}", f"Found by {name}. " * 50
        if path == ANTHROPIC:
            use = {"type": "tool_use", "id": id, "name": "search", "input": {}}
            answer = {"type": "tool_result", "tool_use_id": id, "content": result}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
        else:
            call = {"id": id, "type": "function", "function": {"name": "search", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": id, "content": result})
    return messages
