"""From a client's request to the one that goes on: the memory behind the proxy, and the states that it asks for.

A state is asked for with the client's own request, keys and all, and stays the client's: it is kept by path, model,
system prompt, keys and all messages before it. Keys enter as a hash with a salt. What is spent on a state is counted
once, in the answer to the request that asked first. A client that leaves meanwhile finds the state when it comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from hmac import HMAC
from pathlib import Path
from typing import Any

import httpx

from mem1.agent.roles import Rule, rule_in
from mem1.errors import UserError
from mem1.extras.proxy.apis import APIS, Api, NoState, Usage
from mem1.extras.proxy.states import StateFile
from mem1.extras.proxy.upstream import Headers, Upstream, credential_of, is_secret, passed_on
from mem1.memory import Fold
from mem1.messages import Bounds, Event, Memory, check
from mem1.messages.bounds import tokens_of
from mem1.messages.digests import hashed
from mem1.messages.folding import PAUSE
from mem1.messages.private import PrivateLog
from mem1.messages.sessions import Latest, keys_of
from mem1.messages.transcript import Message
from mem1.net.exchange import one_line, redact
from mem1.protocol import NOTE

_LOG = logging.getLogger(__name__)
_SYSTEM = ("system", "developer")
_SHOWN = 2_000
"""Bytes of a provider's error that are looked at."""
_TEMPLATES = 1_000
_BEGINNINGS = 10_000
_IN_VAIN = 2
"""States that were not found again after which a conversation has to be twice as long for another."""


@dataclass(slots=True)
class Counts:
    """What a proxy did."""

    requests: int = 0
    folded: int = 0
    unchanged: int = 0
    """Requests of the two APIs that went on as they came because something was in doubt."""
    states: Usage = field(default_factory=Usage)

    def doubt(self, why: str, session: str = "") -> None:
        """A request goes on unchanged, and a line says why."""
        self.unchanged += 1
        _LOG.warning("%spassed on unchanged: %s", _named(session), one_line(why))


@dataclass(slots=True)
class Call:
    """A client's request that may be folded."""

    api: Api
    path: bytes
    query: bytes
    headers: Headers
    raw: bytes
    body: Mapping[str, Any]
    owner: str
    """Hash of whose conversation it is, and with which model."""
    session: str
    """Name of the conversation in lines and events."""
    beginning: str
    """Hash of client, model and first message of the user, which stays where a clock stands before it."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the requests for states that were sent for it."""
    failed: NoState | None = None
    """Why the provider is not asked again for it."""
    asked: list[bytes] = field(default_factory=list)
    """Names of its requests for states."""

    @property
    def template(self) -> str:
        """Name of the model that reads it."""
        return hashed(self.path, self.query, self.body.get("model"))

    @property
    def names(self) -> list[str]:
        """Those of its conversation up to and including each message."""
        return keys_of(self.body["messages"], self.owner)


_CALL: ContextVar[Call] = ContextVar("call")


