"""A memory at work: it asks the model for states when they are due, keeps them, and tells what it did.

    memory = Memory("fold(auto)", write=client.chat, prices="hosted-90", events="folds.jsonl")
    while True:
        reply = client.chat(memory.prompt(messages))       # `messages`: the whole conversation, which only ever grows
        messages += [reply, *results_of(reply)]
    memory.recall("r1a2b3c4d")                             # behind a tool `recall`, RECALL_TOOL

States are kept by the conversation's task and all exchanges before they were written, so a client that sends its whole
history anew with each call finds them again, and several conversations may share a memory. A model that fails, or calls
a tool where a state was asked for, is asked once more; then the conversation goes on without a state for 2 exchanges,
after the next failure for 4, and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.messages.assembly import handle_of
from mem1.messages.bounds import LEAST, UNBOUNDED, Bounds, common_tokens, tokens_of
from mem1.messages.cost import HORIZON, Sizes, best_k, break_even, measured
from mem1.messages.folding import Folded, folded, recall, request_for_state, state_in, with_state
from mem1.messages.forms import form_of
from mem1.messages.policies import Fold, Past, Policy, Stays, policy_of
from mem1.messages.sessions import Latest, exchanges_of, keys_of, session_of
from mem1.messages.transcript import Form, Message, Transcript, is_ask
from mem1.prices import PriceClass, price_class

_REMEMBERED = 10_000
"""States that a memory keeps by default, the latest used."""
_LONGEST_PAUSE = 32
"""Exchanges after which a model that has often failed to write a state is asked again."""
RECALL_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "recall",
        "description": "Shows a tool result that was dropped or shortened, by the handle in its place.",
        "parameters": {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": 'Such as "r1a2b3c4d".'},
                "start": {"type": "integer", "description": "Characters to skip, for a result that was shortened."},
            },
            "required": ["handle"],
        },
    },
}
"""The tool that `Memory.recall` answers, as OpenAI's chat completions declare it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a memory did before a call of the model. Tokens are estimates, corrected by what the provider reported."""

    kind: str
    """"state": a new state; "left_out": more results are not shown whole; "no_state": the model wrote none;
    "appends": a state would be due, but appending is still cheaper."""
    policy: str
    exchange: int
    """Exchanges of the conversation so far."""
    tokens_before: int
    """Length of the whole conversation."""
    tokens_after: int
    """Length of what the model sees."""
    cached_tokens: int
    """Tokens with which the previous prompt began, too."""
    state_before: str | None = None
    state_after: str | None = None
    left_out: tuple[str, ...] = ()
    """Handles that were not left out before."""
    why: str = ""
    """For "no_state": what the model did instead; for "appends": `Memory.advice`."""


