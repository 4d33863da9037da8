"""A run of the benchmark in a process that a test kills: python tests/support/bench_player.py SUITE URL FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from mem1.bench.chat import ChatPlayer
from mem1.bench.results import Result
from mem1.bench.running import run
from mem1.bench.suites import Suite, suite_of
from mem1.engines.servers import ModelServer
from mem1.prices import price_class

MEMORIES = ("full", "fold(2)")
AT_A_TIME = 4
PRICES = price_class("hosted-50")


def play(suite: Suite, url: str, folder: Path) -> Result:
    """With a client that waits hundredths of a second before it asks again."""
    server = ModelServer(
        urls=(url,), model="m", concurrency=AT_A_TIME, tries=40, first_wait_s=0.01, longest_wait_s=0.05
    )
    return run(
        lambda journal: ChatPlayer.served(server, journal=journal, prices=PRICES),
        suite,
        MEMORIES,
        seed=0,
        folder=folder,
        prices=PRICES,
    )


if __name__ == "__main__":
    play(suite_of(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
