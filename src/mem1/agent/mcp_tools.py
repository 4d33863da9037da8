"""Tools of MCP servers, by the official client: a command that speaks over stdin and stdout, or an HTTP address.

    McpServer("python my_server.py")            started with the agent, ended by its close()
    McpServer("http://127.0.0.1:9000/mcp")      already running
    McpServer("https://host/mcp", headers={"Authorization": "Bearer ${TOKEN}"})     TOKEN: an environment variable

What a server says is untrusted: a name that a provider would refuse is rewritten, descriptions, schemas, results and
lists have limits, and whatever goes wrong in a call is its result. What a command writes to stderr is shown only where
the server does not start. A server that crashes or is started again is connected again (mem1.agent.mcp_link).

Needs `pip install "mem1-agents[mcp]"`; the package is imported when an agent connects.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field
from typing import Any

from mem1.agent.background import Background
from mem1.agent.mcp_hidden import hidden, shown_address, without
from mem1.agent.mcp_http import over_http
from mem1.agent.mcp_link import Link, client_of
from mem1.agent.mcp_program import Complaint, program
from mem1.agent.schema_parts import free_name
from mem1.agent.tools import Tool, ToolFailed
from mem1.engines.servers import may_be_secret
from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.net.failover import is_http

_MOST_TOOLS = 1_000
"""More than any model can use; a list that does not end has more."""
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 60
"""Characters, which leaves room for a number."""
_DESCRIPTION = 4_000
"""Most characters of a tool's description."""
_RENEW_S = 10.0
"""Longest wait for a list of tools that has changed."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VARIABLE = re.compile(r"\$\{(?:(?:env:)?([A-Za-z_][A-Za-z0-9_]{0,200})(:-[^{}]*)?\}|([^{}]{0,80}\}?))")
"""${NAME}, ${env:NAME} or ${NAME:-default}; or another one, of a client that asks its user."""
_OF_THE_PROTOCOL = ("accept", "accept-encoding", "connection", "content-length", "content-type", "transfer-encoding")
_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server whose tools an agent may use."""

    server: str
    """A command line, or an http(s) address."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Environment variables of a command, beside PATH, HOME and the like, which is all that it inherits."""
    only: tuple[str, ...] | None = None
    """Names of the tools to take; None: all."""
    timeout_s: float = 300.0
    """Longest time of a call, connecting again included."""
    result_chars: int = 200_000
    """Most characters of a result that are kept; a note says how many there were."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers of all requests to an http address; ${NAME}, ${env:NAME} or ${NAME:-default} is an environment variable.
    Never shown."""

    def __post_init__(self) -> None:
        if not is_http(self.server) and _ADDRESS.match(self.server):
            raise UserError(
                f"the MCP server {shown_address(self.server)!r:.80} is no http address; write http://127.0.0.1:9000/mcp"
            )
        if not is_http(self.server) and not self._words:
            raise UserError(f"the MCP server {self.server!r:.80} is neither a command nor an http address")
        if self.timeout_s <= 0:
            raise UserError("timeout_s of an MCP server must be above 0")
        if self.result_chars < 1:
            raise UserError("result_chars of an MCP server must be at least 1")
        if isinstance(self.only, str):
            raise UserError(f"only of the MCP server {self.name} is a tuple of names: ({self.only!r:.80},)")
        for what, given in (("env", self.env), ("headers", self.headers)):
            if given is not None and not _are_texts(given):
                raise UserError(f"{what} of the MCP server {self.name} must map names to texts")
        if self.headers and not is_http(self.server):
            raise UserError(f"headers go with an http address; {self.name} is a command: give it env={{...}}")
        if self.env and is_http(self.server):
            raise UserError(f"env goes with a command; {self.name} is an address: give it headers={{...}}")
        for name in self.headers or {}:
            if not _HEADER.fullmatch(name):
                raise UserError(f"{name!r:.80} cannot name a header of the MCP server {self.name}")
            if name.lower() in _OF_THE_PROTOCOL or name.lower().startswith("mcp-"):
                raise UserError(f"the header {name} of the MCP server {self.name} is set by the protocol; leave it out")

    @property
    def name(self) -> str:
        """The server as messages show it: an address without its user and query."""
        return repr(shown_address(self.server) if is_http(self.server) else self.server)

    def __repr__(self) -> str:
        return f"McpServer({self.name})"

    def connect(
        self, background: Background, taken: Collection[str] = (), *, within_s: float | None = None
    ) -> McpTools:
        """Connects, and takes the server's tools; names that are `taken` get a number.

        `within_s`: time that the run has left; None: no limit beside the server's own. Raises UserError on failure.
        """
        return McpTools(self, background, taken, within_s)

    def open(self, complaint: Complaint, changed: Callable[[], None]) -> contextlib.AbstractAsyncContextManager[Any]:
        """A client of a new connection. Raises UserError without the package, and for a variable that is not set."""
        try:
            import mcp  # noqa: F401  (is it there)
        except ImportError as error:
            raise UserError(
                'MCP servers need the package mcp, version 2.3 or later: pip install "mem1-agents[mcp]"'
            ) from error
        # a line that is no message is logged with its stack trace, which goes to stderr where nobody configured logging
        for noisy in ("mcp", "httpx2"):
            logging.getLogger(noisy).addHandler(logging.NullHandler())
        if not is_http(self.server):
            return client_of(program(self._words, env=self.env or {}, complaint=complaint), self.timeout_s, changed)
        return client_of(over_http(self.server, self.filled(), limit_s=self.timeout_s), self.timeout_s, changed)

    def filled(self) -> dict[str, str]:
        """The headers as they are sent. Raises UserError, which shows no value."""
        found = dict[str, str]()
        for name, value in (self.headers or {}).items():
            where = f"the header {name} of the MCP server {self.name}"
            found[name] = filled(value, where).strip()
            if not found[name].isascii() or not found[name].isprintable():
                raise UserError(f"{where} has characters that no header takes; give printable ASCII on one line")
        return found

    def hidden(self) -> list[tuple[str, str]]:
        """What no text shows: see `mem1.agent.mcp_hidden`. Raises UserError as `filled` does."""
        if not is_http(self.server):
            return []
        own = [name for name, value in (self.headers or {}).items() if _VARIABLE.search(value) or may_be_secret(name)]
        values = [value for name, value in self.filled().items() if name in own]
        return hidden(self.server, [*values, *(value.partition(" ")[2] for value in values)])

    @property
    def _words(self) -> list[str]:
        try:
            return shlex.split(self.server)
        except ValueError:  # a quote without its end
            return []


