"""The client of Search-R1's protocol: what it sends, what it accepts, and how it bears servers that misbehave."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import FakeTime, answering, wait_for

from mem1.errors import UserError
from mem1.net.failover import Clock
from mem1.net.threads import Batcher
from mem1.records import Passage
from mem1.retrieval import RetrievalFailed
from mem1.retrieval.client import HttpRetriever, RetrievalServer, encode_found, joined_answer, read_answer
from mem1.retrieval.corpus import joined_contents, title_and_text

OSLO = Passage("p0", "Oslo", "Oslo is the capital of Norway.")
OSLO_DOCUMENT = {"id": "p0", "contents": '"Oslo"\nOslo is the capital of Norway.'}
FOUND = [[(OSLO, 2.5)]]
Handler = Callable[[httpx.Request], httpx.Response]


def good(request: httpx.Request) -> httpx.Response:
    """Finds Oslo for every query."""
    queries = json.loads(request.content)["queries"]
    return httpx.Response(200, json={"result": [[{"document": OSLO_DOCUMENT, "score": 2.5}]] * len(queries)})


def saying(body: Any) -> Handler:
    return lambda _request: httpx.Response(200, json=body)


def raising(error: Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return handler


class Server:
    """Answers by the given handlers, one after the other and the last for ever; remembers what it was asked."""

    def __init__(self, *handlers: Handler) -> None:
        self.handlers = list(handlers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return (self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0])(request)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def client(handler: Handler, time: FakeTime | None = None, *urls: str, **settings: Any) -> HttpRetriever:
    server = RetrievalServer(urls=urls or ("http://a:8000",), **settings)
    return HttpRetriever(server, transport=httpx.MockTransport(handler), clock=(time or FakeTime()).clock)


def test_the_request_is_search_r1s():
    server = Server(good)
    assert client(server).search(["capital of Norway", "Oslo"], 5) == FOUND * 2
    assert server.bodies == [{"queries": ["capital of Norway", "Oslo"], "topk": 5, "return_scores": True}]
    (request,) = server.requests
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json")


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://a:8000", "http://a:8000/retrieve"),
        ("http://a:8000/", "http://a:8000/retrieve"),
        ("http://a:8000/retrieve", "http://a:8000/retrieve"),
        ("https://a/wiki/search?x=1", "https://a/wiki/search?x=1"),
    ],
)
def test_a_bare_address_means_its_retrieve(given: str, asked: str):
    server = Server(good)
    client(server, None, given).search(["x"], 1)
    assert str(server.requests[0].url) == asked


@pytest.mark.parametrize("url", ["", "a:8000", "ftp://a", "http://", "http://a:port", "file:///etc/passwd"])
def test_an_invalid_address_is_refused(url: str):
    with pytest.raises(pydantic.ValidationError, match="is not the address of a retriever"):
        RetrievalServer(urls=(url,))


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(pydantic.ValidationError, match="user name or password") as caught:
        RetrievalServer(urls=("http://me:secret@a:8000",))
    assert "secret" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"document": OSLO_DOCUMENT, "score": 2.5}, (OSLO, 2.5)),
        ({"document": OSLO_DOCUMENT, "score": "2.5"}, (OSLO, 2.5)),
        ({"document": OSLO_DOCUMENT, "score": None}, (OSLO, 1.0)),
        (OSLO_DOCUMENT, (OSLO, 1.0)),
        ({"id": 7, "title": "Oslo", "text": "A city."}, (Passage("7", "Oslo", "A city."), 1.0)),
        ({"id": "x", "contents": "No title here."}, (Passage("x", "", "No title here."), 1.0)),
    ],
)
def test_documents_are_read_in_every_form_that_search_r1s_servers_give(entry: Any, found: tuple[Passage, float]):
    assert client(saying({"result": [[entry]]})).search(["x"], 3) == [[found]]


def test_a_document_without_an_id_gets_one_from_its_content():
    def document(text: str) -> dict[str, str]:
        return {"title": "Oslo", "text": text, "contents": f'"Oslo"\n{text}'}

    entries = [{"document": document(text), "score": 1.0} for text in ("A city.", "A town.", "A city.")]
    (result,) = client(saying({"result": [entries]})).search(["x"], 3)
    ids = [passage.id for passage, _ in result]
    assert [(p.title, p.text) for p, _ in result] == [("Oslo", "A city."), ("Oslo", "A town."), ("Oslo", "A city.")]
    assert ids[0] == ids[2] != ids[1] and len(ids[0]) == 16


def test_surplus_documents_are_cut_and_those_without_text_left_out():
    blank = {"id": "b", "contents": '"Only a title"\n'}
    assert client(saying({"result": [[blank, OSLO_DOCUMENT, OSLO_DOCUMENT]]})).search(["x"], 1) == [[(OSLO, 1 / 2)]]


BAD = {
    "status 500": lambda _: httpx.Response(500),
    "status 503": lambda _: httpx.Response(503),
    "is not JSON": lambda _: httpx.Response(200, text='{"result": [['),
    "is not JSON ": lambda _: httpx.Response(200, text="[" * 100_000),
    'has no "result"': saying(["result"]),
    'has no "result" ': saying({"result": {"0": []}}),
    'has no "result"  ': saying({"result": ["p0"]}),
    "has 2 results for 1 queries": saying({"result": [[], []]}),
    "has 0 results for 1 queries": saying({"result": []}),
    "is str, not an object": saying({"result": [["p0"]]}),
    "is int, not an object": saying({"result": [[{"document": 3, "score": 1}]]}),
    "has no text": saying({"result": [[{"document": {"id": "p0"}, "score": 1}]]}),
    "the title of passage": saying({"result": [[{"title": 1, "text": "x"}]]}),
    "a score of the answer is 'high'": saying({"result": [[{"document": OSLO_DOCUMENT, "score": "high"}]]}),
    "a score of the answer is nan": lambda _: httpx.Response(
        200, text=json.dumps({"result": [[{"document": OSLO_DOCUMENT, "score": float("nan")}]]})
    ),
    "a score of the answer is 9999": lambda _: httpx.Response(
        200, text='{"result": [[{"document": {"id": "p0", "contents": "x"}, "score": ' + "9" * 400 + "}]]}"
    ),
    "a score of the answer is inf": lambda _: httpx.Response(
        200, text='{"result": [[{"document": {"id": "p0", "contents": "x"}, "score": 1e400}]]}'
    ),
    "a score of the answer is True": saying({"result": [[{"document": OSLO_DOCUMENT, "score": True}]]}),
    "the id of a document of the answer is 9999": lambda _: httpx.Response(
        200, text='{"result": [[{"id": ' + "9" * 400 + ', "contents": "x"}]]}'
    ),
    "the id of a document of the answer is": saying({"result": [[{"id": [[]], "contents": "x"}]]}),
    "is not JSON  ": lambda _: httpx.Response(200, text='{"result": ' + "9" * 5000 + "}"),
    "is not JSON   ": lambda _: httpx.Response(200, text='{"result": [[{"contents": "x", "y": ' + "[" * 9000),
    "connection refused": raising(httpx.ConnectError("connection refused")),
    "timed out": raising(httpx.ReadTimeout("timed out")),
    "RemoteProtocolError": raising(httpx.RemoteProtocolError("")),
}


@pytest.mark.parametrize(("why", "bad"), BAD.items(), ids=BAD)
def test_every_incomplete_answer_is_retried_and_named_in_the_final_error(why: str, bad: Handler):
    time, server = FakeTime(), Server(bad, bad, good)
    assert client(server, time).search(["x"], 3) == FOUND
    assert len(server.requests) == 3
    assert time.slept == [pytest.approx(0.075), pytest.approx(0.15)]
    with pytest.raises(RetrievalFailed, match=rf"within 1 s: http://a:8000/retrieve: .*{why.strip()}"):
        client(bad, deadline_s=1.0).search(["x"], 3)


def test_waits_grow_up_to_five_seconds_and_end_with_the_deadline():
    time, server = FakeTime(), Server(lambda _: httpx.Response(500))
    with pytest.raises(RetrievalFailed, match="no answer within 60 s"):
        client(server, time, deadline_s=60.0).search(["x"], 3)
    assert time.slept[:7] == pytest.approx([0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 3.75])
    assert max(time.slept) == 3.75 and 56.25 < time.seconds <= 60
    assert len(server.requests) == len(time.slept) + 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(status: int):
    clock, server = FakeTime(), Server(lambda _: httpx.Response(status, headers={"retry-after": "7"}), good)
    assert client(server, clock).search(["x"], 3) == FOUND
    assert clock.slept == [7 + 0.075]


def test_a_server_that_asks_to_wait_beyond_the_deadline_is_given_up_at_once():
    clock = FakeTime()
    with pytest.raises(RetrievalFailed, match="status 429"):
        client(lambda _: httpx.Response(429, headers={"retry-after": "3600"}), clock).search(["x"], 3)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (httpx.Response(302, headers={"location": "http://127.0.0.1/admin"}), "status 302 Found to http://127.0.0.1/"),
        (httpx.Response(404), "status 404 Not Found"),
        (httpx.Response(422), "status 422"),
    ],
)
def test_a_refusal_for_good_and_a_redirection_fail_at_once_and_lead_nowhere(refusal: httpx.Response, why: str):
    clock, server = FakeTime(), Server(lambda _: refusal)
    with pytest.raises(RetrievalFailed, match=f"the retriever refuses: http://a:8000/retrieve: {why}"):
        client(server, clock).search(["x"], 3)
    assert (len(server.requests), clock.slept) == (1, [])


def whole(connection: socket.socket) -> None:
    body = json.dumps({"result": [[{"document": OSLO_DOCUMENT, "score": 2.5}]]}).encode()
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


def cut(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{"result": [[')


def silent(connection: socket.socket) -> None:
    connection.recv(1)  # until the client hangs up


def dripping(connection: socket.socket) -> None:
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.02)
    except OSError:
        pass


@pytest.mark.parametrize("transport", [None, httpx.HTTPTransport()], ids=["plain", "httpx"])
@pytest.mark.parametrize(
    ("answer", "why", "timeout_s"),
    [
        (cut, "without sending complete message body|Connection broken", 60.0),
        (silent, "timed out", 0.2),
        (dripping, "took longer than 0.2 s|timed out", 0.2),  # the latter where the machine is too busy to drip
        (lambda _: None, "disconnected without sending a response|closed connection without response", 60.0),
        (lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "illegal status line|BadStatusLine", 60.0),
    ],
    ids=["cut", "silent", "dripping", "hangs up", "no HTTP"],
)
def test_a_real_connection_that_breaks_is_a_failed_try(
    answer: Callable[[socket.socket], None],
    why: str,
    timeout_s: float,
    transport: httpx.BaseTransport | None,
    caplog: pytest.LogCaptureFixture,
):
    with answering(answer, whole) as address:
        server = RetrievalServer(urls=(address,), timeout_s=timeout_s)
        retriever = HttpRetriever(server, clock=Clock(sleep=lambda _: None), transport=transport)
        assert retriever.search(["x"], 3) == FOUND
    assert re.search(why, caplog.records[0].getMessage())


def test_an_answer_without_end_is_a_failed_try(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.net.exchange._LARGEST_ANSWER", 1000)
    with pytest.raises(RetrievalFailed, match="larger than 1,000 bytes"):
        client(lambda _: httpx.Response(200, content=b" " * 1001), deadline_s=0.01).search(["x"], 3)


class Hosts:
    """Several servers by host; those in `dead` refuse."""

    def __init__(self, *dead: str) -> None:
        self.dead = set(dead)
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        if request.url.host in self.dead:
            raise httpx.ConnectError("connection refused")
        return good(request)


def test_several_addresses_take_turns():
    hosts = Hosts()
    retriever = client(hosts, None, "http://a", "http://b", "http://c")
    for _ in range(6):
        retriever.search(["x"], 3)
    assert hosts.asked == ["a", "b", "c", "a", "b", "c"]


def test_a_dead_address_is_skipped_and_tried_less_and_less_often():
    hosts, clock = Hosts("a"), FakeTime()
    retriever = client(hosts, clock, "http://a", "http://b")
    for _ in range(100):
        assert retriever.search(["x"], 3) == FOUND
        clock.seconds += 1.0
    assert clock.slept == [], "nobody waits while one address answers"
    assert 3 <= hosts.asked.count("a") <= 8 and hosts.asked.count("b") == 100
    hosts.dead.clear()
    clock.seconds += 31.0
    hosts.asked.clear()
    for _ in range(10):
        retriever.search(["x"], 3)
    assert Counter(hosts.asked) == {"a": 5, "b": 5}


def test_when_all_are_dead_the_search_waits_and_names_them_all():
    hosts, clock = Hosts("a", "b"), FakeTime()
    with pytest.raises(RetrievalFailed, match=r"http://a/retrieve: connection refused; http://b/retrieve: conn"):
        client(hosts, clock, "http://a", "http://b", deadline_s=5.0).search(["x"], 3)
    assert hosts.asked.count("a") == hosts.asked.count("b") == len(clock.slept) + 1


class Gate:
    """Answers nothing until it is opened; each passage says which query it is for."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[tuple[int, list[str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        self.batches.append((asked["topk"], asked["queries"]))
        assert self.open.wait(60)
        return httpx.Response(200, json={"result": [[{"id": q, "contents": q}] for q in asked["queries"]]})


