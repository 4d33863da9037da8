"""The memory of a chat agent as a pure function: from a conversation to the messages that the model should see.

    fold(messages, "window(2)")     ->  system, task, the last two exchanges
    fold(messages, "mask(2)")       ->  everything, with handles in the place of older results
    recall(messages, "r1a2b3c4d")   ->  the result behind a handle

    request = ask(messages, "fold(4)")                  None as long as no state is due; else what to send the model
    messages = with_state(messages, reply_of(request))  its reply belongs into the conversation, where `fold` finds it
    fold(messages, "fold(4)")       ->  system, task with the state, the last exchange

The result has this order, so that a prefix cache serves all that comes before the state:

    system | task and later messages of the user, unchanged | state | exchanges that stay

`fold` keeps no texts: the state lies in the conversation, so to replay, to branch and to serve many users need nothing
else. `fold(fold(messages)) == fold(messages)`, as it knows what it added (`mem1.messages.ours`), and what it returns
is a conversation that its provider accepts (`mem1.messages.check`). The request that `ask` returns begins with exactly
the messages that would be sent anyway, so it is served from the cache, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.messages.assembly import Assembled, assemble, fitted, stays_of, without_states
from mem1.messages.bounds import UNBOUNDED, Bounds, tokens_of
from mem1.messages.forms import form_of
from mem1.messages.ours import put_behind
from mem1.messages.policies import Policy, Present, Stays, policy_of
from mem1.messages.transcript import (
    ASK,
    Exchange,
    Form,
    Message,
    Result,
    Transcript,
    User,
    handle,
    request_of,
    said,
    texts,
)

_WORDS_PER_TOKEN = 0.55
"""States are full of names and numbers, whose words take more tokens than those of prose."""
REQUEST = (
    f"{ASK} Everything above except the user's messages and the last tool result will be gone. Reply with text alone, "
    "call no tool, and write in at most {words} words what you need to go on: what is done and what it showed; names, "
    "numbers, identifiers, paths and quotes exactly; rules the user gave; what failed and why; what was decided "
    "against; what is left to do. Keep what is still true of the memory above."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What the model should see, and what was left out of it."""

    messages: list[Message]
    conversation: Transcript
    """All that was given, without what mem1 has added to it."""
    state: str | None = None
    """Text of the state block, notes included; None: there is none."""
    state_tokens: int = 0
    """Length of the state before it was cut to its bound."""
    left_out: tuple[Result, ...] = ()
    """Results that are not shown, or not whole; oldest first."""
    dropped: int = 0
    """Exchanges that left the messages."""
    whole: int = 0
    """Exchanges that stay whole."""
    waits: bool = False
    """Whether a call waits for its result."""


def fold(
    messages: Sequence[Message],
    policy: str | Policy = "keep",
    *,
    form: str = "chat",
    bounds: Bounds = UNBOUNDED,
    pending: Collection[str] = (),
) -> list[Message]:
    """The messages that the model should see next; those given are not changed.

    `form`: "chat", "responses" or "anthropic". `pending`: ids of calls whose result is not the last one yet (approvals,
    long-running tools); their exchanges stay whole. Raises UserError for a conversation that no provider would accept,
    naming the message, and where the pinned messages alone exceed `bounds.prompt`.
    """
    kind = form_of(form)
    return folded(kind.read(messages), policy_of(policy), form=kind, bounds=bounds, pending=pending).messages


def ask(
    messages: Sequence[Message],
    policy: str | Policy,
    *,
    form: str = "chat",
    bounds: Bounds = UNBOUNDED,
    pending: Collection[str] = (),
    best_k: float = float("inf"),
) -> list[Message] | None:
    """The messages that let the model write its state, or None while none is due.

    `best_k`: for fold(auto), see `mem1.messages.cost.best_k`. Raises UserError as `fold` does.
    """
    chosen, kind = policy_of(policy), form_of(form)
    now = folded(kind.read(messages), chosen, form=kind, bounds=bounds, pending=pending)
    return request_for_state(now, chosen, bounds=bounds, best_k=best_k)


