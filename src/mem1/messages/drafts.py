"""A conversation while it is read: the model's turns, which get their results as these come.

    assistant: call a | user: wait! | tool: a      messages
    Draft with the result of a      | User         parts

So a result finds its call wherever it stands: behind a message of the user, or after a later turn. Of two results of
one call the last counts: clients put one in the place of a call that was interrupted, and add the real one later.

A turn goes on after results while a server owes something: a call that it answers itself, in a later message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mem1.errors import UserError
from mem1.messages.reminders import as_reminder
from mem1.messages.transcript import Call, Exchange, Message, Result, Transcript, User, is_state


class Step(NamedTuple):
    """What the model said between results."""

    said: list[Message]
    calls: list[Call]


class Draft:
    """A turn of the model."""

    __slots__ = ("end", "envelope", "ids", "owed", "results", "steps")

    def __init__(self) -> None:
        self.steps = [Step([], [])]
        self.ids: set[str] = set()
        """Those of the calls."""
        self.results: dict[str, Message] = {}
        self.owed: dict[str, Call] = {}
        """Calls that the server has not answered yet."""
        self.envelope: Message | None = None
        self.end = 0
        """Messages of the conversation up to its last one."""

    @property
    def complete(self) -> bool:
        """Whether all calls of its last step have their results."""
        calls = self.steps[-1].calls
        return bool(calls) and all(call.id in self.results for call in calls)

    def say(self, message: Message, calls: list[Call], at: int) -> None:
        """Raises UserError where two calls have the same id."""
        step, self.end = self.steps[-1], at + 1
        step.said.append(message)
        for call in calls:
            if call.id in self.ids:
                raise UserError(
                    f"messages[{at}]: two calls have the id {call.id!r}; every call of a turn needs its own"
                )
            self.ids.add(call.id)
            step.calls.append(call)

    def go_on(self) -> None:
        """What the model says next stands behind the results so far."""
        self.steps.append(Step([], []))

    def missing(self, last: bool) -> Iterator[tuple[Step, Call]]:
        """Calls that nobody will answer any more: all without a result, but for those of the conversation's end."""
        if len(self.results) < len(self.ids):
            for step in self.steps[:-1] if last else self.steps:
                for call in [call for call in step.calls if call.id not in self.results]:
                    yield step, call

    def exchange(self, last: bool) -> Exchange:
        """The turn as it is; at the conversation's end it waits for what the server owes."""
        if len(self.steps) == 1:  # nearly always
            said, calls = self.steps[0]
        else:
            said = [message for step in self.steps for message in step.said]
            calls = [call for step in self.steps for call in step.calls]
        results = [Result(call, self.results[call.id]) for call in calls if call.id in self.results]
        if last and self.owed:
            calls = [*calls, *self.owed.values()]
        breaks = self._breaks() if len(self.steps) > 1 else ()
        return Exchange(tuple(said), tuple(calls), tuple(results), self.envelope, breaks, self.end)

    def _breaks(self) -> tuple[tuple[int, int], ...]:
        """(messages, results) before each step but the first, where the model has said something before."""
        found, said, results = list[tuple[int, int]](), 0, 0
        for step in self.steps:
            if said:
                found.append((said, results))
            said += len(step.said)
            results += sum(call.id in self.results for call in step.calls)
        return tuple(found)


class Drafts:
    """The parts so far."""

    def __init__(self) -> None:
        self.system: list[Message] = []
        self.parts: list[User | Draft] = []

    @property
    def open(self) -> Draft | None:
        """The turn behind which nothing stands yet."""
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Draft) else None

    @property
    def ends_with_state(self) -> bool:
        """Whether the open turn is a state that mem1 asked for: the next turn begins behind it."""
        draft, asked = self.open, self.parts[-2] if len(self.parts) > 1 else None
        return draft is not None and isinstance(asked, User) and is_state(asked, Exchange(tuple(draft.steps[-1].said)))

    def begin(self) -> Draft:
        """A new turn."""
        draft = Draft()
        self.parts.append(draft)
        return draft

    def add_system(self, message: Message, at: int) -> None:
        """A system message. Behind a turn it is a text of the user's side: chat templates refuse a late one, and in
        front it would change what every prompt begins with. An empty one, as of a field left blank, is none."""
        if not message.get("content"):
            return
        if not any(isinstance(part, Draft) for part in self.parts):
            self.system.append(message)
        elif (reminder := as_reminder(message)) is not None:
            self.add_user(User(reminder, end=at + 1), lambda _: False)

    def add_user(self, user: User, closes_later: Callable[[str], bool]) -> None:
        """A message of the user. Inside a turn that goes on behind it, it moves before the turn, which has to stay one.

        `closes_later`: whether the server answers the call with this id after this message.
        """
        draft = self.open
        if draft is not None and draft.owed:
            if any(closes_later(id) for id in draft.owed):
                self.parts.insert(-1, User(user.message, end=user.end))
                return
            draft.owed.clear()
        self.parts.append(user)

    def answer(self, id: Any, message: Message, at: int) -> Draft:
        """The turn that gets this result. Raises UserError where nothing called for it."""
        known: set[str] | None = None
        for part in reversed(self.parts):
            if isinstance(part, Draft):
                if isinstance(id, str) and id in part.ids:
                    part.results[id], part.end = message, at + 1
                    return part
                known = part.ids if known is None else known
        if known is None:
            raise UserError(
                f"messages[{at}]: a result without the assistant message that called it; send both or neither"
            )
        called = ", ".join(map(repr, sorted(known))) or "nothing"
        raise UserError(
            f"messages[{at}]: a result for {id!r}, but the turn before it called {called}; send both or neither"
        )

    def transcript(self, settle: Callable[[Draft, bool], None]) -> Transcript:
        """The conversation; `settle` completes a turn, whose calls nobody else will answer, given whether it is the
        last part."""
        parts = list[User | Exchange]()
        for part in self.parts:
            if isinstance(part, Draft):
                last = part is self.parts[-1]
                settle(part, last)
                part = part.exchange(last)
                if not part.said:
                    continue
            parts.append(part)
        return Transcript(system=tuple(self.system), parts=tuple(parts))
