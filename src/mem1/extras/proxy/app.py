"""The proxy, an ASGI application: what it changes in a request and what it hands through; `serve` gives it a port.

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
import gc
import json
import logging
import resource
import sys
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pydantic_core import from_json

from mem1.extras.proxy.apis import Api, api_of
from mem1.extras.proxy.folding import Call, Counts, Folding, rule_of, without_keys
from mem1.extras.proxy.states import StateFile
from mem1.extras.proxy.upstream import Headers, Upstream, passed_back, passed_on
from mem1.messages import Bounds, Event, Memory
from mem1.messages.sessions import Latest
from mem1.messages.transcript import Message
from mem1.messages.writing import Writer
from mem1.net.bounds import BOUNDS
from mem1.net.exchange import one_line
from mem1.net.requests import CapacityLimit, ClientGone, Refused
from mem1.net.web_server import Hosts, address, bind, make_server
from mem1.prices import PriceClass

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Body:
    """A request's body, and whether its client is still there."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._there_is_one = bool({name for name, _ in headers} & {b"content-length", b"transfer-encoding"})
        self._read: list[bytes] = []
        self._ended = asyncio.Event()
        self._gone = False

    async def read(self, most: int, room: CapacityLimit, held: contextlib.ExitStack) -> bytes:
        """All of it, for which `held` keeps room until it is closed; `stream` has it still, unless it is forgotten.

        Raises Refused where it has more than `most` bytes or there is no room.
        """
        size = 0
        async for piece in self._pieces():
            self._read.append(piece)
            size += len(piece)
            if size > most:
                raise Refused(413, f"the body is larger than {most:,} bytes")
            held.enter_context(room.holding(len(piece)))
        self._read = [b"".join(self._read)]
        return self._read[0]

    def forget(self) -> None:
        """Free what has been read."""
        self._read.clear()

    def stream(self) -> AsyncIterator[bytes] | None:
        """What has been read, then the rest; None: there is no body."""
        if self._there_is_one:
            return self._all()
        self._ended.set()
        return None

    async def _all(self) -> AsyncIterator[bytes]:
        while self._read:
            yield self._read.pop(0)
        async for piece in self._pieces():
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._ended.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                self._ended.set()
                raise ClientGone
            if not message.get("more_body", False):
                self._ended.set()
            if piece := message.get("body", b""):
                yield piece

    async def hung_up(self) -> None:
        """Returns when the client hangs up, after it has sent its request."""
        await self._ended.wait()
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"


class Answer:
    """What the client gets."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def relay(self, response: httpx.Response, notes: Headers = ()) -> None:
        """An upstream's answer as it comes; cut off where the upstream's was."""
        try:
            self._begun = True
            headers = [*passed_back(response), *notes]
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for piece in response.aiter_raw():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    async def fail(self, status: int, why: str) -> None:
        """An error in the form of both APIs; an answer that has begun is cut off instead."""
        if self._begun:
            return
        error = {"type": "error", "error": {"type": "proxy_error", "message": f"mem1 proxy: {why}"}}
        body = json.dumps(error).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


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
    """See the module. `memory` makes the memory of a form of messages."""

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

    def close(self) -> None:
        """Keeps what writers have read; after the last request."""
        self._folding.close()

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
            return await self._upstream.send(request), () if api is None else [(b"mem1-prompt", b"whole")]

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
        while True:
            response = await self._send(call, prompt)
            response, said = await self._refusal(response)
            if said is None:
                self.counts.folded += 1
                return response, [(b"mem1-prompt", b"folded"), *spent]
            again = await self._folding.prompt(call) if self._folding.learn(call, said) else None
            if again is None:
                break
            prompt = again
        said = without_keys(said, call.headers)
        whole = await self._send(call, call.raw, same_request=False)
        if whole.status_code < 400:
            self._refused[call.names[-1]] = True
            why = f"the upstream refuses the folded prompt, status {response.status_code}: {said}"
            self.counts.doubt(why, call.session)
        return whole, [(b"mem1-prompt", b"whole"), *spent]

    async def _refusal(self, response: httpx.Response) -> tuple[httpx.Response, bytes | None]:
        """(the answer, what it says against the prompt); None: nothing. llama.cpp refuses an order of roles by 500."""
        if response.status_code in _REFUSED:
            try:
                return await self._upstream.read(response)
            except httpx.HTTPError:
                return response, b""
        if response.status_code < 500:
            return response, None
        response, said = await self._upstream.read(response)
        return response, None if rule_of(said) is None else said

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


_FILES = 8192
"""Open files that the proxy asks for: two per connection of a client."""
_WAIT_S = 600.0
"""Seconds for a client to send a body, and without progress while it reads."""
_BOUNDS = Bounds(handles=False)
"""Clients have no tool `recall`."""


def serve(
    upstream: str,
    memory: str,
    *,
    prices: str | PriceClass | None = None,
    bounds: Bounds = _BOUNDS,
    writer: Writer | None = None,
    states: Path | None = None,
    events: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8002,
    allow_hosts: Sequence[str] = (),
    listening: Callable[[str], None],
) -> Counts:
    """Serve until SIGTERM or SIGINT, finish the open requests, and return what was done.

    `writer`: writes the states beside the clients' models; it may be called in two threads at a time, one for each API.
    `states`: the file in which they are kept; None: they are gone when the server stops. `listening` is called with the
    address once requests are answered; port 0: any free port. Raises UserError where the address is taken, and for an
    upstream, a memory or a file that cannot be used.
    """
    kept: MutableMapping[str, str] | None = None if states is None else StateFile(states)

    def memory_of(form: str, on_event: Callable[[Event], None]) -> Memory:
        return Memory(
            memory,
            form=form,
            bounds=bounds,
            prices=prices,
            only_if_cheaper=True,
            on_event=on_event,
            states=kept,
            writer=writer,
        )

    proxy = Proxy(Upstream(upstream), memory_of, events=events)
    (socket,) = bind(host, port)
    hosts, where = Hosts.of(host, socket, allow_hosts), address(host, socket)
    files = _more_files()
    patient = replace(BOUNDS, body_s=_WAIT_S, write_s=_WAIT_S, connections=min(BOUNDS.connections, files // 3))
    _spare_time()
    make_server(proxy, socket, hosts=hosts, accepts=None, bounds=patient, ready=lambda: listening(where)).run()
    proxy.close()
    if isinstance(kept, StateFile):
        kept.close()
    return proxy.counts


def _spare_time() -> None:
    """Milliseconds of each request: what was made at the start is never garbage, and httpcore looks for sniffio four
    times in each request, for which Python searches all folders of packages where it is not installed."""
    gc.freeze()
    if find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # type: ignore[assignment]


def _more_files() -> int:
    """Open files that the process may have, after asking for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _FILES if soft == resource.RLIM_INFINITY else soft
