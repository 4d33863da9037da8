"""From what stays of each exchange to the messages: the pinned ones, the state behind them, then the exchanges.

parts   u1    x1      x2      u2    x3              x: exchange, u: message of the user
stays         nothing note          whole
->      u1    u2 + state with x2's note    x3
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mem1.messages.bounds import (
    MESSAGE_TOKENS,
    Bounds,
    cut_state,
    in_place_of,
    result_tokens,
    shortened,
    without_images,
)
from mem1.messages.cuts import Cuts, cut_message, without_unsigned_thoughts
from mem1.messages.ours import Added, found_in, line_for, number_in, place_of, put_in_place
from mem1.messages.reminders import without
from mem1.messages.selecting import Retention, Selected
from mem1.messages.transcript import (
    Content,
    Exchange,
    Form,
    Message,
    Part,
    Result,
    Transcript,
    User,
    begins_with_thoughts,
    images,
    is_state,
    said,
    texts,
)

_OPEN, _CLOSE = "<memory>\n", "\n</memory>"
_OWN_TAG = re.compile(r"<(?=/?memory>)")
_IMAGE_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The parts that the model should see."""

    transcript: Transcript
    added: Added | None
    """What stands behind a message of the user; None: nothing."""
    block: str | None
    """Text of the state, notes included; None: there is none."""
    state_tokens: int
    """Length of the state before it was cut to its bound."""
    left_out: tuple[Result, ...]
    """Results that are not shown whole, oldest first."""


def without_states(transcript: Transcript, form: Form) -> tuple[list[Part], str | None, int]:
    """(parts without what mem1 has added, the newest state, number of parts before it).

    A state is the answer to a request of mem1, or stands where an earlier fold put it, behind a message of the user.
    """
    parts, found = transcript.parts, list[Part]()
    added = found_in(transcript, form)
    state, boundary = None, 0
    users = at = 0
    while at < len(parts):
        part = parts[at]
        at += 1
        if at < len(parts) and is_state(part, parts[at]):
            after = parts[at]
            assert isinstance(after, Exchange)
            state, boundary = said(after).strip(), len(found)
            at += 1
            continue
        if isinstance(part, User):
            if added is not None and added.user == users:
                message, block = _split(part.message, added)
                if block is not None:
                    state, boundary = block, len(found) + (message is not None)
                if message is None:
                    continue
                part = part._replace(message=message)
            users += 1
        found.append(part)
    return found, state, boundary


def assemble(
    system: Sequence[Message],
    parts: Sequence[Part],
    selected: Selected,
    state: str | None,
    instruction: str,
    form: Form,
    bounds: Bounds,
    cuts: Cuts,
    shown: dict[tuple[int, Retention, int | None, int | None], tuple[Result, ...]],
) -> Assembled:
    """The parts in their final order and length, with the state behind the last pinned message.

    `shown`: results as an earlier call of the same parts showed them, by exchange, stay, images and length; it gets
    these.
    """
    stays = _with_thoughts(parts, selected.stays)
    lines = [] if state is None else [_OWN_TAG.sub("(", cut_state(state, bounds, selected.state_limit))]
    pictures: list[str] = []
    left_out: list[Result] = []
    kept: list[Part] = []
    first = len(parts)
    images_left = {**_images_left(parts, stays, form, bounds), **cuts.images}
    users = _users(parts, stays, form, bounds, cuts)
    for at, part in enumerate(parts):
        stay = stays.get(at)
        if stay is None:
            if (user := users.get(at)) is not None:
                kept.append(user)
            continue
        assert isinstance(part, Exchange)
        if stay in (Retention.WHOLE, Retention.ARCHIVED, Retention.MASKED):
            first = min(first, len(kept))
            if at in cuts.thoughts:
                part = part._replace(said=without_unsigned_thoughts(part.said))
            longest = cuts.results.get(at, bounds.result)
            if part.results and (stay is not Retention.WHOLE or at in images_left or longest is not None):
                key = (at, stay, images_left.get(at), longest)
                if (results := shown.get(key)) is None:
                    results = shown[key] = _results(part, stay, images_left.get(at), longest, form, bounds)
                if results is not part.results:
                    left_out += [old for old, new in zip(part.results, results, strict=True) if new is not old]
                    part = part._replace(results=results)
            kept.append(part)
            continue
        left_out += part.results
        lines += _lines(part, selected.notes.get(at, cuts.notes.get(at, ())), form, bounds)
        if bounds.handles:
            with_images = [result for result in part.results if images(form.content_of(result))]
            pictures += [f'[image dropped; recall("{handle_of(result, form)}") shows it]' for result in with_images]
    lines += [line for line in pictures[-_IMAGE_LINES:] if all(line not in other for other in lines)]
    whole = "\n".join(lines)
    # images that are named behind a state belong to it when it comes back, and are within its limit
    limits = [cuts.state, None if selected.notes or state is None else selected.state_limit]
    limit = min([each for each in limits if each is not None], default=None)
    block = cut_state(whole, bounds, limit, oldest_first=bool(selected.notes or cuts.notes)) if lines else None
    shown_parts, added = _with_block(kept, first, block, instruction, form)
    return Assembled(
        transcript=Transcript(system=_system(system, form, bounds, cuts), parts=tuple(shown_parts)),
        added=added,
        block=block,
        state_tokens=bounds.count(whole),
        left_out=tuple(left_out),
    )


