"""The memory of a chat agent as a pure function: from a conversation to the messages that the model should see.

    fold(messages, "window(2)")     ->  system, task, the last two exchanges
    fold(messages, "archive(2)")    ->  everything, with handles in the place of older results
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

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mem1.errors import UserError
from mem1.memory import Fold, MemoryPolicy, Notebook, Notes, memory_policy
from mem1.memory.notes import standing
from mem1.messages.assembly import Assembled, assemble, without_states
from mem1.messages.bounds import UNBOUNDED, Bounds, remembering, tokens_of
from mem1.messages.cuts import Cuts
from mem1.messages.fitting import Fitting
from mem1.messages.forms import CHAT, form_of
from mem1.messages.ours import put_behind
from mem1.messages.reminders import outdated
from mem1.messages.selecting import Retention, Seen, selected
from mem1.messages.text_calls import calls_in
from mem1.messages.thoughts import spoken, without_thoughts
from mem1.messages.transcript import (
    ASK,
    Exchange,
    Form,
    Message,
    Part,
    Result,
    Transcript,
    User,
    handle,
    request_of,
    said,
    texts,
)
from mem1.protocol import NOTE

_WORDS_PER_TOKEN = 0.55
"""States are full of names and numbers, whose words take more tokens than those of prose."""
REQUEST = (
    f"{ASK} Everything above except the user's messages and the last tool result will be gone. Reply with text alone, "
    "call no tool, and write in at most {words} words what you need to go on: what is done and what it showed; names, "
    "numbers, identifiers, paths and quotes exactly; rules the user gave; what failed and why; what was decided "
    "against; what is left to do. Keep what is still true of the memory above."
)


NOTES = (
    "Earlier tool results disappear. With each action, write one line <note>...</note>: what the last result taught "
    "you, with names, numbers and paths as they are. A note that begins with a key and a colon (harbour: built in "
    "1901) replaces an earlier one with the same key."
)
"""Instruction for memories of notes."""
PAUSE = "I have read the results."
"""What the assistant says between a result and a message of the user, where a server wants that."""
_ALL_NOTES = "notes"
_WHOLE_NOTES = Bounds(state=1 << 40)
"""Handle of all notes for `recall`."""
_NEARLY = 0.8
"""Share of the state's bound from which on notes are written anew, so that none is cut off before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The model's next messages, and what was left out of them."""

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
    due: bool = False
    """Whether the model should write a state before its next turn."""
    wanted_tokens: int | None = None
    """Tokens that it should have; None: as many as the bounds allow."""
    cut: tuple[str, ...] = ()
    """What was shortened or left out beyond results and exchanges, so that the rest fits; in words."""
    waits: bool = False
    """Whether a call waits for its result."""


def fold(
    messages: Sequence[Message],
    policy: str | MemoryPolicy = "full",
    *,
    form: str = "chat",
    bounds: Bounds = UNBOUNDED,
    pending: Collection[str] = (),
) -> list[Message]:
    """The messages that the model should see next; those given are not changed.

    `form`: "chat", "responses" or "anthropic". `pending`: ids of calls whose result is not the last one yet (approvals,
    long-running tools); their exchanges stay whole. Raises UserError for a conversation that no provider would accept,
    naming the message, and where even the least of it exceeds `bounds.prompt` (`mem1.messages.fitting`).
    """
    kind = form_of(form)
    return folded(kind.read(messages), memory_policy(policy), form=kind, bounds=bounds, pending=pending).messages


def ask(
    messages: Sequence[Message],
    policy: str | MemoryPolicy,
    *,
    form: str = "chat",
    bounds: Bounds = UNBOUNDED,
    pending: Collection[str] = (),
    best_k: float = float("inf"),
) -> list[Message] | None:
    """The messages that let the model write its state, or None while none is due.

    `best_k`: for fold(auto), see `mem1.messages.cost.best_k`. Raises UserError as `fold` does.
    """
    chosen, kind = memory_policy(policy), form_of(form)
    now = folded(kind.read(messages), chosen, form=kind, bounds=bounds, pending=pending)
    return request_for_state(now, chosen, bounds=bounds, best_k=best_k)


def request_for_state(now: Folded, policy: MemoryPolicy, *, bounds: Bounds, best_k: float) -> list[Message] | None:
    """`ask`, of a conversation that is folded already."""
    if now.waits or not (now.whole > best_k if policy == Fold(None) else now.due):
        return None
    words = state_words(bounds.state if now.wanted_tokens is None else min(now.wanted_tokens, bounds.state))
    return [*now.messages, {"role": "user", "content": REQUEST.format(words=words)}]


def after_a_pause(request: Sequence[Message], form: Form) -> list[Message]:
    """A request for a state with a word of the assistant's before it, where it follows a result: the templates of some
    models, such as Mistral's, refuse a message of the user there."""
    *before, asked = request
    if not before or form.name != CHAT.name or before[-1].get("role") not in ("tool", "function"):
        return list(request)
    return [*before, {"role": "assistant", "content": PAUSE}, asked]


def state_words(tokens: int) -> int:
    """Words that fit into a state of this many tokens."""
    return round(tokens * _WORDS_PER_TOKEN)


def with_state(messages: Sequence[Message], state: str, *, form: str = "chat") -> list[Message]:
    """The conversation with a state that the model wrote for it, as the answer to the request for one.

    Thoughts in it are left out. Raises UserError for an empty state: a model that called a tool instead has to be
    asked again.
    """
    state = without_thoughts(state)
    if not state.strip():
        raise UserError("the model wrote no state; ask it again, or go on without")
    form_of(form)
    return [*messages, {"role": "user", "content": request_of(state)}, {"role": "assistant", "content": state}]


