"""A policy as a server: completions in OpenAI's protocol, and new weights by vLLM's routes.

    POST /v1/completions           see `requests.py`; each choice has the `weights_version` that sampled it
    GET  /v1/models, /health, /metrics
    POST /pause?mode=abort         interrupts completions (finish_reason "abort"); new requests wait for /resume
         /pause?mode=wait          the same, but lets the batch under way finish first
    POST /start_weight_update, /update_weights, /finish_weight_update      see `updates.py`; used from the next batch on
    GET  /weight_info              {"weight_version": "3"}; null: the weights that the server was started with
    POST /reset_prefix_cache       accepted for clients of vLLM; nothing is cached between batches

4xx: the request is wrong, and the answer says why; 503: too many requests are waiting. Requests that wait at the same
time are sampled together; one whose client hangs up before its batch begins is dropped. Needs `mem1[server]`.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

import mem1
from mem1.engines.base import Completion
from mem1.engines.policy_server.requests import BatchOptions, CompletionBody, Row, answer, batch_options, rows
from mem1.engines.policy_server.sampler import Sampler
from mem1.engines.policy_server.updates import Finish, Update, read_update
from mem1.jsonl import encode_object
from mem1.net.serving import Refused, Room, answered, handle_refusals, read_body, read_json, unless_gone
from mem1.net.serving.metrics import RequestMetrics, add_status_routes
from mem1.net.threads import Batcher

_JOINED_ROWS = 256
"""Most prompts of waiting requests that are sampled together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of one request, and of all requests together; more is refused."""

    tokens: int = 1 << 20
    """Tokens of a request: its prompts, and `max_tokens` for each."""
    body_bytes: int = 8 << 20
    """Bytes of a request."""
    all_tokens: int = 1 << 23
    """Tokens of all requests that wait, are worked on, or are being answered."""
    all_body_bytes: int = 128 << 20
    """Bytes of all requests that are being read."""


def make_app(
    sampler: Sampler,
    *,
    model: str = "policy",
    weights_folder: Path | None = None,
    token: str | None = None,
    limits: Limits = Limits(),
) -> FastAPI:
    """The server as an ASGI application.

    model           the policy's name in requests
    weights_folder  folder that new weights are read from; None: the server takes none
    token           bearer token that every request but /health must carry; None: none
    """
    app = FastAPI(title="mem1 policy", version=mem1.__version__, docs_url=None, redoc_url=None)
    if token is not None:
        app.add_middleware(_TokenCheck, token=token)
    handle_refusals(app)
    bodies = Room(limits.all_body_bytes, "bytes of requests")
    _add_completions(app, sampler, model, limits, bodies)
    _add_pauses(app, sampler)
    _add_updates(app, sampler, weights_folder, bodies)
    return app


def _add_completions(app: FastAPI, sampler: Sampler, model: str, limits: Limits, bodies: Room) -> None:
    batcher: Batcher[Row, BatchOptions, Completion] = Batcher(sampler.complete, threads=1, size=_JOINED_ROWS)
    tokens = Room(limits.all_tokens, "tokens")
    metrics = RequestMetrics("mem1_policy", "prompts")

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """One completion per prompt."""
        with metrics.request() as counted, ExitStack() as held:
            body = await read_body(request, largest=limits.body_bytes, instead="send fewer prompts", room=bodies)
            wanted = read_json(body, CompletionBody)
            if wanted.model not in (None, model):
                raise Refused(404, f"this server's model is {model!r}, not {wanted.model!r}")
            prompts = rows(wanted, sampler.codec, vocabulary=sampler.vocabulary, longest=sampler.longest)
            counted.items = len(prompts)
            held.enter_context(tokens.holding(_tokens(prompts, limits.tokens)))
            done: list[Completion] = []
            for start in range(0, len(prompts), _JOINED_ROWS):
                part = batcher.submit(prompts[start : start + _JOINED_ROWS], batch_options(wanted))
                done += await unless_gone(request, part)
            encoded = await run_in_threadpool(
                lambda: encode_object(answer(wanted, prompts, done, sampler.codec, model=model))
            )
            return answered([encoded], done=held.pop_all().close)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": model, "object": "model", "owned_by": "mem1", "max_model_len": sampler.longest}
        return {"object": "list", "data": [card]}

    add_status_routes(app, metrics)


def _tokens(wanted: Sequence[Row], most: int) -> int:
    """Tokens of contexts and longest completions. Raises Refused where they are too many for one request."""
    number = sum(len(row.context) + row.max_tokens for row in wanted)
    if number > most:
        raise Refused(
            413,
            f"prompts and max_tokens are {number:,} tokens; a request may have at most {most:,}: send fewer prompts",
        )
    return number


def _add_pauses(app: FastAPI, sampler: Sampler) -> None:
    @app.post("/pause")
    async def pause(mode: str = Query("wait")) -> dict[str, str]:
        """Begin no further batch; answers when the one under way has ended."""
        if mode not in ("wait", "abort"):
            raise Refused(422, f"mode {mode[:20]!r} is unknown; use wait or abort")
        await run_in_threadpool(lambda: sampler.pause(abort=mode == "abort"))
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        await run_in_threadpool(sampler.resume)
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": sampler.paused}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, str]:
        """Nothing to do: no batch uses the one before."""
        return {"status": "reset"}


def _add_updates(app: FastAPI, sampler: Sampler, folder: Path | None, bodies: Room) -> None:
    async def read(request: Request) -> bytes:
        return await read_body(request, largest=1 << 16, instead="send path and checksum only", room=bodies)

    @app.post("/start_weight_update")
    async def start() -> dict[str, str]:
        """Drop what an unfinished update has left."""
        sampler.discard()
        return {"message": "Weight update started"}

    @app.post("/update_weights")
    async def update(request: Request) -> dict[str, str]:
        """Read new weights, without using them yet."""
        if folder is None:
            raise Refused(403, "this server accepts no weights: it was started without --weights-folder")
        body = read_json(await read(request), Update)
        sampler.stage(await run_in_threadpool(read_update, folder, body.update_info, sampler.model))
        return {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish(request: Request) -> dict[str, str]:
        """Use them from the next batch on."""
        body = read_json(await read(request), Finish)
        if not await run_in_threadpool(lambda: sampler.change(version=int(body.weight_version))):
            raise Refused(409, "there are no new weights; call /start_weight_update and /update_weights first")
        return {"message": "Weight update finished"}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str | None]:
        return {"weight_version": None if sampler.version is None else str(sampler.version)}


class _TokenCheck:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                refused = JSONResponse({"detail": "this server requires its bearer token"}, 401)
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)
