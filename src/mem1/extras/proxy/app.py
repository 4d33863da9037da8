"""The proxy as an ASGI application: what it changes in a request, and what it hands through.

    POST /v1/chat/completions, /v1/messages    the messages are folded, then the request goes on; its answer comes back
                                               byte by byte as the upstream sends it
    everything else                            handed through

Whatever is in doubt goes on as it came, and a line on stderr says why: a body that is no request of the API, one that
is too large, messages that cannot be folded, a model that writes no state. A folded request that the upstream refuses
(400, 413 or 422) is sent once more as it came; where that works, the conversation is no longer folded.

    mem1-prompt: folded                        header of an answer whose prompt was folded; "whole": of any other
    mem1-state-usage: {"calls": 1, ...}        tokens of the requests for states that were sent before the client's own;
                                               they come on top of the `usage` in the answer
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from mem1.errors import UserError
from mem1.extras.proxy.apis import APIS, Api, NoState, Usage, api_of
from mem1.extras.proxy.upstream import Headers, Upstream, passed_back, passed_on
from mem1.messages import Event, Memory, check
from mem1.messages.sessions import Latest
from mem1.messages.transcript import Message
from mem1.net.exchange import one_line, redact
from mem1.net.requests import ClientGone, Refused, Room

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_LOG = logging.getLogger(__name__)
_REFUSED = (400, 413, 422)
_SESSIONS = 10_000
_KEYS = (b"authorization", b"x-api-key", b"api-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes. What is larger is handed through as it comes, without being held."""

    body: int = 32 << 20
    """Of a request that is folded."""
    bodies: int = 512 << 20
    """Of all such requests at a time."""


@dataclass(slots=True)
class Call:
    """A client's request that may be folded."""

    api: Api
    path: bytes
    query: bytes
    headers: Headers
    raw: bytes
    body: Mapping[str, Any]
    session: str
    usage: Usage = field(default_factory=Usage)
    """Of the requests for states."""
    failed: Exception | None = None
    asked: list[bytes] = field(default_factory=list)
    """Names of its requests for states."""


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


