"""Plumbing of clients: spending limits, distance between requests, pools of threads, calls that are joined into one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from servers import FakeTime

from mem1.net.failover import Clock, HostLimit
from mem1.net.serving import ClientGone, Refused
from mem1.net.serving.metrics import RequestMetrics
from mem1.net.spending import LimitReached, Spending, SpendingLimit, Usage, WebBudget
from mem1.net.threads import Batcher, Pool
from mem1.records import Passage


def test_a_claim_waits_for_what_is_under_way_and_begins_if_that_used_less():
    spending = Spending(SpendingLimit(tokens=100))
    spending.claim(Usage(10, 70))
    begun = threading.Event()

    def second() -> None:
        spending.claim(Usage(10, 70))
        begun.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not begun.wait(0.05), "80 + 80 tokens are more than 100"
    spending.settle(Usage(10, 70), Usage(10, 5))
    assert begun.wait(5)
    thread.join()
    spending.settle(Usage(10, 70), Usage(10, 70))
    assert spending.used == Usage(20, 75)
    with pytest.raises(LimitReached, match="the limit of 100 tokens is reached"):
        spending.claim(Usage(3, 3))
    spending.claim(Usage(3, 2))


def test_many_threads_never_pass_the_limit():
    spending, highest = Spending(SpendingLimit(tokens=1000)), []

    def spend(_: int) -> bool:
        try:
            spending.claim(Usage(20, 20))
        except LimitReached:
            return False
        spending.settle(Usage(20, 20), Usage(10, 7))
        highest.append(spending.used.input_tokens + spending.used.output_tokens)
        return True

    pool = Pool(8)
    begun = sum(pool.map(spend, range(200)))
    pool.close()
    #  17 tokens each; another one of 40 at most is not begun once more than 960 are used
    assert begun == 57 and max(highest) == 57 * 17 <= 1000


def test_without_a_limit_everything_is_counted():
    spending = Spending(SpendingLimit(dollars_per_million_input=1.0))
    spending.claim(Usage(10**9, 10**9))
    spending.settle(Usage(10**9, 10**9), Usage(2_000_000, 5))
    assert spending.dollars == 2.0


def test_money_is_counted_per_search():
    spending = Spending(WebBudget(dollars=0.003, dollars_per_search=0.001))
    for _ in range(3):
        spending.spend(Usage(searches=1))
    with pytest.raises(LimitReached, match=r"budget of \$0.003 is spent after 3 searches"):
        spending.spend(Usage(searches=1))
    assert (spending.used.searches, spending.dollars) == (3, 0.003)


def test_pages_and_searches_have_budgets_of_their_own():
    spending = Spending(WebBudget(searches=0, pages=2))
    with pytest.raises(LimitReached, match="0 searches"):
        spending.spend(Usage(searches=1))
    spending.spend(Usage(pages=1))
    spending.spend(Usage(pages=1))
    with pytest.raises(LimitReached, match="2 pages"):
        spending.spend(Usage(pages=1))


def test_a_budget_of_money_needs_a_price():
    with pytest.raises(ValueError, match="dollars_per_search"):
        WebBudget(dollars=1.0)


def test_requests_to_one_host_start_apart_and_other_hosts_do_not_wait():
    time = FakeTime()
    limit = HostLimit(1.0, clock=time.clock)
    started = []
    for host in ("a.org", "b.org", "a.org", "a.org", "b.org"):
        limit.wait(host)
        started.append((host, time.seconds))
    assert started == [("a.org", 0), ("b.org", 0), ("a.org", 1), ("a.org", 2), ("b.org", 2)]
    time.seconds += 10
    limit.wait("a.org")
    assert time.seconds == 12


def test_waiting_for_one_host_holds_up_no_other_request():
    waiting, go_on = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waiting.set()
        assert go_on.wait(10)

    limit = HostLimit(1.0, clock=Clock(now=lambda: 5.0, sleep=sleep))
    limit.wait("a.org")
    thread = threading.Thread(target=limit.wait, args=("a.org",))
    thread.start()
    assert waiting.wait(10)
    limit.wait("b.org")  # would hang here if the waiting thread held the lock
    go_on.set()
    thread.join(10)


def test_requests_are_counted_by_outcome_items_and_duration():
    metrics = RequestMetrics("mem1_shop", "goals")
    with metrics.request() as request:
        request.items = 3
    for error in (Refused(503, "later"), Refused(413, "too large"), ClientGone(), KeyError("x")):
        with pytest.raises(type(error)), metrics.request():
            raise error
    text = metrics.text()
    for outcome in ("answered", "refused", "failed", "busy", "gone"):
        assert f'mem1_shop_requests_total{{outcome="{outcome}"}} 1.0' in text
    assert "mem1_shop_goals_total 3.0" in text and 'mem1_shop_seconds_bucket{le="+Inf"} 5.0' in text


class TestPool:
    def test_results_come_in_order_whoever_calls(self):
        pool = Pool(3)
        assert pool.map(lambda x: x * x, range(10)) == [x * x for x in range(10)]
        assert pool.map(str, []) == []
        pool.close()

    def test_an_error_is_raised_where_the_call_was_made(self):
        pool = Pool(2)
        with pytest.raises(ZeroDivisionError):
            pool.map(lambda x: 1 // x, [1, 0, 2])
        assert pool.map(lambda x: x, [5]) == [5], "the threads live on"
        pool.close()


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
