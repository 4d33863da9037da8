"""One attempt of an agent, as the endpoint sees it: messages in, samples out, every call a turn with its exact tokens.

    call 1   [user]                                 ->  context  u         completion  a b
    call 2   [user, assistant: as replied, tool]    ->  context  u a b t   completion  c

A message of the assistant that comes back as it was replied stands in later contexts with the tokens that were
sampled; one that the agent has changed, and everything else, is text and encoded once. So appended, rewritten and
folded contexts, those of sub-agents and parallel calls all become paths of one token tree without being declared.

What is sampled for a call depends on the weights, the seed, the task, the attempt, the context, and how often this
context came before; not on the order in which parallel calls arrive. A completion is recorded when its reply is handed
to the client: one whose client hung up before, or whose attempt was over, has influenced nothing, counts for nothing
and is dropped. The same call, made again, gets the same one.

    key_of({"role": "assistant", "content": [{"type": "text", "text": "Oslo"}]})    Key(content="Oslo", calls=())
    encoded(chat, [ask, Sampled((7, 8)), ask], [], [3])     ((1, 2, 7, 8, 4), ((3, "text", 2, 4),))
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

from mem1.endpoint.chat_api import ChatRequest
from mem1.endpoint.sampling import Closed
from mem1.engines.base import Completion, derived_seed
from mem1.engines.chat_messages import ChatMessages, Sampled
from mem1.engines.chat_replies import Choice, Message, Reply, message_of
from mem1.engines.tool_calls import Said
from mem1.errors import UserError
from mem1.messages import Memory
from mem1.protocol import ANSWER, CALLS, MALFORMED, SUMMARY
from mem1.records import Ended, Origin, Task, Turn

OVER = "the attempt is over; its calls are not answered any more"


class Refused(Exception):
    """The call is not answered with a sample; the message is for the agent."""

    def __init__(self, why: str, ended: Ended, status: int = 400) -> None:
        super().__init__(why)
        self.ended, self.status = ended, status


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of an attempt."""

    calls: int
    """Calls of the policy; those in which a memory has it write its state do not count."""
    actions: int | None = None
    """Actions in the environment; None: any number."""
    completion: int
    """Tokens of a completion."""
    context: int
    """Tokens of a context and its completion together."""


class Place(NamedTuple):
    """Where a call stands in its attempt."""

    number: int
    """In the order in which the contexts were made."""
    context: tuple[int, ...]
    times: int
    """Number of prior occurrences of this context."""
    seed: int
    before: bytes
    """Digest of the messages."""