class Folding:
    """See the module. `memory` makes the memory of a form of messages."""

    def __init__(
        self,
        upstream: Upstream,
        memory: Callable[[str, Callable[[Event], None]], Memory],
        counts: Counts,
        events: Path | None,
    ) -> None:
        self._upstream, self._counts = upstream, counts
        self._events = None if events is None else PrivateLog(events)
        self._memories = {api.form: memory(api.form, self._tell) for api in APIS}
        kept = next(iter(self._memories.values())).states
        self._salt = kept.salt if isinstance(kept, StateFile) else secrets.token_bytes()
        self._rules: Latest[tuple[Rule, ...]] = Latest(_TEMPLATES)
        """What the chat template of a model asks of the messages, by address and model."""
        self._in_vain: Latest[tuple[int, int]] = Latest(_BEGINNINGS)
        """Beginning of conversations -> (states in a row of which none was found again, messages at the last one)."""
        self._asked: dict[bytes, asyncio.Task[Message]] = {}
        """Requests for states that are under way: a client that repeats a request waits for the same one."""
        self._under_way: set[asyncio.Task[bytes | None]] = set()

    def call(self, api: Api, path: bytes, query: bytes, headers: Headers, raw: bytes, body: Mapping[str, Any]) -> Call:
        """A client's request. Its session is told by owner, system prompt and first message of the user."""
        client = hashed(path, query, credential_of(headers))
        whose = hashed(client, body.get("model"), api.system_of(body))
        owner = "/".join(HMAC(self._salt, each.encode(), sha256).hexdigest() for each in (client, whose))
        first = [message for message in body["messages"] if message.get("role") in (*_SYSTEM, "user")][:2]
        session = keys_of(first, owner)[-1][:16] if first else ""
        task = [message for message in body["messages"] if message.get("role") == "user"][:1]
        beginning = hashed(client, body.get("model"), *keys_of(task))
        return Call(api, path, query, headers, raw, body, owner, session, beginning)

    def close(self) -> None:
        """Keeps what writers have read."""
        for memory in self._memories.values():
            memory.close()

    def learn(self, call: Call, said: bytes) -> bool:
        """Whether a refusal asks for another order of roles than has been sent; it is kept for this model from now
        on."""
        rule, known = rule_of(said) if call.api.form == "chat" else None, self._rules.get(call.template, ())
        if rule is None or rule in known:
            return False
        self._rules[call.template] = (*known, rule)
        return True

    def _ruled(self, call: Call, messages: Sequence[Message]) -> list[Message]:
        for rule in self._rules.get(call.template, ()):
            messages = rule(messages)
        return list(messages)

    async def prompt(self, call: Call) -> bytes | None:
        """The body with folded messages; None where it stays as it is.

        Goes on when the client leaves: a state is paid for, and the client will come back.
        """
        folding = asyncio.create_task(self._fold(call))
        self._under_way.add(folding)
        folding.add_done_callback(self._under_way.discard)
        return await asyncio.shield(folding)

    async def _fold(self, call: Call) -> bytes | None:
        _CALL.set(call)
        messages, memory = call.body["messages"], self._memories[call.api.form]

        async def write(asked: list[Message]) -> Message:
            return await self._state(call, asked, memory.bounds)

        try:
            seen = await memory.aprompt(
                messages,
                write=write,
                asks=self._asks(call, memory),
                beside=await asyncio.to_thread(call.api.tokens_beside, call.body) if self._counts_all(memory) else None,
                owner=call.owner,
            )
            instructed = NOTE in memory.policy.asks
            body = await asyncio.to_thread(lambda: _body(call, seen, self._ruled(call, seen), instructed))
            if body is not None and not call.asked:  # by a state that was found
                self._in_vain.pop(call.beginning, None)
            return body
        except UserError as error:
            self._counts.doubt(str(error), call.session)
        except Exception as error:  # whatever a message of a stranger's breaks, the agent goes on
            self._counts.doubt(f"{type(error).__name__}: {error}", call.session)
        finally:
            for name in call.asked:
                self._asked.pop(name, None)
        return None

    def _asks(self, call: Call, memory: Memory) -> bool:
        """Whether the model may be asked for a state: not where it goes on with its own words, and seldom where that
        is to save money and states are not found again, as behind a clock in the system prompt."""
        messages = call.body["messages"]
        times, before = self._in_vain.get(call.beginning) or (0, 0)
        seldom = times >= _IN_VAIN and memory.policy == Fold(None)
        return messages[-1].get("role") != "assistant" and not (seldom and len(messages) < 2 * before)

    def _found_again(self, call: Call, event: Event) -> None:
        """Learn from a new state whether the one before was found."""
        if event.state_before is not None:
            self._in_vain.pop(call.beginning, None)
            return
        times, _ = self._in_vain.get(call.beginning) or (0, 0)
        self._in_vain[call.beginning] = times + 1, len(call.body["messages"])
        if times + 1 == _IN_VAIN and self._memories[call.api.form].policy == Fold(None):
            _LOG.warning(
                "%sstates are not found again, as what stands before them changes, such as a clock in the system "
                "prompt: few are asked for",
                _named(call.session),
            )

    @staticmethod
    def _counts_all(memory: Memory) -> bool:
        """Whether it matters what is sent beside the messages."""
        return memory.policy == Fold(None) or memory.bounds.prompt is not None

    async def _state(self, call: Call, asked: list[Message], bounds: Bounds) -> Message:
        """The model's answer to a request for a state. Raises NoState; a provider that failed is not tried again."""
        if call.failed is not None:
            raise call.failed
        request = asked[-2:] if asked[-2:-1] == [{"role": "assistant", "content": PAUSE}] else asked[-1:]
        if not await asyncio.to_thread(_shorter, asked[: -len(request)], call.body["messages"]):
            asked = [*call.body["messages"], *request]  # as it was sent so far: the provider has it in its cache
        body = await asyncio.to_thread(
            lambda: encoded(call.api.state_body(call.body, self._ruled(call, asked), bounds.state))
        )
        name = sha256(call.owner.encode() + body).digest()
        if name in call.asked or name not in self._asked:
            call.asked.append(name)
            self._asked[name] = asyncio.create_task(self._ask(call, body, bounds))
        try:
            return await self._asked[name]
        except NoState as error:
            call.failed = error if error.for_good else None
            raise

    async def _ask(self, call: Call, body: bytes, bounds: Bounds) -> Message:
        headers = passed_on(call.headers, same_request=False)
        try:
            status, answer = await self._upstream.state(call.path, call.query, headers, body)
        except httpx.HTTPError as error:
            why = one_line(str(error)) or type(error).__name__
            raise NoState(f"no answer to a request for a state: {why}", for_good=True) from error
        if status != 200:
            self.learn(call, answer)
            said = without_keys(answer, call.headers)
            # the memory asks once more, in another order of roles; llama.cpp refuses one by 500
            refused = status in (400, 422) or rule_in(said) is not None
            raise NoState(f"status {status} for a request for a state: {said}", for_good=not refused)
        read = call.api.read(answer)
        usage = call.api.usage_of(read)
        call.usage += usage
        self._counts.states += usage
        return call.api.state_in(read, bounds)

    def _tell(self, event: Event) -> None:
        """An event to the file; what the user should know, to stderr."""
        call = _CALL.get()
        if event.kind == "state" and call.asked:
            self._found_again(call, event)
        if event.kind == "no_state":
            _LOG.warning("%sno new state: %s", _named(call.session), one_line(event.why))
        if event.kind == "unwritten":
            _LOG.warning("%sno new notes: %s", _named(call.session), one_line(event.why))
        if event.kind == "unread":
            _LOG.warning("%snot folded yet: %s", _named(call.session), event.why)
        if event.kind == "appends":
            _LOG.warning("%snot folded yet, as appending is cheaper: %s", _named(call.session), event.why)
        if self._events is None:
            return
        line = {"time": round(time.time(), 3), "session": call.session, **asdict(event)}
        if call.usage.calls:
            line["state_usage"] = asdict(call.usage)
        self._events.write(line)