def _are_texts(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)


def filled(text: str, where: str) -> str:
    """A text with the values of environment variables.   "Bearer ${TOKEN}" -> "Bearer 1234"

    Raises UserError, which names a variable that is not set, or is none of the environment.
    """

    def value(found: re.Match[str]) -> str:
        name, default, other = found.groups()
        if name is None:
            raise UserError(f"{where} has ${{{other}, which is no environment variable; write ${{NAME}}")
        if not os.environ.get(name) and default is None:
            raise UserError(f"{where} needs the environment variable {name}; set it")
        return os.environ.get(name) or default.removeprefix(":-")

    return _VARIABLE.sub(value, text)


class McpTools:
    """The tools of a server that is connected."""

    def __init__(
        self, server: McpServer, background: Background, taken: Collection[str], within_s: float | None
    ) -> None:
        self._server = server
        self._names: dict[str, str] = {}
        """A tool's own name -> the one that models are told, which stays the same while the agent lives."""
        self._hidden = server.hidden()
        self._link = Link(background, server.open, limit_s=server.timeout_s, starts=not is_http(server.server))
        limit_s = min(server.timeout_s, math.inf if within_s is None else within_s)
        late = f"no answer within {limit_s:.3g} s" + (", all that timeout_s leaves" if limit_s == within_s else "")
        ends = time.monotonic() + limit_s

        def failed(what: str, error: Exception) -> UserError:
            last = self._link.last_words
            why = late if isinstance(error, NotDone) else self._link.why(error)
            wrote = f"; it wrote: {last}" if last and last not in why else ""
            return UserError(self._shown(f"the MCP server {server.name} {what}: {why}{wrote}"))

        try:
            self._link.connect(limit_s)
        except UserError:
            raise
        except Exception as error:  # of any of the libraries below it
            raise failed("does not answer", error) from None
        try:
            found = [*_listed(self._link, ends)]
        except Exception as error:  # as above
            raise failed("does not list its tools", error) from None
        known = [tool.name for tool in found]
        if missing := ", ".join(name for name in server.only or () if name not in known):
            raise UserError(f"the MCP server {server.name} has no tool {missing}; it has {one_line(', '.join(known))}")
        self.tools = self._taken(found, taken)

    def renew(self, taken: Collection[str], within_s: float | None = None) -> bool:
        """Takes the tools again where the server has others now; whether it did. On failure it keeps those it has."""
        if not self._link.changed or not self._link.alive:
            return False
        self._link.changed = False
        limit_s = min(_RENEW_S, math.inf if within_s is None else within_s)
        try:
            found = [*_listed(self._link, time.monotonic() + limit_s)]
        except Exception:  # as above
            return False
        before, self.tools = self.tools, self._taken(found, taken)
        return [tool.declared for tool in before] != [tool.declared for tool in self.tools]

    def close(self) -> None:
        """Connect no more."""
        self._link.close()

    def _taken(self, found: list[_Declared], taken: Collection[str]) -> list[Tool]:
        tools = list[Tool]()
        for declared in {tool.name: tool for tool in found}.values():
            if self._server.only is None or declared.name in self._server.only:
                if declared.name not in self._names:
                    self._names[declared.name] = _usable(declared.name, {*taken, *self._names.values()})
                tools.append(self._tool(self._names[declared.name], declared))
        return tools

    def _tool(self, name: str, declared: _Declared) -> Tool:
        def call(arguments: dict[str, Any]) -> str:
            try:
                result = self._link.call(declared.name, arguments, repeatable=declared.repeatable)
            except ToolFailed as error:
                raise ToolFailed(self._shown(str(error))) from None
            text = _cut(self._shown(_text(result)), self._server.result_chars, "McpServer(result_chars=...) keeps more")
            if result.is_error:
                raise ToolFailed(text)
            return text

        return Tool(name=name, description=declared.description, parameters=declared.schema, call=call)

    def _shown(self, text: str) -> str:
        """The text without what nobody is shown, which a server may send back."""
        return without(self._hidden, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """A tool as its server declares it, within limits."""

    name: str
    description: str
    schema: Mapping[str, Any]
    repeatable: bool
    """Calling it twice is as good as calling it once."""


def _listed(link: Link, ends: float) -> Iterator[_Declared]:
    """All tools of a server, page by page. Raises NotDone at the time `ends`, and ValueError for too many."""
    cursor: str | None = None
    tools, cursors = 0, set[str]()
    while True:
        at = cursor
        ask: Callable[[Any], Any] = lambda client, at=at: client.list_tools(cursor=at, cache_mode="refresh")  # noqa: E731
        page = link.ask(ask, max(0.0, ends - time.monotonic()))
        cursor, tools = page.next_cursor, tools + max(1, len(page.tools))
        if tools > _MOST_TOOLS:
            raise ValueError(f"more than {_MOST_TOOLS:,}")
        for tool in page.tools:
            if len(tool.name) > _DESCRIPTION:
                raise ValueError(f"a name of {len(tool.name):,} characters")
            hints = tool.annotations
            yield _Declared(
                name=tool.name,
                description=_cut(tool.description or tool.title or "", _DESCRIPTION).strip(),
                schema=tool.input_schema,
                repeatable=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
            )
        if cursor is None or cursor in cursors:  # the same page, again and again
            return
        cursors.add(cursor)


def _cut(text: str, most: int, more: str = "") -> str:
    """A text of at most `most` characters; a note says that it was longer, and how to have more."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: the first {most:,} of {len(text):,} characters{f'; {more}' if more else ''}]"


def _usable(name: str, taken: Collection[str]) -> str:
    """The name as providers take it, unlike those taken.   "files/read" -> "files_read", then "files_read_2" """
    usable = _UNUSABLE.sub("_", name)[:_LONGEST_NAME] or "_"
    return free_name(usable if usable[0].isalpha() or usable[0] == "_" else f"_{usable}", taken)


def _text(result: Any) -> str:
    """The text of a result; all of its parts are texts (mem1.agent.mcp_answers)."""
    text = "\n".join([part.text for part in result.content])
    return text or ("the tool failed and does not say why" if result.is_error else "done")
