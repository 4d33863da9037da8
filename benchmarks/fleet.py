"""Overhead of rollouts on many servers, which another process plays: latencies vary, some servers are slow, some die.

    python benchmarks/fleet.py --servers 16 --slow 0 1 --attempts 512      does a slow server delay the other attempts?
    python benchmarks/fleet.py --servers 64 --attempts 8192 --latency 20 --deaths 8

An attempt alternates searches and results, and is forced to answer in its last turn. The latency of a reply is
log-normal, drawn from the request's seed, so two runs wait for the same latencies wherever a request goes. A dying
server closes all connections without replying, refuses others for a while, and comes back.

Columns that are no measure of the fleet's own work, which shares the processors with ours:

    demanded    seconds that the attempt with the longest latencies needs at least; - with slow servers or deaths
    overhead    share of the attempts' time in which no server had their request: making and sending requests, waiting
                for a thread, reading replies, parsing, tokens of the results, contexts, and failed tries
    fleet late  share of their time in which the fleet had read the request, and replied later than it should have;
                not part of the overhead. What waits unread because the fleet is busy counts as overhead
    dead        share of their time that servers had spent on requests when they died; not part of the overhead
    CPU ms      processor time of this process per turn, the fleet's not included
    MB          growth of this process during the attempts, their records included
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, derived_seed
from mem1.engines.codec import Codec
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.engines.weight_update import SPOKEN
from mem1.envs.search import SearchEnvironment
from mem1.memory import memory_policy
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER
from mem1.records import Ended, Passage, Question, Task, Trajectory
from mem1.rollout import Budget, Rollout

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
        self.seconds = dict.fromkeys(("slept", "late", "dead"), 0.0)
        self.dead_until = [0.0] * given.servers
        self.connected: list[set[Server]] = [set() for _ in range(given.servers)]
        note = f"<IS> {' '.join([WORDS] * (given.completion // 5))} </IS> <query> city </query>"
        self.search, self.answer = (_choice(CODEC.encode(text)) for text in (note, " Q1 city </answer>"))

    async def run(self) -> None:
        """Serve until standard input ends, then print what was slept."""
        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(lambda n=n: Server(self, n), "127.0.0.1", 0, backlog=4096)
            for n in range(self.given.servers)
        ]
        print(json.dumps([s.sockets[0].getsockname()[1] for s in servers]), flush=True)
        deaths = asyncio.create_task(self._kill())
        await loop.run_in_executor(None, sys.stdin.read)
        deaths.cancel()
        print(json.dumps(self.seconds), flush=True)
        os._exit(0)  # without waiting for connections that idle

    async def _kill(self) -> None:
        drawn = random.Random(0)
        for _ in range(self.given.deaths):
            await asyncio.sleep(self.given.latency)
            chosen = drawn.randrange(self.given.servers)
            self.dead_until[chosen] = time.monotonic() + DEAD_S
            for server in tuple(self.connected[chosen]):
                server.die()


def _choice(ids: Sequence[int]) -> tuple[bytes, bytes]:
    """What comes before and after the prompt's ids in the body of a reply."""
    logprobs = json.dumps({"token_logprobs": [-0.123456789] * len(ids)})
    before = f'{{"choices": [{{"text": "", "finish_reason": "stop", "token_ids": {list(ids)}, "prompt_token_ids": '
    return before.encode(), f', "logprobs": {logprobs}}}]}}'.encode()


