"""Which addresses may be fetched: http and https, on hosts of the public internet; and why one was not.

parse_address("HTTP://Exämple.org:80/a?q=ö#top")      ->  http://xn--exmple-cua.org/a?q=%C3%B6
parse_address("http://2130706433/")                   ->  FetchFailed: ... is not a plainly written IP address
check_public(parse_address("http://router.local/"))   ->  FetchFailed: ... is a name of a local network
check_ip("169.254.169.254")                           ->  FetchFailed: ... is not an address of the public internet

An address is parsed once, here. Connections are made from its parts and never parse it again, so two parsers cannot
disagree about the host. transport.py resolves host names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, urlsplit


class Why(str, Enum):
    """Reasons: first those for which we refuse, then failures of the network or the server."""

    ADDRESS = "address"
    """Not an http or https address with a valid host name."""
    CREDENTIALS = "credentials"
    """The address contains a user name or password."""
    PORT = "port"
    PRIVATE = "private"
    """The host is, or resolves to, an address outside the public internet."""
    REDIRECTS = "redirects"
    """Too many redirects, or a loop of them."""
    SIZE = "size"
    """Too many bytes, compressed or decompressed."""
    CONTENT_TYPE = "content_type"
    ENCODING = "encoding"
    """An unsupported compression, or damaged data."""
    ROBOTS = "robots"
    """robots.txt asks programs to stay away."""

    TIME = "time"
    """Not finished within the time limit."""
    NETWORK = "network"
    """Unknown host, no connection, or a connection that broke off."""
    STATUS = "status"
    """The server answered with an error status."""
    UNREADABLE = "unreadable"
    """The page holds no readable text."""


class FetchFailed(Exception):
    """An address was not fetched; the message may be shown to anyone and holds no secret."""

    def __init__(self, why: Why, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.why = why
        self.status = status
        """HTTP status of the answer, where the reason is STATUS."""


_PORTS = {"http": 80, "https": 443}
LONGEST = 2048
"""Largest number of characters in an address."""
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEVIATING = re.compile("[\u00df\u03c2\u200c\u200d\u1e9e]")
"""Characters of a name (ß, final sigma, joiners) that mean another host to our codec (IDNA 2003) than to browsers."""
# names of the machine itself or its own network (RFC 6761, 6762, 7686, 8375, and those that clouds use)
# fmt: off
_LOCAL_NAMES = (
    "localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp", "home.arpa", "onion"
)

# IANA's special-purpose registry, written out because `ipaddress.is_global` differs between versions of Python
_NOT_PUBLIC_4 = tuple(ipaddress.IPv4Network(network) for network in (
    "0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "192.0.0.0/24",
    "100.64.0.0/10",  # carrier-grade NAT
    "168.63.129.16/32", "169.254.0.0/16",  # Azure's host agent; link-local and metadata services
    "192.88.99.0/24", "198.18.0.0/15",  # 6to4 relays; benchmarks
    "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",  # documentation
    "224.0.0.0/4", "240.0.0.0/4",  # multicast; reserved and broadcast
))
# fmt: on
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
"""Everything else is not unicast on the internet: ::1, mapped and compatible IPv4, NAT64, unique local, link-local."""
_NOT_PUBLIC_6 = tuple(  # Teredo and other protocols, documentation, 6to4
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One address in its canonical spelling; `str` writes it."""

    scheme: str
    host: str
    """Lower case, in ASCII; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, percent-encoded."""

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def __str__(self) -> str:
        return self.origin + self.target


