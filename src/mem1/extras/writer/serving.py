"""A memory writer as a "summary model": a server that products ask for a summary, and that replies with notes.

    POST /v1/chat/completions      {"model": "mem1-writer", "messages": [...], "max_tokens": 800}
    ->  {"choices": [{"message": {"role": "assistant", "content": "INV-482130 due: 3 May 2027\\n..."}}], ...}
    POST /v1/responses/compact     {"model": "mem1-writer", "input": [...]}
    ->  {"object": "response.compaction", "output": [messages of the user, one of the assistant with the notes]}
    GET  /v1/models, /health, /metrics

The history is read part by part (`mem1.extras.writer.histories`), with the newest notes in sight, and every note is
checked against its part. What was read before is not read again, and a reply that comes back is notes. As many
histories are read at a time as the writer computes together; the others wait. A request whose client hangs up ends
before the next part, and so do all of them when the server stops; what they have read stays.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from threading import Event
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from mem1.engines.chat_replies import Choice, Reply, events
from mem1.engines.policy_chat import ChatBody, only
from mem1.errors import UserError
from mem1.extras.probe.pieces import Piece
from mem1.extras.writer.histories import History, Message, of_chat, of_responses
from mem1.extras.writer.summaries import CountingWriter, Noted, Stopped, Summaries
from mem1.net.private_server import private_server, require_token
from mem1.net.requests import (
    CapacityLimit,
    Refused,
    RequestMetrics,
    add_status_routes,
    handle_refusals,
    read_body,
    read_json,
    unless_gone,
)
from mem1.net.threads import Pool
from mem1.net.web_server import failure
from mem1.version import __version__

MODEL = "mem1-writer"
LONGEST = 1_000_000
"""Most tokens of a history, as estimated."""
_TOKENS = 1_000
"""Most tokens of the notes where a request does not say."""
_BODY, _BODIES = 8 << 20, 128 << 20
"""Most bytes of a request, and of all that are being received."""
_WAITING = 64
"""Most requests that wait."""
_NO_CALLS = only([], why="the writer calls no tools")
Ignored = Any
"""Of a field that says how a model samples, thinks or is paid for, which changes nothing here."""


class NotesBody(ChatBody):
    """The body of POST /v1/chat/completions. What the writer cannot do is refused by name."""

    n: Annotated[Any, only(1, why="there is one set of notes")] = None
    tools: Annotated[Any, _NO_CALLS] = None
    functions: Annotated[Any, _NO_CALLS] = None
    response_format: Annotated[Any, only({"type": "text"}, why="notes are lines of text")] = None
    stop: Annotated[Any, only([], why="notes end where they no longer fit into max_tokens")] = None
    logprobs: Annotated[Any, only(False, why="notes have none")] = None
    return_token_ids: Annotated[Any, only(False, why="notes have none")] = None
    temperature: Ignored = None
    seed: Ignored = None
    top_p: Ignored = None
    top_k: Ignored = None
    min_p: Ignored = None
    frequency_penalty: Ignored = None
    presence_penalty: Ignored = None
    repetition_penalty: Ignored = None
    parallel_tool_calls: Ignored = None
    service_tier: Ignored = None
    reasoning_effort: Ignored = None
    reasoning: Ignored = None
    thinking: Ignored = None
    verbosity: Ignored = None
    chat_template_kwargs: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None


class CompactBody(BaseModel):
    """The body of POST /v1/responses/compact."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    previous_response_id: Annotated[Any, only(why="no responses are kept here: send the items as input")] = None
    instructions: Ignored = None
    service_tier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None


BodyT = TypeVar("BodyT", NotesBody, CompactBody)