def test_the_queries_of_many_threads_share_requests_and_each_gets_its_own_answer():
    gate = Gate()
    retriever = client(gate, connections=2, batch=24)
    queries = [f"query {i}" for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        results = []
        for i, query in enumerate(queries):
            results.append(pool.submit(retriever.search, [query], 3))
            if i < 2:  # one request on each connection, and the others gather behind them
                wait_for(lambda i=i: len(gate.batches) == i + 1)
        wait_for(lambda: len(retriever._batcher._waiting) == 62)
        gate.open.set()
        found = [result.result() for result in results]
    assert [[p.id for p, _ in one] for (one,) in found] == [[query] for query in queries]
    sizes = [len(batch) for _, batch in gate.batches]
    assert sizes[:2] == [1, 1] and sorted(sizes[2:]) == [14, 24, 24]  # two connections: either may be first


def test_searches_for_another_number_of_passages_do_not_share_and_long_ones_are_divided():
    gate = Gate()
    gate.open.set()
    retriever = client(gate, batch=4)
    queries = [str(i) for i in range(10)]
    (first, *_), k = retriever.search(queries, 2), 2
    assert first[0][0].id == "0"
    assert sorted((k, len(batch)) for k, batch in gate.batches) == [(k, 2), (k, 4), (k, 4)]
    gate.batches.clear()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda k: retriever.search(["x"], k), [1, 2] * 10))
    assert sum(len(batch) for _, batch in gate.batches) == 20
    assert sum(len(batch) for k, batch in gate.batches if k == 1) == 10


