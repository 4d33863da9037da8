"""A memory at work: it asks the model for states when they are due, keeps them, and tells what it did.

    memory = Memory("fold(auto)", write=client.chat, prices="hosted-90", events="folds.jsonl")
    while True:
        reply = client.chat(memory.prompt(messages))       # `messages`: the whole conversation, which only ever grows
        messages += [reply, *results_of(reply)]
    memory.recall("r1a2b3c4d")                             # behind a tool `recall`, RECALL_TOOL

Whatever a memory keeps, it keeps by a hash of all messages before, in whole. So a client that sends its whole history
anew with each call finds its states again, several conversations may share a memory, and none gets what belongs to
another; a message that was changed costs a new state. A model that fails, or calls a tool where a state was asked for,
is asked once more; then the conversation goes on without a state for 2 exchanges, after the next failure for 4, and so
on.

    memory = Memory("fold(4)", writer=Ports())             # its notes are the states: the agent's model is never asked

While a writer has not read all that would leave, the conversation goes on as it is (`mem1.messages.writing`).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from mem1.errors import UserError
from mem1.memory import STATE, Fold, MemoryPolicy, Notebook, Summary, memory_policy
from mem1.messages.assembly import handle_of, without_states
from mem1.messages.bounds import (
    UNBOUNDED,
    Bounds,
    common_tokens,
    remembering,
    tokens_of,
    without_tools,
    without_what_was_missed,
)
from mem1.messages.cost import HORIZON, Sizes, advice, best_k, break_even, measured
from mem1.messages.folding import Folded, after_a_pause, folded, recall, request_for_state, state_in, with_state
from mem1.messages.forms import form_of
from mem1.messages.private import PrivateLog
from mem1.messages.records import Event, Prompt, Shown, Underway
from mem1.messages.selecting import asks_for_states
from mem1.messages.sessions import Known, Latest, keys_of, newest, trail_of
from mem1.messages.transcript import Exchange, Form, Message, Transcript
from mem1.messages.writing import LONGEST_PAUSE, Desk, Writer
from mem1.messages.written import within
from mem1.prices import PriceClass, price_class
from mem1.protocol import NOTE, RECALL

_REMEMBERED = 10_000
"""States that a memory keeps by default, the latest used."""
_LEAST_OF_ESTIMATE = 0.25
"""Share of the estimate that a provider's count of a prompt exceeds."""
RECALL_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "recall",
        "description": "Shows a tool result that was dropped or shortened, by the handle in its place; or all notes.",
        "parameters": {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": 'Such as "r1a2b3c4d"; "notes": all notes.'},
                "start": {"type": "integer", "description": "Characters to skip, for a result that was shortened."},
            },
            "required": ["handle"],
        },
    },
}
"""The tool that `Memory.recall` answers, as OpenAI's chat completions declare it."""
_RECALLS_NOTES = " Also shows what a line of your memory was written about, by its text as the handle."