def make_app(summaries: Summaries, *, model: str = MODEL, token: str | None = None) -> FastAPI:
    """The server as an ASGI application. `token`: bearer token that every request but /health must carry, if any."""
    app = FastAPI(title="mem1 writer", version=__version__, docs_url=None, redoc_url=None)
    require_token(app, token)
    handle_refusals(app)
    bodies, waiting = CapacityLimit(_BODIES, "bytes of requests"), CapacityLimit(_WAITING, "requests")
    metrics, readers = RequestMetrics("mem1_writer", "histories"), Pool(summaries.at_a_time)

    async def body_of(request: Request, kind: type[BodyT]) -> BodyT:
        body = await read_body(request, largest=_BODY, instead="summarise sooner", room=bodies)
        wanted = await read_json(body, kind)
        if wanted.model not in (None, model):
            raise Refused(404, f"this server's model is {model!r}, not {wanted.model!r}", field="model")
        return wanted

    async def noted(request: Request, history: Callable[[Sequence[str]], History], tokens: int) -> Noted:
        gone = Event()

        def work(_: None) -> Noted:
            try:
                found = history(summaries.replies)
            except UserError as error:
                raise Refused(400, str(error)) from error
            except (LookupError, TypeError, AttributeError) as error:  # a list where a text belongs
                raise Refused(400, f"a message is not as providers have it ({error})") from error
            _check(found)
            return summaries.read(found, tokens, gone)

        try:
            with waiting.holding(1):
                return await unless_gone(request, readers.submit(work, None))
        finally:
            gone.set()

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Notes, as the message of the assistant."""

        async def answer() -> Response:
            wanted = await body_of(request, NotesBody)
            messages = [message.model_dump(exclude_unset=True) for message in wanted.messages]
            found = await noted(request, lambda ours: of_chat(messages, ours), wanted.most_tokens or _TOKENS)
            message = {"role": "assistant", "content": found.text}
            choice = Choice(message=message, finish="stop" if found.text else "length", tokens=found.written)
            reply = Reply(id=f"chatcmpl-{uuid4().hex}", choices=[choice], prompt_tokens=found.read)
            if not wanted.stream:
                return JSONResponse(reply.whole(model))
            chunks = reply.streamed(model, usage=wanted.counts_streamed)
            return StreamingResponse(events(chunks), media_type="text/event-stream")

        return await _answered(answer, metrics)

    @app.post("/v1/responses/compact")
    async def compact(request: Request) -> Response:
        """The messages of the user as they are, and notes of everything as a message of the assistant."""

        async def answer() -> Response:
            given = (await body_of(request, CompactBody)).input
            items = [{"role": "user", "content": given}] if isinstance(given, str) else given
            found = await noted(request, lambda ours: of_responses(items, ours), _TOKENS)
            return JSONResponse(_compacted(items, found))

        return await _answered(answer, metrics)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": model, "object": "model", "created": 0, "owned_by": "mem1", "max_model_len": LONGEST}
        return {"object": "list", "data": [card]}

    add_status_routes(app, metrics)
    return app


def _check(history: History) -> None:
    """Raises Refused for a history that is empty or too long."""
    if not history:
        raise Refused(400, "there is no history to read: the messages have no text")
    size = sum(each.tokens for each in history if isinstance(each, Piece))
    if size > LONGEST:
        raise Refused(413, f"the history has {size:,} tokens; at most {LONGEST:,} are read at once: summarise sooner")


async def _answered(answer: Callable[[], Awaitable[Response]], metrics: RequestMetrics) -> Response:
    """The answer, or why there is none, in OpenAI's form."""
    try:
        with metrics.request() as counted:
            counted.items = 1
            return await answer()
    except Stopped:
        return JSONResponse(failure("the server stops", "stopped"), 503)
    except UserError as error:
        return JSONResponse(failure(str(error), "failed"), 500)


def _compacted(items: Sequence[Message], found: Noted) -> dict[str, Any]:
    """What replaces the items: what is nobody's to shorten, and the notes."""
    kept = [dict(item) for item in items if item.get("role") == "user" or item.get("type") == "compaction"]
    for item in kept:
        if item.get("role") == "user":
            text = item.get("content")
            item["content"] = [{"type": "input_text", "text": text}] if isinstance(text, str) else text
            item |= {"type": "message", "id": item.get("id") or f"msg_{uuid4().hex}", "status": "completed"}
    said = [{"type": "output_text", "text": found.text, "annotations": []}]
    notes = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "status": "completed", "content": said}
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*kept, notes],
        "usage": {
            "input_tokens": found.read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": found.written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found.read + found.written,
        },
    }


def serve(
    writer: CountingWriter,
    *,
    name: str,
    host: str,
    port: int,
    token: str | None,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; open requests end before their next part. See `private_server`."""
    summaries = Summaries(writer)
    app = make_app(summaries, model=name, token=token)
    server = private_server(app, host=host, port=port, token=token, listening=listening, allow_hosts=allow_hosts)
    summaries.stopping = lambda: server.should_exit
    server.run()
