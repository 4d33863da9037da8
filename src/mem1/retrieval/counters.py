"""What a retrieval server counts, in Prometheus' text format.

    counters.add("answered", queries=2, seconds=0.004)
    counters.text()    mem1_retriever_requests_total{outcome="answered"} 1
                       mem1_retriever_queries_total 2 ...

Every worker process adds to a row of its own in shared memory, so nothing is locked; any of them shows the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing import get_context
from typing import Any, Literal, get_args

Outcome = Literal["answered", "refused", "failed", "busy", "gone"]
"""refused: the request was wrong (4xx); failed: the search engine did not answer (5xx); busy: too many requests waited
already (503); gone: the client hung up before it was answered."""

_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_QUERIES = len(_OUTCOMES)
_SECONDS = _QUERIES + 1
_BUCKETS = _SECONDS + 1
_WIDTH = _BUCKETS + len(_BOUNDS_S) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Of one worker process; all of them share `numbers`."""

    numbers: Any
    """Shared array of doubles, a row a worker: requests by outcome, queries, seconds, requests by duration."""
    row: int = 0

    @classmethod
    def make(cls, workers: int = 1) -> list[Counters]:
        """One for each of so many workers."""
        numbers = get_context("spawn").RawArray("d", workers * _WIDTH)
        return [cls(numbers, row) for row in range(workers)]

    def add(self, outcome: Outcome, *, queries: int = 0, seconds: float) -> None:
        """A request that was dealt with."""
        start = self.row * _WIDTH
        self.numbers[start + _OUTCOMES.index(outcome)] += 1
        self.numbers[start + _QUERIES] += queries
        self.numbers[start + _SECONDS] += seconds
        bucket = next((i for i, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
        self.numbers[start + _BUCKETS + bucket] += 1

    def text(self) -> str:
        """All workers together."""
        numbers = list(self.numbers)
        sums = [sum(numbers[column::_WIDTH]) for column in range(_WIDTH)]
        lines = ["# TYPE mem1_retriever_requests_total counter"]
        lines += [
            f'mem1_retriever_requests_total{{outcome="{outcome}"}} {n:.0f}'
            for outcome, n in zip(_OUTCOMES, sums, strict=False)
        ]
        lines += ["# TYPE mem1_retriever_queries_total counter", f"mem1_retriever_queries_total {sums[_QUERIES]:.0f}"]
        return "\n".join([*lines, *_histogram(sums[_BUCKETS:], sums[_SECONDS])]) + "\n"


def _histogram(counts: Sequence[float], seconds: float) -> list[str]:
    bounds = [*map(str, _BOUNDS_S), "+Inf"]
    up_to = list(accumulate(counts))
    return [
        "# TYPE mem1_retriever_seconds histogram",
        *(f'mem1_retriever_seconds_bucket{{le="{b}"}} {n:.0f}' for b, n in zip(bounds, up_to, strict=True)),
        f"mem1_retriever_seconds_sum {seconds:.6f}",
        f"mem1_retriever_seconds_count {up_to[-1]:.0f}",
    ]