@dataclass(slots=True)
class Counts:
    """What a proxy did."""

    requests: int = 0
    folded: int = 0
    unchanged: int = 0
    """Requests of the two APIs that went on as they came because something was in doubt."""
    states: Usage = field(default_factory=Usage)


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
        self._upstream, self._limits, self._events = upstream, limits, events
        self._memories = {api.form: memory(api.form, self._tell) for api in APIS}
        self._bodies = Room(limits.bodies, "bytes of requests")
        self._asked: dict[bytes, asyncio.Task[tuple[int, bytes]]] = {}
        """Requests for states that are under way: a client that repeats a request waits for the same one."""
        self._folding: set[asyncio.Task[bytes | None]] = set()
        self._refused: Latest[bool] = Latest(_SESSIONS)
        """Sessions whose folded prompt the upstream refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.counts.requests += 1
        body = _Body(receive)
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

    async def _answer(self, scope: Scope, body: _Body, send: Send) -> None:
        answer = _Answer(send)
        method, path, query = scope["method"], scope["raw_path"], scope["query_string"]
        try:
            if not path.startswith(b"/"):
                raise ValueError("the path of the request is none")
            api = api_of(method, scope["path"])
            with contextlib.ExitStack() as held:
                call = None if api is None else await self._read(api, scope, body, held)
                if call is None:
                    headers = passed_on(scope["headers"], changed_body=False)
                    request = self._upstream.request(method, path, query, headers, body.stream(scope["headers"]))
                    await answer.relay(await self._upstream.send(request))
                    return
                response, notes = await self._folded(call, body)
                # answers take long, and conversations are large
                call = _CALL.set(None) and None
                held.close()
                await answer.relay(response, notes)
        except ClientGone:
            return
        except ValueError as error:
            await answer.fail(400, str(error))
        except httpx.HTTPError as error:
            why = f"the upstream did not answer: {one_line(str(error)) or type(error).__name__}"
            _LOG.warning("%s", why)
            await answer.fail(502, why)

    async def _read(self, api: Api, scope: Scope, body: _Body, held: contextlib.ExitStack) -> Call | None:
        """The request, if it is one of the API; None: it goes on as it comes."""
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            return self._doubt("the request is compressed")
        try:
            raw = await body.read(self._limits.body, self._bodies, held)
        except Refused as error:
            return self._doubt(str(error))
        try:
            read = json.loads(raw)
        except (ValueError, RecursionError):
            return self._doubt("the body is not JSON")
        messages = read.get("messages") if isinstance(read, dict) else None
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return self._doubt("the body has no list of messages")
        return Call(api, scope["raw_path"], scope["query_string"], scope["headers"], raw, read, _session(api, read))

    def _doubt(self, why: str) -> None:
        self.counts.unchanged += 1
        _LOG.warning("passed on unchanged: %s", one_line(why))

    async def _folded(self, call: Call, body: _Body) -> tuple[httpx.Response, Headers]:
        """(the upstream's answer, headers that say what was done)."""
        prompt = None if call.session in self._refused else await self._prompt(call)
        if body.gone:
            raise ClientGone
        notes = [(b"mem1-prompt", b"whole" if prompt is None else b"folded")]
        if call.usage.calls:
            self.counts.states += call.usage
            notes.append((b"mem1-state-usage", json.dumps(asdict(call.usage)).encode()))
        if prompt is None:
            return await self._send(call, call.raw), notes
        response = await self._send(call, prompt)
        if response.status_code not in _REFUSED:
            self.counts.folded += 1
            return response, notes
        said = _without_keys(await _beginning(response), call.headers)
        whole = await self._send(call, call.raw)
        if whole.status_code < 400:
            self._refused[call.session] = True
            self._doubt(f"the upstream refuses the folded prompt, status {response.status_code}: {said}")
        return whole, [(b"mem1-prompt", b"whole"), *notes[1:]]

    async def _send(self, call: Call, content: bytes) -> httpx.Response:
        headers = passed_on(call.headers, changed_body=True)
        return await self._upstream.send(self._upstream.request("POST", call.path, call.query, headers, content))

    async def _prompt(self, call: Call) -> bytes | None:
        """The body with folded messages; None where it stays as it is.

        Goes on when the client leaves: a state is paid for, and the client will come back.
        """
        _CALL.set(call)
        folding = asyncio.create_task(self._fold(call))
        self._folding.add(folding)
        folding.add_done_callback(self._folding.discard)
        return await asyncio.shield(folding)

    async def _fold(self, call: Call) -> bytes | None:
        messages, memory = call.body["messages"], self._memories[call.api.form]

        async def write(asked: list[Message]) -> Message:
            return await self._state(call, asked, memory.bounds.state)

        try:
            seen = await memory.aprompt(messages, write=write if call.api.can_write(call.body) else None)
            if seen == messages:
                return None
            check(seen, call.api.form)
            prompt = _encoded({**call.body, "messages": seen})
            # two system messages that became one, a dead call that got a result: nothing to gain
            return prompt if len(prompt) < len(call.raw) or memory.policy.instruction else None
        except UserError as error:
            self._doubt(str(error))
        except Exception as error:  # whatever a message of a stranger's breaks, the agent goes on
            self._doubt(f"{type(error).__name__}: {error}")
        finally:
            for name in call.asked:
                self._asked.pop(name, None)
        return None

    async def _state(self, call: Call, asked: list[Message], state_tokens: int) -> Message:
        """The model's answer to a request for a state. Raises NoState; a provider that failed is not tried again."""
        if call.failed is not None:
            raise call.failed
        body = _encoded(call.api.state_body(call.body, asked, state_tokens))
        headers = passed_on(call.headers, changed_body=True)
        keys = [(name, value) for name, value in headers if name in _KEYS]
        name = sha256(repr((call.path, call.query, keys)).encode() + body).digest()
        if name in call.asked or name not in self._asked:
            call.asked.append(name)
            self._asked[name] = asyncio.create_task(self._upstream.state(call.path, call.query, headers, body))
        try:
            status, answer = await self._asked[name]
        except httpx.HTTPError as error:
            call.failed = NoState(f"no answer to a request for a state: {one_line(str(error)) or type(error).__name__}")
            raise call.failed from error
        if status != 200:
            said = _without_keys(answer[:500], call.headers)
            call.failed = NoState(f"status {status} for a request for a state: {said}")
            raise call.failed
        message, usage = call.api.state_in(answer)
        call.usage += usage
        return message

    def _tell(self, event: Event) -> None:
        """An event to the file; what the user should know, to stderr."""
        call = _CALL.get()
        if event.kind == "no_state":
            _LOG.warning("no new state, the agent goes on with the last one: %s", one_line(event.why))
        if event.kind == "appends":
            _LOG.warning("not folded yet: %s", event.why)
        if self._events is None or call is None:
            return
        line = {"time": round(time.time(), 3), "session": call.session, **asdict(event)}
        if call.usage.calls:
            line["state_usage"] = asdict(call.usage)
        try:
            with self._events.open("a", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            _LOG.warning("an event is not in %s: %s", self._events, error.strerror)


class _Body:
    """A request's body, and whether its client is still there."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[bytes] = []
        self._ended = asyncio.Event()
        self.gone = False

    async def read(self, most: int, room: Room, held: contextlib.ExitStack) -> bytes:
        """All of it. Raises Refused where it has more than `most` bytes or there is no room; `stream` has it still."""
        size = 0
        async for piece in self._pieces():
            self._read.append(piece)
            size += len(piece)
            if size > most:
                raise Refused(413, f"the body is larger than {most:,} bytes")
            held.enter_context(room.holding(len(piece)))
        return b"".join(self._read)

    def stream(self, headers: Headers) -> AsyncIterator[bytes] | None:
        """What has been read, then the rest; None: there is no body."""
        names = {name for name, _ in headers}
        return self._all() if names & {b"content-length", b"transfer-encoding"} or self._read else self._none()

    def _none(self) -> None:
        self._ended.set()

    async def _all(self) -> AsyncIterator[bytes]:
        while self._read:
            yield self._read.pop(0)
        async for piece in self._pieces():
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._ended.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                self._ended.set()
                raise ClientGone
            if not message.get("more_body", False):
                self._ended.set()
            if piece := message.get("body", b""):
                yield piece

    async def hung_up(self) -> None:
        """Returns when the client hangs up, after it has sent its request."""
        await self._ended.wait()
        while not self.gone:
            self.gone = (await self._receive())["type"] == "http.disconnect"


class _Answer:
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


async def _beginning(response: httpx.Response) -> bytes:
    try:
        return await anext(response.aiter_bytes(), b"")
    finally:
        await response.aclose()


def _without_keys(answer: bytes, headers: Headers) -> str:
    """Beginning of what a provider said, on one line, without the client's keys."""
    said = answer[:2_000].decode("utf-8", "replace")
    for name, value in headers:
        if name in _KEYS:
            said = redact(said, value.decode("latin-1").rpartition(" ")[2])
    return one_line(said)


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Raises ValueError for numbers that JSON has not."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(body, allow_nan=False).encode()


def _session(api: Api, body: Mapping[str, Any]) -> str:
    """By the system prompt and the first message of the user, which tell agents and their helpers apart."""
    first = [message for message in body["messages"] if message.get("role") in ("system", "developer", "user")][:2]
    return sha256(json.dumps([api.system_of(body), first]).encode()).hexdigest()[:16]
