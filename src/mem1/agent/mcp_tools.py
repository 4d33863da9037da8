"""Tools of MCP servers, by the official client: a command that speaks over stdin and stdout, or an HTTP address.

    McpServer("python my_server.py")            started with the agent, ended by its close()
    McpServer("http://127.0.0.1:9000/mcp")      already running

What a server says is untrusted: a name that a provider would refuse is rewritten, and whatever goes wrong in a call is
its result. What a command writes to stderr is shown only where the server does not start.

Needs `pip install "mem1[mcp]"`; the package is imported when an agent connects.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from typing import Any, TextIO

import pydantic_core

from mem1.agent.background import Background
from mem1.agent.tools import Tool, ToolFailed
from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.net.failover import is_http

_MOST_TOOLS = 1_000
"""More than any model can use; a list that does not end has more."""
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 60
"""Characters, which leaves room for a number."""
_COMPLAINT = 2_000
"""Bytes that are kept of what a command writes to stderr."""


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

    def __post_init__(self) -> None:
        if not is_http(self.server) and not self._words:
            raise UserError(f"the MCP server {self.server!r:.80} is neither a command nor an http address")
        if self.timeout_s <= 0:
            raise UserError("timeout_s of an MCP server must be above 0")

    def tools(self, background: Background, taken: Collection[str] = ()) -> list[Tool]:
        """Connects, and takes the server's tools; names that are `taken` get a number. Raises UserError on failure."""
        client, complaint = self._connected(background)
        try:
            found = [*_listed(client, background)]
        except Exception as error:  # of any of the libraries below it
            raise self._failed("does not list its tools", _cause(error), complaint) from error
        known = [tool.name for tool in found]
        if missing := ", ".join(name for name in self.only or () if name not in known):
            raise UserError(
                f"the MCP server {self.server!r} has no tool {missing}; it has {one_line(', '.join(known))}"
            )
        tools = dict[str, Tool]()
        for declared in found:
            if self.only is None or declared.name in self.only:
                name = _usable(declared.name, {*taken, *tools})
                tools[name] = self._tool(name, declared, client, background)
        return list(tools.values())

    def _tool(self, name: str, declared: Any, client: Any, background: Background) -> Tool:
        def call(arguments: dict[str, Any]) -> str:
            try:
                result = background.wait(client.call_tool(declared.name, arguments))
            except Exception as error:  # as above: the server has ended, is late, or answers nonsense
                raise ToolFailed(f"the MCP server gives no result: {_cause(error)}") from error
            return _text(result)

        return Tool(name=name, description=declared.description or "", parameters=declared.input_schema, call=call)

    def _connected(self, background: Background) -> tuple[Any, _Complaint]:
        """(the client, what the server writes to stderr)."""
        try:
            from mcp import Client, StdioServerParameters
            from mcp.client.stdio import stdio_client
        except ImportError as error:
            raise UserError('MCP servers need the package mcp, version 2: pip install "mem1[mcp]"') from error
        # a line that is no message is logged with its stack trace, which goes to stderr where nobody configured logging
        for noisy in ("mcp", "httpx2"):
            logging.getLogger(noisy).addHandler(logging.NullHandler())
        complaint = _Complaint()
        if is_http(self.server):
            where: Any = self.server
        else:
            command, *rest = self._words
            parameters = StdioServerParameters(command=command, args=rest, env=dict(self.env) if self.env else None)
            where = stdio_client(parameters, errlog=complaint.file)
        try:
            client = Client(where, read_timeout_seconds=self.timeout_s)
            return background.enter(client, self.timeout_s), complaint
        except NotDone as error:
            raise self._failed("does not answer", f"no answer within {self.timeout_s:g} s", complaint) from error
        except Exception as error:  # of any of the libraries below it
            raise self._failed("does not answer", _cause(error), complaint) from error
        finally:
            complaint.file.close()

    @property
    def _words(self) -> list[str]:
        try:
            return shlex.split(self.server)
        except ValueError:  # a quote without its end
            return []

    def _failed(self, what: str, why: str, complaint: _Complaint) -> UserError:
        last = complaint.last_line
        return UserError(f"the MCP server {self.server!r} {what}: {why}{f'; it wrote: {last}' if last else ''}")


class _Complaint:
    """Reads what a command writes to stderr, and keeps its end."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.file: TextIO = os.fdopen(writing, "w")
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(reading,), name="mem1-mcp", daemon=True)
        self._thread.start()

    @property
    def last_line(self) -> str:
        """The last line of a server that has ended; "": it wrote nothing."""
        self._thread.join(0.5)  # else its last words are still on their way
        lines = [one_line(line) for line in self._kept.decode("utf-8", "replace").splitlines()]
        return next(filter(None, reversed(lines)), "")

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as pipe:
            while piece := pipe.read(_COMPLAINT):
                self._kept = (self._kept + piece)[-_COMPLAINT:]


def _listed(client: Any, background: Background) -> Iterator[Any]:
    """All tools of a server, page by page."""
    cursor, tools = None, 0
    while True:
        page = background.wait(client.list_tools(cursor=cursor))
        yield from page.tools
        cursor, tools = page.next_cursor, tools + max(1, len(page.tools))
        if cursor is None:
            return
        if tools > _MOST_TOOLS:
            raise ValueError(f"more than {_MOST_TOOLS:,}")


def _usable(name: str, taken: Collection[str]) -> str:
    """The name as providers take it, unlike those taken.   "files/read" -> "files_read", then "files_read_2" """
    usable = free = _UNUSABLE.sub("_", name)[:_LONGEST_NAME] or "_"
    number = 1
    while free in taken:
        number += 1
        free = f"{usable}_{number}"
    return free


def _text(result: Any) -> str:
    """The text of a result; what is no text is named. Raises ToolFailed for an error that the tool reports."""
    text = "\n".join(part.text if part.type == "text" else _named(part) for part in result.content)
    if result.is_error:
        raise ToolFailed(text or "the tool failed and does not say why")
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
