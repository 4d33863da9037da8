"""The server of Search-R1's protocol: the exact shapes, what it refuses, what it counts, and how it stops."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from corpora import TOWNS
from servers import ServerProcess, in_a_thread

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25, RetrievalFailed
from mem1.retrieval.server import make_app, serve
from mem1.tasks.datasets import write_passages

Results = list[list[tuple[Passage, float]]]
AS_JSON = {"content-type": "application/json"}


class Moody:
    """BM25 that fails for some queries, waits at a gate for others, and remembers its calls."""

    def __init__(self) -> None:
        self.bm25 = BM25.build(TOWNS)
        self.gate = threading.Event()
        self.calls: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> Results:
        self.calls.append((list(queries), k))
        if "down" in queries:
            raise RetrievalFailed("the index is on fire")
        if "bug" in queries:
            raise ZeroDivisionError
        if "wait" in queries:
            assert self.gate.wait(60)
        return self.bm25.search(queries, k)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Moody, httpx.Client]]:
    moody = Moody()
    with in_a_thread(moody) as address, httpx.Client(base_url=address, trust_env=False) as client:
        yield moody, client


@pytest.fixture
def moody(shared: tuple[Moody, httpx.Client]) -> Moody:
    shared[0].calls.clear()
    return shared[0]


@pytest.fixture
def server(shared: tuple[Moody, httpx.Client]) -> httpx.Client:
    return shared[1]


def ask(server: httpx.Client, **body: Any) -> Any:
    response = server.post("/retrieve", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


OSLO = {"id": "p0", "contents": '"Oslo"\nOslo is the capital of Norway.'}
STOCKHOLM = {"id": "p2", "contents": '"Stockholm"\nStockholm is the capital of Sweden.'}


def test_the_shapes_of_the_answer_are_search_r1s_with_scores_and_without(server: httpx.Client, moody: Moody):
    queries = ["capital of Norway", "Sweden"]
    (((_, first), _, _), ((_, second),)) = moody.bm25.search(queries, 3)
    answer = ask(server, queries=queries, topk=1, return_scores=True)
    assert answer == {"result": [[{"document": OSLO, "score": first}], [{"document": STOCKHOLM, "score": second}]]}
    assert ask(server, queries=queries, topk=1, return_scores=False) == {"result": [[OSLO], [STOCKHOLM]]}
    assert ask(server, queries=queries, topk=1) == {"result": [[OSLO], [STOCKHOLM]]}


def test_search_r1s_own_client_can_read_it(server: httpx.Client):
    """What `_passages2string` of its trainer does with an answer."""
    (found,) = ask(server, queries=["Oslo"], topk=3, return_scores=True)["result"]
    title, *text = found[0]["document"]["contents"].split("\n")
    assert (title, text) == ('"Oslo"', ["Oslo is the capital of Norway."])


@pytest.mark.parametrize("body", [{}, {"topk": None}, {"topk": 0}])
def test_without_topk_there_are_three_passages(server: httpx.Client, moody: Moody, body: dict[str, Any]):
    (found,) = ask(server, queries=["Norway Sweden Bergen capital"], **body)["result"]
    assert len(found) == 3 and moody.calls == [(["Norway Sweden Bergen capital"], 3)]


def test_empty_requests_unknown_words_and_unknown_keys_are_accepted(server: httpx.Client, moody: Moody):
    assert ask(server, queries=[]) == {"result": []}
    assert ask(server, queries=["zzz", "", "\x00"], retriever_name="e5") == {"result": [[], [], []]}
    assert moody.calls == [(["zzz", "", "\x00"], 3)]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b'{"queries": ["a', 422, "Invalid JSON"),
        (b"", 422, "Invalid JSON"),
        (b"\xff\xfe", 422, "Invalid JSON"),
        (b"[1]", 422, "should be an object"),
        (b'{"queries": "Oslo"}', 422, "queries: Input should be a valid array"),
        (b'{"queries": [1]}', 422, "queries.0: Input should be a valid string"),
        (b"{}", 422, "queries: Field required"),
        (b'{"queries": [], "topk": -1}', 422, "topk: Input should be greater than or equal to 0"),
        (b'{"queries": ["a"], "topk": 1001}', 422, "topk is 1,001; it may be at most 1,000"),
        (json.dumps({"queries": ["a"] * 1025}).encode(), 413, "1,025 queries; a request may have at most 1,024"),
        (json.dumps({"queries": ["a" * 16_385]}).encode(), 413, "a query has 16,385 characters; it may have at"),
        (b" " * ((8 << 20) + 1), 413, "the request is larger than 8,388,608 bytes"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_wrong_request_is_refused_with_a_reason(
    server: httpx.Client, moody: Moody, body: bytes, status: int, detail: str
):
    response = server.post("/retrieve", content=body, headers=AS_JSON)
    assert (response.status_code, detail in response.json()["detail"]) == (status, True), response.text
    assert moody.calls == []


def test_other_methods_and_paths_are_none(server: httpx.Client):
    assert server.get("/retrieve").status_code == 405
    assert server.post("/search", json={"queries": ["a"]}).status_code == 404


def test_a_failing_search_engine_is_a_503_and_the_server_keeps_running(server: httpx.Client):
    response = server.post("/retrieve", json={"queries": ["down"]})
    assert (response.status_code, response.json()) == (503, {"detail": "the index is on fire"})
    assert server.post("/retrieve", json={"queries": ["bug"]}).status_code == 500
    assert len(ask(server, queries=["Oslo"])["result"][0]) == 1


class Odd:
    """Returns what it is given."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def search(self, queries: Sequence[str], k: int) -> Any:
        return self.found


