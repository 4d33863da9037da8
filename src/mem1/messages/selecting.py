"""A conversation as a memory sees it, and what its selection makes of each exchange.

    parts    u1  x1  x2  x3           u: message of the user, x: exchange; a state was written after x2
    seen         x1  x2  state  x3
    fold(2)      -   x2  state  x3    what `select` keeps

Where a memory of states drops what stayed with the last one, or came after it, a state is due, and until it is written
all that stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from mem1.memory.selection import STATE, MemoryPolicy, Selection, keep
from mem1.messages.bounds import Bounds, start_within, tokens_of
from mem1.messages.transcript import Exchange, Form, Part, said, texts
from mem1.messages.wholes import CUT
from mem1.protocol import NOTE, RECALL, SUMMARY, blocks

_LONG = 400
"""Tokens of a note that is never cut for the sake of others."""
_LINE_CHARACTERS, _ARGUMENTS_SHOWN = 400, 80
"""Most of a line that stands for the calls of an exchange without notes."""


class Retention(Enum):
    """The part of an exchange that is kept."""

    WHOLE = "whole"
    ARCHIVED = "archived"
    """All that the model said, with handles in the place of results."""
    MASKED = "masked"
    """All that the model said, with a word in the place of results that they were dropped."""
    NOTES = "notes"
    """Lines in the state."""
    NOTHING = "nothing"


class Selected(NamedTuple):
    """A memory's choice in a conversation."""

    stays: dict[int, Retention]
    """Index of each exchange among the parts -> what stays of it."""
    notes: Mapping[int, tuple[str, ...]]
    """Index of an exchange that leaves notes -> their texts."""
    state_limit: int | None
    """Tokens of the state that stay; None: as many as the bounds allow."""
    due: bool
    """Whether the model should write a state now, before its next turn."""
    wanted_tokens: int | None
    """Tokens that it should have; None: as many as the bounds allow."""


def selected(
    parts: Sequence[Part],
    state: str | None,
    boundary: int,
    policy: MemoryPolicy,
    form: Form,
    bounds: Bounds,
    pending: Collection[str],
) -> Selected:
    """Apply a memory to a conversation whose state, if any, was written behind `boundary` of its parts.

    What waits for a result stays whole, and the memory does not see it.
    """
    stays = {at: Retention.WHOLE for at, part in enumerate(parts) if isinstance(part, Exchange)}
    finished = [at for at in stays if not waits(parts[at], pending)]
    seen = {at: Seen(parts[at], form, bounds) for at in finished}  # type: ignore[arg-type]  # exchanges, all of them
    turns: list[Seen | _State] = list(seen.values())
    written, covered = None, sum([at < boundary for at in finished])
    if state is not None and policy.asks & {STATE, SUMMARY}:
        written = _State(state, bounds.count(state))
        turns.insert(covered, written)
    selection: Selection[Seen | _State] = policy.select(turns) if turns else Selection(kept=())
    kept = {id(one.turn): one for one in selection.kept}
    due = selection.requested_action == SUMMARY
    if asks_for_states(policy):
        with_state = () if written is None else policy.select(turns[: covered + 1]).kept
        after = turns if written is None else turns[covered + 1 :]
        whole = {id(one.turn): one for one in (*with_state, *keep(after).kept)}
        if whole.keys() - kept.keys():
            due, kept = True, whole
    notes = dict[int, tuple[str, ...]]()
    dropped = Retention.ARCHIVED if RECALL in policy.asks else Retention.MASKED
    for at, turn in seen.items():
        one = kept.get(id(turn))
        if one is None:
            stays[at] = Retention.NOTHING
        elif one.only_notes is not None:
            stays[at], notes[at] = Retention.NOTES, tuple(turn.notes[position] for position in one.only_notes)
        elif not one.result:
            stays[at] = dropped
    cut = kept[id(written)].state_tokens if id(written) in kept and STATE in policy.asks else None
    return Selected(stays, notes, cut, due, selection.requested_tokens)


def asks_for_states(policy: MemoryPolicy) -> bool:
    """Whether nothing leaves before a state has it."""
    return bool(policy.asks & {STATE, SUMMARY}) and NOTE not in policy.asks


def waits(part: Part, pending: Collection[str]) -> bool:
    """Whether a call of the exchange still waits for its last result."""
    if not isinstance(part, Exchange) or len(part.results) < len(part.calls):
        return isinstance(part, Exchange)
    return bool(pending) and any(call.id in pending for call in part.calls)


def _notes_of(exchange: Exchange) -> tuple[str, ...]:
    """The model's own notes in an exchange, or else what it called, in one line each."""
    text = said(exchange)
    notes = [" ".join(block.inside.split()) for block in blocks(text, NOTE)]
    if not any(notes):
        calls = "; ".join([f"{call.name}({call.arguments[:_ARGUMENTS_SHOWN]})" for call in exchange.calls])
        # a colon and a space would make a key of what stands before them
        notes = [" ".join((calls or text[:_LINE_CHARACTERS]).split())[:_LINE_CHARACTERS].replace(": ", ":")]
    return tuple(note for note in notes if note)


@dataclass(frozen=True, eq=False)
class Seen:
    """An exchange of messages, as `mem1.memory.selection.Exchange` has it."""

    exchange: Exchange
    form: Form
    bounds: Bounds
    action: str = "call"
    labelled: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @cached_property
    def _notes(self) -> tuple[str, ...]:
        """Read once: a memory asks for them several times. One that is so long that it would push out others loses its
        end."""
        return tuple([self._fitted(note, max(_LONG, self.bounds.state // 2)) for note in _notes_of(self.exchange)])

    def _fitted(self, note: str, most: int) -> str:
        start = start_within(note, most, self.bounds.count)
        return note if start is note else f"{start.rpartition(' ')[0] or start} {CUT}"

    @property
    def words(self) -> str:
        results = [texts(self.form.content_of(result)) for result in self.exchange.results]
        calls = [f"{call.name} {call.arguments}" for call in self.exchange.calls]
        return " ".join([said(self.exchange), *calls, *results])

    @property
    def said_tokens(self) -> int:
        return tokens_of(self.exchange.said, self.bounds.count)

    @property
    def result_tokens(self) -> int:
        return tokens_of([result.message for result in self.exchange.results], self.bounds.count)

    @property
    def state_tokens(self) -> int:
        return 0

    def note_tokens(self, position: int) -> int:
        return self.bounds.count(self.notes[position])


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state that was written in a call of its own, likewise."""

    words: str
    said_tokens: int
    action: str = SUMMARY
    notes: tuple[str, ...] = ()
    labelled: bool = False
    result_tokens: int = 0

    @property
    def state_tokens(self) -> int:
        return self.said_tokens

    def note_tokens(self, position: int) -> int:
        raise IndexError(position)
