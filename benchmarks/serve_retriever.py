"""Queries a second of `mem1 serve-retriever` with many clients at a time: a real server process, BM25, one query each.

    python benchmarks/serve_retriever.py                       100,000 requests of 64 clients; prints a Markdown table
    python benchmarks/serve_retriever.py --requests 2000 --workers 1 2

Clients and server share the machine's cores. A request is lost if it is not answered with passages for its query
within a minute; nothing is tried twice.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from machine import commit, hardware

from mem1.tasks.datasets import read_questions

DATA = Path(__file__).parents[2] / "shared" / "data" / "qa"
PATIENCE_S = 60.0


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    """Of each request that was answered."""
    lost: int = 0
    wall: float = 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return 1000 * sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--corpus", type=Path, default=DATA / "corpus.jsonl.gz")
    arguments.add_argument("--questions", type=Path, default=DATA / "test.jsonl")
    arguments.add_argument("--requests", type=int, default=100_000)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--workers", type=int, nargs="+", default=[2])
    arguments.add_argument("--top-k", type=int, default=3)
    given = arguments.parse_args()
    queries = [question.text for question in read_questions(given.questions)]
    print(f"commit {commit()}; {hardware()}; {given.clients} clients, {given.requests:,} requests\n")
    print("| workers | queries a second | p50, ms | p99, ms | lost |")
    print("|--:|--:|--:|--:|--:|")
    for workers in given.workers:
        with server(given.corpus, workers) as address:
            load = asyncio.run(drive(address, queries, given.requests, given.clients, given.top_k))
        rate = len(load.seconds) / load.wall
        print(f"| {workers} | {rate:,.0f} | {load.percentile(0.5):.1f} | {load.percentile(0.99):.1f} | {load.lost} |")


@contextmanager
def server(corpus: Path, workers: int) -> Iterator[str]:
    """Address of a server that is up."""
    command = [sys.executable, "-m", "mem1", "serve-retriever", str(corpus), "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while (line := process.stderr.readline()) and (up := re.search(r"on (http://\S+)", line)) is None:
                said += line
            if not line or up is None:
                sys.exit(f"the server did not start:\n{said}")
            yield up.group(1)
        finally:
            process.send_signal(signal.SIGTERM)


async def drive(address: str, queries: list[str], requests: int, clients: int, top_k: int) -> Load:
    """All requests, each client one at a time on a connection of its own."""
    load, numbers = Load(), itertools.count()
    started = time.perf_counter()

    async def client() -> None:
        reader, writer = await connect(address)
        while (number := next(numbers)) < requests:
            body = json.dumps({"queries": [queries[number % len(queries)]], "topk": top_k, "return_scores": True})
            sent = time.perf_counter()
            try:
                answer = await asyncio.wait_for(post(reader, writer, body.encode()), PATIENCE_S)
                (passages,) = json.loads(answer)["result"]
                if len(passages) != top_k:
                    raise ValueError(f"{len(passages)} passages")
                load.seconds.append(time.perf_counter() - sent)
            except (OSError, EOFError, ValueError, KeyError, asyncio.TimeoutError) as error:
                print(f"lost request {number}: {error!r}", file=sys.stderr)
                load.lost += 1
                reader, writer = await connect(address)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.wall = time.perf_counter() - started
    return load


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(address)
    return await asyncio.open_connection(place.hostname, place.port)


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    """The least that HTTP needs, so that the clients leave the cores to the server."""
    head = f"POST /retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    head += "content-type: application/json\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ValueError(answer.decode("latin-1").splitlines()[0])
    (length,) = re.findall(rb"(?i)\r\ncontent-length: (\d+)\r\n", answer)
    return await reader.readexactly(int(length))


if __name__ == "__main__":
    main()