def _plain(item: Any) -> Any:
    """An item of a provider's library as a mapping."""
    return item.model_dump(exclude_none=True) if hasattr(item, "model_dump") else item


def state_in(reply: Any, form: Form) -> tuple[str, str]:
    """(the text of a reply, or nothing where it is no state, why not)."""
    if isinstance(reply, Exception):
        return "", f"{type(reply).__name__}: {reply}"
    items = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else reply
    try:
        items = [_plain(item) for item in (items if isinstance(items, list | tuple) else [items])]
        parts = form.read(items).parts
    except (UserError, TypeError) as error:
        return "", f"no message: {error}"
    calls = [call.name for part in parts if isinstance(part, Exchange) for call in part.calls]
    if calls:
        return "", f"a call of {calls[0]}"
    found = calls_in("\n".join(said(part) for part in parts if isinstance(part, Exchange)).strip(), {})
    text = "" if found.broken else found.text
    return text, "" if text else "a call, written as text" if found.broken or found.calls else "an empty reply"


def recall(messages: Sequence[Message], name: str, *, start: int = 0, form: str = "chat") -> Any:
    """The content of the result with this handle, out of the whole conversation: text, or parts with images; of the
    name "notes", all notes.

    `start`: characters of its text to leave out; from 1 on, images are left out too. Raises UserError for an unknown
    handle, and for a start behind the end.
    """
    kind = form_of(form)
    transcript = kind.read(messages)
    if name.strip().lower() == _ALL_NOTES:
        return _all_notes(transcript, kind)
    for part in reversed(transcript.parts):
        for result in part.results if isinstance(part, Exchange) else ():
            content = kind.content_of(result)
            if handle(result, content) != name.strip():
                continue
            text = texts(content)
            if start and not 0 < start < len(text):
                raise UserError(f"the result {name!r:.40} ends after {len(text)} characters; start={start} is too far")
            return text[start:] if start else content
    raise UserError(f'no result has the handle {name!r:.40}; handles are written as recall("r1a2b3c4d")')


def _all_notes(transcript: Transcript, form: Form) -> str:
    """The newest state, and a line for each note that stands after it."""
    parts, state, boundary = without_states(transcript, form)
    turns = [Seen(part, form, _WHOLE_NOTES) for part in parts[boundary:] if isinstance(part, Exchange)]
    lines = [f"- {turns[at].notes[position]}" for at, of_it in standing(turns).items() for position in of_it]
    return "\n".join([*([] if state is None else [state]), *lines]) or "nothing was noted yet"


def folded(
    transcript: Transcript, policy: MemoryPolicy, *, form: Form, bounds: Bounds, pending: Collection[str] = ()
) -> Folded:
    """`fold`, with what it left out."""
    parts, state, boundary = without_states(transcript, form)
    if not any(isinstance(part, User) for part in parts):
        raise UserError("the conversation has no message of the user; providers refuse it, and there is no task to pin")
    bounds = replace(bounds, count=remembering(bounds.count))
    chosen = selected(parts, state, boundary, _bounded(policy, bounds), form, bounds, pending)
    stays, instruction, cuts = chosen.stays, instruction_of(policy), Cuts(reminders=outdated(parts))
    shown: dict[tuple[int, Retention, int | None, int | None], tuple[Result, ...]] = {}

    said_parts = [_without_thoughts(part) for part in parts]  # once, as parts may be assembled several times

    def assembled() -> Assembled:
        return assemble(transcript.system, said_parts, chosen, state, instruction, form, bounds, cuts, shown)

    found = assembled()
    written = form.write(found.transcript)
    limit = bounds.prompt
    if limit is not None and (over := tokens_of(written, bounds.count) - limit) > 0:

        def measured() -> tuple[int, int]:
            nonlocal found, written
            found = assembled()
            written = form.write(found.transcript)
            return tokens_of(written, bounds.count) - limit, bounds.count(found.block or "")

        fitting = Fitting(transcript.system, said_parts, stays, cuts, form, bounds, pending)
        fitting.fit(over, bounds.count(found.block or ""), measured)
    if found.added is not None:
        put_behind(found.transcript, found.added, form)
    return Folded(
        messages=written,
        conversation=transcript._replace(parts=tuple(parts)),
        state=found.block,
        state_tokens=found.state_tokens,
        left_out=found.left_out,
        dropped=sum(stay in (Retention.NOTHING, Retention.NOTES) for stay in stays.values()),
        whole=sum(stay is Retention.WHOLE for stay in stays.values()),
        due=chosen.due,
        wanted_tokens=chosen.wanted_tokens,
        cut=tuple(cuts.said),
        waits=any(part.pending for part in found.transcript.parts if isinstance(part, Exchange)),
    )


def _without_thoughts(part: Part) -> Part:
    """The part without thoughts in what the model said; the same object where there are none."""
    if isinstance(part, User):
        return part
    words = tuple([spoken(message) for message in part.said])
    return part if all(map(operator.is_, words, part.said)) else part._replace(said=words)


def instruction_of(policy: MemoryPolicy) -> str:
    """Text for the model in every prompt, after the task; empty: none."""
    if NOTE not in policy.asks:
        return ""
    if isinstance(policy, Notebook):
        return f'{NOTES} Only the {policy.k} newest stay in sight; recall("notes") shows all, before you answer.'
    return f"{NOTES} Notes stay."


def _bounded(policy: MemoryPolicy, bounds: Bounds) -> MemoryPolicy:
    """Notes, with a limit that has them rewritten before the bound of states cuts them off."""
    if not isinstance(policy, Notes):
        return policy
    nearly = int(_NEARLY * bounds.state)
    return Notes(nearly if policy.tokens is None else min(policy.tokens, nearly))
