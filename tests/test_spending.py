"""What may be spent is kept to, however many requests are under way."""

from __future__ import annotations

import threading

import pytest

from mem1.net.spending import LimitReached, Spending, SpendingLimit, Usage
from mem1.net.threads import Pool


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