class Memory:
    """A memory for one agent, or for many: see the module.

    `write`: takes messages and returns the model's reply, as text, a message or items; fold and notes need it. It
    should be the agent's own call, with the same model, tools and settings, so that the prompt cache serves it.
    `prices`: a name of `mem1.prices.PRICE_CLASSES`, or prices of your own; fold(auto) needs them. `only_if_cheaper`:
    fold(auto) leaves a conversation as it is until it is so long that folding would have been cheaper than appending.
    `events`: a file for one JSON line per event, which only its owner may read. `states`: where states and a writer's
    notes are kept, by default in this process. `writer`: writes notes beside the agent, of which states are made in
    the place of `write`; for fold and summary (`mem1.messages.writing`).
    """

    def __init__(
        self,
        policy: str | MemoryPolicy = "notes",
        *,
        write: Callable[[list[Message]], Any] | None = None,
        form: str = "chat",
        bounds: Bounds = UNBOUNDED,
        prices: str | PriceClass | None = None,
        only_if_cheaper: bool = False,
        on_event: Callable[[Event], None] | None = None,
        events: str | Path | None = None,
        states: MutableMapping[str, str] | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.policy = memory_policy(policy)
        self.name = policy if isinstance(policy, str) else policy.name
        self.form: Form = form_of(form)
        self.bounds = bounds
        self.prices = price_class(prices) if isinstance(prices, str) else prices
        if self.policy == Fold(None) and self.prices is None:
            raise UserError(
                "fold(auto) needs prices, such as hosted-90 (--prices of a command; docs/cost.md has the classes); "
                "where none can be given, choose another memory"
            )
        if not bounds.handles and (RECALL in self.policy.asks or isinstance(self.policy, Notebook)):
            raise UserError(
                f"{self.name} needs the tool recall, which nobody can call here; choose notes, masked(k) or another "
                "memory"
            )
        if writer is not None and write is not None:
            raise UserError(
                "a memory has `write`, the agent's own model, or a `writer` beside it; leave out one of them"
            )
        if writer is not None:
            if not callable(getattr(writer, "write", None)):
                raise UserError(f"{type(writer).__name__} is no writer: it has no method write (mem1.messages.Writer)")
            check_takes_notes(self.policy, self.name)
        self._write = write
        self._desk = None if writer is None else Desk(writer, self.form, states)
        self._only_if_cheaper = only_if_cheaper
        self._on_event = on_event
        self._events = None if events is None else PrivateLog(Path(events))
        self.states: MutableMapping[str, str] = Latest(_REMEMBERED) if states is None else states
        self._known: Latest[Known] = Latest(_REMEMBERED)
        self._last: Shown | None = None
        """What was shown last, wherever that was."""
        self._alone = True
        """Whether all that was shown so far was of one conversation."""

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        pending: Collection[str] = (),
        write: Callable[[list[Message]], Any] | None = None,
        asks: bool = True,
        beside: int | None = None,
        owner: str = "",
    ) -> list[Message]:
        """Returns the model's next messages; it may be asked for a state first. Raises UserError as `fold` does, and
        where nobody can write the states of a memory that has such.

        `write`: for this call alone, where model, tools or settings change from call to call; with a `writer`, nobody
        is asked. `asks`: whether it may be asked now; else the conversation goes on with the state that it has.
        `beside`: tokens that are sent with the messages, such as declared tools, for fold(auto) and `bounds.prompt`;
        None: not known, and so taken from what is observed.
        `owner`: what tells conversations with equal messages apart, such as a system prompt that is none of them; each
        owner has states of its own. Owners who share what stands before a slash take turns at a writer as one.
        """
        now = self._begin(messages, pending, write or self._write, asks, beside, owner)
        while now.request is not None:
            try:
                reply = now.writer(now.request)
            except Exception as error:  # whatever the caller's client raises: the agent goes on without a state
                reply = error
            if inspect.iscoroutine(reply):
                reply.close()
                raise UserError("`write` is a coroutine function, which prompt cannot await; call aprompt")
            now = self._answered(now, reply)
        return self._shown(now, self._told(now))

    async def aprompt(
        self,
        messages: Sequence[Message],
        *,
        pending: Collection[str] = (),
        write: Callable[[list[Message]], Any] | None = None,
        asks: bool = True,
        beside: int | None = None,
        owner: str = "",
    ) -> list[Message]:
        """The same, where `write` may be a coroutine function. Works in a thread, as long messages take their time; a
        plain `write` is called in this one."""
        now = await asyncio.to_thread(self._begin, messages, pending, write or self._write, asks, beside, owner)
        while now.request is not None:
            try:
                reply = now.writer(now.request)
                if inspect.isawaitable(reply):
                    reply = await reply
            except Exception as error:  # as in prompt
                reply = error
            now = await asyncio.to_thread(self._answered, now, reply)
        return self._shown(now, await asyncio.to_thread(self._told, now))

    def recall(self, handle: str, start: int = 0, *, messages: Sequence[Message] | None = None) -> Any:
        """The result behind a handle; see `mem1.messages.recall`. With a writer, all its notes by the name "notes", and
        by the text of one what it was written about.

        `messages`: the conversation that asks, by default the one that was last shown in this thread or task. Raises
        UserError as `mem1.messages.recall` does, and where it is not clear which conversation asks.
        """
        shown = self._shown_here() if messages is None else None
        if self._desk is not None:
            given = messages or () if shown is None else shown.messages
            if (text := self._desk.recalled(handle, given, None if shown is None else shown.trail)) is not None:
                if start and not 0 < start < len(text):
                    raise UserError(f"{handle!r:.40} ends after {len(text)} characters; start={start} is too far")
                return text[start:]
        return recall(messages or () if shown is None else shown.log, handle, start=start, form=self.form.name)

    @property
    def recall_tool(self) -> Mapping[str, Any]:
        """`RECALL_TOOL`, as this memory answers it."""
        if self._desk is None:
            return RECALL_TOOL
        function = RECALL_TOOL["function"]
        return {**RECALL_TOOL, "function": {**function, "description": function["description"] + _RECALLS_NOTES}}

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until the writer has read all that `prompt` was given so far, or until the time is up.

        Returns whether it has: not where it failed on an exchange, which it is given again with a later prompt.
        """
        return self._desk is None or self._desk.flush(timeout_s)

    def close(self) -> None:
        """Keeps in `states` what the writer has read since `prompt` was last called; it reads no more. For the end of a
        process."""
        if self._desk is not None:
            self._desk.close()

    @property
    def shows_handles(self) -> bool:
        """Whether the model may see handles, or notes of a writer, and needs the tool `recall`."""
        bounds = self.bounds
        if self._desk is not None:
            return bounds.handles
        limited = (bounds.result, bounds.prompt, bounds.images) != (None, None, None)
        return bounds.handles and (limited or bool(self.policy.asks & {NOTE, RECALL}))

    def with_state(self, messages: Sequence[Message], *, owner: str = "") -> list[Message]:
        """The conversation with the newest state that is kept for it, which is all that another process needs."""
        return self._with_known_state(messages, keys_of(messages, owner))

    def without_states(self, messages: Sequence[Message], *, owner: str = "") -> list[Message]:
        """The conversation without states, of which this memory now knows the newest: the inverse of `with_state`. One
        that begins with a state stays as it is."""
        transcript = self.form.read(messages)
        parts, state, boundary = without_states(transcript, self.form)
        bare = self.form.write(transcript._replace(parts=tuple(parts)))
        if state is None:
            return bare
        before = self.form.write(transcript._replace(parts=tuple(parts[:boundary])))
        if not before:
            return list(messages)  # it belongs to no message
        self.states[keys_of(before, owner)[-1]] = state
        return bare

    def observe(self, prompt_tokens: int, shown: Sequence[Message] | None = None) -> None:
        """Tell what the provider counted for a prompt, tools included; later counts of its conversation, and
        `bounds.prompt` there, follow it. Without `beside`, what it counted beyond the estimate is taken for tools, and
        with it, for messages that are longer than estimated. A count that is far too low, as of a server that says 0 or
        leaves out what was cached, is none.

        `shown`: what `prompt` returned, by default the last time in this thread or task. Raises UserError where it is
        not clear which conversation is meant.
        """
        prompt = shown if isinstance(shown, Prompt) else self._shown_here().prompt
        messages = tokens_of(prompt if shown is None else shown, remembering(self.bounds.count))
        estimate = messages + (prompt.beside or 0)
        if messages and prompt_tokens > _LEAST_OF_ESTIMATE * estimate:
            scale = prompt_tokens / estimate
            self._known[prompt.key] = replace(
                self._known.get(prompt.key, Known()),
                scale=min(1.0, scale) if prompt.beside is None else scale,
                dense=prompt_tokens / messages,
                beside=max(0, prompt_tokens - messages),
            )

    def advice(self, messages: Sequence[Message], *, beside: int | None = None, owner: str = "") -> str:
        """Whether folding pays in this conversation at these prices, and from which exchange on, in a sentence."""
        if self.prices is None:
            raise UserError("advice needs prices; give prices='hosted-90' or another of mem1.prices.PRICE_CLASSES")
        _, known = newest(self._known, keys_of(messages, owner)) or (0, Known())
        transcript = self.form.read(messages)
        parts, _, _ = without_states(transcript, self.form)
        sizes = self._sizes(transcript._replace(parts=tuple(parts)), beside, known)
        k = best_k(sizes, self.prices.prices, writer=self._desk is not None)
        if math.isinf(k):
            return "Reading from the cache is free at these prices, so appending is cheaper."
        return advice(round(k), self._break_even(sizes, round(k)))

    def _begin(
        self,
        messages: Sequence[Message],
        pending: Collection[str],
        write: Callable[[list[Message]], Any] | None,
        asks: bool,
        beside: int | None,
        owner: str,
    ) -> Underway:
        if asks and write is None and self._desk is None and asks_for_states(self.policy):
            raise UserError(
                f"nobody can write the states of {self.name}; give Memory or prompt `write`, the agent's own call of "
                "its model, or Memory a `writer`; notes, window(k) and masked(k) need neither"
            )
        last = _SHOWN_HERE.get({}).get(self) or self._last
        trail = trail_of(messages, owner, None if last is None else last.trail)
        keys = trail.keys
        before, known = newest(self._known, keys) or (0, Known())
        log = self._with_known_state(messages, keys)
        found = self._folded(log, pending, beside, known)
        now = Underway(
            key=keys[-1],
            exchanges=sum(isinstance(part, Exchange) for part in found.conversation.parts),
            messages=messages,
            before=messages[:before],
            trail=trail,
            known=known,
            log=log,
            found=found,
            pending=tuple(pending),
            write=write,
            beside=beside,
        )
        if self._desk is not None:
            return self._with_notes(now, self._desk)
        may = asks and now.write is not None and now.exchanges >= known.asks_from
        request = self._due(now) if may else None
        if request is not None and known.pauses:
            request = after_a_pause(request, self.form)
        return replace(now, request=request)

    def _with_notes(self, now: Underway, desk: Desk) -> Underway:
        """The call with a new state of notes, where one is due and all that would leave is written."""
        keys = now.trail.keys
        progress = desk.offer(now.messages, now.trail, now.pending)
        if progress.failures > now.known.failures:
            self._tell("unwritten", now, why=progress.why)
        self._learn(now, failures=progress.failures)
        if self._due(now) is None:
            return now
        # the last exchange before a state stays, where it is none of a summary
        last = min(progress.written + (STATE in self.policy.asks), len(progress.ends))
        until = len(keys) if last == now.exchanges else max(progress.ends[:last], default=0)
        notes = within(progress.notes, self.bounds.state, self.bounds.count)
        state = "\n".join(notes)  # each is harmless by itself; read as a reply, they might not be together
        if state and self._leaves(now, until, last):
            self.states[keys[until - 1]] = state
            return self._with_written(now, self._with_known_state(now.messages, keys))
        if now.exchanges >= now.known.asks_from:
            unread = len(progress.ends) - progress.written
            self._learn(now, asks_from=2 * now.exchanges)
            self._tell("unread", now, why=f"{len(notes)} notes; {unread} exchanges are yet to be read")
        return now

    def _leaves(self, now: Underway, until: int, last: int) -> bool:
        """Whether a state is due behind so many of the messages, where an exchange with this number ends."""
        keys = now.trail.keys
        known, _ = newest(self.states, keys) or (0, "")
        if until <= known or last == now.exchanges:
            return until > known
        log = self._with_known_state(now.messages[:until], keys[:until])
        found = self._folded(log, now.pending, now.beside, now.known)
        exchanges = sum(isinstance(part, Exchange) for part in found.conversation.parts)
        return exchanges == last and self._due(replace(now, found=found)) is not None

    def _due(self, now: Underway) -> list[Message] | None:
        if self.policy != Fold(None) or self.prices is None:
            return request_for_state(now.found, self.policy, bounds=self.bounds, best_k=math.inf)
        first = self._only_if_cheaper and now.found.state is None
        if first and now.exchanges < (now.known.appends or 0):
            return None
        sizes = self._sizes(now.found.conversation, now.beside, now.known)
        k = best_k(sizes, self.prices.prices, writer=self._desk is not None)
        request = request_for_state(now.found, self.policy, bounds=self.bounds, best_k=k)
        return None if request is not None and first and self._loses(now, sizes, round(k)) else request

    def _loses(self, now: Underway, sizes: Sizes, k: int) -> bool:
        """Whether appending is still cheaper after the exchanges so far; tells so once."""
        turn = self._break_even(sizes, k)
        if turn is not None and now.exchanges >= turn:
            return False
        self._learn(now, appends=HORIZON if turn is None else turn)
        if now.known.appends is None:
            self._tell("appends", now, why=advice(k, turn))
        return True

    def _break_even(self, sizes: Sizes, k: int) -> int | None:
        assert self.prices is not None
        return break_even(sizes, self.prices.prices, self.prices.cache, k, writer=self._desk is not None)

    def _sizes(self, conversation: Transcript, beside: int | None, known: Known) -> Sizes:
        sizes = measured(conversation, self.form, self.bounds)
        sizes = replace(sizes, prompt=sizes.prompt + known.sent_with(beside))
        return Sizes(**{name: size * known.scale for name, size in asdict(sizes).items()})

    def _answered(self, now: Underway, reply: Any) -> Underway:
        """Returns the result of a request for a state: a conversation with it; or a second request, and then none."""
        state, why = state_in(reply, self.form)
        if not state:
            if now.request is not None and not now.tried:
                refused = isinstance(reply, Exception) and not now.known.pauses
                again = after_a_pause(now.request, self.form) if refused else now.request
                return replace(now, tried=True, request=again, paused=refused)
            failures = now.known.failures + 1
            pause = min(2**failures, LONGEST_PAUSE)
            self._learn(now, failures=failures, asks_from=now.exchanges + pause)
            self._tell("no_state", now, why=why)
            return replace(now, request=None)
        self.states[now.key] = state
        self._learn(now, failures=0, asks_from=0, pauses=now.known.pauses or now.paused)
        return self._with_written(now, with_state(now.log, state, form=self.form.name))

    def _with_written(self, now: Underway, log: Sequence[Message]) -> Underway:
        """The call with a state that was written in it, which the log has."""
        found = self._folded(log, now.pending, now.beside, now.known)
        return replace(now, log=log, found=found, request=None, written=True)

    def _folded(
        self, messages: Sequence[Message], pending: Collection[str], beside: int | None, known: Known
    ) -> Folded:
        if beside is None:
            bounds = without_what_was_missed(self.bounds, known.beside, known.dense)
        else:
            bounds = without_tools(self.bounds, beside, known.scale)
        return folded(self.form.read(messages), self.policy, form=self.form, bounds=bounds, pending=pending)

    def _told(self, now: Underway) -> Prompt:
        """What is shown, after its event."""
        found = now.found
        missing = {(result.call.id, id(result.message)) for result in found.left_out}
        if found.state is not None and (now.written or found.state != now.known.state):
            self._tell("state", now)
        elif len(missing) > now.known.left_out:
            self._tell("left_out", now)
        if set(found.cut) - set(now.known.cut):
            self._tell("cut", now, why="; ".join(found.cut))
        self._learn(now, state=found.state, left_out=len(missing), cut=found.cut)
        prompt = Prompt(found.messages)
        prompt.key, prompt.beside = now.key, now.beside
        return prompt

    def _shown(self, now: Underway, prompt: Prompt) -> Prompt:
        """The same, remembered in this thread or task."""
        shown = Shown(messages=list(now.messages), log=now.log, prompt=prompt, trail=now.trail)
        with _SHOWING:
            self._alone = self._alone and (self._last is None or self._last.prompt.key in now.trail.keys)
            self._last = shown
        here = WeakKeyDictionary(_SHOWN_HERE.get({}))
        here[self] = shown
        _SHOWN_HERE.set(here)
        return prompt

    def _shown_here(self) -> Shown:
        """What was shown last in this thread or task; in one in which nothing was, what the only conversation showed.

        Raises UserError where there are several, or none.
        """
        found = _SHOWN_HERE.get({}).get(self) or (self._last if self._alone else None)
        if found is None:
            raise UserError(
                "nothing was shown yet; call prompt first"
                if self._last is None
                else "several conversations share this memory, and none was shown in this thread or task; give recall "
                "the messages of the one that asks, and observe what prompt returned"
            )
        return found

    def _learn(self, now: Underway, **changes: Any) -> None:
        """Keep what is known of the conversation, for its next call."""
        self._known[now.key] = replace(self._known.get(now.key) or now.known, **changes)

    def _tell(self, kind: str, now: Underway, why: str = "") -> None:
        if self._on_event is None and self._events is None:
            return
        found, known = now.found, now.known
        count, beside = remembering(self.bounds.count), known.sent_with(now.beside)
        same = common_tokens(self._shown_before(now), found.messages, count)

        def tokens(estimate: int) -> int:
            return round(known.scale * (estimate + beside))

        handles = [handle_of(result, self.form) for result in found.left_out]
        event = Event(
            kind=kind,
            policy=self.name,
            exchange=now.exchanges,
            tokens_before=tokens(tokens_of(self.form.write(found.conversation), count)),
            tokens_after=tokens(tokens_of(found.messages, count)),
            cached_tokens=tokens(same) if same else 0,
            state_before=known.state,
            state_after=found.state,
            left_out=tuple(handles[known.left_out :]),
            why=why,
        )
        if self._on_event is not None:
            self._on_event(event)
        if self._events is not None:
            self._events.write(asdict(event))

    def _shown_before(self, now: Underway) -> list[Message]:
        """What the model saw in the previous call, which follows from the messages that there were."""
        try:
            log = self._with_known_state(now.before, now.trail.keys[: len(now.before)])
            return self._folded(log, now.pending, now.beside, now.known).messages
        except UserError:  # the first call
            return []

    def _with_known_state(self, messages: Sequence[Message], keys: Sequence[str]) -> list[Message]:
        """The conversation with the newest state that is kept for it, where it was written."""
        number, state = newest(self.states, keys) or (0, "")
        written = with_state((), state, form=self.form.name) if state else []
        before, after = messages[:number], messages[number:]
        return list(messages) if list(after[:2]) == written else [*before, *written, *after]


def check_takes_notes(policy: MemoryPolicy, name: str) -> None:
    """Raises UserError for a memory that cannot have a writer."""
    if not isinstance(policy, Fold | Summary):
        raise UserError(
            f"{name} has no states that a writer's notes could be; choose constant, fold(k), fold(auto) or summary(n)"
        )


_SHOWING = Lock()
_SHOWN_HERE: ContextVar[Mapping[Memory, Shown]] = ContextVar("mem1_shown_here")
"""The last messages of each memory in this thread or task."""
