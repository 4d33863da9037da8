"""Addresses and fetching: what is not on the public internet is refused, and nothing is unbounded."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import Site, content, cut, dripping, redirect, silent_after, site, status

from mem1.retrieval.web import transport
from mem1.retrieval.web.pages import Fetched, Fetcher, FetchLimits
from mem1.retrieval.web.transport import decode, decompress
from mem1.retrieval.web.urls import FetchFailed, Why, check_ip, check_public, parse_address


def refused(text: str) -> Why:
    """Why an address is refused; that nothing is resolved for it is part of the test."""

    def nobody(host: str) -> list[str]:
        raise AssertionError(f"{host} was resolved")

    with pytest.raises(FetchFailed) as failure:
        Fetcher(resolve=nobody).fetch(text)
    return failure.value.why


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("http://example.org", "http://example.org/"),
        (" HTTPS://Example.ORG:443/a/b?q=1&r=2#part ", "https://example.org/a/b?q=1&r=2"),
        ("http://example.org:80/%41?x=%2F", "http://example.org/%41?x=%2F"),
        ("http://exämple.org/ö?ü=東", "http://xn--exmple-cua.org/%C3%B6?%C3%BC=%E6%9D%B1"),
        ("http://example.org./", "http://example.org/"),
        ("http://sub_domain.example.org/", "http://sub_domain.example.org/"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("https://[2606:4700:4700::1111]/", "https://[2606:4700:4700::1111]/"),
        ("http://en.wikipedia.org/wiki/Oslo_(town)", "http://en.wikipedia.org/wiki/Oslo_(town)"),
        ('http://example.org/<a>"b"', "http://example.org/%3Ca%3E%22b%22"),
        ("http://example.org/a/../private/./b", "http://example.org/private/b"),
        ("http://example.org/../a/b/%2e%2E", "http://example.org/a/"),
        ("http://example.org//a/.?b=../c", "http://example.org//a/?b=../c"),
        ("http://example.org/a/.../..b/", "http://example.org/a/.../..b/"),
    ],
)
def test_an_address_has_one_spelling(text: str, written: str):
    address = parse_address(text)
    check_public(address)
    assert str(address) == written
    assert parse_address(written) == address


@pytest.mark.parametrize("host", ["fa\u00df.de", "FA\u1e9e.de", "\u03c3\u03bf\u03c6\u03cc\u03c2.gr", "a\u200db.org"])
def test_a_name_that_browsers_take_for_another_host_is_refused(host: str):
    with pytest.raises(FetchFailed, match=r"means two hosts, because of .*; write it as xn--"):
        parse_address(f"http://{host}/")


@pytest.mark.parametrize(
    "text",
    [
        "", "example.org", "//example.org/", "ftp://example.org/", "file:///etc/passwd",
        "file://example.org/etc/passwd", "javascript:alert(1)", "data:text/html,x", "gopher://example.org:70/_x",
        "http://", "http:///path", "http:example.org", "http://exa mple.org/", "http://example.org/a b",
        "http://example.org/a\nHost: internal", "http://example.org/\r\nX: y", "http://example.org/\x00",
        "http://example.org\t.evil.org/", "http://example.org\\@127.0.0.1/", "http://127.0.0.1%2f@example.org:x/",
        "http://example.org:99999/", "http://example.org:port/", "http://a..b.org/", "http://%31%32%37.0.0.1/",
        "http://exa%6dple.org/", "http://-bad.org/", "http://[::1/", "http://[example.org]/", "http://[v1.x]/",
        "http://[fe80::1%25eth0]/", "http://[::ffff:127.0.0.1%lo]/", f"http://{'a' * 64}.org/",
        f"http://{'a.' * 130}org/", f"http://example.org/{'a' * 2048}", "http://example.org/\ud800",
    ],
)  # fmt: skip
def test_only_plain_addresses_are_accepted(text: str):
    assert refused(text) is Why.ADDRESS


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "3232235777", "0x7f000001", "0x7f.0x0.0x0.0x1", "0X7F.0.0.1", "017700000001", "0177.0.0.1",
        "0177.0000.0000.0001", "127.1", "127.0.1", "10.1", "0", "0.0", "127.0.0.01", "127.0.0.1.5",
        "256.256.256.256", "127.0.0.0x1", "example.0x10", "1.2.3.4.5", "425.510.425.510",
    ],
)  # fmt: skip
def test_numbers_that_hide_an_ip_address_are_refused(host: str):
    assert refused(f"http://{host}/") is Why.ADDRESS


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1.", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
        "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16",
        "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "192.88.99.1", "224.0.0.1",
        "239.255.255.250", "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "①②⑦.⓪.⓪.①", "127。0。0。1",
        "１２７.０.０.１",  # noqa: RUF001
        "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
        "[::ffff:169.254.169.254]", "[::ffff:8.8.8.8]", "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
        "[2001:db8::1]", "[3fff::1]", "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]",
        "[100::1]", "[5f00::1]", "localhost", "LOCALHOST", "localhost.", "ⓛocalhost", "a.localhost",
        "localhost.localdomain", "printer.local", "metadata.google.internal", "metadata", "intranet", "router.lan",
        "nas.home.arpa", "hidden.onion",
    ],
)  # fmt: skip
def test_hosts_that_are_not_on_the_public_internet_are_refused(host: str):
    for scheme in ("http", "https"):
        assert refused(f"{scheme}://{host}/latest/meta-data/") is Why.PRIVATE


@pytest.mark.parametrize(
    "address",
    [
        "http://user:secret@example.org/", "http://user@example.org/", "http://@example.org/",
        "http://example.org@127.0.0.1/", "http://127.0.0.1:80@example.org/",
        "https://example.org:443@10.0.0.1:80/",
    ],
)  # fmt: skip
def test_credentials_in_an_address_are_refused_and_not_repeated(address: str):
    assert refused(address) is Why.CREDENTIALS
    with pytest.raises(FetchFailed) as failure:
        parse_address(address)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("port", [0, 22, 25, 6379, 8080, 65535])
def test_other_ports_are_refused(port: int):
    assert refused(f"http://example.org:{port}/") is Why.PORT


def test_the_usual_ports_and_those_that_were_allowed_are_not():
    check_public(parse_address("http://example.org:443/"))
    check_public(parse_address("http://example.org:8080/"), ports=(8080,))
    with pytest.raises(FetchFailed, match="only 8080"):
        check_public(parse_address("http://example.org/"), ports=(8080,))


def test_loopback_can_be_allowed_and_nothing_else_is_with_it():
    for host in ("127.0.0.1", "localhost", "[::1]"):
        check_public(parse_address(f"http://{host}:8000/"), allow_loopback=True)
    for host in ("10.0.0.1", "169.254.169.254", "0.0.0.0", "printer.local", "[fe80::1]", "[::ffff:10.0.0.1]"):
        with pytest.raises(FetchFailed):
            check_public(parse_address(f"http://{host}/"), allow_loopback=True)


@pytest.mark.parametrize("ip", ["1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "2606:4700::1111", "2a00::1"])
def test_public_ip_addresses_pass(ip: str):
    check_ip(ip)


@given(st.ip_addresses())
def test_what_passes_is_public_for_the_standard_library_too(ip: object):
    try:
        check_ip(str(ip))
    except FetchFailed as failure:
        assert failure.why is Why.PRIVATE
    else:
        assert ip.is_global and not ip.is_multicast  # type: ignore[attr-defined]


@given(st.text(max_size=60).map("http://".__add__) | st.text() | st.from_regex(r"https?://[\w.@:\[\]%/#?-]{0,40}"))
def test_any_text_is_an_address_or_refused(text: str):
    try:
        address = parse_address(text)
    except FetchFailed:
        return
    assert str(address).isascii() and str(address).isprintable() and " " not in str(address)
    assert parse_address(str(address)) == address


LIMITS = FetchLimits(megabytes=1.0, seconds=5.0, redirects=3)


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def fetch(address: str, limits: FetchLimits = LIMITS) -> Fetched:
    return Fetcher(limits=limits, allow_loopback=True).fetch(address)


def failure(address: str, limits: FetchLimits = LIMITS) -> FetchFailed:
    with pytest.raises(FetchFailed) as caught:
        fetch(address, limits)
    return caught.value


def test_a_page_comes_with_its_address_type_and_text(local: Site):
    local.pages["/a"] = content("<p>Größe</p>", "Text/HTML; charset=utf-8")
    assert fetch(f"{local.url}/a?q=1#x") == Fetched(
        address=f"{local.url}/a?q=1", content_type="text/html", text="<p>Größe</p>"
    )


def test_nothing_of_ours_is_sent_but_a_name_and_what_can_be_read(local: Site, monkeypatch: pytest.MonkeyPatch):
    for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9/")  # a proxy would break the fetch
    local.pages |= {"/start": status(302, Location="/b", Set_Cookie="id=1"), "/b": content("x")}
    fetch(f"{local.url}/start")
    assert [path for _, path, _, _ in local.asked] == ["/start", "/b"]
    for method, _, headers, body in local.asked:
        assert (method, body, headers["Host"]) == ("GET", b"", f"127.0.0.1:{local.port}")
        assert set(headers) == {"Host", "Connection", "User-Agent", "Accept", "Accept-Encoding"}
        assert headers["User-Agent"].startswith("mem1/")


# --- redirects


def test_redirects_are_followed_relative_ones_too(local: Site):
    local.pages |= {"/a/b": redirect("../c?x=1", 301), "/c": redirect(f"{local.url}/d", 308), "/d": content("there")}
    assert fetch(f"{local.url}/a/b") == Fetched(address=f"{local.url}/d", content_type="text/plain", text="there")


@pytest.mark.parametrize(
    ("to", "asked"),
    [("/s\u00f8k", "/s%F8k"), ("/s\u00c3\u00b8k", "/s%C3%B8k"), ("/with space?a b", "/with%20space?a%20b")],
)
def test_bytes_of_a_redirect_that_an_address_cannot_hold_are_quoted_as_they_are(local: Site, to: str, asked: str):
    local.pages["/"] = redirect(to)  # the server writes headers in Latin-1
    local.pages[asked.partition("?")[0]] = content("there")
    assert fetch(local.url).text == "there"
    assert local.paths == ["/", asked]


def test_too_many_redirects_and_circles_are_refused(local: Site):
    local.pages |= {f"/{i}": redirect(f"/{i + 1}") for i in range(9)} | {"/x": redirect("/y"), "/y": redirect("/x")}
    assert failure(f"{local.url}/0").why is Why.REDIRECTS
    assert local.paths == ["/0", "/1", "/2", "/3"]
    assert str(failure(f"{local.url}/x")) == "it redirects in a circle"
    assert failure(f"{local.url}/x", FetchLimits(redirects=0)).why is Why.REDIRECTS


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://169.254.169.254/latest/meta-data/", Why.PRIVATE),
        ("http://10.0.0.1/", Why.PRIVATE),
        ("http://printer.local/", Why.PRIVATE),
        ("//192.168.0.1/x", Why.PRIVATE),
        ("http://[::ffff:127.0.0.1]/", Why.PRIVATE),
        ("http://2130706433/", Why.ADDRESS),
        ("http://0x7f.1/", Why.ADDRESS),
        ("http://a:b@example.org/", Why.CREDENTIALS),
        ("file:///etc/passwd", Why.ADDRESS),
        ("gopher://127.0.0.1:6379/_FLUSHALL", Why.ADDRESS),
    ],
)
def test_a_redirect_is_checked_as_the_first_address_is(local: Site, to: str, why: Why):
    local.pages["/"] = redirect(to)
    assert failure(f"{local.url}/").why is why
    assert local.paths == ["/"]


def test_a_redirect_to_this_machine_is_refused(local: Site):
    """From a public site, played by a name that resolves to an address where our own server listens."""
    local.pages |= {"/": redirect(f"{local.url}/secret"), "/secret": content("secret")}
    hosts: list[str] = []

    def resolve(host: str) -> list[str]:
        hosts.append(host)
        return ["127.0.0.1"]

    fetcher = Fetcher(limits=LIMITS, resolve=resolve, ports=(80, local.port))
    with pytest.raises(FetchFailed, match=r"127\.0\.0\.1 is not an address of the public internet"):
        fetcher.fetch(f"http://public.example:{local.port}/")
    with pytest.raises(FetchFailed, match=r"127\.0\.0\.1 is not an address of the public internet"):
        fetcher.fetch(f"{local.url}/secret")
    assert hosts == ["public.example"]
    assert local.asked == []


# --- names


def test_a_name_that_answers_otherwise_the_second_time_gains_nothing(local: Site):
    """DNS rebinding. Loopback plays the harmless answer, 10.0.0.1 the one that the attacker changes it to."""
    local.pages |= {"/": content("harmless"), "/start": redirect("/")}
    answers: list[list[str]] = []
    fetcher = Fetcher(limits=LIMITS, resolve=lambda host: answers.pop(0), allow_loopback=True)
    address = f"http://rebind.example:{local.port}"

    answers[:] = [["127.0.0.1"], ["10.0.0.1"]]
    assert fetcher.fetch(address).text == "harmless"
    assert answers == [["10.0.0.1"]], "check and connection must see one and the same answer"
    with pytest.raises(FetchFailed, match=r"10\.0\.0\.1 is not an address of the public internet"):
        fetcher.fetch(address)

    answers[:] = [["127.0.0.1"], ["10.0.0.1"]]
    with pytest.raises(FetchFailed, match=r"10\.0\.0\.1 is not an address of the public internet"):
        fetcher.fetch(f"{address}/start")
    assert (answers, local.paths) == ([], ["/", "/start"])


def test_one_private_address_among_public_ones_refuses_the_name(local: Site):
    fetcher = Fetcher(resolve=lambda host: ["93.184.216.34", "10.0.0.1"], ports=(local.port,))
    with pytest.raises(FetchFailed, match=r"10\.0\.0\.1"):
        fetcher.fetch(f"http://split.example:{local.port}/")


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "64:ff9b::a00:1", "fe80::1"])
def test_a_name_of_a_private_address_is_refused(ip: str):
    with pytest.raises(FetchFailed) as caught:
        Fetcher(resolve=lambda host: [ip]).fetch("https://harmless.example/")
    assert caught.value.why is Why.PRIVATE


def test_the_connection_goes_to_what_was_resolved_and_the_header_names_the_host(local: Site):
    local.pages["/"] = content("here")
    fetcher = Fetcher(resolve=lambda host: ["::1", "127.0.0.1"], allow_loopback=True)  # nothing listens on ::1
    assert fetcher.fetch(f"http://shop.example:{local.port}/").text == "here"
    assert local.asked[0][2]["Host"] == f"shop.example:{local.port}"


def test_a_silent_address_leaves_the_others_their_share_of_the_time():
    waited: list[tuple[str, int]] = []

    class Silent(httpcore.SyncBackend):
        def connect_tcp(self, host: str, port: int, timeout: float | None = None, *others: Any, **more: Any) -> Any:
            assert timeout is not None
            waited.append((host, round(timeout / 100)))
            if host != "10.0.0.3":
                raise httpcore.ConnectTimeout
            return httpcore.MockStream([])

    network = transport._Network(lambda host: ["10.0.0.1", "10.0.0.2", "10.0.0.3"], time.monotonic() + 1200)
    network._sockets = Silent()
    network.connect_tcp("shop.example", 80)
    assert waited == [("10.0.0.1", 4), ("10.0.0.2", 6), ("10.0.0.3", 12)]
    network._resolve = lambda host: ["10.0.0.1"]
    with pytest.raises(httpcore.ConnectTimeout):
        network.connect_tcp("shop.example", 80)


def test_over_tls_the_server_must_prove_the_name_of_the_host():
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nnot TLS")

        thread = threading.Thread(target=listen)
        thread.start()
        fetcher = Fetcher(limits=LIMITS, resolve=lambda host: ["127.0.0.1"], allow_loopback=True)
        with pytest.raises(FetchFailed) as caught:
            fetcher.fetch(f"https://shop.example:{server.getsockname()[1]}/")
        thread.join(60)
    assert caught.value.why is Why.NETWORK
    assert b"shop.example" in heard[0] and heard[0][0] == 22  # a ClientHello, with the name that it asks for


def test_a_name_without_an_address_is_a_failure_of_the_network():
    with pytest.raises(FetchFailed) as caught:
        Fetcher(resolve=lambda host: []).fetch("http://nowhere.example/")
    assert (caught.value.why, str(caught.value)) == (Why.NETWORK, "the host nowhere.example has no address")


# --- time


def test_a_server_that_falls_silent_or_drips_is_left_after_the_time(local: Site, over: threading.Event):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 400\r\n\r\n"
    local.pages |= {
        "/nothing": silent_after(b"", over),
        "/head": silent_after(head + b"x", over),
        "/drip": dripping(head + b"x" * 400, over),
        "/headers": dripping(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 60, over),
        "/early": dripping(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200, over, pause_s=0.001),
    }
    limits = FetchLimits(seconds=0.15)
    for path in local.pages:
        assert failure(local.url + path, limits).why is Why.TIME


def test_the_time_counts_over_redirects(local: Site, over: threading.Event):
    def slowly(handler) -> None:
        over.wait(0.1)
        redirect(f"/{int(handler.path[1:]) + 1}")(handler)

    local.pages |= {f"/{i}": slowly for i in range(9)}
    assert failure(f"{local.url}/0", FetchLimits(seconds=0.25, redirects=9)).why is Why.TIME


# --- size and compression


def test_fifty_megabytes_are_refused_whether_or_not_they_are_announced(local: Site):
    sent = 0

    def endless(handler) -> None:
        nonlocal sent
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        for _ in range(50):
            handler.wfile.write(b"x" * 1_000_000)
            sent += 1

    local.pages |= {
        "/announced": cut(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 50000000\r\n\r\nx"),
        "/endless": endless,
    }
    assert failure(f"{local.url}/announced").why is Why.SIZE
    assert str(failure(f"{local.url}/endless")) == "it is larger than 1 MB"
    assert sent < 30


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "raw deflate"])
def test_compressed_pages_are_read_and_bombs_refused(local: Site, encoding: str):
    def packed(text: bytes) -> bytes:
        if encoding.endswith("gzip"):
            return gzip.compress(text, mtime=0)
        if encoding == "deflate":
            return zlib.compress(text)
        raw = zlib.compressobj(wbits=-15)
        return raw.compress(text) + raw.flush()

    name = encoding.removeprefix("raw ")
    local.pages["/a"] = content(packed(b"Oslo " * 1000), Content_Encoding=name)
    local.pages["/bomb"] = content(packed(bytes(10_000_000)), Content_Encoding=name)
    assert fetch(f"{local.url}/a").text == "Oslo " * 1000
    assert str(failure(f"{local.url}/bomb")) == "it is larger than 1 MB once decompressed"


def test_a_bomb_of_many_gzip_members_is_refused_and_an_honest_file_of_two_is_read():
    member = gzip.compress(bytes(400_000), mtime=0)
    assert decompress(gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0), "gzip", max_bytes=10) == b"ab"
    with pytest.raises(FetchFailed, match="once decompressed"):
        decompress(member * 50, "gzip", max_bytes=1_000_000)
    with pytest.raises(FetchFailed, match="it is compressed in more than 256 members"):
        decompress(gzip.compress(b"", mtime=0) * 257, "gzip", max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("body", "encoding", "why"),
    [
        (b"plain", "gzip", Why.ENCODING),
        (b"plain", "br", Why.ENCODING),
        (b"plain", "zstd", Why.ENCODING),
        (gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "gzip, gzip", Why.ENCODING),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "gzip", Why.NETWORK),
        (gzip.compress(b"x" * 1000, mtime=0)[:-1] + b"!", "gzip", Why.ENCODING),
    ],
    ids=["plain as gzip", "plain as br", "plain as zstd", "twice", "cut", "damaged"],
)
def test_other_damaged_and_repeated_compression_is_refused(local: Site, body: bytes, encoding: str, why: Why):
    local.pages["/"] = content(body, Content_Encoding=encoding)
    assert failure(f"{local.url}/").why is why


# --- answers that are not what they should be


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"not http at all\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
)
def test_cut_and_broken_answers_are_failures_of_the_network(local: Site, data: bytes):
    local.pages["/"] = cut(data)
    assert failure(f"{local.url}/").why is Why.NETWORK


def test_a_port_where_nobody_listens_is_a_failure_of_the_network():
    with site() as gone:
        pass
    assert failure(f"{gone.url}/").why is Why.NETWORK


@pytest.mark.parametrize("code", [204, 304, 401, 404, 410, 429, 500, 503])
def test_an_error_of_the_server_names_its_status(local: Site, code: int):
    local.pages["/"] = status(code)
    caught = failure(f"{local.url}/")
    assert (caught.why, caught.status) == (Why.STATUS, code)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("application/pdf", "a PDF file"),
        ("image/png", "image/png"),
        ("application/octet-stream", "application/octet-stream"),
        ("", "a file of unnamed type"),
        ("text/html-evil", "text/html-evil"),
    ],
)
def test_other_content_types_are_refused_by_name(local: Site, kind: str, named: str):
    local.pages["/"] = content(b"x", kind)
    caught = failure(f"{local.url}/")
    assert (caught.why, str(caught)) == (Why.CONTENT_TYPE, f"it is {named}, not a page of text")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("café".encode(), "text/html", "café"),
        ("café".encode("latin-1"), "text/html", "café"),
        ("café".encode("latin-1"), "text/html; charset=ISO-8859-1", "café"),
        ("“q”".encode("cp1252"), "text/html; charset=iso-8859-1", "“q”"),
        ("東京".encode("shift_jis"), 'text/html; charset="Shift_JIS"', "東京"),
        ("Осло".encode("koi8-r"), "text/plain;charset=koi8-r", "Осло"),
        ("朱镕基".encode("gbk"), "text/html; charset=gb2312", "朱镕基"),
        ("①髙橋".encode("cp932"), "text/html; charset=shift_jis", "①髙橋"),
        ("똠방각하".encode("cp949"), "text/html; charset=euc-kr", "똠방각하"),
        ("10 € “x”".encode("cp1254"), "text/html; charset=iso-8859-9", "10 € “x”"),
        ("ราคา “x”".encode("cp874"), "text/html; charset=tis-620", "ราคา “x”"),
        ("<meta charset=utf-16>Øl".encode(), "text/html", "<meta charset=utf-16>Øl"),
        (b"<meta charset='windows-1251'>" + "Осло".encode("cp1251"), "text/html", "<meta charset='windows-1251'>Осло"),
        ("\ufeffcafé".encode(), "text/html; charset=latin-1", "café"),
        ("café".encode("utf-16"), "text/html", "café"),
        (b"caf\xe9", "text/html; charset=utf-8", "caf\ufffd"),
        (b"caf\xe9", "text/html; charset=no-such-thing", "café"),
        (b"a-b", "text/html; charset=punycode", "a-b"),
        (rb"\u003c", "text/html; charset=unicode_escape", r"\u003c"),
        (b"+ADw-", "text/html; charset=utf-7", "+ADw-"),
        (b"6162", "text/html; charset=hex", "6162"),
        (b"", "text/html; charset=utf-16", ""),
        (b"x", "text/html; charset=\x00", "x"),
    ],
)
def test_text_is_decoded_by_what_is_declared_and_true(body: bytes, content_type: str, text: str):
    assert decode(body, content_type) == text