def test_scores_of_another_library_are_numbers_and_surplus_results_are_cut():
    results = [(Passage("p0", "", "Oslo"), np.float32(0.5)), (Passage("p1", "", "Bergen"), np.float32(0.25))]
    with in_a_thread(Odd([results])) as address, httpx.Client(base_url=address, trust_env=False) as server:
        answer = ask(server, queries=["Oslo"], topk=1, return_scores=True)
    assert answer == {"result": [[{"document": {"id": "p0", "contents": '""\nOslo'}, "score": 0.5}]]}


@pytest.mark.parametrize(
    ("found", "detail"),
    [
        ([[(Passage("p0", "", "Oslo"), math.nan)]], "must return lists of (passage, score): nan, not a finite number"),
        ([[Passage("p0", "", "Oslo")]], "the retriever must return lists of (passage, score): "),
        (None, "the retriever must return lists of (passage, score): "),
        ([[("Oslo", 1.0)]], "the retriever must return passages, not 'Oslo'"),
        ([], "the retriever returned 0 lists of results for 1 queries"),
    ],
)
def test_a_retriever_that_returns_something_else_is_a_503_that_says_so(found: Any, detail: str):
    with in_a_thread(Odd(found)) as address, httpx.Client(base_url=address, trust_env=False) as server:
        response = server.post("/retrieve", json={"queries": ["Oslo"], "return_scores": True})
    assert (response.status_code, detail in response.json()["detail"]) == (503, True), response.text


def test_health_and_metrics():
    with in_a_thread(Moody()) as address, httpx.Client(base_url=address, trust_env=False) as server:
        assert server.get("/health").json() == {"status": "ok"}
        ask(server, queries=["Oslo", "Bergen"])
        ask(server, queries=["Oslo"])
        for query in ("down", "bug"):
            server.post("/retrieve", json={"queries": [query]})
        server.post("/retrieve", content=b"{", headers=AS_JSON)
        response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = {name: float(value) for name, value in re.findall(r"^(mem1\S+) (\S+)$", response.text, re.MULTILINE)}
    outcomes = {o: values[f'mem1_retriever_requests_total{{outcome="{o}"}}'] for o in ("answered", "refused", "failed")}
    assert outcomes == {"answered": 2, "refused": 1, "failed": 2}
    assert values["mem1_retriever_queries_total"] == 5
    buckets = [value for name, value in values.items() if "_bucket" in name]
    assert len(buckets) == 14 and buckets == sorted(buckets) and buckets[-1] == 5
    assert values["mem1_retriever_seconds_count"] == 5 and values["mem1_retriever_seconds_sum"] > 0