class Server(asyncio.Protocol):
    """One connection to a server. It cuts requests instead of parsing them: the fleet is to cost little."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.number = fleet, number
        self.data = b""
        self.begun = 0.0
        """When the request under way had been read; 0: none is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.fleet.connected[self.number].add(self)
        if time.monotonic() < self.fleet.dead_until[self.number]:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fleet.connected[self.number].discard(self)

    def die(self) -> None:
        if self.begun:
            self.fleet.seconds["dead"] += time.monotonic() - self.begun
        self.begun = 0.0
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, blank, body = self.data.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        self.data = b""
        self.begun = begun = time.monotonic()
        start = body.index(b'"prompt": ') + len(b'"prompt": ')
        prompt = body[start : body.index(b"]", start) + 1]
        seed = int(body.split(b'"seed": ')[1].split(b",")[0])
        given = self.fleet.given
        seconds = latency(seed, given.latency) * (given.factor if self.number < given.slow else 1)
        asyncio.get_running_loop().call_later(seconds, self._reply, prompt, seconds, begun)

    def _reply(self, prompt: bytes, seconds: float, begun: float) -> None:
        if self.begun != begun or self.transport.is_closing():
            return
        answers = prompt.endswith(b" %d]" % OPENED)
        before, after = self.fleet.answer if answers else self.fleet.search
        length = len(before) + len(prompt) + len(after)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % length
        self.transport.write(b"".join((head, before, prompt, after)))
        self.fleet.seconds["slept"] += seconds
        self.fleet.seconds["late"] += time.monotonic() - begun - seconds
        self.begun = 0.0


class Shelf:
    """A search engine that takes no time."""

    def __init__(self, words: int) -> None:
        self.found = [(Passage("p", "", " ".join([WORDS] * (words // 5))), 1.0)]

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [self.found for _ in queries]


def attempt(given: argparse.Namespace, slow: int) -> tuple[list[Trajectory], dict[str, float], float, float]:
    """The attempts, seconds of the fleet by kind, wall and processor seconds of this process."""
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
            dialogue=TagDialogue(CODEC),
            environment=SearchEnvironment({"": Shelf(given.result)}, style="bare"),
            context=memory_policy("constant"),
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


def demanded(found: Sequence[Trajectory], mean: float) -> float:
    """Seconds of the longest attempt's own latencies."""
    return max(
        sum(latency(derived_seed(Sampling().seed, t.task.id, t.attempt, turn), mean) for turn in range(len(t.turns)))
        for t in found
    )


def resident() -> float:
    """Megabytes that this process has had in memory at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def options() -> argparse.ArgumentParser:
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
    return parser


NAMES = (
    "slow servers",
    "wall, s",
    "demanded, s",
    "median attempt, s",
    "p90",
    "turns per s",
    "overhead",
    "fleet late",
    "dead",
    "CPU ms per turn",
    "MB",
    "lost",
)


def row(given: argparse.Namespace, slow: int) -> list[str]:
    """The cells of one run."""
    before = resident()
    found, fleet, wall, cpu = attempt(given, slow)
    seconds = sorted(t.seconds for t in found)
    total, turns = sum(seconds), sum(len(t.turns) for t in found)
    at_least = f"{demanded(found, given.latency):.1f}" if not slow and not given.deaths else "-"
    return [
        str(slow),
        f"{wall:.1f}",
        at_least,
        *(f"{seconds[int(share * len(seconds))]:.1f}" for share in (0.5, 0.9)),
        f"{turns / wall:,.0f}",
        f"{1 - sum(fleet.values()) / total:.1%}",
        *(f"{fleet[kind] / total:.1%}" for kind in ("late", "dead")),
        f"{1000 * cpu / turns:.2f}",
        f"{resident() - before:,.0f}",
        str(sum(t.ended is not Ended.ANSWERED for t in found)),
    ]


def main() -> None:
    given = options().parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if given.play:
        given.slow = given.slow[0]
        asyncio.run(Fleet(given).run())
        return
    from machine import commit, hardware  # which loads torch

    work = f"{given.servers} servers, {given.attempts:,} attempts of {given.turns} turns, {given.latency:g} s a reply"
    print(f"commit {commit()}; {hardware()}; {work}\n")
    print(f"| {' | '.join(NAMES)} |\n{'|--:' * len(NAMES)}|")
    for slow in given.slow:
        print(f"| {' | '.join(row(given, slow))} |", flush=True)


if __name__ == "__main__":
    main()
