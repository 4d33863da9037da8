"""What every server refuses, drops and hangs up on: foreign pages, dead clients, half requests, too much at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from corpora import TOWNS
from policies import CHAT, tiny
from servers import FakeTime, app_in_a_thread, wait_for
from shop_sites import site
from webshop_site import app as webshop
from worlds import CODEC

from mem1.engines import policy_server
from mem1.engines.base import Follow, Request
from mem1.engines.policy_sampler import BatchOptions, Sampler
from mem1.envs.webshop.catalogue import Goal
from mem1.envs.webshop.pages import Session
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError, printable
from mem1.net.bounds import BOUNDS, Bounds
from mem1.net.connections import ConnectionLimit, Listener
from mem1.net.requests import CapacityLimit, Refused
from mem1.net.web_server import FORM, JSON, Hosts, Plain, Sparing, bind
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval import server as retriever_server
from mem1.retrieval.client import HttpRetriever, RetrievalServer
from mem1.retrieval.server import Limits

FOREIGN = [
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
    "localhost@evil.example", "192.168.1.7", "0.0.0.0", "search.lan:x", "[::1", "a b", "",
]  # fmt: skip
QUICK = Bounds(head_s=0.2, body_s=0.2, write_s=0.2, idle_s=0.2)
CLIENT = httpx.Client(
    trust_env=False, verify=False, timeout=30, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
)
Results = list[list[tuple[Passage, float]]]


class Gated:
    """BM25 that stops at a gate for the query "wait" and remembers its calls."""

    def __init__(self) -> None:
        self.bm25 = BM25.build(TOWNS)
        self.began, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.calls: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> Results:
        self.calls.append(list(queries))
        if "wait" in queries:
            self.began.release()
            assert self.gate.acquire(timeout=60)
        return self.bm25.search(queries, k)


class Releasing(FakeTime):
    """Opens the gate whenever somebody sleeps."""

    def __init__(self, gate: threading.Semaphore) -> None:
        super().__init__()
        self.gate = gate

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.gate.release()
        time.sleep(0.05)


class Counting(Sampler):
    """Remembers the seeds of each turn."""

    batches: list[list[int]]

    def stream(self, requests: Sequence[Request], follow: Follow, options: BatchOptions) -> None:
        self.batches.append([request.seed for request in requests])
        super().stream(requests, follow, options)


class SlowShop(Shop):
    """Begins a visit when the gate opens; `gate` and `started` are set by `of`."""

    gate: threading.Event
    started: list[int]

    @classmethod
    def of(cls, shop: Shop) -> SlowShop:
        slow = cls(**{field.name: getattr(shop, field.name) for field in fields(shop)})
        object.__setattr__(slow, "gate", threading.Event())
        object.__setattr__(slow, "started", [])
        return slow

    def start(self, goals: Sequence[Goal]) -> Session:
        self.started.append(len(goals))
        assert self.gate.wait(60)
        return super().start(goals)


APPS: dict[str, tuple[Callable[[], Any], str, str, bytes, str]] = {
    # how it is made, content type, a path to GET, a body and where it is POSTed
    "retriever": (
        lambda: retriever_server.make_app(BM25.build(TOWNS)),
        JSON,
        "/health",
        b'{"queries": ["Oslo"]}',
        "/retrieve",
    ),
    "policy": (lambda: policy_server.make_app(Sampler(tiny(), CODEC), chat=CHAT), JSON, "/is_paused", b"{}", "/pause"),
    "webshop": (lambda: webshop.make_app(site()), FORM, "/", b"goal=0", "/shop"),
}


class Target:
    """A server that runs, and a plain socket to it."""

    def __init__(self, name: str, address: str) -> None:
        _, self.kind, self.get, self.body, self.post = APPS[name]
        self.name, self.address = name, address
        parts = urlsplit(address)
        self.host, self.place = parts.netloc, (str(parts.hostname), parts.port or 0)

    def ask(self, method: str = "GET", **headers: str) -> int:
        """The status of a request that is right but for these headers."""
        given = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if method == "POST":
            given = {"content-type": self.kind, **given}
        path, body = (self.post, self.body) if method == "POST" else (self.get, None)
        return CLIENT.request(method, self.address + path, headers=given, content=body).status_code

    @contextlib.contextmanager
    def talk(self, *said: bytes) -> Iterator[socket.socket]:
        with socket.create_connection(self.place, timeout=10) as connection:
            for piece in said:
                connection.sendall(piece)
            yield connection

    def settle(self) -> None:
        """Whatever arrived before has been looked at: its answer comes after theirs has begun."""
        for _ in range(5):
            assert self.ask() == 200

    def request(self, body: bytes | None = None, length: int | None = None) -> bytes:
        """A POST as bytes, whose body may be shorter than it says."""
        body = self.body if body is None else body
        head = f"POST {self.post} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: {self.kind}\r\n"
        return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@pytest.fixture(scope="module", params=list(APPS))
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    make, kind, *_ = APPS[request.param]
    with app_in_a_thread(make(), accepts=kind, allowed=["search.lan"]) as address:
        yield Target(request.param, address)


@pytest.fixture(scope="module", params=list(APPS))
def quick(request: pytest.FixtureRequest) -> Iterator[Target]:
    """With deadlines of a fifth of a second."""
    make, kind, *_ = APPS[request.param]
    with app_in_a_thread(make(), accepts=kind, bounds=QUICK) as address:
        yield Target(request.param, address)


@contextlib.contextmanager
def running_retriever(retriever: Any, *, bounds: Bounds = BOUNDS, **options: Any) -> Iterator[Target]:
    with app_in_a_thread(retriever_server.make_app(retriever, **options), bounds=bounds) as address:
        yield Target("retriever", address)


def read_all(connection: socket.socket) -> bytes:
    """Until the server hangs up."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            said += piece
    return said


