"""MCP servers as a command line names them: a command, an address, or a file of servers as other clients have it.

    servers_of("python my_server.py")
    servers_of("https://host/mcp", headers=["Authorization: Bearer ${TOKEN}"])
    servers_of("servers.json")      {"mcpServers": {"notes": {"command": "python", "args": ["notes.py"], "env": {...}},
                                                    "web": {"url": "https://host/mcp", "headers": {...}}}}

Values of secrets stay in environment variables: ${NAME}, ${env:NAME} or ${NAME:-default} in `headers` and `env`, and in
a `url`. `args` go to the command as they stand: some programs read variables in them, and messages show them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mem1.agent.mcp_tools import McpServer, filled
from mem1.errors import UserError
from mem1.net.failover import is_http

_STREAMABLE = ("http", "streamable-http", "streamable_http", "streamableHttp")
"""What other clients call the transport of an address."""
_KEYS = ("command", "args", "env", "url", "headers", "type", "transport", "disabled", "timeout_s")


def servers_of(named: str, headers: Sequence[str] = ()) -> list[McpServer]:
    """The servers behind one name. Raises UserError, which shows no value of a header."""
    if named.endswith(".json") and not is_http(named) and Path(named).is_file():
        return _in_file(Path(named))
    return [McpServer(named, headers=dict(map(_header, headers)) if is_http(named) else None)]


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip() or not value.strip():
        raise UserError("a header of an MCP server is written 'Name: value', as in 'Authorization: Bearer ${TOKEN}'")
    return name.strip(), value.strip()


def _in_file(path: Path) -> list[McpServer]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    servers = read.get("mcpServers", read.get("servers")) if isinstance(read, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise UserError(f'{path} names no servers; it holds {{"mcpServers": {{"name": {{"command": ...}}}}}}')
    return [_server(f"{path}: {name}", one) for name, one in servers.items() if not _off(one)]


def _off(one: Any) -> bool:
    return isinstance(one, dict) and one.get("disabled") is True


def _server(where: str, one: Any) -> McpServer:
    if not isinstance(one, dict) or ("command" in one) == ("url" in one):
        raise UserError(f"{where} needs a command or a url")
    if unknown := sorted(one.keys() - set(_KEYS)):
        raise UserError(f"{where} has no key {unknown[0]!r:.80}; there are {', '.join(_KEYS)}")
    maps = [one.get(key) or {} for key in ("env", "headers")]
    given = one.get("args") or []
    if not isinstance(given, list):
        raise UserError(f"{where}: args is a list of texts, one for each word")
    words = [one.get("command", one.get("url")), *given]
    texts = [*words, *(text for each in maps if isinstance(each, dict) for pair in each.items() for text in pair)]
    if not all(isinstance(each, dict) for each in maps) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: command, url, args, env and headers are texts")
    env, headers = maps
    limit = {"timeout_s": one["timeout_s"]} if "timeout_s" in one else {}
    if not all(type(seconds) in (int, float) for seconds in limit.values()):
        raise UserError(f"{where}: timeout_s is a number of seconds")
    server = filled(words[0], f"{where}: url") if "url" in one else shlex.join(words)
    if "url" in one and not is_http(server):
        raise UserError(f"{where}: url is an http address, such as http://127.0.0.1:9000/mcp")
    named, known = one.get("type", one.get("transport")), _STREAMABLE if "url" in one else ("stdio",)
    if named == "sse" and "url" in one:
        raise UserError(f"{where}: sse is a transport that mem1 does not speak; give the address of the newer one")
    if named is not None and named not in known:
        raise UserError(f"{where}: type is one of {', '.join(known)}, not {named!r:.40}")
    filled_env = {name: filled(value, f"{where}: {name}") for name, value in env.items()}
    return McpServer(server, env=filled_env or None, headers=headers or None, **limit)