def parse_address(text: str) -> Address:
    """Parse an address. Raises FetchFailed where `text` is not one, or disguises its host by an odd spelling."""
    text = text.strip()
    if len(text) > LONGEST:
        raise FetchFailed(Why.ADDRESS, f"an address has at most {LONGEST} characters, not {len(text)}")
    if found := _FORBIDDEN.search(text):
        raise FetchFailed(Why.ADDRESS, f"an address cannot hold the character {found[0]!r}")
    try:
        parts = urlsplit(text)
        given_port = parts.port
    except ValueError as error:
        raise FetchFailed(Why.ADDRESS, f"this is not an address: {error}") from error
    if parts.scheme not in _PORTS or not parts.netloc:
        raise FetchFailed(Why.ADDRESS, "only http:// and https:// addresses can be opened")
    if "@" in parts.netloc:
        raise FetchFailed(Why.CREDENTIALS, "an address with a user name or password in it is not opened")
    host = parts.hostname or ""
    target = _without_dots(quote(parts.path or "/", safe="%/:=&~+!$,;'@()*[]-._"))
    if parts.query:
        target += "?" + quote(parts.query, safe="%/:=&?~+!$,;'@()*[]-._")
    return Address(
        scheme=parts.scheme,
        host=_ip(host, ipaddress.IPv6Address) if parts.netloc.startswith("[") else _name(host),
        port=_PORTS[parts.scheme] if given_port is None else given_port,
        target=target,
    )


def _without_dots(path: str) -> str:
    """The path without the segments "." and "..", also as "%2e", which servers resolve and robots.txt does not (RFC
    3986, 5.2.4)."""
    kept: list[str] = []
    _, *segments = path.split("/")
    for number, segment in enumerate(segments, start=1):
        dots = segment.lower().replace("%2e", ".")
        if dots not in (".", ".."):
            kept.append(segment)
            continue
        if dots == "..":
            del kept[-1:]
        if number == len(segments):
            kept.append("")
    return f"/{'/'.join(kept)}"


def check_public(address: Address, *, ports: Collection[int] = (80, 443), allow_loopback: bool = False) -> None:
    """Raises FetchFailed where the port is not among `ports` or the host is plainly not on the public internet.

    The addresses that its name resolves to are checked when connecting. `allow_loopback`, for tests, permits servers
    on this machine, on any port.
    """
    if _is_ip(address.host):
        check_ip(address.host, allow_loopback=allow_loopback)
    elif allow_loopback and address.host == "localhost":
        return
    elif "." not in address.host or any(f".{address.host}".endswith(f".{name}") for name in _LOCAL_NAMES):
        raise FetchFailed(Why.PRIVATE, f"{address.host!r} is a name of a local network, not of the public internet")
    if address.port not in ports and not allow_loopback:
        raise FetchFailed(Why.PORT, f"port {address.port} is not opened, only {', '.join(map(str, sorted(ports)))}")


def check_ip(text: str, *, allow_loopback: bool = False) -> None:
    """Raises FetchFailed unless `text` is an IP address of the public internet."""
    ip = ipaddress.ip_address(text)
    if allow_loopback and ip.is_loopback:
        return
    if isinstance(ip, ipaddress.IPv4Address):
        public = not any(ip in network for network in _NOT_PUBLIC_4)
    else:
        public = ip in _PUBLIC_6 and not any(ip in network for network in _NOT_PUBLIC_6)
    if not public:
        raise FetchFailed(Why.PRIVATE, f"{text} is not an address of the public internet")


def _name(written: str) -> str:
    if found := _DEVIATING.search(written):
        raise FetchFailed(Why.ADDRESS, f"{written!r} means two hosts, because of {found[0]!r}; write it as xn--...")
    try:
        # the codec also folds full-width letters, digits and dots, which would hide an address
        name = written.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError as error:
        raise FetchFailed(Why.ADDRESS, f"{written!r} is not the name of a host") from error
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # 127.1, 2130706433, 0x7f000001 and 0177.0.0.1 are IPv4 addresses to many libraries: only four plain numbers
        return _ip(name, ipaddress.IPv4Address)
    if not all(_LABEL.fullmatch(label) for label in labels) or len(name) > 253:
        raise FetchFailed(Why.ADDRESS, f"{written!r} is not the name of a host")
    return name


def _ip(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> str:
    try:
        return str(kind("" if "%" in text else text))  # no zones, as in fe80::1%eth0
    except ValueError as error:
        raise FetchFailed(Why.ADDRESS, f"{text!r} is not a plainly written IP address") from error


def _is_ip(host: str) -> bool:
    return ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