class TestNames:
    @pytest.mark.parametrize("host", FOREIGN)
    def test_a_foreign_name_that_resolves_here_is_refused(self, target: Target, host: str):
        assert (target.ask(host=host), target.ask("POST", host=host)) == (421, 421)

    @pytest.mark.parametrize(
        "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "127.8.8.8", "[::1]:80", "Search.LAN", "search.lan.:80"]
    )
    def test_loopback_and_names_that_were_allowed_are_answered(self, target: Target, host: str):
        assert target.ask(host=host) == 200

    def test_no_page_of_ours_loads_scripts_from_elsewhere(self, target: Target):
        answers = [CLIENT.get(target.address + path).status_code for path in ("/docs", "/redoc")]
        assert answers == [404, 404]

    def test_the_reason_names_the_option(self, target: Target):
        answer = CLIENT.get(target.address, headers={"host": "evil.example"})
        assert "--allow-host NAME adds one" in answer.json()["detail"]

    def test_a_client_of_http_1_0_may_send_no_host(self, target: Target):
        with target.talk(f"GET {target.get} HTTP/1.0\r\n\r\n".encode()) as connection:
            assert b" 200 " in read_all(connection)[:20]

    def test_a_server_on_all_addresses_accepts_each_address_but_no_foreign_name(self):
        with bind("0.0.0.0", 0)[0] as bound:
            hosts = Hosts.of("0.0.0.0", bound, ["gpu-3.lan", "FE80::1"])
        for host in ("10.0.0.5:8000", "[2001:db8::7]:1", "0.0.0.0:1", "gpu-3.LAN", "localhost", "127.0.0.1"):
            assert hosts.include(host), host
        assert not hosts.include("gpu-4.lan") and not hosts.include("evil.example")

    def test_a_server_on_one_address_is_called_by_that(self):
        with bind("localhost", 0)[0] as bound:
            hosts = Hosts.of("localhost", bound)
        assert hosts.include("localhost") and not hosts.include("10.0.0.5")
        assert Hosts(frozenset({"10.0.0.5"})).include("10.0.0.5:8000")

    @pytest.mark.parametrize("name", ["http://search.lan", "search.lan:80", "*", "", "a b", "a/b"])
    def test_only_host_names_can_be_allowed(self, name: str):
        with bind("127.0.0.1", 0)[0] as bound, pytest.raises(UserError, match=r"--allow-host .* is not a host name"):
            Hosts.of("127.0.0.1", bound, [name])