def test_requests_that_wait_at_the_same_time_are_searched_together():
    moody = Moody()

    async def ask_nine() -> list[Any]:
        transport = httpx.ASGITransport(make_app(moody, top_k=2))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            titles = ["wait", *(town.title for town in TOWNS * 2)]
            posts = [asyncio.ensure_future(client.post("/retrieve", json={"queries": [t]})) for t in titles]
            while not moody.calls:
                await asyncio.sleep(0.001)
            for _ in range(1000):  # nothing but the gate can keep the others from waiting behind the first now
                await asyncio.sleep(0)
            moody.gate.set()
            return [response.json()["result"] for response in await asyncio.gather(*posts)]

    (nothing,), *found = asyncio.run(ask_nine())
    assert nothing == [] and [result[0]["id"] for (result,) in found] == [town.id for town in TOWNS * 2]
    # how many had arrived when a search began depends on the machine; that they were joined does not
    assert sum(len(queries) for queries, _ in moody.calls) == 9
    assert len(moody.calls) <= 4


def test_an_unavailable_port_and_an_unknown_host_are_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for workers in (1, 2):
            with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1, port {port}: Address already in use"):
                run(host="127.0.0.1", port=port, workers=workers)
    with pytest.raises(UserError, match=r"cannot listen on 203\.0\.113\.7, port 0"):
        run(host="203.0.113.7", port=0, workers=1)


def run(*, host: str, port: int, workers: int) -> None:
    serve(Moody, host=host, port=port, workers=workers, top_k=3, listening=print)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    write_passages(tmp_path / "towns.jsonl", TOWNS)
    return tmp_path / "towns.jsonl"


def test_a_stopped_server_finishes_the_request_that_is_open(corpus: Path):
    """Half of its body is there when SIGTERM comes."""
    process = ServerProcess(corpus, "--allow-host", "towns.lan")
    body = json.dumps({"queries": ["Oslo"], "topk": 1}).encode()
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        head = f"POST /retrieve HTTP/1.1\r\nhost: towns.lan\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nexpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode() + body[:9])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 "), "it reads the body"
        process.process.terminate()
        time.sleep(0.2)
        assert process.process.poll() is None, "it waits for the rest"
        connection.sendall(body[9:])
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 OK") and json.loads(answer.split(b"\r\n\r\n")[1]) == {"result": [[OSLO]]}
    code, said = process.wait()  # a second signal could come when nothing handles it any more
    assert code == 0
    assert f"Serving {corpus} on {process.address} (1 worker)" in said and said.endswith("Stopped.\n")


@pytest.mark.slow
def test_a_server_whose_worker_never_serves_again_ends(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "index")
    process = ServerProcess(tmp_path / "index", workers=2)
    shutil.rmtree(tmp_path / "index")
    children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children")
    os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)
    code, said = process.wait()
    assert code == 2 and said.count("starting it again") == 3 and "died 3 times before it served" in said


@pytest.mark.slow
def test_several_workers_share_a_port_and_one_that_dies_is_replaced(corpus: Path):
    process = ServerProcess(corpus, workers=2)
    children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()]
    asked = 0

    def one(_: int) -> int:
        with httpx.Client(base_url=process.address, trust_env=False, timeout=20) as client:
            return len(ask(client, queries=["capital"], topk=2)["result"][0])

    with ThreadPoolExecutor(8) as pool:
        for victim in workers[-2:]:
            assert list(pool.map(one, range(20))) == [2] * 20
            asked += 20
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.2)
        assert list(pool.map(one, range(20))) == [2] * 20
    metrics = httpx.get(f"{process.address}/metrics", trust_env=False).text
    assert f'outcome="answered"}} {asked + 20}.0' in metrics
    code, said = process.stop()
    assert code == 0 and said.count("starting it again") == 2
