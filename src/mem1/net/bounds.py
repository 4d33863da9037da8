"""Limits of the connections of a web server, apart from the connections, whose uvicorn is slow to import.

Bounds(head_s=5.0).most_connections     ->  1000, or fewer where the process may open few files
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

_OTHER_FILES = 128
"""Descriptors left for the index, pipes and libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a connection, which is closed when it exceeds them. Seconds:"""

    head_s: float = 10.0
    """From the connection, or the first byte of a later request, to the end of the headers."""
    body_s: float = 60.0
    """From the end of the headers to the end of the body."""
    write_s: float = 60.0
    """Without progress, while the client does not read the answer."""
    idle_s: float = 75.0
    """Between two requests: a trainer's next round of searches comes after an update."""
    connections: int = 1000
    """Most open connections of each process; fewer where the process may open few files."""

    @property
    def most_connections(self) -> int:
        """`connections`, or as many as the process's limit of open files allows."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            return self.connections
        return max(1, min(self.connections, max(files // 2, files - _OTHER_FILES)))


BOUNDS = Bounds()
