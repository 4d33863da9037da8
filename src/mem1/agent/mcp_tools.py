"""Tools of MCP servers, by the official client: a command that speaks over stdin and stdout, or an HTTP address.

    McpServer("python my_server.py")            started with the agent, ended by its close()
    McpServer("http://127.0.0.1:9000/mcp")      already running

What a server says is untrusted: a name that a provider would refuse is rewritten, descriptions, schemas, results and
lists have limits, and whatever goes wrong in a call is its result. What a command writes to stderr is shown only where
the server does not start.

Needs `pip install "mem1-agents[mcp]"`; the package is imported when an agent connects.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shlex
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from typing import Any

import pydantic_core

from mem1.agent.background import Background
from mem1.agent.mcp_program import LONGEST_MESSAGE, Complaint, program
from mem1.agent.tools import Tool, ToolFailed
from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.net.failover import is_http

_MOST_TOOLS = 1_000
"""More than any model can use; a list that does not end has more."""
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 60
"""Characters, which leaves room for a number."""
_DESCRIPTION, _SCHEMA = 4_000, 40_000
"""Most characters of a tool's description, and of the JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server whose tools an agent may use."""

    server: str
    """A command line, or an http(s) address."""
    env: Mapping[str, str] | None = None
    """Environment variables of a command, beside PATH, HOME and the like, which is all that it inherits."""
    only: tuple[str, ...] | None = None
    """Names of the tools to take; None: all."""
    timeout_s: float = 300.0
    """Longest wait for an answer."""
    result_chars: int = 200_000
    """Most characters of a result that are kept; a note says how many there were."""

    def __post_init__(self) -> None:
        if not is_http(self.server) and not self._words:
            raise UserError(f"the MCP server {self.server!r:.80} is neither a command nor an http address")
        if self.timeout_s <= 0:
            raise UserError("timeout_s of an MCP server must be above 0")
        if self.result_chars < 1:
            raise UserError("result_chars of an MCP server must be at least 1")

    def tools(
        self, background: Background, taken: Collection[str] = (), *, within_s: float | None = None
    ) -> list[Tool]:
        """Connects, and takes the server's tools; names that are `taken` get a number.

        `within_s`: time that the run has left; None: no limit beside the server's own. Raises UserError on failure.
        """
        limit_s = min(self.timeout_s, math.inf if within_s is None else within_s)
        late = f"no answer within {limit_s:.3g} s" + (", all that timeout_s leaves" if limit_s == within_s else "")
        ends = time.monotonic() + limit_s
        complaint = Complaint()

        def failed(what: str, error: Exception) -> UserError:
            why = late if isinstance(error, NotDone) else complaint.ended or _cause(error)
            return self._failed(what, why, complaint)

        try:
            client = background.enter(self._client(complaint), limit_s)
        except Exception as error:  # of any of the libraries below it
            raise failed("does not answer", error) from error
        finally:
            complaint.file.close()
        try:
            found = [*_listed(client, background, ends)]
        except Exception as error:  # as above
            raise failed("does not list its tools", error) from error
        known = [tool.name for tool in found]
        if missing := ", ".join(name for name in self.only or () if name not in known):
            raise UserError(
                f"the MCP server {self.server!r} has no tool {missing}; it has {one_line(', '.join(known))}"
            )
        tools = dict[str, Tool]()
        for declared in found:
            if self.only is None or declared.name in self.only:
                name = _usable(declared.name, {*taken, *tools})
                tools[name] = self._tool(name, declared, client, background, complaint)
        return list(tools.values())

    def _tool(self, name: str, declared: _Declared, client: Any, background: Background, complaint: Complaint) -> Tool:
        def call(arguments: dict[str, Any]) -> str:
            try:
                result = background.wait(client.call_tool(declared.name, arguments))
            except Exception as error:  # as above: the server has ended, is late, or answers nonsense
                raise ToolFailed(f"the MCP server gives no result: {complaint.ended or _cause(error)}") from error
            text = _cut(_text(result), self.result_chars, "McpServer(result_chars=...) keeps more")
            if result.is_error:
                raise ToolFailed(text)
            return text

        return Tool(name=name, description=declared.description, parameters=declared.schema, call=call)

    def _client(self, complaint: Complaint) -> Any:
        try:
            from mcp import Client
        except ImportError as error:
            raise UserError('MCP servers need the package mcp, version 2: pip install "mem1-agents[mcp]"') from error
        # a line that is no message is logged with its stack trace, which goes to stderr where nobody configured logging
        for noisy in ("mcp", "httpx2"):
            logging.getLogger(noisy).addHandler(logging.NullHandler())
        if is_http(self.server):
            where = _over_http(self.server)
        else:
            where = program(self._words, env=self.env or {}, complaint=complaint)
        return Client(where, read_timeout_seconds=self.timeout_s)

    @property
    def _words(self) -> list[str]:
        try:
            return shlex.split(self.server)
        except ValueError:  # a quote without its end
            return []

    def _failed(self, what: str, why: str, complaint: Complaint) -> UserError:
        last = complaint.last_line
        return UserError(f"the MCP server {self.server!r} {what}: {why}{f'; it wrote: {last}' if last else ''}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """A tool as its server declares it, within limits."""

    name: str
    description: str
    schema: Mapping[str, Any]


def _listed(client: Any, background: Background, ends: float) -> Iterator[_Declared]:
    """All tools of a server, page by page. Raises NotDone at the time `ends`, and ValueError for too many."""
    cursor, tools = None, 0
    while True:
        page = background.wait(client.list_tools(cursor=cursor), max(0.0, ends - time.monotonic()))
        cursor, tools = page.next_cursor, tools + max(1, len(page.tools))
        if tools > _MOST_TOOLS:
            raise ValueError(f"more than {_MOST_TOOLS:,}")
        for tool in page.tools:
            if len(tool.name) > _DESCRIPTION:
                raise ValueError(f"a name of {len(tool.name):,} characters")
            description, schema = _cut(tool.description or "", _DESCRIPTION), tool.input_schema
            if (size := len(pydantic_core.to_json(schema))) > _SCHEMA:
                description += f"\n[the schema of its arguments is left out, {size:,} bytes of at most {_SCHEMA:,}]"
                schema = {"type": "object"}
            yield _Declared(name=tool.name, description=description.strip(), schema=schema)
        if cursor is None:
            return


def _cut(text: str, most: int, more: str = "") -> str:
    """A text of at most `most` characters; a note says that it was longer, and how to have more."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: the first {most:,} of {len(text):,} characters{f'; {more}' if more else ''}]"


@contextlib.asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[Any]:
    """The official transport, with a limit on every answer."""
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client({"accept-encoding": "identity"}) as client:
        client.event_hooks = {"response": [_limit]}
        async with streamable_http_client(url, http_client=client, max_sse_event_size=LONGEST_MESSAGE) as streams:
            yield streams


async def _limit(response: Any) -> None:
    """Let an answer in JSON fail that is too long; those in events are limited by the event."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):
        def __init__(self, whole: Any) -> None:
            self._whole = whole

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = LONGEST_MESSAGE
            async for piece in self._whole:
                left -= len(piece)
                if left < 0:
                    raise httpx2.ReadError(f"an answer of more than {LONGEST_MESSAGE:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await self._whole.aclose()

    if "content-encoding" in response.headers:  # a few bytes could be a great many
        raise httpx2.DecodingError("its answer is compressed, which was not asked for")
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = Limited(response.stream)


def _usable(name: str, taken: Collection[str]) -> str:
    """The name as providers take it, unlike those taken.   "files/read" -> "files_read", then "files_read_2" """
    usable = free = _UNUSABLE.sub("_", name)[:_LONGEST_NAME] or "_"
    number = 1
    while free in taken:
        number += 1
        free = f"{usable}_{number}"
    return free


def _text(result: Any) -> str:
    """The text of a result; what is no text is named."""
    text = "\n".join(part.text if part.type == "text" else _named(part) for part in result.content)
    if result.is_error:
        return text or "the tool failed and does not say why"
    if not text and result.structured_content:
        return pydantic_core.to_json(result.structured_content).decode()
    return text or "done"


def _named(part: Any) -> str:
    inner = getattr(part, "resource", None)
    if isinstance(text := getattr(inner, "text", None), str):
        return text
    kind = getattr(part, "mime_type", None) or getattr(inner, "mime_type", None) or "of unknown type"
    where = getattr(part, "uri", None) or getattr(inner, "uri", None)
    return f"[{part.type}, {kind}{f', {where}' if where else ''}: not text, so it is not shown]"


def _cause(error: BaseException) -> str:
    """The first error in a group, on one line."""
    while isinstance(inner := getattr(error, "exceptions", None), tuple) and inner:
        error = inner[0]
    return one_line(f"{type(error).__name__}: {error}")