def test_only_the_part_that_failed_is_sent_again():
    server = Server(lambda _: httpx.Response(500), good)
    assert client(server, batch=2, connections=1).search(["a", "b", "c", "d"], 3) == FOUND * 4
    assert [body["queries"] for body in server.bodies] == [["a", "b"], ["c", "d"], ["a", "b"]]


def test_a_query_that_servers_would_refuse_is_cut_and_cleaned():
    server = Server(good)
    client(server, query_chars=10).search(["x" * 99, "half \ud800 pair", "\x00"], 3)
    assert server.bodies[0]["queries"] == ["x" * 10, "half ? pai", "\x00"]


def test_losing_and_regaining_a_server_is_logged_once_each(caplog: pytest.LogCaptureFixture):
    bad = BAD["connection refused"]
    client(Server(bad, bad, bad, good)).search(["x"], 3)
    assert [record.getMessage() for record in caplog.records] == [
        "no answer from the retriever (http://a:8000/retrieve: connection refused); retrying each search for 300 s",
        "the retriever answers again",
    ]


def test_a_check_without_an_answer_is_a_user_error():
    client(good).check()
    with pytest.raises(UserError, match=r"within 2 s.*connection refused; start one with mem1 serve-retriever"):
        client(BAD["connection refused"], deadline_s=2.0).check()


