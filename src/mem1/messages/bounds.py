"""Upper limits of what the model sees, and what stands in the place of what they leave out.

    Bounds(result=500)      a result of 8,000 tokens  ->  its beginning, "[7,514 more tokens; ...]"
    Bounds(prompt=16_000)   older results give way to handles, then older exchanges go, until the messages fit

All of a message that goes out counts: texts, thoughts, signatures, arguments and whatever a provider adds; ids, roles
and marks cost nothing. Tokens are estimated by script unless `count` is given.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mem1.errors import UserError
from mem1.messages.transcript import MAPPING, PLACE, Content, Message, is_image, texts

IMAGE_TOKENS = 1_000
"""Assumed size of an image."""
MESSAGE_TOKENS = 4
"""Assumed size of a message's role and frame."""
LEAST = {"result": 50, "state": 50, "prompt": 200, "images": 0}
"""Smallest value of each bound."""
_REST = 18
"""Tokens, at four characters each, of the longest line about what is missing of a result."""
_LETTERS = 4
"""Most letters of a token (`estimated`)."""
_SHORT = 500
"""Characters of a text that is counted sooner than looked up."""
_COUNTED = 1 << 14
"""Texts whose count is remembered."""
_PLAIN = b"abcdefghijklmnopqrstuvwxyz \n\t\r"
_NOT_ASCII = bytes(range(128, 256))
_ASCII = bytes(range(128))
_CONTINUES = bytes(range(0x80, 0xC0))


def _script(lead: int) -> int:
    """The script that a character's first byte in UTF-8 tells, as a letter."""
    for end, script in ((0xCE, "l"), (0xE0, "a"), (0xE2, "i"), (0xE3, "s"), (0xF0, "w")):
        if lead < end:
            return ord(script)
    return ord("e")


_SCRIPTS = bytes(_script(lead) for lead in range(256))
_FORTIETHS = ((b"l", 36), (b"a", 20), (b"i", 32), (b"s", 40), (b"w", 40), (b"e", 100))
"""Fortieths of a token a character: Latin letters beyond ASCII; Greek, Cyrillic, Hebrew, Arabic; Indic and Thai;
punctuation and signs; Chinese, Japanese, Korean; what lies beyond, as emoji."""


