"""`mem1 proxy`: milliseconds that it adds to a call, and whether many streams at a time arrive unchanged.

    python benchmarks/proxy.py                             both; about 2 minutes on 2 cores
    python benchmarks/proxy.py --calls 0 --streams 500     the streams alone

The server behind the proxy is scripted and answers at once. Server, proxy (the command) and client are three processes.
A client calls the server directly and through the proxy, in turn, over connections that stay open, with conversations
of 10, 50 and 200 messages whose results have 1,000 tokens. `fold(8)` has its state already, so no call waits for the
model. Then streams of both APIs, some of them folded, are opened at the same time, and none ends before all are open;
their bytes are compared with those that the server sent to that client.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from folds import long_conversation
from servers import CommandProcess
from streams import Streams, all_streams

from mem1.net.web_server import Hosts, address, bind, make_server

MEMORIES = (("full",), ("fold(auto)", "--prices", "hosted-90"), ("fold(8)",))
_WARM_UP = 10


def serve(streams: int, pipe: Any) -> None:
    """A server until it is killed; its address goes into the pipe."""
    (bound,) = bind("127.0.0.1", 0)
    where = address("127.0.0.1", bound)
    app = Streams(streams) if streams else answer
    make_server(app, bound, hosts=Hosts.of("127.0.0.1", bound), ready=lambda: pipe.send(where), accepts=None).run()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The same short answer to every request, which is a state, too."""
    while (await receive()).get("more_body"):
        pass
    body = b'{"choices": [{"message": {"role": "assistant", "content": "Done so far: nothing."}}]}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Behind:
    """A scripted server and the proxy before it, each a process."""

    def __init__(self, streams: int, memory: tuple[str, ...], folder: str) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._server = multiprocessing.get_context("spawn").Process(target=serve, args=(streams, theirs), daemon=True)
        self._server.start()
        self.server = ours.recv()
        states = Path(folder) / f"{memory[0]}-{streams}"
        options = ("--memory", *memory, "--port", "0", "--states", states)
        self._proxy = CommandProcess("proxy", "--upstream", self.server, *options)
        self.proxy = self._proxy.address

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, *_: object) -> None:
        self._said = self._proxy.stop()[1]
        print(self._said.splitlines()[-1], file=sys.stderr)
        self._server.kill()
        self._server.join()


def seconds(connection: http.client.HTTPConnection, body: bytes) -> float:
    """Of a call."""
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    taken = time.perf_counter() - start
    assert reply.status == 200
    return taken


def overhead(memory: tuple[str, ...], calls: int, folder: str) -> None:
    """Prints a line for each length of conversation."""
    with Behind(0, memory, folder) as there:
        places = [urlsplit(url) for url in (there.server, there.proxy)]
        connections = [http.client.HTTPConnection(place.hostname or "", place.port) for place in places]
        for length in (10, 50, 200):
            messages = long_conversation((length - 2) // 2)
            body = json.dumps({"model": "m", "messages": messages}).encode()
            taken: list[list[float]] = [[], []]
            for call in range(_WARM_UP + calls):
                for times, connection in zip(taken, connections, strict=True):
                    took = 1_000 * seconds(connection, body)
                    if call >= _WARM_UP:
                        times.append(took)
            direct, through = ([quantile(times, share) for share in (0.5, 0.99)] for times in taken)
            added = [after - before for before, after in zip(direct, through, strict=True)]
            cells = " | ".join(f"{value:.1f}" for pair in (direct, through, added) for value in pair)
            print(f"| {memory[0]} | {length} | {len(body) // 1024:,} | {cells} |", flush=True)


def quantile(times: list[float], share: float) -> float:
    """The middle at 0.5, the largest but one of a hundred at 0.99."""
    return statistics.quantiles(times, n=100, method="inclusive")[round(100 * share) - 1]


def streams(number: int, folder: str) -> bool:
    """Whether all arrived as they were sent."""
    with Behind(number, ("fold(2)",), folder) as there:
        start = time.perf_counter()
        wrong = asyncio.run(all_streams(there.proxy, number))
    print(f"\n{number - len(wrong):,} of {number:,} streams intact, in {time.perf_counter() - start:.1f} s")
    for name, why in [*wrong.items()][:5]:
        print(f"{name}: {why}")
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="timed calls of each way and length; 0: none")
    parser.add_argument("--streams", type=int, default=500, help="streams at a time; 0: none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.calls:
            print("| memory | messages | KiB | direct, ms: p50 | p99 | proxy: p50 | p99 | added: p50 | p99 |")
            print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
            for memory in MEMORIES:
                overhead(memory, given.calls, folder)
        if given.streams and not streams(given.streams, folder):
            sys.exit(1)


if __name__ == "__main__":
    main()