def test_a_closed_client_says_so():
    retriever = client(good)
    retriever.close()
    with pytest.raises(RuntimeError, match="closed"):
        retriever.search(["Oslo"], 3)


def test_nobody_gets_what_another_asked_for_where_results_are_missing():
    def search(queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [[(OSLO, 1.0)] for query in queries if query != "nothing"]

    batcher = Batcher(search, threads=1, size=3)
    with pytest.raises(ValueError, match="1 results for 2 items"):
        batcher.submit(["nothing", "Oslo"], 1).result(10)
    assert batcher.submit(["Oslo"], 1).result(10) == [[(OSLO, 1.0)]]
    batcher.close()


def test_an_error_of_a_joined_search_reaches_every_caller():
    gate, sizes = threading.Event(), []

    def search(queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        sizes.append(len(queries))
        assert gate.wait(60)
        if "bad" in queries:
            raise RetrievalFailed("no")
        return [[(OSLO, float(k))] for _ in queries]

    batcher = Batcher(search, threads=1, size=3)
    first = batcher.submit(["a"], 1)
    wait_for(lambda: bool(sizes))
    rest = [batcher.submit(queries, 1) for queries in (["b"], ["bad"], ["1", "2", "3", "4", "5"], ["c"], ["d"])]
    batcher.close()
    gate.set()
    assert first.result(10) == [[(OSLO, 1.0)]]
    failed = [future.exception(10) is not None for future in rest]
    assert (sizes, failed) == ([1, 3, 5, 1], [True, True, False, True, False])


titles = st.text(st.characters(exclude_characters="\n"))
texts = st.text(min_size=1).filter(str.strip)


@given(titles, texts)
def test_contents_are_taken_apart_as_they_were_joined(title: str, text: str):
    assert title_and_text({"contents": joined_contents(Passage("p", title, text))}) == (title, text)


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(titles, texts, st.floats(allow_nan=False, allow_infinity=False)), max_size=3)))
def test_an_answer_is_read_as_it_was_written(results: list[list[tuple[str, str, float]]]):
    found = [[(Passage(str(i), t, x), s) for i, (t, x, s) in enumerate(result)] for result in results]
    whole, bare = (
        read_answer(b"".join(joined_answer([encode_found(f, scores=s) for f in found])), queries=len(found), k=3)
        for s in (True, False)
    )
    assert whole == found
    assert [[p for p, _ in result] for result in bare] == [[p for p, _ in result] for result in found]