@dataclass(eq=False)
class Claim:
    """What a call takes up while its client waits: one of the calls of its attempt, and its place."""

    counted: bool = False
    place: Place | None = None
    given_up: bool = False
    """Nobody waits any more, or there will be no sample."""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A sample that has not been handed out."""

    place: Place
    turn: Turn
    key: Key
    reply: Reply


@dataclass(eq=False, kw_only=True)
class Recording:
    """The calls of one attempt. Thread-safe."""

    task: Task
    number: int
    """Of the attempt at its task, from 0."""
    chat: ChatMessages
    bounds: Bounds
    seed: int
    sample: Callable[[tuple[int, ...], int, int], Completion]
    """(context, most tokens, seed) -> completion."""
    version: int = 0
    """Version of the weights, where the engine reports none."""
    memory: Memory | None = None
    """Stands between the agent and the policy; its states are sampled, recorded and trained like other calls."""
    trouble: tuple[Ended, str] | None = None
    """The first refusal, or what failed: how the attempt ended, unless the agent answers after a mere refusal."""
    actions: list[tuple[str, str]] = field(default_factory=list)
    """(kind, argument) of what the environment was asked."""
    answer: str | None = None
    """Made up by the environment, as in a shop; None: not so."""
    ended: bool = False
    """Whether the environment takes no more actions."""
    acting: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held by the action under way: the next one starts from what it led to."""
    over: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._remembering = threading.Lock()
        self._times: dict[tuple[int, ...], set[int]] = {}
        self._known: dict[Key, list[Pending]] = {}
        self._turns: dict[int, Turn] = {}
        self._results: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Number of a call -> what its tools returned, as text and as tokens."""
        self._begun = 0

    def call(self, request: ChatRequest, claim: Claim) -> Pending:
        """Sample what the policy says next, to be accepted; `claim` is new. Raises Refused."""
        with self._lock:
            self._raise_if_over()
            if claim.given_up:
                raise Refused("the client has hung up", Ended.AGENT_FAILED)
            if (why := request.refusal()) is not None:
                raise self._refused(Refused(why, Ended.AGENT_FAILED))
            if self._begun >= self.bounds.calls:
                why = f"the attempt has made its {self.bounds.calls} calls (turn limit of the task, or agent.calls)"
                raise self._refused(Refused(why, Ended.OUT_OF_TURNS))
            self._begun += 1
            claim.counted = True
        try:
            return self._sampled(self._remembered(request), request, claim)
        except Refused as refused:
            raise self._without_sample(claim, refused) from None
        except Closed:
            raise Refused(OVER, Ended.AGENT_FAILED, 409) from None
        except Exception as error:  # whatever a message that is none breaks; what the engine raises is a Refused by now
            why = f"the messages cannot be read ({type(error).__name__}: {error})"
            raise self._without_sample(claim, Refused(why, Ended.AGENT_FAILED)) from error

    def accept(self, pending: Pending) -> bool:
        """Record a sample as its reply is handed to the client; False: the attempt is over, and it is dropped."""
        with self._lock:
            if self.over:
                return False
            self._turns[pending.place.number] = pending.turn
            self._known.setdefault(pending.key, []).append(pending)
            return True

    def give_up(self, claim: Claim) -> None:
        """Free what a call takes up, whose client is gone or which has no sample, as soon as that is known."""
        with self._lock:
            if claim.given_up:
                return
            claim.given_up = True
            self._begun -= claim.counted
            if claim.place is not None:
                self._times[claim.place.context].discard(claim.place.times)

    def end(self) -> tuple[Turn, ...]:
        """All turns in the order of their calls; nothing is recorded any more."""
        with self._lock:
            self.over = True
            numbers = {number: place for place, number in enumerate(sorted(self._turns), start=1)}
            turns = [self._with_results(n) for n in numbers]
        common = _common([turn.context_ids for turn in turns])
        return tuple(
            replace(turn, context_spans={"prompt": (0, common)}, context_origins=tuple(_origins(turn, numbers, common)))
            for turn in turns
        )

    def fail(self, ended: Ended, why: str) -> None:
        """Note a failure that is nobody's refusal, such as that of a tool."""
        with self._lock:
            self._note(ended, why)

    def _note(self, ended: Ended, why: str) -> None:
        if self.trouble is None or (self.trouble[0].scorable and not ended.scorable):
            self.trouble = ended, why

    def _raise_if_over(self) -> None:
        if self.over:
            raise Refused(OVER, Ended.AGENT_FAILED, 409)

    def _refused(self, refused: Refused) -> Refused:
        self._note(refused.ended, str(refused))
        return refused

    def _without_sample(self, claim: Claim, refused: Refused) -> Refused:
        self.give_up(claim)
        with self._lock:
            return self._refused(refused)

    def _remembered(self, request: ChatRequest) -> Sequence[Message]:
        """Returns the policy's next context; the memory may have it write its state first."""
        if self.memory is None:
            return request.messages

        def write(asked: Sequence[Message]) -> dict[str, Any]:
            try:
                pending = self._sampled(asked, request, Claim(), action=SUMMARY)
            except Refused as refused:
                if not refused.ended.scorable:  # the memory goes on without a state, which is the server's fault
                    self.fail(refused.ended, str(refused))
                raise
            if not self.accept(pending):
                self._raise_if_over()
            return dict(pending.reply.message)

        try:
            with self._remembering:
                return self.memory.prompt(request.messages, write=write)
        except UserError as error:
            raise Refused(str(error), Ended.AGENT_FAILED) from error

    def _sampled(
        self, messages: Sequence[Message], request: ChatRequest, claim: Claim, action: str | None = None
    ) -> Pending:
        given, copied, before = self._with_samples(messages)
        try:
            context, origins = encoded(self.chat, given, request.offered, copied)
        except UserError as error:
            raise Refused(str(error), Ended.AGENT_FAILED) from error
        room = min(self.bounds.completion, request.most_tokens or self.bounds.completion)
        if len(context) + room > self.bounds.context:
            why = f"a context of {len(context)} tokens leaves no room for {room} within {self.bounds.context}"
            raise Refused(why, Ended.OUT_OF_TOKENS)
        place = self._place(context, before, claim)
        try:
            completion = self.sample(context, room, place.seed)
        except Exception as error:
            self.give_up(claim)
            if isinstance(error, Closed):
                raise
            # it ends the run; the agent is told before
            raise Refused(f"the engine failed: {type(error).__name__}", Ended.ENGINE_FAILED, 503) from error
        if completion.failed is not None:
            raise Refused(completion.failed, Ended.ENGINE_FAILED, 503)
        pending = self._read(place, completion, request, action)
        return replace(pending, turn=replace(pending.turn, context_origins=origins))

    def _place(self, context: tuple[int, ...], before: bytes, claim: Claim) -> Place:
        digest = blake2b(repr(context).encode(), digest_size=16).hexdigest()
        with self._lock:
            taken = self._times.setdefault(context, set())
            times = next(times for times in count() if times not in taken)
            seed = derived_seed(self.seed, self.task.id, self.number, digest, times)
            place = Place(next(self._numbers), context, times, seed, before)
            if not claim.given_up:
                taken.add(times)
                claim.place = place
            return place

    def _read(self, place: Place, completion: Completion, request: ChatRequest, action: str | None) -> Pending:
        ids, codec = completion.token_ids, self.chat.codec
        text = codec.decode(ids)
        said, name = self.chat.read(text), f"{place.seed:016x}"
        allowed = action is None and request.tool_choice != "none"
        message = message_of(said, self.chat.body(text), name=name, callable_=allowed)
        finish = "length" if not completion.stopped else "tool_calls" if "tool_calls" in message else "stop"
        choice = Choice(message=message, finish=finish, tokens=len(ids))
        kind, content = (action, said.text) if action is not None else _action(said, message)
        start, stop = said.spans.get("state_text", (0, 0))
        turn = Turn(
            context_ids=place.context,
            completion_ids=ids,
            logprobs=completion.logprobs,
            weights_versions=completion.weights_versions or ((self.version, len(ids)),),
            text=text,
            state=said.text if action == SUMMARY else text[start:stop],
            action=kind,
            content=content,
            completion_spans=codec.token_spans(ids, text, said.spans),
        )
        reply = Reply(id=f"chatcmpl-{name}", choices=(choice,), prompt_tokens=len(place.context))
        return Pending(place=place, turn=turn, key=key_of(message), reply=reply)

    def _with_samples(self, messages: Sequence[Message]) -> tuple[list[Message | Sampled], list[int], bytes]:
        """The messages with samples in the place of those that the policy wrote; numbers of the samples' calls, in the
        order of the messages; and a digest of the messages."""
        given: list[Message | Sampled] = []
        copied: list[int] = []
        digest = blake2b(digest_size=16)
        for number, message in enumerate(messages):
            found = None
            if message.get("role") == "assistant":
                found = self._sample_of(key_of(message), digest.digest())
            if found is None:
                given.append(message)
            else:
                given.append(self.chat.kept(found.turn.completion_ids))
                copied.append(found.place.number)
                self._note_results(found, messages[number + 1 :])
            digest.update(repr((message.get("role"), message.get("tool_call_id"), key_of(message))).encode())
        return given, copied, digest.digest()

    def _with_results(self, number: int) -> Turn:
        text, ids = self._results.get(number, ("", ()))
        return replace(self._turns[number], observation=text, observation_ids=ids)

    def _sample_of(self, key: Key, before: bytes) -> Pending | None:
        """The sample behind a message: where several said the same, the one after these messages, else the latest."""
        with self._lock:
            same = self._known.get(key, ())
            return next((one for one in same if one.place.before == before), same[-1] if same else None)

    def _note_results(self, pending: Pending, after: Sequence[Message]) -> None:
        """The results of tools, for reports and for the length that an appended context would have."""
        number, names = pending.place.number, {id for id, _, _ in pending.key.calls}
        results = [m for m in after if m.get("role") == "tool" and m.get("tool_call_id") in names]
        if not results or number in self._results:
            return
        with suppress(UserError):  # what a template fails on, `encode` says
            ids = self.chat.after(pending.turn.completion_ids, results)
            self._results[number] = "\n".join(text_of(m.get("content")) for m in results), ids


