"""The proxy as an ASGI application: what it changes in a request, and what it hands through.

    POST /v1/chat/completions, /v1/messages    the messages are folded, then the request goes on; its answer comes back
                                               byte by byte as the upstream sends it
    everything else                            handed through

Anything unrecognised is forwarded unchanged, and a line on stderr says why: a body that is no request of the API, one
that is too large, messages that cannot be folded, a model that writes no state. A folded request that the upstream
refuses (400, 413 or 422) is sent once more as it came; where that works, the conversation is no longer folded.

    mem1-prompt: folded                        header of an answer whose prompt was folded; "whole": of any other
    mem1-state-usage: {"calls": 1, ...}        tokens of the requests for states that were sent before the client's own;
                                               they come on top of the `usage` in the answer
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pydantic_core import from_json

from mem1.extras.proxy.apis import Api, api_of
from mem1.extras.proxy.client import Answer, Body
from mem1.extras.proxy.folding import Call, Counts, Folding, without_keys
from mem1.extras.proxy.upstream import Headers, Upstream, passed_on
from mem1.messages import Event, Memory
from mem1.messages.sessions import Latest
from mem1.messages.transcript import Message
from mem1.net.exchange import one_line
from mem1.net.requests import CapacityLimit, ClientGone, Refused

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_LOG = logging.getLogger(__name__)
_REFUSED = (400, 413, 422)
_CONVERSATIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is larger is handed through as it comes."""

    body: int = 32 << 20
    """Bytes of a request that is folded."""
    bodies: int = 512 << 20
    """Bytes of all such requests at a time."""
    parts: int = 10_000
    """Messages, blocks in them and calls of a request that is folded, which takes a second then."""


class Proxy:
    """See the module. `memory` makes the memory of a form of messages; it must not have a writer."""

    def __init__(
        self,
        upstream: Upstream,
        memory: Callable[[str, Callable[[Event], None]], Memory],
        *,
        events: Path | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self.counts = Counts()
        self._upstream, self._limits = upstream, limits
        self._folding = Folding(upstream, memory, self.counts, events)
        self._bodies = CapacityLimit(limits.bodies, "bytes of requests")
        self._refused: Latest[bool] = Latest(_CONVERSATIONS)
        """Conversations whose folded prompt the upstream refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.counts.requests += 1
        body = Body(receive, scope["headers"])
        work = asyncio.ensure_future(self._answer(scope, body, send))
        gone = asyncio.ensure_future(body.hung_up())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, scope: Scope, body: Body, send: Send) -> None:
        answer = Answer(send)
        try:
            await answer.relay(*await self._response(scope, body))
        except ClientGone:
            return
        except ValueError as error:
            await answer.fail(400, str(error))
        except httpx.HTTPError as error:
            why = f"the upstream did not answer: {one_line(str(error)) or type(error).__name__}"
            _LOG.warning("%s", why)
            await answer.fail(502, why)

    async def _response(self, scope: Scope, body: Body) -> tuple[httpx.Response, Headers]:
        """(the upstream's answer, headers that say what was done). What was read of the request is free then."""
        method, path, query = scope["method"], scope["raw_path"], scope["query_string"]
        if not path.startswith(b"/"):
            raise ValueError("the path of the request is none")
        api = api_of(method, scope["path"])
        with contextlib.ExitStack() as held:
            call = None if api is None else await self._read(api, scope, body, held)
            if call is not None:
                body.forget()
                return await self._folded(call)
            request = self._upstream.request(method, path, query, passed_on(scope["headers"]), body.stream())
            return await self._upstream.send(request), ()

    async def _read(self, api: Api, scope: Scope, body: Body, held: contextlib.ExitStack) -> Call | None:
        """The request, if it is one of the API; None: it goes on as it comes."""
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            return self.counts.doubt("the request is compressed")
        try:
            raw = await body.read(self._limits.body, self._bodies, held)
        except Refused as error:
            return self.counts.doubt(str(error))
        call = await asyncio.to_thread(self._call, api, scope, raw)
        return self.counts.doubt(call) if isinstance(call, str) else call

    def _call(self, api: Api, scope: Scope, raw: bytes) -> Call | str:
        """The request; or why it is none of the API."""
        try:
            read = _read_json(raw)
        except (ValueError, RecursionError):
            return "the body is not JSON"
        messages = read.get("messages") if isinstance(read, dict) else None
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return "the body has no list of messages"
        if _parts(messages) > self._limits.parts:
            return f"the body has more than {self._limits.parts:,} messages, blocks and calls"
        return self._folding.call(api, scope["raw_path"], scope["query_string"], scope["headers"], raw, read)

    async def _folded(self, call: Call) -> tuple[httpx.Response, Headers]:
        prompt = None if self._was_refused(call) else await self._folding.prompt(call)
        spent = [(b"mem1-state-usage", json.dumps(asdict(call.usage)).encode())] if call.usage.calls else []
        if prompt is None:
            return await self._send(call, call.raw), [(b"mem1-prompt", b"whole"), *spent]
        response = await self._send(call, prompt)
        if response.status_code not in _REFUSED:
            self.counts.folded += 1
            return response, [(b"mem1-prompt", b"folded"), *spent]
        said = without_keys(await _beginning(response), call.headers)
        whole = await self._send(call, call.raw, same_request=False)
        if whole.status_code < 400:
            self._refused[call.names[-1]] = True
            why = f"the upstream refuses the folded prompt, status {response.status_code}: {said}"
            self.counts.doubt(why, call.session)
        return whole, [(b"mem1-prompt", b"whole"), *spent]

    def _was_refused(self, call: Call) -> bool:
        return bool(self._refused) and any(self._refused.get(name) for name in call.names)

    async def _send(self, call: Call, content: bytes, *, same_request: bool = True) -> httpx.Response:
        headers = passed_on(call.headers, same_request=same_request)
        return await self._upstream.send(self._upstream.request("POST", call.path, call.query, headers, content))


def _parts(messages: Sequence[Message]) -> int:
    lists = [each.get(key) for each in messages for key in ("content", "tool_calls")]
    return len(messages) + sum([len(each) for each in lists if type(each) is list])


def _read_json(raw: bytes) -> Any:
    """Raises ValueError or RecursionError."""
    try:
        return from_json(raw, cache_strings="keys")  # in half the time
    except ValueError:  # of half a surrogate pair, too, as JavaScript writes it where it cuts a text in an emoji
        return json.loads(raw)


async def _beginning(response: httpx.Response) -> bytes:
    """What an error says first."""
    try:
        return await anext(response.aiter_bytes(), b"")
    except httpx.HTTPError:
        return b""
    finally:
        await response.aclose()