def encoded(body: Mapping[str, Any]) -> bytes:
    """Raises ValueError for numbers that JSON has not."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(body, allow_nan=False).encode()


def rule_of(answer: bytes) -> Rule | None:
    """What a provider's error asks of the order of roles; None: nothing about it."""
    return rule_in(answer[:_SHOWN].decode("utf-8", "replace"))


def without_keys(answer: bytes, headers: Headers) -> str:
    """Beginning of what a provider said, on one line, without the client's keys."""
    said = answer[:_SHOWN].decode("utf-8", "replace")
    for name, value in headers:
        if is_secret(name):
            said = redact(said, value.decode("latin-1").rpartition(" ")[2])
    return one_line(said)


def _body(call: Call, seen: Sequence[Message], sent: Sequence[Message], instructed: bool) -> bytes | None:
    """The client's body with what the model should see, as it is sent; None: it is no shorter, and the model has no
    instruction."""
    if not instructed and not _shorter(seen, call.body["messages"]):
        return None
    check(seen, call.api.form, given=call.body["messages"])
    return encoded({**call.body, "messages": sent})


def _shorter(seen: Sequence[Message], messages: Sequence[Message]) -> bool:
    """Whether something was left out; system messages that became one, or a dead call's new result, are no gain."""
    if seen == messages:
        return False
    after, before = ([each for each in side if each.get("role") not in _SYSTEM] for side in (seen, messages))
    return len(after) < len(before) or tokens_of(after) < tokens_of(before)


def _named(session: str) -> str:
    return f"session {session}: " if session else ""