def request_for_state(now: Folded, policy: Policy, *, bounds: Bounds, best_k: float) -> list[Message] | None:
    """`ask`, of a conversation that is folded already."""
    if now.waits:
        return None
    present = Present(whole=now.whole, state_tokens=now.state_tokens, state_limit=bounds.state, best_k=best_k)
    if not policy.due(present):
        return None
    words = state_words(policy.state_tokens(bounds.state))
    return [*now.messages, {"role": "user", "content": REQUEST.format(words=words)}]


def state_words(tokens: int) -> int:
    """Words that fit into a state of this many tokens."""
    return round(tokens * _WORDS_PER_TOKEN)


def with_state(messages: Sequence[Message], state: str, *, form: str = "chat") -> list[Message]:
    """The conversation with a state that the model wrote for it, as the answer to the request for one.

    Raises UserError for an empty state: a model that called a tool instead has to be asked again.
    """
    if not state.strip():
        raise UserError("the model wrote no state; ask it again, or go on without")
    form_of(form)
    return [*messages, {"role": "user", "content": request_of(state)}, {"role": "assistant", "content": state}]


def state_in(reply: Any, form: Form) -> tuple[str, str]:
    """(the text of a reply, or nothing where it is no state, why not)."""
    if isinstance(reply, Exception):
        return "", f"{type(reply).__name__}: {reply}"
    if isinstance(reply, str):
        return reply.strip(), "" if reply.strip() else "an empty reply"
    items = [reply] if isinstance(reply, Mapping) else reply
    try:
        parts = form.read(items).parts
    except (UserError, TypeError) as error:
        return "", f"no message: {error}"
    calls = [call.name for part in parts if isinstance(part, Exchange) for call in part.calls]
    if calls:
        return "", f"a call of {calls[0]}"
    text = "\n".join(said(part) for part in parts if isinstance(part, Exchange)).strip()
    return text, "" if text else "an empty reply"


def recall(messages: Sequence[Message], name: str, *, start: int = 0, form: str = "chat") -> Any:
    """The content of the result with this handle, out of the whole conversation: text, or parts with images.

    `start`: characters of its text to leave out; from 1 on, images are left out too. Raises UserError for an unknown
    handle, and for a start behind the end.
    """
    kind = form_of(form)
    for part in reversed(kind.read(messages).parts):
        for result in part.results if isinstance(part, Exchange) else ():
            content = kind.content_of(result)
            if handle(result, content) != name.strip():
                continue
            text = texts(content)
            if start and not 0 < start < len(text):
                raise UserError(f"the result {name!r:.40} ends after {len(text)} characters; start={start} is too far")
            return text[start:] if start else content
    raise UserError(f'no result has the handle {name!r:.40}; handles are written as recall("r1a2b3c4d")')


def folded(
    transcript: Transcript, policy: Policy, *, form: Form, bounds: Bounds, pending: Collection[str] = ()
) -> Folded:
    """`fold`, with what it left out."""
    parts, state, boundary = without_states(transcript, form)
    if not any(isinstance(part, User) for part in parts):
        raise UserError("the conversation has no message of the user; providers refuse it, and there is no task to pin")
    stays = stays_of(parts, boundary, policy, pending)
    shown: dict[tuple[int, Stays, int | None], tuple[Result, ...]] = {}

    def assembled() -> Assembled:
        return assemble(transcript.system, parts, stays, state, policy, form, bounds, shown)

    found = assembled()
    written = form.write(found.transcript)
    while bounds.prompt is not None and (over := tokens_of(written, bounds.count) - bounds.prompt) > 0:
        fitted(parts, stays, over, form, bounds, pending)
        found = assembled()
        written = form.write(found.transcript)
    if found.added is not None:
        put_behind(found.transcript, found.added, form)
    return Folded(
        messages=written,
        conversation=transcript._replace(parts=tuple(parts)),
        state=found.block,
        state_tokens=found.state_tokens,
        left_out=found.left_out,
        dropped=sum(stay in (Stays.NOTHING, Stays.NOTE) for stay in stays.values()),
        whole=sum(stay is Stays.WHOLE for stay in stays.values()),
        waits=any(part.pending for part in found.transcript.parts if isinstance(part, Exchange)),
    )
