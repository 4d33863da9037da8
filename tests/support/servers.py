"""Servers for the tests: in a thread of this process, or a process of their own; and a fake clock."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import uvicorn.server

from mem1.net.bounds import BOUNDS, Bounds
from mem1.net.failover import Clock
from mem1.net.web_server import JSON, Hosts, address, bind, make_server
from mem1.retrieval import Retriever
from mem1.retrieval.server import make_app


class _Hasty:
    """asyncio for uvicorn, which looks every 0.1 s whether it is to stop, and rests as long once it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds / 20)


uvicorn.server.asyncio = _Hasty()  # type: ignore[attr-defined]


@dataclass
class FakeTime:
    """Time passes only where somebody sleeps; chance is the middle."""

    seconds: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep, random=lambda: 0.5)


def wait_for(happened: Callable[[], bool], *, seconds: float = 90) -> None:
    """Wait for something that another thread does."""
    ends = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.01)


@contextmanager
def in_a_thread(retriever: Retriever) -> Iterator[str]:
    """Address of `make_app(retriever)` on a free port."""
    with app_in_a_thread(make_app(retriever)) as address:
        yield address


@contextmanager
def app_in_a_thread(
    app: Any, *, accepts: str | None = JSON, bounds: Bounds = BOUNDS, allowed: Sequence[str] = ()
) -> Iterator[str]:
    """Address of an ASGI application on a free port."""
    (bound,) = bind("127.0.0.1", 0)
    where = address("127.0.0.1", bound)
    listening = threading.Event()
    hosts = Hosts.of("127.0.0.1", bound, allowed)
    server = make_server(app, bound, hosts=hosts, accepts=accepts, bounds=bounds, ready=listening.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert listening.wait(60)
        yield where
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def answering(*answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """Address of a server that on each connection reads a request, lets the next `answer` write, and hangs up.

    The last answer is given for ever.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in chain(answers, repeat(answers[-1])):
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    _read_request(connection)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def _read_request(connection: socket.socket) -> None:
    request = b""
    while (found := re.search(rb"content-length: (\d+)[\s\S]*?\r\n\r\n", request.lower())) is None:
        request += connection.recv(1 << 16)
    while len(request) < found.end() + int(found[1]):
        request += connection.recv(1 << 16)


class CommandProcess:
    """A command of mem1 that serves, as a user would start it; or of another module, in the folder where it lies."""

    def __init__(self, *arguments: str | Path, module: str = "mem1", folder: Path | None = None) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r" on (http://\S+:(\d+))", line):
                self.address, self.port = found[1], int(found[2])
                return
        raise AssertionError(f"the server did not start:\n{self.said}")

    def kill(self) -> None:
        """As the kernel does when memory runs out: nothing is finished, nothing is said."""
        self.process.kill()
        self.process.communicate()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what it said."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Exit code and what it said, once it has ended by itself."""
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, self.said + rest


class ServerProcess(CommandProcess):
    """`mem1 serve-retriever`."""

    def __init__(self, corpus: Path, *options: str, port: int = 0, workers: int = 1) -> None:
        super().__init__("serve-retriever", corpus, "--port", str(port), "--workers", str(workers), *options)
