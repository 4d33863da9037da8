"""`recall` as an MCP server, for agents that take tools from nowhere else: `mem1 serve-recall conversation.jsonl`.

    conversation.jsonl      a line for each message of the whole conversation, appended as the agent goes on
    recall("r1a2b3c4d")     the result behind a handle that stands in the messages that the model sees

The file is read again when it has changed. Needs `pip install "mem1-agents[mcp]"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError
from mem1.jsonl import read_lines
from mem1.messages import RECALL_TOOL, recall
from mem1.messages.forms import form_of
from mem1.messages.transcript import Content, Message, texts

if TYPE_CHECKING:
    from mcp.server import MCPServer

_DATA = re.compile(r"data:([\w.+/-]+);base64,([A-Za-z0-9+/=\s]+)")


def serve_recall(path: Path, form: str) -> None:
    """Serve over stdin and stdout until the client leaves."""
    recall_server(path, form).run()


def recall_server(path: Path, form: str = "chat") -> MCPServer:
    """The server. Raises UserError for an unknown form, and without the package mcp. The file may come later."""
    form_of(form)
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ImageContent, TextContent
    except ImportError as error:
        raise UserError(
            'mem1 serve-recall needs the package mcp, version 2.3 or later: pip install "mem1-agents[mcp]"'
        ) from error
    log = Log(path)
    server = MCPServer("mem1-recall", log_level="ERROR")

    def show(handle: str, start: int = 0) -> list[Any]:  # of names that the package can evaluate
        try:
            content = recall(log.messages(), handle, start=start, form=form)
        except UserError as error:  # the package keeps the words of all other errors from the client
            raise ToolError(str(error)) from error
        blocks = [ImageContent(type="image", mime_type=kind, data=data) for kind, data in images_of(content)]
        return [TextContent(type="text", text=texts(content)), *blocks]

    function = RECALL_TOOL["function"]
    server.add_tool(show, name=function["name"], description=function["description"], structured_output=False)
    return server


class Log:
    """A file of messages that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], list[Message]] | None = None
        """What tells one state of the file from another, and its messages."""

    def messages(self) -> list[Message]:
        """The messages of all whole lines so far. Raises UserError for a file that is none of messages."""
        try:
            about = self._path.stat()
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from error
        state = (about.st_mtime_ns, about.st_size)
        if self._read is None or self._read[0] != state:
            self._read = state, list(self._messages())
        return self._read[1]

    def _messages(self) -> Iterator[Message]:
        for number, line in read_lines(self._path):
            message = _object(line)
            if message is not None:
                yield message
            elif line.strip() and line.endswith(b"\n"):  # a last line without its end is being written
                raise UserError(f"{self._path}:{number}: not a message as a JSON object; the file is no conversation")


def images_of(content: Content) -> list[tuple[str, str]]:
    """(type, data in base 64) of the images in a content, whatever its form; addresses of images are left out."""
    found: list[tuple[str, str]] = []
    for part in () if content is None or isinstance(content, str) else content:
        source: Any = part.get("source")
        if isinstance(source, dict) and isinstance(source.get("data"), str):
            found.append((str(source.get("media_type")), source["data"]))
            continue
        url: Any = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str) and (data := _DATA.fullmatch(url)):
            found.append((data[1], data[2]))
    return found


def _object(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None: there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
