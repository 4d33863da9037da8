"""Records of a memory at work: its events, a call under way, and what was shown.

Underway   messages with the newest state, and the model's messages as they would be now
Prompt     what the model is shown, with the name of its conversation
Event      what the memory did, for whoever looks on
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.messages.folding import Folded
from mem1.messages.sessions import Known, Trail
from mem1.messages.transcript import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A memory's record of one call of the model. Tokens are estimates, corrected by what the provider reported, and
    have what is sent beside the messages, such as tools, as far as it is known."""

    kind: str
    """"state": a new state; "left_out": more results are not shown whole; "no_state": the model wrote none;
    "unwritten": a writer failed; "unread": it has not written yet what a state is due of; "appends": a state would be
    due, but appending is still cheaper; "cut": the bound of the prompt took more than results and exchanges."""
    policy: str
    exchange: int
    """Exchanges of the conversation so far."""
    tokens_before: int
    """Length of the whole conversation, without requests for states and their answers."""
    tokens_after: int
    """Length of what the model sees."""
    cached_tokens: int
    """Tokens with which the previous prompt began, too."""
    state_before: str | None = None
    state_after: str | None = None
    left_out: tuple[str, ...] = ()
    """Handles that were not left out before."""
    why: str = ""
    """For "no_state": what the model did instead; for "unwritten": what failed; for "unread": what is missing; for
    "appends": `Memory.advice`; for "cut": what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A call of `Memory.prompt` under way."""

    key: str
    """Name of the conversation so far, and of a state that is written in this call."""
    exchanges: int
    messages: Sequence[Message]
    before: Sequence[Message]
    """Those of the previous call."""
    trail: Trail
    known: Known
    """The record before this call."""
    log: Sequence[Message]
    """The messages, with the newest state."""
    found: Folded
    """The model's messages as they would be now."""
    pending: tuple[str, ...]
    request: list[Message] | None = None
    """For a state, if one is due."""
    write: Callable[[list[Message]], Any] | None
    beside: int | None
    """Tokens sent with the messages."""
    tried: bool = False
    """Whether the model has already failed to write one."""
    written: bool = False
    """Whether one was written in this call."""
    paused: bool = False
    """Whether the request has a word of the assistant's before it because the first one was refused."""

    def writer(self, request: list[Message]) -> Any:
        assert self.write is not None
        return self.write(request)


class Prompt(list[Message]):
    """The model's next messages, with the name of their conversation."""

    key: str
    beside: int | None
    """Tokens that are sent with them; None: the caller does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A conversation, and what was shown of it."""

    messages: Sequence[Message]
    """As they were given."""
    log: Sequence[Message]
    """The same with the newest state."""
    prompt: Prompt
    trail: Trail
