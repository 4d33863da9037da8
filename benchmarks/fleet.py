"""Overhead of rollouts on many servers, which another process plays: latencies vary, some servers are slow, some die.

    python benchmarks/fleet.py --servers 16 --slow 0 1 --attempts 512      does a slow server delay the other attempts?
    python benchmarks/fleet.py --servers 64 --attempts 8192 --latency 20 --deaths 8

An attempt alternates searches and results, and is forced to answer in its last turn. The latency of a reply is
log-normal, drawn from the request's seed, so two runs wait for the same latencies wherever a request goes. A dying
server closes all connections without replying, refuses others for a while, and comes back. Overhead is the share of the
attempts' time in which no server was working for them: requests, retries after deaths, parsing, contexts, search.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from machine import commit, hardware

from mem1.contexts import context_policy
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.engines.weight_update import SPOKEN
from mem1.envs.search import SearchEnvironment
from mem1.protocol import PAPER
from mem1.records import Passage, Question, Task, Trajectory
from mem1.rollout import Budget, Rollout
from mem1.training.weights.tokenizers import atlas_tokenizer

CODEC = Codec(atlas_tokenizer(PAPER))
WORDS = "the city of a mayor"
SIGMA = 0.5
"""Standard deviation of a latency's logarithm."""
DEAD_S = 10.0
OPENED = CODEC.encode(PAPER.opening("answer"))[-1]


def latency(seed: int, mean: float) -> float:
    """Seconds of the reply to a request with this seed."""
    return mean * math.exp(random.Random(seed).gauss(-SIGMA * SIGMA / 2, SIGMA))