class Memory:
    """A memory for one agent, or for many: see the module.

    `write`: takes messages and returns the model's reply, as text, a message or items; fold and notes need it. It
    should be the agent's own call, with the same model, tools and settings, so that the prompt cache serves it.
    `prices`: a name of `mem1.prices.PRICE_CLASSES`, or prices of your own; fold(auto) needs them. `only_if_cheaper`:
    fold(auto) leaves a conversation as it is until it is so long that folding would have been cheaper than appending.
    `events`: a file for one JSON line per event. `states`: where states are kept, by default in this process.
    """

    def __init__(
        self,
        policy: str | Policy = "notes",
        *,
        write: Callable[[list[Message]], Any] | None = None,
        form: str = "chat",
        bounds: Bounds = UNBOUNDED,
        prices: str | PriceClass | None = None,
        only_if_cheaper: bool = False,
        on_event: Callable[[Event], None] | None = None,
        events: str | Path | None = None,
        states: MutableMapping[str, str] | None = None,
    ) -> None:
        self.policy = policy_of(policy)
        self.name = policy if isinstance(policy, str) else type(policy).__name__
        self.form: Form = form_of(form)
        self.bounds = bounds
        self.prices = price_class(prices) if isinstance(prices, str) else prices
        if self.policy == Fold(None) and self.prices is None:
            raise UserError("fold(auto) needs prices; give prices='hosted-90' or another of mem1.prices.PRICE_CLASSES")
        self._write = write
        self._only_if_cheaper = only_if_cheaper
        self._on_event = on_event
        self._events = None if events is None else Path(events)
        self._states: MutableMapping[str, str] = Latest(_REMEMBERED) if states is None else states
        self._seen: MutableMapping[str, _Seen] = Latest(_REMEMBERED)
        self._failed: MutableMapping[str, tuple[int, int]] = Latest(_REMEMBERED)
        """Session -> (failures to write a state since the last one, exchange from which on to ask again)."""
        self._appends: MutableMapping[str, int] = Latest(_REMEMBERED)
        """Session -> exchange until which appending is cheaper."""
        self._scale = 1.0
        self._beside = 0
        """Tokens of the last prompt that the estimate of its messages missed: tools, above all."""
        self._last: Sequence[Message] = ()
        """Messages that the model was shown last."""
        self._log: Sequence[Message] = ()

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        pending: Collection[str] = (),
        write: Callable[[list[Message]], Any] | None = None,
        beside: int = 0,
    ) -> list[Message]:
        """What the model should see next; it may be asked for a state first. Raises UserError as `fold` does.

        `write`: for this call alone, where model, tools or settings change from call to call. `beside`: tokens that are
        sent with the messages, such as declared tools, for fold(auto) and `bounds.prompt`, where nothing is observed.
        """
        now = self._begin(messages, pending, write or self._write, beside)
        while now.request is not None:
            try:
                reply = now.writer(now.request)
            except Exception as error:  # whatever the caller's client raises: the agent goes on without a state
                reply = error
            now = self._answered(now, reply)
        return self._shown(now)

    async def aprompt(
        self,
        messages: Sequence[Message],
        *,
        pending: Collection[str] = (),
        write: Callable[[list[Message]], Any] | None = None,
        beside: int = 0,
    ) -> list[Message]:
        """The same, where `write` is a coroutine function."""
        now = self._begin(messages, pending, write or self._write, beside)
        while now.request is not None:
            try:
                reply = await now.writer(now.request)
            except Exception as error:  # as in prompt
                reply = error
            now = self._answered(now, reply)
        return self._shown(now)

    def recall(self, handle: str, start: int = 0) -> Any:
        """The result behind a handle, of the conversation last shown; see `mem1.messages.recall`."""
        return recall(self._log, handle, start=start, form=self.form.name)

    @property
    def shows_handles(self) -> bool:
        """Whether the model may see handles, and needs the tool `recall`."""
        bounds, past = self.bounds, (Past(age=10**6, before_state=0), Past(age=10**6, before_state=10**6))
        limited = (bounds.result, bounds.prompt, bounds.images) != (None, None, None)
        return bounds.handles and (limited or any(self.policy.stays(p) in (Stays.CALLS, Stays.NOTE) for p in past))

    def with_state(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the newest state that is kept for it, which is all that another process needs."""
        transcript = self.form.read(messages)
        return self._with_known_state(messages, transcript, keys_of(transcript, self.form))[0]

    def observe(self, prompt_tokens: int, shown: Sequence[Message] | None = None) -> None:
        """Tell what the provider counted for a prompt, tools included; later counts and `bounds.prompt` follow it.

        `shown`: its messages, by default those that the memory returned last.
        """
        estimate = tokens_of(self._last if shown is None else shown, self.bounds.count)
        if estimate:
            self._scale = prompt_tokens / estimate
            self._beside = max(0, prompt_tokens - estimate)

    def advice(self, messages: Sequence[Message], *, beside: int = 0) -> str:
        """Whether folding pays in this conversation at these prices, and from which exchange on, in a sentence."""
        if self.prices is None:
            raise UserError("advice needs prices; give prices='hosted-90' or another of mem1.prices.PRICE_CLASSES")
        sizes = self._sizes(self.form.read(messages), beside)
        k = best_k(sizes, self.prices.prices)
        if math.isinf(k):
            return "Reading from the cache is free at these prices, so appending is cheaper."
        return _advice(round(k), break_even(sizes, self.prices.prices, self.prices.cache, round(k)))

    def _begin(
        self,
        messages: Sequence[Message],
        pending: Collection[str],
        write: Callable[[list[Message]], Any] | None,
        beside: int,
    ) -> _Now:
        transcript = self.form.read(messages)
        session, keys = session_of(transcript), keys_of(transcript, self.form)
        log, transcript = self._with_known_state(messages, transcript, keys)
        self._log = log
        now = _Now(
            session=session,
            key=keys[-1] if keys else "",
            exchanges=len(keys),
            messages=messages,
            log=log,
            transcript=transcript,
            found=self._folded(transcript, pending, beside),
            pending=tuple(pending),
            write=write,
            beside=beside,
        )
        return replace(now, request=self._due(now))

    def _due(self, now: _Now) -> list[Message] | None:
        if now.write is None or now.exchanges < self._failed.get(now.session, (0, 0))[1]:
            return None
        if self.policy != Fold(None) or self.prices is None:
            return request_for_state(now.found, self.policy, bounds=self.bounds, best_k=math.inf)
        first = self._only_if_cheaper and not any(map(is_ask, now.transcript.parts))
        if first and now.exchanges < self._appends.get(now.session, 0):
            return None
        sizes = self._sizes(now.transcript, now.beside)
        k = best_k(sizes, self.prices.prices)
        request = request_for_state(now.found, self.policy, bounds=self.bounds, best_k=k)
        return None if request is not None and first and self._loses(now, sizes, round(k)) else request

    def _loses(self, now: _Now, sizes: Sizes, k: int) -> bool:
        """Whether appending is still cheaper after the exchanges so far; tells so once."""
        assert self.prices is not None
        turn = break_even(sizes, self.prices.prices, self.prices.cache, k)
        if turn is not None and now.exchanges >= turn:
            return False
        told = now.session in self._appends
        self._appends[now.session] = HORIZON if turn is None else turn
        if not told:
            self._tell("appends", now, why=_advice(k, turn))
        return True

    def _sizes(self, transcript: Transcript, beside: int) -> Sizes:
        sizes = measured(transcript, self.form, self.bounds)
        sizes = replace(sizes, prompt=sizes.prompt + beside)
        return Sizes(**{name: size * self._scale for name, size in asdict(sizes).items()})

    def _answered(self, now: _Now, reply: Any) -> _Now:
        """What the reply makes of a request: a conversation with a state; or a second request, and then none."""
        state, why = state_in(reply, self.form)
        if not state:
            if now.request is not None and not now.tried:
                return replace(now, tried=True)
            failures = self._failed.get(now.session, (0, 0))[0] + 1
            self._failed[now.session] = failures, now.exchanges + min(2**failures, _LONGEST_PAUSE)
            self._tell("no_state", now, why=why)
            return replace(now, request=None)
        self._states[now.key] = state
        self._failed.pop(now.session, None)
        log = self._log = with_state(now.log, state, form=self.form.name)
        transcript = self.form.read(log)
        found = self._folded(transcript, now.pending, now.beside)
        return replace(now, log=log, transcript=transcript, found=found, request=None)

    def _folded(self, transcript: Transcript, pending: Collection[str], beside: int) -> Folded:
        return folded(transcript, self.policy, form=self.form, bounds=self._limits(beside), pending=pending)

    def _limits(self, beside: int) -> Bounds:
        """The bounds, with what is left of the prompt beside the tools."""
        limit, beside = self.bounds.prompt, max(self._beside, beside)
        if limit is None or not beside:
            return self.bounds
        if limit - beside < LEAST["prompt"]:
            raise UserError(
                f"the bound of {limit:,} tokens leaves no room for messages: {beside:,} are sent beside them, such as "
                "tools; raise bounds.prompt"
            )
        return replace(self.bounds, prompt=limit - beside)

    def _shown(self, now: _Now) -> list[Message]:
        found = now.found
        before = self._seen.get(now.session, _Seen())
        missing = {(result.call.id, id(result.message)) for result in found.left_out}
        if found.state != before.state and found.state is not None:
            self._tell("state", now)
        elif len(missing) > before.left_out:
            self._tell("left_out", now)
        self._seen[now.session] = _Seen(state=found.state, left_out=len(missing), messages=len(now.messages))
        self._last = found.messages
        return found.messages

    def _tell(self, kind: str, now: _Now, why: str = "") -> None:
        if self._on_event is None and self._events is None:
            return
        found, before = now.found, self._seen.get(now.session, _Seen())
        count = self.bounds.count
        handles = [handle_of(result, self.form) for result in found.left_out]
        event = Event(
            kind=kind,
            policy=self.name,
            exchange=now.exchanges,
            tokens_before=round(self._scale * tokens_of(now.log, count)),
            tokens_after=round(self._scale * tokens_of(found.messages, count)),
            cached_tokens=round(self._scale * common_tokens(self._shown_before(now, before), found.messages, count)),
            state_before=before.state,
            state_after=found.state,
            left_out=tuple(handles[before.left_out :]),
            why=why,
        )
        if self._on_event is not None:
            self._on_event(event)
        if self._events is not None:
            with self._events.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(event), ensure_ascii=False) + "\n")

    def _shown_before(self, now: _Now, before: _Seen) -> list[Message]:
        """What the model saw in the previous call, which follows from the messages that there were."""
        try:
            log = self.with_state(now.messages[: before.messages])
            return self._folded(self.form.read(log), now.pending, now.beside).messages
        except UserError:  # the first call, or a client that has changed what it sent before
            return []

    def _with_known_state(
        self, messages: Sequence[Message], transcript: Transcript, keys: Sequence[str]
    ) -> tuple[list[Message], Transcript]:
        """The conversation with the newest state that is kept for it, where it was written, and what it consists of."""
        for key, exchange in zip(reversed(keys), reversed(exchanges_of(transcript)), strict=True):
            state = self._states.get(key)
            if state is not None:
                before, after = messages[: exchange.end], messages[exchange.end :]
                written = with_state((), state, form=self.form.name)
                if list(after[:2]) == written:
                    break
                at = transcript.parts.index(exchange) + 1
                while at < len(transcript.parts) and getattr(transcript.parts[at], "after_results", False):
                    at += 1  # the rest of the last message
                parts = (*transcript.parts[:at], *self.form.read(written).parts, *transcript.parts[at:])
                return [*before, *written, *after], transcript._replace(parts=parts)
        return list(messages), transcript


def _advice(k: int, turn: int | None) -> str:
    """`turn`: the exchange from which on folding every `k` exchanges is cheaper; None: none."""
    if turn is None:
        return f"Appending is cheaper for {HORIZON} exchanges and more."
    return f"Folding every {k} exchanges is cheaper than appending from exchange {turn} on."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """A call of `Memory.prompt` under way."""

    session: str
    key: str
    """Name of a state that is written in this call."""
    exchanges: int
    messages: Sequence[Message]
    log: Sequence[Message]
    """The messages, with the newest state."""
    transcript: Transcript
    """What `log` consists of."""
    found: Folded
    """What the model would see now."""
    pending: tuple[str, ...]
    request: list[Message] | None = None
    """For a state; None: none is due."""
    write: Callable[[list[Message]], Any] | None
    beside: int
    """Tokens sent with the messages."""
    tried: bool = False
    """Whether the model has already failed to write one."""

    def writer(self, request: list[Message]) -> Any:
        assert self.write is not None
        return self.write(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a conversation showed in its last call."""

    state: str | None = None
    left_out: int = 0
    messages: int = 0
    """Number of messages that the conversation had."""
