"""A policy as a server: completions and chat completions in OpenAI's protocol, and new weights by vLLM's routes.

    POST /v1/completions           see policy_sampler.py; each choice has the `weights_version` that sampled it
    POST /v1/chat/completions      see policy_chat.py
    GET  /v1/models, /health, /metrics
    POST /pause?mode=abort         interrupts completions (finish_reason "abort"); new requests wait for /resume
         /pause?mode=wait          the same, but lets what is under way finish first
    POST /start_weight_update
    POST /update_weights           {"update_info": {"path": "weights-000003/model.safetensors", "checksum": "9f3c..."}}
    POST /finish_weight_update     {"weight_version": "3"}; used from the next turn on
    GET  /weight_info              {"weight_version": "3"}; null: the weights that the server was started with
    POST /reset_prefix_cache       accepted for clients of vLLM; nothing is cached between batches

4xx: the request is wrong, and the answer says why, under /v1 in OpenAI's form; 503: too many requests are waiting. How
requests are sampled together, and what becomes of one whose client hangs up: request_queue.py. Weights are read from
the very bytes whose checksum was compared, from safetensors inside the server's folder only, which hold numbers and no
code. Needs `mem1-agents[train]`, but for the stand-in.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load
from starlette.concurrency import run_in_threadpool

from mem1.engines.base import Completion
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.chat_replies import MODEL, events
from mem1.engines.device import dtype_name
from mem1.engines.policy_chat import ChatBody, chat_reply, chat_rows
from mem1.engines.policy_sampler import BatchOptions, CompletionBody, Sampler, ScriptedSampler, answer, rows
from mem1.engines.request_queue import RequestQueue, Row
from mem1.engines.weights import Weights, check_finite, check_fit, checksum, untied
from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.net.private_server import check_private, private_server, require_token
from mem1.net.requests import (
    CapacityLimit,
    ClientGone,
    Refused,
    RequestMetrics,
    add_status_routes,
    answered,
    handle_refusals,
    read_body,
    read_json,
    unless_gone,
)
from mem1.version import __version__

BodyT = TypeVar("BodyT", CompletionBody, ChatBody)
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
    chat: ChatMessages | str,
    model: str = MODEL,
    weights_folder: Path | None = None,
    token: str | None = None,
    limits: Limits = Limits(),
) -> FastAPI:
    """The server as an ASGI application.

    chat            how the policy writes messages, or why it cannot
    model           the policy's name in requests
    weights_folder  folder that new weights are read from; None: the server takes none
    token           bearer token that every request but /health must carry, if any
    """
    app = FastAPI(title="mem1 policy", version=__version__, docs_url=None, redoc_url=None)
    require_token(app, token)
    handle_refusals(app)
    bodies = CapacityLimit(limits.all_body_bytes, "bytes of requests")
    _add_completions(app, sampler, chat, model, limits, bodies)
    _add_pauses(app, sampler)
    _add_updates(app, sampler, weights_folder, bodies)
    return app


def _add_completions(
    app: FastAPI, sampler: Sampler, chat: ChatMessages | str, model: str, limits: Limits, bodies: CapacityLimit
) -> None:
    queue = RequestQueue(sampler, size=_JOINED_ROWS)
    tokens = CapacityLimit(limits.all_tokens, "tokens")
    metrics = RequestMetrics("mem1_policy", "prompts")
    most = {"vocabulary": sampler.vocabulary, "longest": sampler.longest}

    async def read(request: Request, kind: type[BodyT]) -> BodyT:
        body = await read_body(request, largest=limits.body_bytes, instead="send fewer prompts", room=bodies)
        wanted = await read_json(body, kind)
        if wanted.model not in (None, model):
            raise Refused(404, f"this server's model is {model!r}, not {wanted.model!r}", field="model")
        return wanted

    async def sampled(request: Request, wanted: Sequence[Row], options: BatchOptions) -> list[Completion]:
        done: list[Completion] = []
        for start in range(0, len(wanted), _JOINED_ROWS):
            call = queue.submit(wanted[start : start + _JOINED_ROWS], options)
            try:
                done += await unless_gone(request, call.results)
            except ClientGone:
                queue.abandon(call)
                raise
            except UserError as error:  # such as a process that was killed
                raise Refused(500, str(error)) from error
        return done

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """One completion per prompt."""
        with metrics.request() as counted, ExitStack() as held:
            if isinstance(sampler, ScriptedSampler):
                raise Refused(404, "a script takes chat messages only: POST /v1/chat/completions")
            wanted = await read(request, CompletionBody)
            prompts = await run_in_threadpool(partial(rows, wanted, sampler.codec, **most))
            counted.items = len(prompts)
            held.enter_context(tokens.holding(_tokens(prompts, limits.tokens)))
            done = await sampled(request, prompts, BatchOptions(wanted.temperature, wanted.stops))
            encoded = await run_in_threadpool(
                lambda: encode_object(answer(wanted, prompts, done, sampler.codec, model=model))
            )
            return answered([encoded], done=held.pop_all().close)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """One message per choice."""
        with metrics.request() as counted:
            if isinstance(chat, str):
                raise Refused(400, f"this policy takes no chat messages: {chat}")
            wanted = await read(request, ChatBody)
            prompts = await run_in_threadpool(partial(chat_rows, wanted, chat, **most))
            counted.items = len(prompts)
            with tokens.holding(_tokens(prompts, limits.tokens)):
                stops = tuple(dict.fromkeys((*chat.stop_strings, *wanted.stops)))
                temperature = 1.0 if wanted.temperature is None else wanted.temperature
                done = await sampled(request, prompts, BatchOptions(temperature, stops))
                reply = await run_in_threadpool(partial(chat_reply, wanted, prompts, done, chat))
        if not wanted.stream:
            return JSONResponse(reply.whole(model))
        chunks = reply.streamed(model, usage=wanted.counts_streamed)
        return StreamingResponse(events(chunks), media_type="text/event-stream")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": model, "object": "model", "created": 0, "owned_by": "mem1", "max_model_len": sampler.longest}
        return {"object": "list", "data": [card]}

    add_status_routes(app, metrics)


def _tokens(wanted: Sequence[Row], most: int) -> int:
    """Tokens of contexts and longest completions. Raises Refused where they are too many for one request."""
    number = sum(len(row.context) + row.max_tokens for row in wanted)
    if number > most:
        raise Refused(
            413,
            f"prompts and max_tokens are {number:,} tokens; a request may have at most {most:,}: send fewer prompts, "
            "or a smaller max_tokens",
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


def _add_updates(app: FastAPI, sampler: Sampler, folder: Path | None, bodies: CapacityLimit) -> None:
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
        body = await read_json(await read(request), Update)
        sampler.stage(await run_in_threadpool(read_update, folder, body.update_info, sampler.model))
        return {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish(request: Request) -> dict[str, str]:
        """Use them from the next batch on."""
        body = await read_json(await read(request), Finish)
        if not await run_in_threadpool(lambda: sampler.change(version=int(body.weight_version))):
            raise Refused(409, "there are no new weights; call /start_weight_update and /update_weights first")
        return {"message": "Weight update finished"}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str | None]:
        return {"weight_version": None if sampler.version is None else str(sampler.version)}


def serve(
    sampler: Sampler,
    chat: ChatMessages | str,
    *,
    name: str,
    host: str,
    port: int,
    token: str | None,
    weights_folder: Path | None,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the open requests, for half a minute at most, and return.

    `listening` is called with the address once requests are answered; port 0: any free port. `allow_hosts`: names of
    the server that clients may use besides its address. Raises UserError where other machines could connect and there
    is no token, the address is taken, or the folder is missing.
    """
    check_private(host, token)
    if weights_folder is not None and not weights_folder.is_dir():
        raise UserError(
            f"--weights-folder {weights_folder} is not a folder; create it, and give trainer and servers the same one"
        )
    app = make_app(sampler, chat=chat, model=name, weights_folder=weights_folder, token=token)
    private_server(app, host=host, port=port, token=token, listening=listening, allow_hosts=allow_hosts).run()
    sampler.pause(abort=True)  # a thread that computes while Python ends takes the process down with it


