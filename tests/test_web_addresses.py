"""Which addresses are refused before anything is connected to, and after a name was resolved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mem1.retrieval.web.fetch import Fetcher
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
    ],
)
def test_an_address_has_one_spelling(text: str, written: str):
    address = parse_address(text)
    check_public(address)
    assert str(address) == written
    assert parse_address(written) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        "//example.org/",
        "ftp://example.org/",
        "file:///etc/passwd",
        "file://example.org/etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "gopher://example.org:70/_x",
        "http://",
        "http:///path",
        "http:example.org",
        "http://exa mple.org/",
        "http://example.org/a b",
        "http://example.org/a\nHost: internal",
        "http://example.org/\r\nX: y",
        "http://example.org/\x00",
        "http://example.org\t.evil.org/",
        "http://example.org\\@127.0.0.1/",
        "http://127.0.0.1%2f@example.org:x/",
        "http://example.org:99999/",
        "http://example.org:port/",
        "http://a..b.org/",
        "http://%31%32%37.0.0.1/",
        "http://exa%6dple.org/",
        "http://-bad.org/",
        "http://[::1/",
        "http://[example.org]/",
        "http://[v1.x]/",
        "http://[fe80::1%25eth0]/",
        "http://[::ffff:127.0.0.1%lo]/",
        f"http://{'a' * 64}.org/",
        f"http://{'a.' * 130}org/",
        f"http://example.org/{'a' * 2048}",
        "http://example.org/\ud800",
    ],
)
def test_what_is_no_plain_address_is_refused(text: str):
    assert refused(text) is Why.ADDRESS


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",  # 127.0.0.1 as one number
        "3232235777",
        "0x7f000001",
        "0x7f.0x0.0x0.0x1",
        "0X7F.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "0177.0000.0000.0001",
        "127.1",
        "127.0.1",
        "10.1",
        "0",
        "0.0",
        "127.0.0.01",
        "127.0.0.1.5",
        "256.256.256.256",
        "127.0.0.0x1",
        "example.0x10",
        "1.2.3.4.5",
        "425.510.425.510",
    ],
)
def test_numbers_that_hide_an_ip_address_are_refused(host: str):
    assert refused(f"http://{host}/") is Why.ADDRESS


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.170.2",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.7",
        "203.0.113.9",
        "192.88.99.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "１２７.０.０.１",  # noqa: RUF001
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "[::1]",
        "[::]",
        "[0000:0000:0000:0000:0000:0000:0000:0001]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:169.254.169.254]",
        "[::ffff:8.8.8.8]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[100::1]",
        "[5f00::1]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "ⓛocalhost",
        "a.localhost",
        "localhost.localdomain",
        "printer.local",
        "metadata.google.internal",
        "metadata",
        "intranet",
        "router.lan",
        "nas.home.arpa",
        "hidden.onion",
    ],
)
def test_hosts_that_are_not_on_the_public_internet_are_refused(host: str):
    for scheme in ("http", "https"):
        assert refused(f"{scheme}://{host}/latest/meta-data/") is Why.PRIVATE


@pytest.mark.parametrize(
    "address",
    [
        "http://user:secret@example.org/",
        "http://user@example.org/",
        "http://@example.org/",
        "http://example.org@127.0.0.1/",
        "http://127.0.0.1:80@example.org/",
        "https://example.org:443@10.0.0.1:80/",
    ],
)
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
