"""The endpoint as an HTTP server on loopback, in the process that trains; each attempt has an address of its own.

    http://127.0.0.1:40123/<secret>/v1/chat/completions     POST, also with stream = true
    http://127.0.0.1:40123/<secret>/v1/models               GET
    http://127.0.0.1:40123/<secret>/v1/act                  POST {"kind": "search", "argument": "capital of Norway"}
        ->  {"text": "Doc 1 (Title: Oslo) Oslo is ...", "ended": false}     ended: no more actions are taken

The secret says whose call it is, whatever headers a framework sends, and keeps other programs of the machine out. All
errors are in OpenAI's form, on one line, and tell clients not to try again:

    400     the request cannot be honoured, a budget of the attempt is used up, or the episode is over
    404     no attempt has this address
    409     the attempt is over
    503     the engine failed, and the attempt is over
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mem1.endpoint.chat_api import ChatRequest, models
from mem1.endpoint.recording import OVER, Claim, Pending, Recording, Refused
from mem1.endpoint.sampling import Closed
from mem1.engines.chat_replies import events
from mem1.envs.base import Action, Observation
from mem1.errors import UserError
from mem1.messages.sessions import Latest
from mem1.net import requests
from mem1.net.bounds import Bounds
from mem1.net.requests import CapacityLimit, ClientGone, read_body, read_json, unless_gone
from mem1.net.threads import Pool
from mem1.net.web_server import Hosts, address, bind, failure, make_server
from mem1.records import Ended

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_LARGEST, _ALL = 64 << 20, 1 << 30
"""Bytes of a request, and of all that are being read."""
_CALLS = 4096
"""Most calls worked on at a time: each waits for its sample in a thread."""
_ENDED = 100_000
"""Attempts whose addresses are remembered once they are over."""
_BOUNDS = Bounds(idle_s=3600.0, body_s=600.0, write_s=600.0, connections=8192)
"""Agents keep connections while their tools run."""
Observe = Callable[[Action], Observation]


class Act(BaseModel):
    """The body of POST .../act."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    argument: str


