"""What an agent of 200 exchanges costs under a memory writer, a summary by its own model, and without memory.

    python benchmarks/writer_prices.py
    python benchmarks/writer_prices.py --kinds office --exchanges 100 --fold 16 --writer-price 0.05

The agent goes through made transcripts (`mem1 probe`), call by call, and `mem1.messages.Memory` makes its prompts:

full        everything is appended
own         fold(k): every k exchanges the agent's own model rewrites its state, in a call that begins as its prompt
writer      fold(k): states are the notes of a writer, which reads each exchange once; here a rule writes them

A state has as many tokens in both. Warm: a call reads from the cache what it shares with the call before. Cold: it
reads nothing, as where a person answers between calls. Tokens are estimates; the writer's are priced by --writer-price,
what a model of 7B costs a million, and as many as a writer of 135M took: 1.65 read for each, 0.25 written.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from machine import commit, hardware

from mem1.extras.probe.kinds import Settings, make_transcript
from mem1.extras.probe.transcripts import Transcript
from mem1.messages import Bounds, Memory
from mem1.messages.bounds import common_tokens, estimated, tokens_of
from mem1.messages.writing import Reading
from mem1.prices import PRICE_CLASSES, PriceClass, cost_of

CLASSES = ("hosted-90", "hosted-50", "open-weights")
STATE = 1_000
READ, WRITTEN = 1.65, 0.25
MEMORIES = ("full", "own", "writer")


@dataclass
class Bill:
    """The calls of one agent: (prompt, cached, output) tokens, and what the writer was given."""

    calls: list[tuple[int, int, int]] = field(default_factory=list)
    given: int = 0
    last: Sequence[Mapping[str, Any]] = ()

    def call(self, messages: Sequence[Mapping[str, Any]], output: int) -> None:
        self.calls.append((tokens_of(messages), common_tokens(self.last, messages) if self.last else 0, output))
        self.last = messages

    def cost(self, prices: PriceClass, *, cold: bool, writer: float) -> float:
        """In the unit of the class, the writer's included."""
        own = sum(
            cost_of(prompt, 0 if cold else prices.cache.kept(cached), output, prices.prices, prices.cache)
            for prompt, cached, output in self.calls
        )
        return (own + self.given * (READ + WRITTEN) * writer) / 1e6


class Rule:
    """A writer that notes the first words of each line, so many that the states are full."""

    def __init__(self, bill: Bill) -> None:
        self.bill = bill

    def write(self, reading: Reading, /) -> list[str]:
        self.bill.given += estimated(reading.exchange)
        return [" ".join(line.split()[:12]) for line in reading.exchange.splitlines()]


def bill_of(transcript: Transcript, memory: str, fold: int) -> Bill:
    """Goes through the conversation: before each of the model's messages it is given what the memory shows."""
    bill, bounds = Bill(), Bounds(state=STATE)

    def own(request: list[Mapping[str, Any]]) -> str:
        bill.call(request, STATE)
        return "word " * int(0.8 * STATE)

    made = {
        "full": lambda: Memory("full", bounds=bounds),
        "own": lambda: Memory(f"fold({fold})", write=own, bounds=bounds),
        "writer": lambda: Memory(f"fold({fold})", writer=Rule(bill), bounds=bounds),
    }[memory]()
    messages = list(transcript.messages)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            shown = made.prompt(messages[:at])
            made.flush(60)  # a writer has time while tools run
            bill.call(shown, tokens_of([message]))
    return bill


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["atlas", "office"])
    parser.add_argument("--exchanges", type=int, default=200)
    parser.add_argument("--count", type=int, default=2, help="transcripts of each kind")
    parser.add_argument("--fold", type=int, default=8, help="exchanges between two states")
    parser.add_argument("--writer-price", type=float, default=0.30, help="of a million tokens of the writer")
    given = parser.parse_args(arguments)
    print(f"command: python {shlex.join(sys.argv)}; commit {commit()}; {hardware()}\n", flush=True)
    settings = Settings(exchanges=given.exchanges)
    transcripts = [
        make_transcript(kind, "development", n, settings) for kind in given.kinds for n in range(given.count)
    ]
    bills = {name: [bill_of(one, name, given.fold) for one in transcripts] for name in MEMORIES}
    print(
        "| memory | longest prompt | tokens of the agent | of them output | of the writer | "
        + " | ".join(f"{name}, {cache}" for name in CLASSES for cache in ("warm", "cold"))
        + " |"
    )
    print(f"|---|{'--:|' * (4 + 2 * len(CLASSES))}")
    for name, of_it in bills.items():
        longest = statistics.mean(max(prompt for prompt, _, _ in bill.calls) for bill in of_it)
        tokens = statistics.mean(sum(prompt + output for prompt, _, output in bill.calls) for bill in of_it)
        output = statistics.mean(sum(output for _, _, output in bill.calls) for bill in of_it)
        writer = statistics.mean(bill.given * (READ + WRITTEN) for bill in of_it)
        costs = [
            statistics.mean(bill.cost(PRICE_CLASSES[name_], cold=cold, writer=given.writer_price) for bill in of_it)
            for name_ in CLASSES
            for cold in (False, True)
        ]
        cells = [f"{longest:,.0f}", f"{tokens:,.0f}", f"{output:,.0f}", f"{writer:,.0f}"]
        print(f"| {name} | {' | '.join([*cells, *(f'{cost:.3f}' for cost in costs)])} |")


if __name__ == "__main__":
    main()
