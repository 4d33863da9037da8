"""Upper limits of what the model sees, and what stands in the place of what they leave out.

    Bounds(result=500)      a result of 8,000 tokens  ->  its beginning, "[7,514 more tokens; ...]"
    Bounds(prompt=16_000)   older results give way to handles, then older exchanges go, until the messages fit

Tokens are estimated at four characters each unless `count` is given.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.messages.transcript import MAPPING, Content, Message, is_image, texts

IMAGE_TOKENS = 1_000
"""Assumed size of an image."""
MESSAGE_TOKENS = 4
"""Assumed size of a message's role and frame."""
LEAST = {"result": 50, "state": 50, "prompt": 200, "images": 0}
"""Smallest value of each bound."""
_REST = 18
"""Tokens, at four characters each, of the longest line about what is missing of a result."""


def estimated(text: str) -> int:
    """Tokens of a text at four characters each, rounded up."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits in tokens; None means unlimited."""

    result: int | None = None
    """Longest tool result."""
    state: int = 1_000
    """Longest state; a longer one loses whole lines."""
    prompt: int | None = None
    """Longest prompt. What is sent beside the messages, such as tools, counts once `Memory.observe` has told it."""
    images: int | None = None
    """Images in results that stay, newest first."""
    handles: bool = True
    """Whether a tool `recall` brings back what is left out; placeholders then name it."""
    count: Callable[[str], int] = estimated
    """Tokens of a text."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"the bound {name!r} must be at least {least}, not {value}")


UNBOUNDED = Bounds()


def in_place_of(content: Content, name: str, handle: str | None, bounds: Bounds) -> str:
    """Placeholder of a result: its tool, its length, and its handle, if it can be recalled."""
    pictures = sum(is_image(part) for part in content) if content and not isinstance(content, str) else 0
    sizes = f"{bounds.count(texts(content)):,} tokens" + (f" and {pictures} images" if pictures else "")
    back = "" if handle is None else f'; recall("{handle}") shows it'
    return f"[result of {name}, {sizes}, was dropped{back}]"


def shortened(content: Content, handle: str, bounds: Bounds, limit: int, text_type: str) -> Content:
    """A result of at most `limit` tokens: its beginning, then how much is missing."""
    text = texts(content)
    whole = bounds.count(text)
    if whole <= limit:
        return content
    kept = text[: max(0, limit - _REST) * len(text) // whole]
    while True:
        # what recall returns is a result too, and within the same limit: it has to begin where this one ends
        back = f'; recall("{handle}", start={len(kept)}) shows more' if bounds.handles else ""
        rest = f"\n[{whole - bounds.count(kept):,} more tokens{back}]"
        size = bounds.count(kept + rest)
        if size <= limit:
            break
        if not kept:
            return rest.strip()
        kept = kept[: min(len(kept) - 1, int(len(kept) * (limit - bounds.count(rest)) / max(1, bounds.count(kept))))]
    short = kept + rest
    if isinstance(content, str):
        return short
    return [*(part for part in content or () if is_image(part)), {"type": text_type, "text": short}]


def without_images(content: Content, keep: int, handle: str, bounds: Bounds, text_type: str) -> Content:
    """The content with only its last `keep` images; a line names each missing one."""
    if isinstance(content, str) or content is None or sum(map(is_image, content)) <= keep:
        return content
    spare = sum(map(is_image, content)) - keep
    back = f'; recall("{handle}") shows it' if bounds.handles else ""
    left: list[Mapping[str, Any]] = []
    for part in content:
        if is_image(part) and spare > 0:
            spare -= 1
            part = {"type": text_type, "text": f"[image dropped{back}]"}
        left.append(part)
    return left


def cut_state(state: str, bounds: Bounds, limit: int | None = None, *, oldest_first: bool = False) -> str:
    """The state within its bound, or `limit` tokens if that is less: whole lines go, from the beginning or the end; of
    a single line, its end."""
    limit = bounds.state if limit is None else min(limit, bounds.state)
    if bounds.count(state) <= limit:
        return state
    lines = state.split("\n")

    def kept(number: int) -> str:
        return "\n".join(lines[-number:] if oldest_first else lines[:number])

    most = bisect(range(1, len(lines)), limit, key=lambda number: bounds.count(kept(number)))
    text = kept(max(1, most))
    while bounds.count(text) > limit:
        text = text[: min(len(text) - 1, len(text) * limit // bounds.count(text))]
    return text


def tokens_of(messages: Sequence[Message], count: Callable[[str], int] = estimated) -> int:
    """Tokens of messages, with their calls; images at `IMAGE_TOKENS` each."""
    return sum([MESSAGE_TOKENS + _tokens(message, count) for message in messages])


def result_tokens(content: Content, bounds: Bounds) -> int:
    """Tokens of a result as a message: of its text, as many as its bound lets stand; images stay."""
    beyond = 0 if bounds.result is None else max(0, bounds.count(texts(content)) - bounds.result)
    return tokens_of([{"content": content}], bounds.count) - beyond


def common_tokens(before: Sequence[Message], after: Sequence[Message], count: Callable[[str], int] = estimated) -> int:
    """Tokens that two prompts begin with alike, which a prompt cache can serve; inside a message, of its first text."""
    tokens = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            one, other = texts(old.get("content")), texts(new.get("content"))
            return tokens + (count(_common(one, other)) if old.get("role") == new.get("role") else 0)
        tokens += MESSAGE_TOKENS + _tokens(new, count)
    return tokens


def _common(one: str, other: str) -> str:
    """The longest text that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return one[:low]


_COUNTED = frozenset(
    ("content", "output", "text", "arguments", "input", "name", "tool_calls", "function", "thinking", "summary")
)
_FILES = frozenset(("document", "input_file", "file", "input_audio"))


def _tokens(value: Any, count: Callable[[str], int]) -> int:
    if type(value) is str:
        return count(value)
    if isinstance(value, MAPPING):
        kind = value.get("type")
        if kind is not None and (kind in _FILES or "image" in kind):
            return IMAGE_TOKENS
        total = 0
        for key, part in value.items():
            if key in _COUNTED and part is not None:
                total += count(part) if type(part) is str else _tokens(part, count)
        return total
    return sum([_tokens(each, count) for each in value]) if isinstance(value, Sequence) else 0
