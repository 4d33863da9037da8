"""Why an address was not fetched: one exception, and a closed list of reasons.

raise FetchFailed(Why.PRIVATE, "127.0.0.1 is not an address of the public internet")
"""

from __future__ import annotations

from enum import Enum


class Why(str, Enum):
    """The reasons; the first group is our refusal, the second the network's or the server's failure."""

    ADDRESS = "address"
    """Not an http or https address of a host that has a public name."""
    CREDENTIALS = "credentials"
    """A user name or password stands in the address."""
    PORT = "port"
    PRIVATE = "private"
    """The host is, or resolves to, an address that is not on the public internet."""
    REDIRECTS = "redirects"
    """Too many redirects, or a loop of them."""
    SIZE = "size"
    """Too many bytes, as sent or once decompressed."""
    CONTENT_TYPE = "content_type"
    ENCODING = "encoding"
    """Compressed in a way that we do not read, or not what it says it is."""
    ROBOTS = "robots"
    """robots.txt asks programs to stay away."""

    TIME = "time"
    """Not finished in time."""
    NETWORK = "network"
    """No such host, no connection, or one that broke off."""
    STATUS = "status"
    """The server answered with an error."""
    UNREADABLE = "unreadable"
    """The page holds no readable text."""


class FetchFailed(Exception):
    """An address was not fetched; the message is meant for a reader and holds no secret."""

    def __init__(self, why: Why, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.why = why
        self.status = status
        """Status of the server's answer, where the reason is STATUS."""
