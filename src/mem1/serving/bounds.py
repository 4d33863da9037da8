"""What a server gives a client: seconds for each part of a request, and how many connections at a time."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_OTHER_FILES = 128
"""Descriptors that are left to the index, pipes and libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a connection; who exceeds them is hung up on."""

    head_s: float = 10.0
    """From the connection, or the first byte of a later request, to the end of the headers."""
    body_s: float = 60.0
    """From the end of the headers to the end of the body."""
    write_s: float = 60.0
    """Without progress of an answer that the client does not read."""
    idle_s: float = 75.0
    """Between two requests: a trainer's next round of searches comes after an update."""
    connections: int = 1000
    """At a time, in each process; fewer where the process may open few files."""

    @property
    def most_connections(self) -> int:
        """`connections`, or what the process's limit of open files leaves room for."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            return self.connections
        return max(1, min(self.connections, max(files // 2, files - _OTHER_FILES)))


BOUNDS = Bounds()
