"""A program that speaks MCP over its stdin and stdout, as a transport for the official client.

    async with program(["python", "my_server.py"], env={}, complaint=Complaint()) as (messages, requests): ...

The client's own transport adds every piece of a line to what it has of it, which takes minutes for 50 MB, and it leaves
a server behind that ignores the end of its input when this process is killed. Here a line is read in one go, up to a
limit, and the program ends with this process, with all that it has started (`mem1.programs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

from mem1.agent.mcp_answers import mended
from mem1.net.exchange import one_line
from mem1.programs import kill, watch

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LONGEST_MESSAGE = 64 << 20
"""Bytes of a message. A longer one ends the connection."""
_KEPT = 2_000
"""Bytes that are kept of what a program writes to stderr."""
_GRACE_S = 2.0
"""For a program to end by itself when its input ends."""
_LOOK_S = 0.2
"""Between two looks whether a program has ended."""
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')
_HEAD = 200
"""Bytes at either end of a line in which the number of its request is looked for."""


class Complaint:
    """The end of a program's stderr."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.file: TextIO = os.fdopen(writing, "w")
        self.ended = ""
        """Why its messages are not read any more; empty: they are, or it has ended."""
        self.program: subprocess.Popen[bytes] | None = None
        self._over = False
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(reading,), name="mem1-mcp", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the program has ended, or is not read any more. False for a server that is no program."""
        return self._over or (self.program is not None and self.program.poll() is not None)

    def end(self) -> None:
        """There are no more messages."""
        self._over = True

    @property
    def last_line(self) -> str:
        """The last line of a server that has ended; "": it wrote nothing."""
        self._thread.join(0.5)  # else its last words are still on their way
        lines = [one_line(line) for line in self._kept.decode("utf-8", "replace").splitlines()]
        return next(filter(None, reversed(lines)), "")

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as pipe:
            while piece := pipe.read(_KEPT):
                self._kept = (self._kept + piece)[-_KEPT:]


@contextlib.asynccontextmanager
async def program(
    command: Sequence[str], *, env: Mapping[str, str], complaint: Complaint, longest: int = LONGEST_MESSAGE
) -> AsyncIterator[TransportStreams]:
    """Streams of a program that runs inside the block. Raises OSError and ValueError where it cannot be started.

    `env`: variables beside those that the official client lets servers inherit.
    """
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.shared.message import SessionMessage

    pipe, own = subprocess.PIPE, {**get_default_environment(), **env}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=complaint.file, env=own, start_new_session=True)
    complaint.program = process
    watcher = watch(process)
    loop = asyncio.get_running_loop()
    to_client, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    requests, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    lines: SimpleQueue[bytes | None] = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout, contextlib.suppress(Exception):  # the loop has ended, or the client has left
            while line := process.stdout.readline(longest + 1):
                if len(line) > longest:
                    complaint.ended = f"it wrote a message of more than {longest:,} bytes"
                    break
                asyncio.run_coroutine_threadsafe(to_client.send(read_message(mended(line))), loop).result()
        complaint.end()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(to_client.close)

    def write() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # a program that has ended reads nothing
            while (line := lines.get()) is not None:
                process.stdin.write(line)
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    async def pass_on() -> None:
        async for request in from_client:
            lines.put(request.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def clear() -> None:
        """Kills what a program that has ended has left behind, which may hold its stdout open."""
        while process.poll() is None:
            await asyncio.sleep(_LOOK_S)
        kill(process)

    # no threads of an executor: Python waits for those when it ends, and a program need not read or write
    for work in (read, write):
        threading.Thread(target=work, name="mem1-mcp", daemon=True).start()
    tasks = [asyncio.ensure_future(pass_on()), asyncio.ensure_future(clear())]
    try:
        yield messages, requests
    finally:
        try:
            for task in tasks:
                task.cancel()
            lines.put(None)
            messages.close()
            await _end(process)
        finally:
            kill(process)
            watcher.communicate(b".")


def read_message(line: bytes) -> Any:
    """A message, which is `mended`, or why it is none; what answers a request, but cannot be read, is an error of that
    request. Whatever else a program writes, as JSON for its own log, answers nothing."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        answers = (
            line.lstrip().startswith(b"{") and b'"jsonrpc"' in line and (b'"result"' in line or b'"error"' in line)
        )
        told = error_for(line, _error_in(line) or "its answer cannot be read as JSON") if answers else None
        return error if told is None else told


def _error_in(line: bytes) -> str:
    """What a server says in an error that lacks what the protocol demands; "": nothing."""
    try:
        error = json.loads(line)["error"] if b'"error"' in line else ""
    except (ValueError, LookupError, RecursionError):
        return ""
    said = error.get("message") if isinstance(error, dict) else error
    return said if isinstance(said, str) else ""


def error_for(answer: bytes | bytearray, why: str) -> Any:
    """An error in the place of an answer; None: it does not tell which request it answers."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    number = _ID.search(answer, 0, _HEAD) or _ID.search(answer, max(0, len(answer) - _HEAD))
    if number is None:
        return None
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=why)
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=int(number[1]), error=error))


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a program has ended, which has been told."""
    ends = asyncio.get_running_loop().time() + _GRACE_S
    while process.poll() is None and asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(0.01)
