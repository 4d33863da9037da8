"""Searches that wait at the same time are one call of the search engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from mem1.net.threads import Batcher
from mem1.records import Passage

Results = list[list[tuple[Passage, float]]]


class Gated:
    """Says that a search has begun, and goes on when it may."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.calls: list[tuple[list[str], int]] = []

    def __call__(self, queries: Sequence[str], k: int) -> Results:
        self.calls.append((list(queries), k))
        self.began.release()
        assert self.gate.acquire(timeout=30)
        return [[(Passage(query, "", query), 1.0)] for query in queries]


def joined(*later: tuple[list[str], int], size: int = 8) -> tuple[list[tuple[list[str], int]], list[list[str]]]:
    """The calls that are made where `later` searches wait behind one for "first", and what each of them got."""
    search = Gated()
    batcher = Batcher(search, threads=1, size=size)
    first = batcher.submit(["first"], 3)
    assert search.began.acquire(timeout=30)
    waiting = [batcher.submit(queries, k) for queries, k in later]
    for _ in range(1 + len(later)):
        search.gate.release()
    assert [found[0][0].id for found in first.result(30)] == ["first"]
    got = [[found[0][0].id for found in one.result(30)] for one in waiting]
    batcher.close()
    return search.calls[1:], got


def test_all_that_wait_are_one_call_and_each_gets_its_own():
    calls, got = joined((["a"], 3), (["b", "c"], 3), (["a"], 3))
    assert calls == [(["a", "b", "c", "a"], 3)]
    assert got == [["a"], ["b", "c"], ["a"]]


def test_other_numbers_of_passages_are_another_call_and_keep_their_order():
    calls, got = joined((["a"], 3), (["b"], 5), (["c"], 3), (["d"], 5))
    assert calls == [(["a", "c"], 3), (["b", "d"], 5)]
    assert got == [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    ("size", "calls"),
    [(3, [["a", "b", "e"], ["c", "d"]]), (1, [["a", "b"], ["c", "d"], ["e"]])],
)
def test_a_call_has_at_most_so_many_queries_unless_one_search_has_more(size: int, calls: list[list[str]]):
    made, got = joined((["a", "b"], 3), (["c", "d"], 3), (["e"], 3), size=size)
    assert [queries for queries, _ in made] == calls
    assert got == [["a", "b"], ["c", "d"], ["e"]]
