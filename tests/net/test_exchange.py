"""Clients' plumbing: spending limits, threads, joined calls, numbers and JSON of servers, keys that are never shown."""

from __future__ import annotations

import base64
import html
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import content_with
from servers import FakeTime
from sites import site
from worlds import CODEC, SAMPLING, rollout, shelf, task

from mem1.engines.dialects import Text
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.evaluation.judge import KEY_VARIABLE, Judge, JudgedAnswer, JudgeServer
from mem1.net.exchange import TryFailed, exchange, number, read_json, redact, repeats, retry_after, shown, whole_number
from mem1.net.failover import Clock, HostLimit
from mem1.net.requests import ClientGone, Refused, RequestMetrics
from mem1.net.spending import LimitReached, MoneyLimit, Spending, SpendingLimit, Usage, WebBudget
from mem1.net.threads import Batcher, Pool
from mem1.protocol import PAPER
from mem1.records import Ended, Passage

HUGE = int("9" * 400)


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
    assert begun.wait(60)
    thread.join()
    spending.settle(Usage(10, 70), Usage(10, 70))
    assert spending.used == Usage(20, 75)
    with pytest.raises(LimitReached, match="the limit of 100 tokens is reached"):
        spending.claim(Usage(3, 3))
    spending.claim(Usage(3, 2))


def test_a_limit_on_money_counts_what_was_used_before():
    spending = Spending(MoneyLimit(1.0, "EUR"), Usage(money=0.75))
    with pytest.raises(LimitReached, match=r"the limit of 1 EUR is reached"):
        spending.claim(Usage(10, 10, money=0.5))
    spending.claim(Usage(10, 10, money=0.25))
    spending.settle(Usage(10, 10, money=0.25), Usage(10, 4, money=0.125))
    assert (spending.used, spending.dollars) == (Usage(10, 4, money=0.875), 0.875)


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
    clock = FakeTime()
    limit = HostLimit(1.0, clock=clock.clock)
    started = []
    for host in ("a.org", "b.org", "a.org", "a.org", "b.org"):
        limit.wait(host)
        started.append((host, clock.seconds))
    assert started == [("a.org", 0), ("b.org", 0), ("a.org", 1), ("a.org", 2), ("b.org", 2)]
    clock.seconds += 10
    limit.wait("a.org")
    assert clock.seconds == 12


def test_waiting_for_one_host_holds_up_no_other_request():
    waiting, go_on = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waiting.set()
        assert go_on.wait(60)

    limit = HostLimit(1.0, clock=Clock(now=lambda: 5.0, sleep=sleep))
    limit.wait("a.org")
    thread = threading.Thread(target=limit.wait, args=("a.org",))
    thread.start()
    assert waiting.wait(60)
    limit.wait("b.org")  # would hang here if the waiting thread held the lock
    go_on.set()
    thread.join(60)


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
        assert self.gate.acquire(timeout=60)
        return [[(Passage(query, "", query), 1.0)] for query in queries]


def joined(*later: tuple[list[str], int], size: int = 8) -> tuple[list[tuple[list[str], int]], list[list[str]]]:
    """The calls that are made where `later` searches wait behind one for "first", and what each of them got."""
    search = Gated()
    batcher = Batcher(search, threads=1, size=size)
    first = batcher.submit(["first"], 3)
    assert search.began.acquire(timeout=60)
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


@pytest.mark.parametrize(("size", "calls"), [(3, [["a", "b", "e"], ["c", "d"]]), (1, [["a", "b"], ["c", "d"], ["e"]])])
def test_a_call_has_at_most_size_queries_unless_one_search_has_more(size: int, calls: list[list[str]]):
    made, got = joined((["a", "b"], 3), (["c", "d"], 3), (["e"], 3), size=size)
    assert [queries for queries, _ in made] == calls
    assert got == [["a", "b"], ["c", "d"], ["e"]]


def test_numbers_are_those_between_their_bounds():
    assert number(3, least=0.0, most=4.0) == 3.0
    for bad in (HUGE, -HUGE, float("nan"), float("inf"), -0.1, 4.1, True, "3", None, [3]):
        assert number(bad, least=0.0, most=4.0) is None
    assert len(shown(10**5000)) <= 43
    assert whole_number(7, most=7) == 7
    for bad in (8, -1, 7.0, True, "7", None, HUGE):
        assert whole_number(bad, most=7) is None


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[" * 200_000, b'{"a":' * 50_000, b"9" * 5000, b'"\\ud8', b"{]", b"-", b"\x00"]
)
def test_anything_but_json_is_a_value_error(body: bytes):
    with pytest.raises(ValueError, match="the answer is not JSON"):
        read_json(body)


@settings(max_examples=20)
@given(st.recursive(st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_a_shown_value_is_short(value: Any):
    assert len(shown(value)) <= 43


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None),
        ("Wed, 99999999999999999999 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 99999999999999999999:28:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999999999", None),
        ("Wed, 21 Oct 0000 07:28:00 GMT", 0.0),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
        ("9" * 400, 999_999_999.0),
        ("\u00b2", None),
        ("-7", None),
        ("soon", None),
        ("1.5", None),
        (None, None),
        ("7", 7.0),
        ("", None),
    ],
)
def test_a_retry_after_is_a_number_of_seconds_or_unreadable(value: str | None, seconds: float | None):
    assert retry_after(value) == seconds


def test_retry_after_may_be_a_date():
    assert 3000 < (retry_after(formatdate(time.time() + 3600, usegmt=True)) or 0) <= 3600