class TestPages:
    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://[", ""])
    def test_a_page_of_another_origin_is_refused(self, target: Target, method: str, origin: str):
        assert target.ask(method, origin=origin) == 403

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_a_request_marked_cross_site_by_the_browser_is_refused_too(self, target: Target, site: str):
        assert target.ask(sec_fetch_site=site) == 403
        assert target.ask("POST", sec_fetch_site=site) == 403
        assert target.ask("POST", sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 403
        assert target.ask(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403

    def test_a_link_that_somebody_follows_and_own_pages_are_answered(self, target: Target):
        assert target.ask(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
        assert target.ask(origin=target.address, sec_fetch_site="same-origin") == 200
        assert target.ask("POST", origin=target.address, sec_fetch_site="same-origin") in (200, 303)

    def test_a_post_of_another_type_than_the_server_s_own_is_refused(self, target: Target):
        other = {JSON: FORM, FORM: JSON}[target.kind]
        for kind in ("text/plain", "text/plain;application/json", f"{target.kind}x", other, ""):
            assert target.ask("POST", content_type=kind) == 415
        assert target.ask("POST", content_type=f"{target.kind}; charset=utf-8") in (200, 303)

    def test_a_foreign_page_cannot_pause_a_policy(self):
        sampler = Sampler(tiny(), CODEC)
        with app_in_a_thread(policy_server.make_app(sampler, chat=CHAT)) as address:
            target = Target("policy", address)
            for headers in (
                {"host": "evil.example"},
                {"origin": "http://evil.example"},
                {"content_type": "text/plain"},
            ):
                assert target.ask("POST", **headers) in (421, 403, 415)
                assert not sampler.paused
            assert (target.ask("POST"), sampler.paused) == (200, True)

    def test_nothing_is_upgraded_to_a_websocket(self, target: Target):
        upgrade = (
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n"
        )
        head = f"GET {target.get} HTTP/1.1\r\nhost: {target.host}\r\n{upgrade}\r\n"
        with target.talk(head.encode()) as connection:
            assert b" 101 " not in connection.recv(1 << 16)[:20]


class TestDeadlines:
    def test_half_of_the_headers_is_not_waited_for(self, quick: Target):
        with quick.talk(b"POST / HTTP/1.1\r\nhost: loc") as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")

    def test_a_silent_client_is_not_waited_for(self, quick: Target):
        with quick.talk() as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")

    @pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nx: ", None])
    def test_single_bytes_do_not_put_a_deadline_off(self, quick: Target, start: bytes | None):
        started = time.monotonic()
        with quick.talk(quick.request(b"", length=1000) if start is None else start) as connection:
            connection.settimeout(0.02)
            said = b""
            while not said and time.monotonic() - started < 60:
                with contextlib.suppress(BrokenPipeError):  # it has answered and hung up since
                    connection.send(b"a")
                with contextlib.suppress(TimeoutError):
                    said = connection.recv(1 << 16)
        assert said[9:12] in ((b"200", b"408") if start is None and quick.name == "policy" else (b"408",))

    def test_half_of_a_body_is_not_waited_for(self, quick: Target):
        # the policy's /pause reads no body: it has answered, and waits for the rest of what it will not read
        with quick.talk(quick.request(length=1000)) as connection:
            assert read_all(connection)[9:12] in ((b"200", b"408") if quick.name == "policy" else (b"408",))

    def test_a_connection_without_another_request_is_hung_up_on(self):
        with (
            running_retriever(BM25.build(TOWNS), bounds=Bounds(idle_s=0.2)) as target,
            target.talk(target.request()) as connection,
        ):
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")

    def test_the_second_request_of_a_connection_has_the_same_deadline(self, quick: Target):
        with quick.talk(quick.request()) as connection:
            connection.recv(1 << 16)
            connection.sendall(b"GET / HTTP/1.1\r\nhost: loc")
            assert b"HTTP/1.1 408 " in read_all(connection)

    def test_work_has_no_deadline(self):
        gated = Gated()
        bounds = Bounds(head_s=0.5, body_s=0.2, write_s=0.2, idle_s=0.2)
        with (
            running_retriever(gated, bounds=bounds) as target,
            target.talk(target.request(b'{"queries": ["wait", "Oslo"]}')) as connection,
        ):
            time.sleep(0.7)
            gated.gate.release()
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")

    def test_an_answer_that_nobody_reads_is_given_up(self):
        async def endless(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            try:
                while not given_up.is_set():
                    await send({"type": "http.response.body", "body": b"x" * (1 << 16), "more_body": True})
                    given_up_when = asyncio.create_task(receive())
                    if (await asyncio.wait([given_up_when], timeout=0.001))[0]:
                        given_up.set()
                    given_up_when.cancel()
            finally:
                given_up.set()

        given_up = threading.Event()
        with app_in_a_thread(endless, bounds=QUICK) as address:
            target = Target("retriever", address)
            with target.talk(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"):
                assert given_up.wait(60)


class TestConnections:
    @pytest.mark.parametrize("half", [b"", b"POST / HTTP/1.1\r\nhost: loc", None])
    def test_half_requests_beyond_the_number_of_connections_keep_nobody_out(self, half: bytes | None, capfd: Any):
        with (
            running_retriever(BM25.build(TOWNS), bounds=Bounds(connections=8)) as target,
            contextlib.ExitStack() as stack,
        ):
            said = target.request(length=1000) if half is None else half
            for _ in range(40):
                stack.enter_context(target.talk(said))
            for _ in range(3):
                assert target.ask("POST") == 200
        assert capfd.readouterr().err == ""

    def test_a_connection_is_refused_with_retry_after_where_all_are_busy(self):
        gated = Gated()
        with (
            running_retriever(gated, bounds=Bounds(connections=1)) as target,
            target.talk(target.request(b'{"queries": ["wait"]}')),
        ):
            assert gated.began.acquire(timeout=60)
            answers: list[bytes] = []

            def told() -> bool:
                # hung up on before it has said anything, a client may miss the answer
                with contextlib.suppress(OSError), target.talk(b"GET /health HTTP/1.0\r\n\r\n") as another:
                    answers.append(read_all(another))
                return b"retry-after: 1" in answers[-1]

            wait_for(told)
            assert answers[-1].startswith(b"HTTP/1.1 503 ") and not any(b" 200 " in one for one in answers)
            gated.gate.release()

    def test_there_are_fewer_where_the_process_may_open_few_files(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
            assert Bounds().most_connections == 100
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
            assert Bounds().most_connections == 896
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert Bounds(connections=3).most_connections == 3

    def test_without_a_descriptor_left_those_who_wait_are_turned_away_in_silence(self, capfd: Any):
        (bound,) = bind("127.0.0.1", 0)
        place = bound.getsockname()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken: list[int] = []
        with Listener(bound, ConnectionLimit(Bounds())) as listener:
            listener.listen()
            listener.setblocking(False)
            with socket.create_connection(place) as client, socket.create_connection(place) as second:
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, second.fileno() + 8), hard))
                try:
                    with pytest.raises(OSError) as full:
                        while True:
                            taken.append(os.dup(0))
                    assert full.value.errno == errno.EMFILE
                    for _ in range(2):
                        with pytest.raises(BlockingIOError):
                            listener.accept()
                finally:
                    for descriptor in taken:
                        os.close(descriptor)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert [c.recv(1000)[:12] for c in (client, second)] == [b"HTTP/1.1 503"] * 2
            with socket.create_connection(place):
                accepted, _ = listener.accept()
                accepted.close()
        assert capfd.readouterr().err == ""

    def test_a_flood_of_senseless_requests_is_a_few_lines(self, capfd: Any):
        with running_retriever(BM25.build(TOWNS)) as target:
            for _ in range(30):
                with target.talk(b"\x1b]0;pwned\x07 / HTTP\r\n\r\n") as connection:
                    assert read_all(connection).startswith(b"HTTP/1.1 400 ")
        said = capfd.readouterr().err
        assert said.count("Invalid HTTP request") == 5 and len(said) < 1000


class TestDeadClients:
    def test_a_search_whose_client_has_gone_is_never_made(self):
        gated = Gated()
        with running_retriever(gated) as target, target.talk(target.request(b'{"queries": ["wait"]}')):
            assert gated.began.acquire(timeout=60)
            for _ in range(6):
                with target.talk(target.request(json.dumps({"queries": ["dead"] * 1000}).encode())):
                    pass
            with ThreadPoolExecutor(1) as pool:
                small = pool.submit(CLIENT.post, f"{target.address}/retrieve", json={"queries": ["Oslo"]})
                wait_for(lambda: metrics(target.address, "gone") == 6)
                gated.gate.release()
                assert small.result(10).status_code == 200
        assert gated.calls == [["wait"], ["Oslo"]]

    def test_a_large_search_ends_after_the_call_in_work_when_its_client_hangs_up(self):
        gated = Gated()
        with running_retriever(gated) as target:
            with target.talk(target.request(json.dumps({"queries": ["wait"] + ["dead"] * 200}).encode())):
                assert gated.began.acquire(timeout=60)
            wait_for(lambda: metrics(target.address, "gone") == 1)
            gated.gate.release()
            assert target.ask("POST") == 200
        assert [len(call) for call in gated.calls] == [32, 1]

    def test_a_small_search_has_its_turn_between_two_calls_of_a_large_one(self):
        gated = Gated()
        with running_retriever(gated) as target:
            body = json.dumps({"queries": ["wait"] + ["Bergen"] * 99}).encode()
            with target.talk(target.request(body)) as large, target.talk(target.request()) as small:
                assert gated.began.acquire(timeout=60)
                target.settle()
                gated.gate.release()
                assert small.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
                assert large.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert [len(call) for call in gated.calls] == [32, 1, 32, 32, 4]

    def test_completions_whose_client_has_gone_are_never_sampled(self):
        sampler = Counting(tiny(), CODEC)
        sampler.batches = []
        sampler.pause()
        with app_in_a_thread(policy_server.make_app(sampler, chat=CHAT)) as address:
            target = Target("policy", address)
            target.post = "/v1/completions"
            with target.talk(target.request(completion(seed=1))) as first:
                target.settle()
                for seed in (2, 3, 4):
                    with target.talk(target.request(completion(seed=seed))):
                        pass
                with target.talk(target.request(completion(seed=5))) as last:
                    target.settle()
                    sampler.resume()
                    assert first.recv(100).startswith(b"HTTP/1.1 200 ")
                    assert last.recv(100).startswith(b"HTTP/1.1 200 ")
        assert sampler.batches == [[1, 5]]

    def test_pages_of_the_shop_whose_client_has_gone_are_never_drawn(self):
        shop = SlowShop.of(site().shop)
        with app_in_a_thread(webshop.make_app(replace(site(), shop=shop)), accepts=FORM) as address:
            target = Target("webshop", address)
            with target.talk(target.request()) as first:
                wait_for(lambda: len(shop.started) == 1)
                for _ in range(5):
                    with target.talk(target.request()):
                        pass
                target.settle()
                shop.gate.set()
                assert first.recv(100).startswith(b"HTTP/1.1 303 ")
            assert target.ask("POST") == 303
        assert len(shop.started) == 2


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": [5, 9, 20], "max_tokens": 4, **fields}).encode()


def metrics(address: str, outcome: str) -> int:
    text = CLIENT.get(f"{address}/metrics").text
    return int(float(text.partition(f'outcome="{outcome}"}} ')[2].partition("\n")[0]))


class TestTooMuch:
    def test_queries_times_passages_are_bounded(self):
        with app_in_a_thread(retriever_server.make_app(BM25.build(TOWNS))) as address:
            body = {"queries": ["Oslo"] * 1024, "topk": 1000}
            answer = CLIENT.post(f"{address}/retrieve", json=body)
            assert answer.status_code == 413
            assert answer.json()["detail"] == (
                "1,024 queries of 1,000 passages are 1,024,000; a request may ask for at most 32,768: send fewer "
                "queries at a time, or a smaller topk"
            )
            body = {"queries": ["Oslo"] * 32, "topk": 1000}
            assert CLIENT.post(f"{address}/retrieve", json=body).status_code == 200

    def test_the_passages_of_the_server_s_own_number_count_too(self):
        app = retriever_server.make_app(BM25.build(TOWNS), top_k=40, limits=Limits(passages=100))
        with app_in_a_thread(app) as address:
            asked = [CLIENT.post(f"{address}/retrieve", json={"queries": ["a"] * n}) for n in (2, 3)]
        assert [answer.status_code for answer in asked] == [200, 413]

    def test_an_answer_that_grows_too_large_is_refused(self):
        long = [Passage(f"p{i}", "Oslo", "Oslo " + "x" * 10_000) for i in range(10)]
        app = retriever_server.make_app(BM25.build(long), limits=Limits(answer_bytes=200_000))
        with app_in_a_thread(app) as address:
            body = {"queries": ["Oslo"] * 40, "topk": 10}
            answer = CLIENT.post(f"{address}/retrieve", json=body)
            assert (answer.status_code, "the answer would be too large" in answer.json()["detail"]) == (413, True)
            answer = CLIENT.post(f"{address}/retrieve", json={**body, "queries": ["Oslo"]})
            assert (answer.status_code, len(answer.json()["result"][0])) == (200, 10)

    @pytest.mark.parametrize("limits", [Limits(all_queries=4), Limits(all_passages=12)])
    def test_a_full_retriever_says_when_to_come_back_and_our_client_does(self, limits: Limits):
        gated = Gated()
        waiting = Releasing(gated.gate)
        with running_retriever(gated, limits=limits) as target:
            with target.talk(target.request(b'{"queries": ["wait", "a", "b"]}')):
                assert gated.began.acquire(timeout=60)
                answer = CLIENT.post(f"{target.address}/retrieve", json={"queries": ["a", "b"]})
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert "try again later" in answer.json()["detail"]
                client = HttpRetriever(RetrievalServer(urls=(target.address,)), clock=waiting.clock)
                assert [found[0][0].title for found in client.search(["Oslo", "Bergen"], 3)] == ["Oslo", "Bergen"]
                client.close()
            assert metrics(target.address, "busy") >= 2
        assert waiting.slept[0] >= 1.0

    def test_bodies_that_are_being_read_have_a_bound_together(self):
        limits = Limits(all_body_bytes=1000)
        with (
            running_retriever(BM25.build(TOWNS), limits=limits) as target,
            target.talk(target.request(b"x" * 900, length=2000)),
        ):
            deadline = time.monotonic() + 60
            body = json.dumps({"queries": ["a" * 200]})
            status = 0
            while status != 503 and time.monotonic() < deadline:
                answer = CLIENT.post(f"{target.address}/retrieve", content=body, headers={"content-type": JSON})
                status = answer.status_code
            assert status == 503

    def test_tokens_of_prompts_and_completions_are_bounded(self):
        limits = policy_server.Limits(tokens=100)
        with app_in_a_thread(policy_server.make_app(Sampler(tiny(), CODEC), chat=CHAT, limits=limits)) as address:
            asked = [
                CLIENT.post(f"{address}/v1/completions", json={"prompt": [[5] * 5] * n, "max_tokens": 20})
                for n in (4, 5)
            ]
        assert [answer.status_code for answer in asked] == [200, 413]
        assert "125 tokens; a request may have at most 100" in asked[1].json()["error"]["message"]

    def test_a_policy_with_too_many_requests_says_when_to_come_back(self):
        sampler = Counting(tiny(), CODEC)
        sampler.batches = []
        sampler.pause()
        limits = policy_server.Limits(all_tokens=30)
        with app_in_a_thread(policy_server.make_app(sampler, chat=CHAT, limits=limits)) as address:
            target = Target("policy", address)
            target.post = "/v1/completions"
            with target.talk(target.request(completion(max_tokens=20))):
                target.settle()
                answer = CLIENT.post(f"{address}/v1/completions", json={"prompt": [5], "max_tokens": 20})
                sampler.resume()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    def test_a_shop_with_too_many_visitors_at_a_time_says_when_to_come_back(self):
        shop = SlowShop.of(site().shop)
        with app_in_a_thread(webshop.make_app(replace(site(), shop=shop)), accepts=FORM) as address:
            target = Target("webshop", address)
            with ThreadPoolExecutor(101) as pool:
                asked = [pool.submit(target.ask, "POST") for _ in range(101)]
                wait_for(lambda: any(one.done() for one in asked))
                shop.gate.set()
        assert sorted(one.result() for one in asked) == [303] * 100 + [503]

    def test_room_is_given_back_and_anything_alone_has_room(self):
        room = CapacityLimit(10, "queries")
        with room.holding(100), pytest.raises(Refused, match="100 queries are waiting, of at most 10"), room.holding(1):
            pass
        with room.holding(5), room.holding(5), pytest.raises(Refused), room.holding(1):
            pass
        with room.holding(10):
            pass


class TestLogs:
    def test_terminal_control_codes_are_escaped(self):
        assert printable("a\x1b[2Jb\x07\u202e\x9b é") == "a\\x1b[2Jb\\x07\\u202e\\x9b é"

    def test_more_of_a_kind_than_a_few_a_minute_are_counted_and_left_out(self):
        clock = FakeTime()
        sparing = Sparing(now=lambda: clock.seconds)

        def said(message: str) -> str | None:
            record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, message, (), None)
            passed = sparing.filter(record)
            assert record.getMessage() == message  # as other handlers show it
            return Plain("%(message)s").format(record) if passed else None

        assert [said("a") for _ in range(7)] == ["a"] * 5 + [None] * 2
        assert said("b") == "b"
        clock.seconds = 61
        assert [said("a"), said("a")] == ["a (2 more like it in the last minute)", "a"]


def test_what_is_open_when_a_server_stops_is_refused_or_cut_off_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("mem1.net.web_server.FINISH_S", 1)
    inside: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        inside.append(scope["path"])
        await asyncio.sleep(60)

    def asked(path: str) -> httpx.Response:
        return httpx.get(f"{where}{path}", trust_env=False, timeout=30)

    with ThreadPoolExecutor(2) as pool:
        with app_in_a_thread(app, accepts=None) as where:
            waiting, begun = pool.submit(asked, "/v1/waiting"), pool.submit(asked, "/begun")
            wait_for(lambda: len(inside) == 2)
        refused = waiting.result(30)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "the server stops")
        with pytest.raises(httpx.RemoteProtocolError):
            begun.result(30)
    said = capfd.readouterr().err
    assert "Traceback" not in said and "without completing" not in said
