"""A policy as a server: completions in OpenAI's protocol, and new weights by vLLM's routes.

    POST /v1/completions           see `requests.py`; every choice says the `weights_version` that sampled it
    GET  /v1/models, /health
    POST /pause?mode=abort         what is in work ends where it is, with finish_reason "abort", and requests wait for
                                   /resume; mode=wait: it is finished first
    POST /start_weight_update, /update_weights, /finish_weight_update      see `updates.py`; used from the next batch on
    GET  /weight_info              {"weight_version": "3"}; null: the weights that the server was started with
    POST /reset_prefix_cache       nothing is kept from one batch to the next, so there is nothing to reset

4xx: the request is wrong and says why. Requests that wait at the same time are sampled together. Needs the packages
of `mem1[server]`.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

import mem1
from mem1.engines.base import Completion
from mem1.engines.policy_server.answers import answer
from mem1.engines.policy_server.requests import CompletionRequest, How, Row, how, rows
from mem1.engines.policy_server.sampler import Sampler
from mem1.engines.policy_server.updates import Finish, Update, read_update
from mem1.retrieval.batching import Batcher
from mem1.serving import Refused, read_body, read_json

_BODY_BYTES = 8 << 20
_JOINED_ROWS = 256
"""Of waiting requests that are sampled together."""


def make_app(
    sampler: Sampler, *, model: str = "policy", weights_folder: Path | None = None, token: str | None = None
) -> FastAPI:
    """The server as an ASGI application.

    model           the name that requests may call the policy by
    weights_folder  what new weights are read from; None: none are taken
    token           what every request but /health must bear; None: none
    """
    app = FastAPI(title="mem1 policy", version=mem1.__version__)
    app.add_middleware(_Guard, token=token)
    app.add_exception_handler(Refused, _refused)
    batcher: Batcher[Row, How, Completion] = Batcher(sampler.complete, threads=1, size=_JOINED_ROWS)
    _add_completions(app, sampler, batcher, model)
    _add_pauses(app, sampler)
    _add_updates(app, sampler, weights_folder)
    return app


def _add_completions(app: FastAPI, sampler: Sampler, batcher: Batcher[Row, How, Completion], model: str) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> JSONResponse:
        """One completion a prompt."""
        asked = read_json(
            await read_body(request, largest=_BODY_BYTES, instead="send fewer prompts"), CompletionRequest
        )
        if asked.model not in (None, model):
            raise Refused(404, f"this server's model is {model!r}, not {asked.model!r}")
        wanted = rows(asked, sampler.codec, vocabulary=sampler.vocabulary, longest=sampler.longest)
        done = await asyncio.wrap_future(batcher.submit(wanted, how(asked)))
        return JSONResponse(answer(asked, wanted, done, sampler.codec, model=model))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": model, "object": "model", "owned_by": "mem1", "max_model_len": sampler.longest}
        return {"object": "list", "data": [card]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers while the server can take requests."""
        return {"status": "ok"}


def _add_pauses(app: FastAPI, sampler: Sampler) -> None:
    @app.post("/pause")
    async def pause(mode: str = Query("wait")) -> dict[str, str]:
        """Begin no further batch; answers when the one in work has ended."""
        if mode not in ("wait", "abort"):
            raise Refused(422, f"mode {mode[:20]!r}: there are wait and abort")
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
        """Always done: no batch knows of the one before."""
        return {"status": "reset"}


def _add_updates(app: FastAPI, sampler: Sampler, folder: Path | None) -> None:
    @app.post("/start_weight_update")
    async def start() -> dict[str, str]:
        """Forget what an update that never ended has left."""
        sampler.discard()
        return {"message": "Weight update started"}

    @app.post("/update_weights")
    async def update(request: Request) -> dict[str, str]:
        """Read new weights; they are not yet used."""
        if folder is None:
            raise Refused(403, "this server takes no weights: it was started without --weights-folder")
        asked = read_json(await read_body(request, largest=1 << 16, instead="say no more than asked"), Update)
        sampler.stage(await run_in_threadpool(read_update, folder, asked.update_info, sampler.model))
        return {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish(request: Request) -> dict[str, str]:
        """Use them from the next batch on."""
        asked = read_json(await read_body(request, largest=1 << 16, instead="say no more than asked"), Finish)
        if not await run_in_threadpool(lambda: sampler.change(version=int(asked.weight_version))):
            raise Refused(409, "there are no new weights; /start_weight_update and /update_weights come first")
        return {"message": "Weight update finished"}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str | None]:
        return {"weight_version": None if sampler.version is None else str(sampler.version)}


async def _refused(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Refused)
    return JSONResponse({"detail": str(refusal)}, refusal.status)


class _Guard:
    """Lets nobody in without the token, and no body that a foreign web page could have sent unasked."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        if self._authorization is not None and scope["path"] != "/health":
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                return JSONResponse({"detail": "this server asks for its bearer token"}, 401)
        # a browser sends a page's POST unasked only as a form or plain text
        if scope["method"] == "POST" and not headers.get(b"content-type", b"").startswith(b"application/json"):
            return JSONResponse({"detail": "a POST must have the content type application/json"}, 415)
        return None
