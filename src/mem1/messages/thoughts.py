"""Thoughts that a server without a parser for them leaves in a text: what was said is what comes after them.

    without_thoughts("<think>Which city?</think>\\n\\nOslo")     ->  "Oslo"
    without_thoughts("Which city?\\n</think>\\n\\nOslo")          ->  "Oslo"     the template had opened it
    without_thoughts("<think>Which ci")                         ->  ""         cut off
    without_thoughts("Oslo<|im_end|>")                          ->  "Oslo"
    without_thoughts("`<think>` opens a thought.")              ->  as it is

A mark counts at the beginning of a line, its end anywhere, and neither inside backquotes or a fenced block. Marks in
small letters count in any case. A <scratchpad>, which is asked for by prompts, is a thought where the text begins with
it and something follows; elsewhere, and with tags such as <reflection> or <reason>, it may be what the user wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<reasoning_scratchpad>", "</reasoning_scratchpad>"),
    ("<antthinking>", "</antthinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),
    ("<unused94>thought", "<unused95>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
"""Beginning and end of a thought: Qwen, DeepSeek and most others; prompts in Anthropic's manner; Gemma's, Hermes
Agent's, Claude's, Seed's, MiniMax's, LongCat's, Mistral's, Kimi's, Cohere's, Sky's, Gemma's later ones and gpt-oss's
own. An open list."""
_SCRATCHPAD = ("<scratchpad>", "</scratchpad>")
_FIRST = frozenset(mark[0] for marks in MARKS for mark in marks)
_FINAL = ("<|start|>assistant", "<|channel|>final<|message|>", "<|START_RESPONSE|>", "<|begin_of_solution|>")
"""What gpt-oss, Cohere and Sky write between a thought and the answer."""
_OVER = ("<|END_RESPONSE|>", "<|end_of_solution|>")
"""And behind it."""
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>"),
    *("<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"),
)
"""Tokens with which models end a message, where a server leaves them in the text."""
_FENCE = "```"
_SIGNED = frozenset(("thinking", "redacted_thinking"))


def without_thoughts(text: str) -> str:
    """A text without its thoughts, and without the token that ends it; the same object where it has neither. In time
    linear in the text."""
    text = _ended(text)
    if not any(map(text.__contains__, _FIRST)):
        return text
    said = _without_scratchpad(text)
    small = _small(said)
    for opening, closing in MARKS:
        looked_at = small if opening.islower() else said
        if closing in looked_at or opening in looked_at:
            left = _without(said, looked_at, opening, closing)
            if left is not said:
                said, small = left, _small(left)
    if said is not text:
        for mark in _FINAL:
            said = said.removeprefix(mark)
        for mark in _OVER:
            said = said.removesuffix(mark)
    return said


def _ended(text: str) -> str:
    bare = text.rstrip()
    if not bare.endswith(_ENDS) or (bare.endswith("</s>") and "<s>" in bare):
        return text
    return bare.removesuffix(next(filter(bare.endswith, _ENDS))).rstrip()


def spoken(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of the model without thoughts in its text; the same object where it has none, where nothing else is in
    it, and where it has signed thoughts, with which it is taken as it was or not at all."""
    content = message.get("content")
    if isinstance(content, str):
        said = without_thoughts(content)
        return message if said is content or not (said or message.get("tool_calls")) else {**message, "content": said}
    if (
        not isinstance(content, list | tuple)
        or message.get("type") == "reasoning"
        or any(isinstance(part, Mapping) and part.get("type") in _SIGNED for part in content)
    ):
        return message
    parts = [_spoken_part(part) for part in content]
    if all(new is old for new, old in zip(parts, content, strict=True)):
        return message
    kept = [part for part in parts if part is not None]
    return {**message, "content": kept} if kept or message.get("tool_calls") else message


def _spoken_part(part: Any) -> Any:
    """A part of a content; None: it was a thought."""
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str) or (said := without_thoughts(text)) is text:
        return part
    return {**part, "text": said} if said else None


def _small(text: str) -> str:
    """The text in small letters, with each at its place: of all, only the Turkish capital I would become two."""
    return text.replace("\u0130", "I").lower()


def _without_scratchpad(text: str) -> str:
    opening, closing = _SCRATCHPAD
    if text.lstrip()[: len(opening)].lower() != opening:
        return text
    ends = _small(text).find(closing)
    return (text[ends + len(closing) :].strip() if ends >= 0 else "") or text


def _without(text: str, looked_at: str, opening: str, closing: str) -> str:
    """`looked_at`: the text, or its small letters, for marks in any case."""
    kept, at, look = list[str](), 0, 0
    counted, fences, passed = 0, 0, -1
    start, stop = looked_at.find(opening), looked_at.find(closing)
    while True:
        # what was not found once is not looked for again
        start = looked_at.find(opening, look) if 0 <= start < look else start
        stop = looked_at.find(closing, look) if 0 <= stop < look else stop
        if start < 0 and stop < 0:
            break
        opens = stop < 0 or 0 <= start < stop
        first = start if opens else stop
        fences += text.count(_FENCE, counted, first)
        counted = first
        if fences % 2 or text[first - 1 : first] == "`":
            look = first + 1
        elif not opens and passed >= 0 and text.find("\n", passed, first) < 0:  # a line that speaks of both marks
            look, passed = first + len(closing), -1
        elif not opens:  # its beginning stood in the prompt, or inside another thought
            kept.clear()
            look = at = first + len(closing)
        elif not _begins_line(text, at, first):
            look, passed = first + len(opening), first
        else:
            kept.append(text[at:first])
            look = at = len(text) if stop < 0 else stop + len(closing)
            counted = at  # fences in a thought are none of the answer's
    if not at:
        return text
    return "".join([*kept, text[at:]]).strip()


def _begins_line(text: str, begin: int, at: int) -> bool:
    """Whether nothing but blanks stands before `at` in its line, or since `begin`."""
    while at > begin and text[at - 1] in " \t\r":
        at -= 1
    return at == begin or text[at - 1] == "\n"