@settings(max_examples=20)
@given(st.text() | st.from_regex(r"\w{3}, \d{1,30} \w{3} \d{1,30} \d{1,30}:\d\d:\d\d [+-]?\d{1,30}"))
def test_no_text_of_a_retry_after_raises(value: str):
    found = retry_after(value)
    assert found is None or 0 <= found < 1e12


KEY = "sk-very/SECRET+0123_4567-89"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "for an address": lambda key: quote(key, safe=""),
    "every character for an address": lambda key: "".join(f"%{ord(c):02x}" for c in key),
    "twice for an address": lambda key: quote(quote(key, safe=""), safe=""),
    "for JSON": lambda key: key.replace("/", "\\/"),
    "every character for JSON": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "for HTML": lambda key: "".join(f"&#x{ord(c):x};" for c in key),
    "names for HTML": lambda key: html.escape(key).replace("+", "&plus;").replace("/", "&sol;"),
    "base 64": lambda key: base64.b64encode(key.encode()).decode(),
    "base 64 with more": lambda key: base64.b64encode(f"Bearer {key}!".encode()).decode(),
    "base 64 for an address": lambda key: base64.urlsafe_b64encode(f"x{key}".encode()).decode(),
    "base 16": lambda key: key.encode().hex(),
    "capitals": str.upper,
    "small letters": str.lower,
    "blanks": " ".join,
    "on two lines": lambda key: key[:9] + "\r\n " + key[9:],
    "quoted-printable": lambda key: "".join(f"={ord(c):02X}" for c in key),
}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_a_key_in_any_form(form: str):
    said = f"Location: https://example.org/?key={FORMS[form](KEY)}&x=1"
    if form == "as it is":
        assert redact(said, KEY) == "Location: https://example.org/?key=***&x=1"
    else:
        assert redact(said, KEY) == "***"
    assert redact(f"{KEY} {said}", KEY).count(KEY) == 0


@pytest.mark.parametrize("text", ["", "no such model %s", "100 % of 5 &amp; 6", "\\u00e9t\u00e9 \\n", "c2sgdmVyeQ=="])
def test_text_without_the_key_stays(text: str):
    assert redact(text, KEY) == redact(text, None) == redact(text, "") == text


def test_a_word_that_servers_of_ones_own_take_for_a_key_may_stand_in_answers():
    assert not repeats("the box is EMPTY, empty", "EMPTY")
    assert redact("the box is empty", "EMPTY") == "the box is empty"
    assert repeats(f"x {KEY}", KEY) and repeats(quote(KEY, safe=""), KEY) and not repeats("x", KEY)
    assert not repeats("%25" * 99 + "25", KEY), "what cannot be told is an answer all the same"


def test_a_long_text_is_redacted_quickly():
    start = time.process_time()
    for text in ("%25" * 100_000, "&amp;" * 100_000, "\\u0041" * 50_000, "a" * 1_000_000):
        redact(text, KEY)
    assert time.process_time() - start < 5


def refusals(form: str) -> dict[str, httpx.Response]:
    told = FORMS[form](KEY)
    on_a_line = told.replace("\r\n", "")
    return {
        "body": httpx.Response(401, text=f"bad key {told}"),
        "location": httpx.Response(302, headers={"location": f"http://evil.example/?{on_a_line}"}),
        "reason": httpx.Response(403, extensions={"reason_phrase": f"No {on_a_line}".encode()}),
        "answer": httpx.Response(200, text=f'{{"choices": [{{"text": "{on_a_line}"'),
        "reason to try again": httpx.Response(503, extensions={"reason_phrase": f"No {on_a_line}".encode()}),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", refusals("as it is"))
def test_no_failure_of_an_attempt_holds_the_key(where: str, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", KEY)
    asked: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return refusals(form)[where]

    config = ModelServer(urls=("http://a/v1",), model="m", api_key_env="MY_KEY", tries=2, first_wait_s=0.0)
    servers = Servers(config, transport=httpx.MockTransport(respond))
    engine = OpenAIEngine(servers, config, Text(), CODEC, PAPER.stop_strings)
    (attempt,) = rollout(engine, shelf("a"), codec=CODEC)([task("x")], sampling=SAMPLING)
    assert attempt.ended is Ended.ENGINE_FAILED and set(asked) == {"a"}
    detail = attempt.detail or ""
    assert detail and FORMS[form](KEY) not in detail and redact(detail, KEY) == detail
    assert "\n" not in detail and detail.isprintable()


def test_a_librarys_message_about_a_broken_answer_holds_no_key():
    def respond(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError(f"illegal header line: bytearray(b'x: {quote(KEY, safe='')}')")

    client = httpx.Client(transport=httpx.MockTransport(respond), headers={"authorization": f"Bearer {KEY}"})
    with pytest.raises(TryFailed) as failure:
        exchange(client, "http://a", b"", timeout_s=1.0, now=time.monotonic)
    assert str(failure.value) == "***"


def test_a_judge_that_refuses_does_not_bring_its_key_into_a_verdict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with site({"/v1/chat/completions": content_with(403, {"error": quote(KEY, safe="")})}) as server:
        (verdict,) = Judge(JudgeServer(base_url=f"{server.url}/v1", model="m"))([JudgedAnswer("a", ("b",), "c")])
    assert verdict.correct is None and redact(verdict.why, KEY) == verdict.why


def test_a_pool_has_threads_of_its_own_in_a_forked_process():
    program = """
import os, sys
from mem1.net.threads import Pool
pool = Pool(1)
assert pool.submit(abs, -1).result(20) == 1
child = os.fork()
if child == 0:
    os._exit(0 if pool.submit(abs, -2).result(20) == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