class Endpoint:
    """The server of this process, in a thread of its own. Use `here()`."""

    _here: Endpoint | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._attempts: dict[str, tuple[Recording, Observe]] = {}
        self._ended: Latest[bool] = Latest(_ENDED)
        self._pool = Pool(_CALLS)
        self._bodies = CapacityLimit(_ALL, "bytes of requests")
        (bound,) = bind("127.0.0.1", 0)
        self.address = address("127.0.0.1", bound)
        ready = threading.Event()
        hosts = Hosts.of("127.0.0.1", bound)
        server = make_server(_app(self), bound, hosts=hosts, bounds=_BOUNDS, ready=ready.set)
        threading.Thread(target=server.run, name="mem1-endpoint", daemon=True).start()
        ready.wait()

    @classmethod
    def here(cls) -> Endpoint:
        """The one of this process, started with the first call."""
        with cls._lock:
            if cls._here is None:
                cls._here = cls()
            return cls._here

    @contextmanager
    def open(self, recording: Recording, observe: Observe) -> Iterator[str]:
        """The base address of an attempt, whose calls are answered inside the block."""
        secret = secrets.token_urlsafe(18)
        self._attempts[secret] = recording, observe
        try:
            yield f"{self.address}/{secret}/v1"
        finally:
            self._ended[secret] = True
            del self._attempts[secret]

    async def chat(self, request: Request) -> Response:
        """POST .../chat/completions"""
        from starlette.responses import JSONResponse, StreamingResponse

        recording, _ = self._attempt(request)
        wanted = await read_json(await self._body(request), ChatRequest)
        pending = await self._sample(request, recording, wanted)
        if not recording.accept(pending):
            raise Refused(OVER, Ended.AGENT_FAILED, 409)
        if not wanted.stream:
            return JSONResponse(pending.reply.whole(wanted.model))
        chunks = pending.reply.streamed(wanted.model, usage=wanted.counts_streamed)
        return StreamingResponse(events(chunks), media_type="text/event-stream")

    async def _sample(self, request: Request, recording: Recording, wanted: ChatRequest) -> Pending:
        claim = Claim()
        try:
            return await unless_gone(request, self._pool.submit(partial(recording.call, claim=claim), wanted))
        except ClientGone:
            recording.give_up(claim)
            raise

    async def act(self, request: Request) -> Response:
        """POST .../act"""
        from starlette.responses import JSONResponse

        recording, observe = self._attempt(request)
        wanted = await read_json(await self._body(request), Act)
        # where answers are the agent's, as those to searches, actions do not depend on one another
        async with nullcontext() if recording.bounds.actions is None else recording.acting:
            found = await self._observed(request, recording, observe, wanted)
            return JSONResponse({"text": found.text, "ended": recording.ended})

    async def _observed(self, request: Request, recording: Recording, observe: Observe, wanted: Act) -> Observation:
        if recording.over:
            raise Refused(OVER, Ended.AGENT_FAILED, 409)
        if recording.ended:
            why = f"the episode is over after {len(recording.actions)} actions, by its own end or the task's turn limit"
            raise Refused(why, Ended.AGENT_FAILED)
        action = Action(recording.task, wanted.kind, wanted.argument, tuple(recording.actions))
        try:
            found = await unless_gone(request, self._pool.submit(observe, action))
        except UserError as error:
            raise Refused(str(error), Ended.AGENT_FAILED) from error
        except Closed as error:
            raise Refused(OVER, Ended.AGENT_FAILED, 409) from error
        except Exception as error:  # it ends the run; the agent is told before
            raise Refused(f"the environment failed: {type(error).__name__}", Ended.TOOL_FAILED, 503) from error
        if found.failed is not None:
            recording.fail(Ended.TOOL_FAILED, found.failed)
            raise Refused(found.failed, Ended.TOOL_FAILED, 503)
        recording.actions.append((wanted.kind, wanted.argument))
        if found.answer is not None:
            recording.answer = found.answer
        recording.ended = found.ended or len(recording.actions) == recording.bounds.actions
        return found

    async def models(self, request: Request) -> Response:
        """GET .../models"""
        from starlette.responses import JSONResponse

        self._attempt(request)
        return JSONResponse(models())

    def _attempt(self, request: Request) -> tuple[Recording, Observe]:
        secret = request.path_params["secret"]
        attempt = self._attempts.get(secret)
        if attempt is None and secret not in self._ended:
            why = "no attempt has this address; use the base_url that the agent was given"
            raise Refused(why, Ended.AGENT_FAILED, 404)
        # before the body is read, in a thread of which there may be none while the process ends
        if attempt is None or attempt[0].over:
            raise Refused(OVER, Ended.AGENT_FAILED, 409)
        return attempt

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, largest=_LARGEST, instead="send shorter messages", room=self._bodies)


def _app(endpoint: Endpoint) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def answer(status: int, why: str) -> Response:
        codes: Mapping[int, str] = {409: "over", 503: "failed"}
        body: dict[str, Any] = failure(why, codes.get(status, "refused"))
        return JSONResponse(body, status, {"x-should-retry": "false"})

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, (Refused, requests.Refused))
        return answer(400 if error.status == 422 else error.status, str(error))

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=499)

    async def missing(request: Request, _: Exception) -> Response:
        return answer(404, f"{request.method} {request.url.path[-60:]} is no route of this endpoint")

    return Starlette(
        routes=[
            Route("/{secret}/v1/chat/completions", endpoint.chat, methods=["POST"]),
            Route("/{secret}/v1/act", endpoint.act, methods=["POST"]),
            Route("/{secret}/v1/models", endpoint.models),
        ],
        exception_handlers={
            Refused: refused,
            requests.Refused: refused,
            ClientGone: gone,
            404: missing,
            405: missing,
        },
    )
