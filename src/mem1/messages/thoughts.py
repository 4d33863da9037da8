"""Thoughts that a server without a parser for them leaves in a text: what was said is what comes after them.

    without_thoughts("<think>Which city?</think>\\n\\nOslo")     ->  "Oslo"
    without_thoughts("Which city?\\n</think>\\n\\nOslo")          ->  "Oslo"     the template had opened it
    without_thoughts("<think>Which ci")                         ->  ""         cut off
    without_thoughts("Oslo<|im_end|>")                          ->  "Oslo"
    without_thoughts("`<think>` opens a thought.")              ->  as it is

`Speech` does the same for a text that comes in pieces.

A mark counts at the beginning of a line, its end anywhere, and neither in a fenced block nor inside backquotes: with
one before it in its line and one behind it, or right before it. Marks in small letters count in any case. What texts
and files may well have counts where it is most likely a mark: an end without a beginning at either end of a line or
before a mark of the answer or of a call, if it is no tag (as [/THINK]) between two words without a blank, too, and
<|end|>, by which templates end any message, only before such a mark; <thinking>, <thought> and <reasoning> where
nothing was said before. A <scratchpad>, which is asked for by prompts, is a thought where the text begins with it and
something follows; elsewhere, and with tags such as <reflection> or <reason>, it may be what the user wants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
_FIRST_OF_ALL = {tag: f"</{tag[1:]}" for tag in ("<thinking>", "<thought>", "<reasoning>")}
"""Words of prompts and files, too."""
_SAID = re.compile(r"\S")
_SCRATCHPAD = ("<scratchpad>", "</scratchpad>")
_FIRST = frozenset(mark[0] for marks in MARKS for mark in marks)
_FINAL = (
    *("<|start|>assistant", "<|channel|>final<|message|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
    "<|begin_of_solution|>",
)
"""What gpt-oss, Cohere and Sky write between a thought and the answer."""
_OVER = ("<|END_RESPONSE|>", "<|END_TEXT|>", "<|end_of_solution|>")
"""And behind it."""
_BEHIND = (*_FINAL, "<|START_ACTION|>")
"""What shows that a mark before it ended a thought."""
_LAST = re.compile(r"[\w.!?\u2026\u3002]")
_NEXT = re.compile(r"[\w*<\[{]")
"""Signs between which a special token stands without blanks where it ends a thought inside a line."""
ENDS = (
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
        if opening in _FIRST_OF_ALL:
            continue
        if closing in looked_at or opening in looked_at:
            left = _without(said, looked_at, opening, closing)
            if left is not said:
                said, small = left, _small(left)
    said = _without_first(said, small)
    if said is not text:
        for mark in _FINAL:
            said = said.removeprefix(mark)
        for mark in _OVER:
            said = said.removesuffix(mark)
    return said


def has_marks(text: str) -> bool:
    """Whether a mark of a thought is in the text, at whatever place."""
    small = _small(text)
    return any((small if mark.islower() else text).find(mark) >= 0 for marks in MARKS for mark in marks)


def _ended(text: str) -> str:
    said, bare = text, text.rstrip()
    while bare.endswith(ENDS) and not (bare.endswith("</s>") and "<s>" in bare):
        said = bare = bare.removesuffix(next(filter(bare.endswith, ENDS))).rstrip()
    return said


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


def _without_first(text: str, small: str) -> str:
    """Without the thoughts with which a text begins, and of whose marks texts speak, too."""
    at = 0
    for opening, closing in _FIRST_OF_ALL.items():
        stop = small.find(closing)
        if 0 <= stop < small.find(opening) % (len(small) + 1) and _at_an_end(text, 0, stop, stop + len(closing)):
            at = max(at, stop + len(closing)) if text.count(_FENCE, 0, stop) % 2 == 0 else at  # begun in the prompt
    while (said := _SAID.search(text, at)) is not None:
        opening = next((tag for tag in _FIRST_OF_ALL if small.startswith(tag, said.start())), "")
        if not opening:
            break
        stop, inner = said.start(), 1
        while inner > 0 and (found := small.find(_FIRST_OF_ALL[opening], stop)) >= 0:
            inner += small.count(opening, stop + 1, found) - 1
            stop = found + len(_FIRST_OF_ALL[opening])
        at = stop if stop > said.start() else len(text)
    return text[at:].strip() if at else text


def _without(text: str, looked_at: str, opening: str, closing: str) -> str:
    """`looked_at`: the text, or its small letters, for marks in any case."""
    kept, at, look = list[str](), 0, 0
    counted, fences, ticks, passed, inner = 0, 0, 0, -1, 0
    tick, end = text.find("`"), -1  # the next backquote, and the end of the line
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
        line = text.rfind("\n", counted, first) + 1
        ticks = text.count("`", line or counted, first) + (0 if line else ticks)
        counted = first
        if 0 <= tick < first:
            tick = text.find("`", first)
        if end < first:
            end = text.find("\n", first) % (len(text) + 1)
        if fences % 2 or (ticks % 2 and (0 <= tick < end or text[first - 1] == "`")):
            look = first + 1
        elif not opens and passed >= 0 and text.find("\n", passed, first) < 0:  # a line that speaks of both marks
            look, passed = first + len(closing), -1
        elif not (opens or inner or _ends_a_thought(text, at, first, closing)):
            look = first + len(closing)  # a text that speaks of the mark
        elif not opens:  # its beginning stood in the prompt, or inside another thought
            kept.clear()
            inner = max(0, inner - 1)
            look = at = first + len(closing)
        elif not _begins_line(text, at, first):
            look, passed = first + len(opening), first
        else:
            kept.append(text[at:first])
            inner += looked_at.count(opening, first + len(opening), max(stop, first))
            look = at = len(text) if stop < 0 else stop + len(closing)
            counted, ticks = at, 0  # fences and backquotes in a thought are none of the answer's
    if not at:
        return text
    return "".join([*kept, text[at:]]).strip()


def _ends_a_thought(text: str, begin: int, at: int, closing: str) -> bool:
    """Whether the end of a thought without its beginning is one, and not what a text speaks of."""
    stop = at + len(closing)
    if text.startswith(_BEHIND, stop):
        return True
    if closing in ENDS:
        return False
    between = not closing.startswith("</") and at > begin and _LAST.match(text, at - 1) and _NEXT.match(text, stop)
    return bool(between) or _at_an_end(text, begin, at, stop)


def _at_an_end(text: str, begin: int, start: int, stop: int) -> bool:
    """Whether what stands from `start` to `stop` begins or ends its line."""
    return _begins_line(text, begin, start) or _ends_line(text, stop)


def _ends_line(text: str, at: int) -> bool:
    """Whether nothing but blanks stands behind `at` in its line."""
    while at < len(text) and text[at] in " \t\r":
        at += 1
    return at == len(text) or text[at] == "\n"


def _begins_line(text: str, begin: int, at: int) -> bool:
    """Whether nothing but blanks stands before `at` in its line, or since `begin`."""
    while at > begin and text[at - 1] in " \t\r":
        at -= 1
    return at == begin or text[at - 1] == "\n"


def begins_inside(text: str) -> bool:
    """Whether a text has the end of a thought that began in the prompt."""
    small, said = _small(_ended(text)), _small(without_thoughts(text))
    for opening, closing in MARKS:
        opens, stop = small.find(opening.lower()), small.find(closing.lower())
        if stop >= 0 and not 0 <= opens < stop and closing.lower() not in said:
            return True
    return False


_LONGEST = 2 * max(len(mark) for marks in (*MARKS, _FINAL) for mark in marks)
"""Characters of an end of a thought and of a mark of the answer behind it."""


class Speech:
    """What is said of a text that comes in pieces; what may belong to a mark is held back until more has come.

        [*map(speech.add, ("<thi", "nk>hm</think>Os", "lo<|im", "_end|>")), speech.rest()]      ["", "Os", "lo", "", ""]

    Put together, it is `without_thoughts` of the whole; but of a thought that began in the prompt only the end is seen,
    too late.

    inside      the text begins in such a thought: nothing is said before its end, or the end of the text
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._held, self._small, self._at = "", "", 0
        """What may belong to a mark, from `_at` on; and its small letters."""
        self._tail = ""
        """What may belong to the token that ends the text, with the blanks before it."""
        self._awaited = tuple(closing for _, closing in MARKS) if inside else ()
        """One of these has to come before anything is said: up to there it is a thought."""
        self._looked = 0
        """Where what is held has not been searched for them."""
        self._closing = ""
        """The end of the thought that is coming."""
        self._blank, self._begins_line, self._fences = True, True, 0
        """Whether nothing but blanks was decided, whether a line begins, and fences so far."""
        self._left_out = self._said = self._struck = self._over = False

    def add(self, piece: str) -> str:
        """What is said now."""
        self._held, self._small = self._held[self._at :] + piece, self._small[self._at :] + _small(piece)
        self._looked, self._at = max(0, self._looked - self._at), 0
        decided = [self._tail]
        while self._at < len(self._held) and (text := self._next()) is not None:
            decided.append(text)
        text = "".join(decided)
        text = text.lstrip() if self._left_out and not self._said else text
        last = text.rfind("<")
        end = len(text[: last if last >= 0 and _may_end(text[last:]) else len(text)].rstrip())
        self._tail, text = text[end:], text[:end]
        self._said = self._said or bool(text)
        self._struck = self._struck or "<s>" in text
        return text

    def rest(self) -> str:
        """What is left when all has come."""
        self._over = True
        said = self.add("")
        struck = "<s>" if self._struck else ""  # with which </s> is no token
        tail = _ended(struck + self._tail).removeprefix(struck)
        if self._left_out:
            tail = tail.rstrip()
            for mark in _OVER:
                tail = tail.removesuffix(mark)
        return said + tail

    def _next(self) -> str | None:
        """The next of what is held, without a thought that it begins with; None: more has to come."""
        if self._closing or self._awaited:
            return self._thought()
        begin = self._at
        if self._begins_line and not self._fences % 2:
            while begin < len(self._held) and self._held[begin] in " \t\r":
                begin += 1
            for opening, closing in self._marks():
                if opening in _FIRST_OF_ALL and not self._blank:
                    continue
                looked = (self._small if opening.islower() else self._held)[begin : begin + len(opening)]
                if looked == opening:
                    return self._begin(begin, opening, closing)
                if opening.startswith(looked) and not self._over:
                    return None
        end = self._held.find("\n", self._at) + 1
        self._begins_line = end > 0
        text = self._held[self._at : end or len(self._held)]
        if not end and not self._over:  # a fence may go on
            ticks = len(text) - len(text.rstrip("`"))
            text = text[: len(text) - ticks % len(_FENCE)]
        self._at += len(text)
        self._fences += text.count(_FENCE)
        self._blank = self._blank and not text.strip()
        return text or None

    def _marks(self) -> Sequence[tuple[str, str]]:
        """Beginnings that count here, with what ends each; "": it stands alone."""
        if not self._blank or self._over:
            return MARKS
        return (*MARKS, *((mark, "") for mark in _FINAL)) if self._left_out else (*MARKS, _SCRATCHPAD)

    def _begin(self, at: int, opening: str, closing: str) -> str:
        if opening == _SCRATCHPAD[0]:  # a thought only if something follows
            self._awaited, self._looked = (closing,), at
            return ""
        blanks, self._at = self._held[self._at : at], at + len(opening)
        self._closing, self._looked, self._left_out = closing, self._at, True
        return blanks

    def _thought(self) -> str | None:
        """Leaves out what has come of a thought."""
        begin, ends = max(self._at, self._looked - _LONGEST), list[int]()
        for mark in self._awaited or (self._closing,):
            held = self._small if mark.islower() else self._held
            found = held.find(mark, begin)
            inside = bool(self._awaited) and mark != _SCRATCHPAD[1]
            while found >= 0 and inside and not _ends_a_thought(held, 0, found, mark):
                found = held.find(mark, found + 1)
            if found >= 0:
                ends.append(found + len(mark))
        end = min(ends, default=0)
        if end and (self._awaited != _SCRATCHPAD[1:] or not _may_end(self._held[end:])):
            self._at, self._closing, self._awaited = end, "", ()
            self._begins_line = self._left_out = True
            return ""
        if self._awaited and self._over:
            self._awaited = ()
            return ""
        self._looked = end or len(self._held)
        if self._closing:
            self._at = max(self._at, self._looked - _LONGEST)
        return None


def _may_end(text: str) -> bool:
    """Whether nothing follows but, as far as it has come, the token that ends a text, or one of HTML's with which
    </s> is none."""
    return any(mark.startswith(text.strip()) for mark in (*ENDS, *_OVER, "<s>"))