_WIDEST = 8
"""Bytes of the widest number that a weight can be in."""
_HEADER = 32 << 20
"""Most bytes of a file besides its weights."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class UpdateInfo(_Body):
    """Location of the weights."""

    path: str = Field(min_length=1, max_length=4096)
    """Path of a .safetensors file, relative to the server's folder of weights."""
    checksum: str = Field(pattern="^[0-9a-f]{32}$")
    """`mem1.engines.weights.checksum` of the file."""


class Update(_Body):
    """The body of POST /update_weights."""

    update_info: UpdateInfo


class Finish(_Body):
    """The body of POST /finish_weight_update."""

    weight_version: str = Field(pattern="^[0-9]{1,18}$")
    """Version number of the new weights; text, as in vLLM."""


def read_update(folder: Path, info: UpdateInfo, model: torch.nn.Module) -> Weights:
    """The weights in a file of the folder. Raises Refused where it may not or cannot be read, or does not fit."""
    served = untied(model.state_dict())
    data = _inside(folder, info.path, largest=sum(tensor.numel() * _WIDEST for tensor in served.values()) + _HEADER)
    if not hmac.compare_digest(checksum(data), info.checksum):
        raise Refused(422, f"{info.path} does not have the checksum of the request: it is damaged, or not complete yet")
    try:
        weights = load(data)
        _check_precision(weights, served)
        check_fit(weights, model, f"{info.path} does not fit the model that is served")
        check_finite(weights, info.path)
    except SafetensorError as error:
        raise Refused(422, f"{info.path} is not a safetensors file: {error}") from error
    except UserError as error:
        raise Refused(422, str(error)) from error
    return weights


def _check_precision(weights: Weights, served: Weights) -> None:
    """Raises UserError where the weights were published in another precision than the server computes in."""
    theirs, ours = ({dtype_name(tensor.dtype) for tensor in some.values()} for some in (weights, served))
    if len(theirs) == len(ours) == 1 and theirs != ours:
        (published,), (computed,) = theirs, ours
        raise UserError(
            f"the weights are published in {published} and this server computes in {computed}: set "
            f"rollout.publish_dtype = {computed!r}, or start the server with --dtype {published}"
        )


def _inside(folder: Path, name: str, *, largest: int) -> bytes:
    """The bytes of a file in the folder."""
    try:
        root, path = folder.resolve(), (folder / name).resolve()
        if not path.is_relative_to(root):
            raise Refused(403, f"{name!r} is outside the folder of weights that this server was started with")
        if path.suffix != ".safetensors" or not path.is_file():
            raise Refused(404, f"{name!r} is not a .safetensors file in the folder of weights")
        if path.stat().st_size > largest:
            raise Refused(413, f"{name!r} is larger than the weights of the served model")
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, has a zero byte, or links in a ring
        raise Refused(
            404, f"{name[:200]!r} cannot be read in the folder of weights ({type(error).__name__})"
        ) from error