def _users(
    parts: Sequence[Part], stays: Mapping[int, Retention], form: Form, bounds: Bounds, cuts: Cuts
) -> dict[int, User]:
    """Index of each message of the user that stays -> the message as it is shown; the first one that is left out gives
    way to a line for all."""
    found: dict[int, User] = {}
    task = next(part for part in parts if isinstance(part, User)).message
    left_out = [part.message for at in sorted(cuts.gone) if isinstance(part := parts[at], User)]
    first, gone = min(cuts.gone, default=-1), False
    for at, part in enumerate(parts):
        if not isinstance(part, User):
            gone = stays[at] in (Retention.NOTES, Retention.NOTHING)
        elif at in cuts.gone:
            if at == first:
                found[at] = User(line_for(sum([number_in(message, task) for message in left_out]), task))
        else:
            left = without(part, cuts.reminders[at]) if gone and at in cuts.reminders else part
            if left is not None and at in cuts.users:
                left = left._replace(message=cut_message(left.message, cuts.users[at], bounds, form.text_type))
            if left is not None:
                found[at] = left
    return found


def _system(system: Sequence[Message], form: Form, bounds: Bounds, cuts: Cuts) -> tuple[Message, ...]:
    if cuts.system is None:
        return tuple(system)
    return tuple([cut_message(message, cuts.system, bounds, form.text_type) for message in system])


def _split(message: Message, added: Added) -> tuple[Message | None, str | None]:
    """(the user's message, the state behind it); (None, state) for a message that only held it."""
    content = message["content"]
    whole = texts(content)
    end = len(whole) - len(_CLOSE)
    state = None if added.state is None else whole[end - added.state : end]
    own = _shortened(content, added.characters)
    return ({**message, "content": own} if own else None), state


def _shortened(content: Content, characters: int) -> Content:
    """The content without so many characters at the end of its text: frameworks make parts of a text, and a text of
    parts, and so a conversation may come back."""
    if isinstance(content, str) or content is None:
        return (content or "")[: len(content or "") - characters]
    parts = list(content)
    while characters > 0 and parts:
        text = parts[-1].get("text")
        if isinstance(text, str) and len(text) > characters:
            return [*parts[:-1], {**parts[-1], "text": text[: len(text) - characters]}]
        parts.pop()
        characters -= 0 if not isinstance(text, str) else len(text) + 1  # and the line end between two parts
    return parts


def _with_thoughts(parts: Sequence[Part], stays: Mapping[int, Retention]) -> Mapping[int, Retention]:
    """What stays, where the turn that is not over begins with thoughts: Anthropic refuses one that has lost them, so
    the nearest exchange before that has some stays, too, without its results."""
    since = 1 + max((at for at, part in enumerate(parts) if isinstance(part, User)), default=-1)
    loop = [(at, part) for at, part in enumerate(parts[since:], since) if isinstance(part, Exchange)]
    dropped = (Retention.NOTES, Retention.NOTHING)
    first = next((number for number, (at, _) in enumerate(loop) if stays[at] not in dropped), 0)
    if not loop or begins_with_thoughts(loop[first][1]):
        return stays
    needed = next((at for at, part in reversed(loop[:first]) if begins_with_thoughts(part)), None)
    return stays if needed is None else {**stays, needed: Retention.MASKED}