def estimated(text: str) -> int:
    """Tokens of a text, rounded up: four letters each, more where letters are few, and by script beyond ASCII.

        a river runs through the town     0.25 a character     real: 0.22 to 0.26
        {"id": 1, "price": 19.99}         about 0.6            0.4 to 0.5
        base64, hexadecimal digits        0.65                 0.56 to 0.71
        Chinese, Japanese, Korean         0.75 to 1            0.59 to 1.17
        Russian, Greek, Arabic            0.45                 0.27 to 1.1

    Real are the tokenizers cl100k, o200k and Anthropic's of 2023 on a page of each; `test_estimates_follow_real_counts`
    has the counts. Capitals, digits and signs, where they are more than an eighth of a text, take 0.8 more each.
    """
    letters, high = len(text), 0
    if text.isascii():
        dense = len(text.encode().translate(None, _PLAIN))
    else:
        data = text.encode("utf-8", "surrogatepass")
        scripts = data.translate(_SCRIPTS, _ASCII + _CONTINUES)
        high = sum(each * scripts.count(script) for script, each in _FORTIETHS)
        letters -= len(scripts)
        dense = len(data.translate(None, _PLAIN + _NOT_ASCII))
    return -(-(10 * letters + (32 * dense - 4 * letters if 8 * dense > letters else 0) + high) // 40)


def remembering(count: Callable[[str], int]) -> Callable[[str], int]:
    """The same count, which reads each long text once: results stand in every prompt of a conversation."""
    try:
        return _remembering(count)
    except TypeError:  # what counts has no hash
        return _remembering.__wrapped__(count)


@lru_cache(maxsize=16)
def _remembering(count: Callable[[str], int]) -> Callable[[str], int]:
    counted: dict[tuple[int, int], int] = {}

    def remembered(text: str) -> int:
        if len(text) < _SHORT:
            return count(text)
        key = len(text), hash(text)  # not the text, which would be kept longer than its conversation
        if (found := counted.get(key)) is None:
            if len(counted) >= _COUNTED:
                counted.clear()
            found = counted[key] = count(text)
        return found

    return remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits in tokens; None means unlimited."""

    result: int | None = None
    """Longest tool result."""
    state: int = 1_000
    """Longest state; a longer one loses whole lines."""
    prompt: int | None = None
    """Longest prompt. What is sent beside the messages, such as tools, counts as far as the caller names it, or once
    `Memory.observe` has told it."""
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


def oldest(text: str, tokens: int) -> str:
    """The beginning of a text, at most so many tokens, up to a word's end; empty: its first word has more."""
    start = beginning(text, tokens)
    return start if start == text else start.rpartition(" ")[0]


def beginning(text: str, tokens: int) -> str:
    """As much of the beginning of a text as has at most so many tokens; of a longer text, no more than that is read."""
    if len(text) <= _LETTERS * tokens and estimated(text) <= tokens:
        return text
    most = min(len(text), _LETTERS * tokens)
    left = bisect_left(range(most), True, key=lambda left: estimated(text[: most - left]) <= tokens)
    return text[: most - left]


def without_tools(bounds: Bounds, beside: int, scale: float) -> Bounds:
    """The bounds, with what is left of the prompt beside what is sent with the messages, such as tools.

    `scale`: tokens that the provider counts for each estimated one. Raises UserError where nothing is left.
    """
    limit, least = bounds.prompt, LEAST["prompt"]
    if limit is None:
        return bounds
    if limit - beside < least:
        raise UserError(
            f"the bound of {limit:,} tokens leaves no room for messages: {beside:,} are sent beside them, such as "
            "tools; raise the bound of the prompt (Bounds(prompt=...), --prompt-tokens)"
        )
    return replace(bounds, prompt=max(least, int(limit / max(1.0, scale)) - beside))


def without_what_was_missed(bounds: Bounds, missed: int, dense: float) -> Bounds:
    """The bounds, with what is left of the prompt beside what the estimate of messages missed in the last one.

    `dense`: tokens that the provider counted last for each estimated one. Where nothing is left, it is the messages
    that have more tokens than estimated.
    """
    limit, least = bounds.prompt, LEAST["prompt"]
    if limit is None or not missed:
        return bounds
    left = limit - missed
    return replace(bounds, prompt=left if left >= least else max(least, int(limit / max(1.0, dense))))


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


def start_within(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The beginning of a text, at most so many tokens by this count; the same object where that is all of it."""
    while (found := count(text)) > tokens:
        text = text[: min(len(text) - 1, len(text) * tokens // found)]
    return text


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
    return start_within(kept(max(1, most)), limit, bounds.count)


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


_FREE = frozenset(
    (
        "role",
        "type",
        "id",
        "tool_call_id",
        "call_id",
        "tool_use_id",
        "status",
        "index",
        "logprobs",
        "cache_control",
        PLACE,
    )
)
"""Keys whose values cost no tokens, or as good as none."""
_GIVEN = frozenset(("input", "arguments", "action", "operation", "parameters"))
"""Keys of what a call gives its tool: there, names and numbers are text too."""
_SAID = frozenset(("content", "text", "output"))
"""Keys whose texts a model reads as they are, the address of a picture with its data among them."""
_FILES = ("image", "file", "audio", "video", "screenshot")
_MEDIA = ("media_type", "mime_type", "mimeType")


def _tokens(value: Any, count: Callable[[str], int]) -> int:
    if isinstance(value, str):
        return IMAGE_TOKENS if value[:5] == "data:" and ";base64," in value[:200] else count(value)
    if isinstance(value, MAPPING):
        if ("type" in value or "data" in value) and _is_file(value.get("type"), value):
            return IMAGE_TOKENS
        total = 0
        for key, part in value.items():
            if part is not None and key not in _FREE:
                said = key in _GIVEN or (key in _SAID and isinstance(part, str))
                total += _given(part, count) if said else _tokens(part, count)
        return total
    return sum([_tokens(each, count) for each in value]) if isinstance(value, list | tuple) else 0


def _is_file(kind: Any, value: Mapping[str, Any]) -> bool:
    """Whether a part is an image, a recording or a file, whose size in letters says nothing."""
    if kind == "document":
        source = value.get("source")
        return not (isinstance(source, MAPPING) and source.get("type") in ("text", "content"))
    if isinstance(kind, str) and _names_file(kind):
        return True
    return "data" in value and any(not str(value.get(key, "text")).startswith("text") for key in _MEDIA)


@lru_cache(maxsize=256)
def _names_file(kind: str) -> bool:
    return kind != "text" and any(file in kind for file in _FILES) and "search" not in kind


def _given(value: Any, count: Callable[[str], int]) -> int:
    """Tokens of what a call gives its tool."""
    if isinstance(value, str):
        return count(value)
    if isinstance(value, MAPPING):
        return sum([count(str(key)) + _given(part, count) for key, part in value.items()])
    if isinstance(value, list | tuple):
        return sum([_given(each, count) for each in value])
    return count(str(value))