class Fleet:
    """The servers, in a process of their own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.slept: Counter[str] = Counter()
        self.dead_until = [0.0] * given.servers
        self.writers: list[set[asyncio.StreamWriter]] = [set() for _ in range(given.servers)]
        note = CODEC.encode(f"<IS> {' '.join([WORDS] * (given.completion // 5))} </IS> <query> city </query>")
        self.search, self.answer = list(note), list(CODEC.encode(" Q1 city </answer>"))

    async def run(self) -> None:
        """Serve until standard input ends, then print what was slept."""
        servers = [
            await asyncio.start_server(lambda r, w, n=n: self._serve(n, r, w), sock=listening, backlog=4096)
            for n, listening in enumerate(self._sockets())
        ]
        print(json.dumps([s.sockets[0].getsockname()[1] for s in servers]), flush=True)
        deaths = asyncio.create_task(self._kill())
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        deaths.cancel()
        print(json.dumps(self.slept), flush=True)
        os._exit(0)  # without waiting for connections that idle

    def _sockets(self) -> list[socket.socket]:
        made = [socket.socket() for _ in range(self.given.servers)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return made

    async def _kill(self) -> None:
        drawn = random.Random(0)
        for _ in range(self.given.deaths):
            await asyncio.sleep(self.given.latency)
            chosen = drawn.randrange(self.given.servers)
            self.dead_until[chosen] = time.monotonic() + DEAD_S
            for writer in self.writers[chosen]:
                writer.close()
            self.writers[chosen].clear()

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self.dead_until[number]:
            writer.close()
            return
        self.writers[number].add(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                request = json.loads(await reader.readexactly(length))
                factor = self.given.factor if number < self.given.slow else 1
                seconds = latency(request["seed"], self.given.latency) * factor
                await asyncio.sleep(seconds)
                if writer.is_closing():
                    return
                self.slept["seconds"] += seconds  # type: ignore[assignment]
                self.slept["replies"] += 1
                body = json.dumps(self._reply(request)).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)  # at once: TCP would hold the second of two writes back
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers[number].discard(writer)
            writer.close()

    def _reply(self, request: dict[str, object]) -> dict[str, object]:
        prompt = request["prompt"]
        assert isinstance(prompt, list)
        ids = self.answer if prompt[-1] == OPENED else self.search
        choice = {"text": "", "finish_reason": "stop", "token_ids": ids, "prompt_token_ids": prompt}
        return {"choices": [{**choice, "logprobs": {"token_logprobs": [-0.123456789] * len(ids)}}]}


class Shelf:
    """A search engine that takes no time."""

    def __init__(self, words: int) -> None:
        self.found = [(Passage("p", "", " ".join([WORDS] * (words // 5))), 1.0)]

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [self.found for _ in queries]


def attempt(given: argparse.Namespace, slow: int) -> tuple[list[Trajectory], dict[str, float], float, float]:
    """The attempts, what the fleet slept, wall and processor seconds of this process."""
    own = [sys.executable, __file__, "--play", "--slow", str(slow)]
    for name in ("servers", "factor", "latency", "deaths", "completion"):
        own += [f"--{name}", str(getattr(given, name))]
    with subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fleet:
        assert fleet.stdout is not None
        urls = tuple(f"http://127.0.0.1:{port}/v1" for port in json.loads(fleet.stdout.readline()))
        server = ModelServer(urls=urls, model="m", concurrency=given.concurrency or given.attempts, timeout_s=3600)
        engine = OpenAIEngine(Servers(server), server, SPOKEN, CODEC, PAPER.stop_strings)
        rollout = Rollout(
            engine=engine,
            codec=CODEC,
            environment=SearchEnvironment({"": Shelf(given.result)}, style="bare"),
            context=context_policy("constant"),
            budget=Budget(completion_per_objective=0, completion_extra=2 * given.completion, context=100_000),
        )
        question = Question(id="q", text="a mayor ?", answers=("city",))
        task = Task(id="t", questions=(question,), prompt=" ".join([WORDS] * 40), turn_limit=given.turns)
        started, used = time.perf_counter(), time.process_time()
        found = rollout([replace(task, id=f"t{i}") for i in range(given.attempts)], sampling=Sampling())
        wall, cpu = time.perf_counter() - started, time.process_time() - used
        slept = json.loads(fleet.communicate()[0])
        engine.close()
    return found, slept, wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=0, help="requests under way; 0: one for each attempt")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--latency", type=float, default=2.0, help="mean seconds of a reply")
    parser.add_argument("--slow", type=int, nargs="+", default=[0], help="number of slow servers, one run for each")
    parser.add_argument("--factor", type=float, default=10.0, help="latency of a slow server over the others'")
    parser.add_argument("--deaths", type=int, default=0, help="servers that die, one after each mean latency")
    parser.add_argument("--completion", type=int, default=200, help="tokens")
    parser.add_argument("--result", type=int, default=500, help="tokens of a search result")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if given.play:
        given.slow = given.slow[0]
        asyncio.run(Fleet(given).run())
        return
    work = f"{given.servers} servers, {given.attempts:,} attempts of {given.turns} turns"
    print(f"commit {commit()}; {hardware()}; {work}\n")
    names = (
        "slow servers",
        "wall, s",
        "median attempt, s",
        "p90",
        "turns per s",
        "overhead",
        "CPU ms per turn",
        "MB",
        "lost",
    )
    print(f"| {' | '.join(names)} |\n{'|--:' * len(names)}|")
    for slow in given.slow:
        found, slept, wall, cpu = attempt(given, slow)
        seconds = sorted(t.seconds for t in found)
        turns = sum(len(t.turns) for t in found)
        lost = sum(not t.ended.scorable for t in found)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        cells = (
            str(slow),
            f"{wall:.1f}",
            *(f"{seconds[int(share * len(seconds))]:.1f}" for share in (0.5, 0.9)),
            f"{turns / wall:,.0f}",
            f"{1 - slept['seconds'] / sum(seconds):.1%}",
            f"{1000 * cpu / turns:.2f}",
            f"{memory:,.0f}",
            str(lost),
        )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