def _with_block(
    kept: Sequence[Part], first: int, block: str | None, instruction: str, form: Form
) -> tuple[list[Part], Added | None]:
    """(the parts with instruction and state behind the last message of the user before the first exchange, what that
    added)."""
    texts_added = [text for text in (instruction, None if block is None else f"{_OPEN}{block}{_CLOSE}") if text]
    if not texts_added:
        return list(kept), None
    at = min(first, len(kept)) - 1
    parts = list(kept)
    if at < 0:
        parts.insert(0, User(message={"role": "user", "content": ""}))
        at = 0
    pinned = parts[at]
    assert isinstance(pinned, User)
    message = pinned.message
    for text in texts_added:
        message = form.with_text(message, text)
    parts[at] = pinned._replace(message=message)
    users = sum(isinstance(part, User) for part in parts[:at])
    characters = len(texts(message.get("content"))) - len(texts(pinned.message.get("content")))
    return parts, Added(user=users, characters=characters, state=None if block is None else len(block))


def _lines(exchange: Exchange, notes: Sequence[str], form: Form, bounds: Bounds) -> list[str]:
    """The lines that an exchange leaves, with handles of its results."""
    lines = [f"- {_OWN_TAG.sub('(', note)}" for note in notes]
    if lines and exchange.results and bounds.handles:
        lines[-1] += f" [{', '.join([handle_of(result, form) for result in exchange.results])}]"
    return lines


def _results(
    exchange: Exchange, stay: Retention, images_left: int | None, limit: int | None, form: Form, bounds: Bounds
) -> tuple[Result, ...]:
    """The results as they are shown; those that are shown whole are the same objects, and so are all of them."""
    shown: list[Result] = []
    for result in reversed(exchange.results):
        content = short = form.content_of(result)
        place = None
        if stay is not Retention.WHOLE:
            place = place_of(result, form)
            if not place.gone:
                handle = place.handle if stay is Retention.ARCHIVED and bounds.handles else None
                line = in_place_of(content, result.call.name, handle, bounds)
                if images(content) or bounds.count(line) < bounds.count(texts(content)):
                    short = line
        else:
            if images_left is not None and (here := images(content)):
                place = place_of(result, form)
                short = without_images(short, images_left, place.handle, bounds, form.text_type)
                images_left = max(0, images_left - here)
            if limit is not None and bounds.count(texts(short)) > limit:
                place = place or place_of(result, form)
                short = shortened(short, place.handle, bounds, limit, form.text_type)
        if place is not None and short is not content and (other := form.with_content(result, short)) is not result:
            result = other
            put_in_place(result, form.content_of(result), place.handle, gone=stay is not Retention.WHOLE)
        shown.append(result)
    changed = any(new is not old for new, old in zip(reversed(shown), exchange.results, strict=True))
    return tuple(reversed(shown)) if changed else exchange.results


def handle_of(result: Result, form: Form) -> str:
    """The handle of a result's whole content, also where an earlier fold shortened or dropped it."""
    return place_of(result, form).handle


def _images_left(
    parts: Sequence[Part], stays: Mapping[int, Retention], form: Form, bounds: Bounds
) -> Mapping[int, int]:
    """Index of an exchange that stays whole -> how many images of its results stay, the newest of all first."""
    if bounds.images is None:
        return {}
    left, found = bounds.images, dict[int, int]()
    for at in sorted(stays, reverse=True):
        part = parts[at]
        if stays[at] is Retention.WHOLE and isinstance(part, Exchange):
            found[at] = left
            left = max(0, left - sum(images(form.content_of(result)) for result in part.results))
    return found


def whole_and_gone(result: Result, form: Form, bounds: Bounds) -> tuple[int, int]:
    """Tokens of a result, and of the message in which a handle stands for it; one that is no longer stays itself."""
    content = form.content_of(result)
    whole = result_tokens(content, bounds)
    place = in_place_of(content, result.call.name, "r00000000" if bounds.handles else None, bounds)
    return whole, min(whole, MESSAGE_TOKENS + bounds.count(place))
