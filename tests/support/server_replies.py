"""What a scripted server answers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reply:
    """The answer of a chat server; `body` replaces `text` where it is no chat completion."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hangs_s: float = 0.0
    """Wait before the answer."""