def _origins(turn: Turn, numbers: Mapping[int, int], prompt: int) -> Iterator[Origin]:
    """The origins of all tokens after the prompt, by the place of their turn; 0: of none."""
    at = prompt
    for number, role, start, stop in turn.context_origins:
        if stop > at and number in numbers:
            if start > at:
                yield 0, role, at, start
            yield numbers[number], role, max(start, at), stop
            at = stop
    if at < len(turn.context_ids):
        yield 0, "text", at, len(turn.context_ids)


def _action(said: Said, message: Message) -> tuple[str, str]:
    """(kind, argument) of a turn, for metrics and reports."""
    calls = message.get("tool_calls", ())
    if not calls:
        errors = [call.error for call in said.calls]
        return (MALFORMED, errors[0] or "a call where none was allowed") if errors else (ANSWER, said.text)
    (first, *others) = said.calls
    values = [str(value) for value in first.arguments.values()]
    argument = values[0] if len(values) == 1 else json.dumps(dict(first.arguments), ensure_ascii=False)
    if others:
        return CALLS, "\n".join(f"{name} {times}" for name, times in Counter(call.name for call in said.calls).items())
    return first.name, argument


def _common(contexts: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens that all contexts begin with."""
    if not contexts:
        return 0
    low, high = min(contexts), max(contexts)  # of all of them, these two differ first
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


class Key(NamedTuple):
    """Text of an assistant's message in any framework's spelling."""

    content: str
    calls: tuple[tuple[str, str, str], ...]
    """(id, name, arguments in one spelling)."""


def encoded(
    chat: ChatMessages, given: Sequence[Message | Sampled], tools: Sequence[Message], copied: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Origin, ...]]:
    """The context, and where it holds samples: (number of the call, "text", start, stop)."""
    # in its place, each sample is marked by a number that is no token, and its last one, which may end the message
    samples = [message.ids for message in given if isinstance(message, Sampled)]
    marks = iter(range(-1, -1 - len(samples), -1))
    marked = [
        Sampled((next(marks), *message.ids[-1:])) if isinstance(message, Sampled) and message.ids else message
        for message in given
    ]
    ids: list[int] = []
    origins: list[Origin] = []
    whole = ((sample, number) for sample, number in zip(samples, copied, strict=True) if sample)
    for token in chat.encode(marked, tools):
        if token >= 0:
            ids.append(token)
            continue
        sample, number = next(whole)
        origins.append((number, "text", len(ids), len(ids) + len(sample)))
        ids += sample[:-1]
    return tuple(ids), tuple(origins)


def key_of(message: Message) -> Key:
    """The same for a message and its copies in the spelling of any framework."""
    calls = message.get("tool_calls")
    made = [_call_key(call) for call in calls] if isinstance(calls, Sequence) else []
    return Key(text_of(message.get("content")), tuple(made))


def _call_key(call: Any) -> tuple[str, str, str]:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments: Any = function.get("arguments")
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.dumps(arguments, sort_keys=True)
    return str(call.get("id")), str(function.get("name")), str(arguments)


def text_of(content: Any) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(str(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
