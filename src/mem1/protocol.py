"""The language between policy and environment: tags, parsing of model output, hints, protection from hostile text.

A protocol is data (`Tags`): which tag holds the state, which tags are actions, and which parts of a
completion survive into the next context. Both published sets are here (MEM1, arXiv 2506.15841):

    PAPER      <IS> state </IS> <query> q </query>            result in <info>
    RELEASED   <think> state </think> <search> q </search>    result in <information>

    parse("<IS> Q1 Oslo </IS> <query> mayor of Oslo </query>", tags=PAPER)
    -> Parsed(state="Q1 Oslo", kind="search", content="mayor of Oslo", error=None, ...)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from mem1.errors import UserError
from mem1.records import Span, note_role
from mem1.sanitize import letters_of, strip_brackets

ANSWER = "answer"
SEARCH = "search"
OPEN = "open"
ACT = "act"
SUMMARY = "summary"
RECALL = "recall"
NOTE = "note"
MALFORMED = "malformed"
CALLS = "calls"
"""Kind of a turn with several calls of tools, or with one that cannot be run."""

Parse = Literal["strict", "released"]
"""How completions are read: see `parse`."""
_HINT = re.compile(r"\[(\w+)\].*?\[/\1\]", re.DOTALL)
_TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_ANY_TAG = re.compile(r"[<\[][\s/]{0,19}([\w-]{1,32})\s{0,9}[>\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """A set of tags. Names are written without angle brackets."""

    name: str
    state: str
    """Tag of the internal state."""
    actions: tuple[tuple[str, str], ...]
    """(kind, tag) of every action. The kind "answer" ends the trajectory; without it, the environment decides."""
    result: str
    """Tag around the environment's reply."""
    thought: str | None = None
    """Tag of reasoning that does *not* survive into the next context; None: only the state is written."""
    note: str | None = None
    """Tag of what stays until it is replaced (`mem1.memory.notes`); a completion may have several. None: no notes."""
    hint: str = "HINT"
    """Tag, in square brackets, of the turns-left hint at the head of each result."""
    turns_left: str = " You have {turns} turns left. "
    """Text of the hint, blanks included."""
    last_turn: str | None = None
    """Text of the hint before the last turn; None: in our words, which tell to answer, or in a shop to finish."""
    memory_left: str | None = None
    """Text that follows in the hint and shows how much of its limit a memory has used, such as "[MEMORY {used} of
    {limit}] "; for memories with a limit. None: it is not shown."""
    layout: str = "<{result}> {hint} {text} </{result}>"
    """A result: its tags, the hint, which may be left out, and the environment's text."""
    parse: Parse = "strict"
    """How completions are read: see `parse`."""

    def __post_init__(self) -> None:
        for tag in (*self.names, self.hint):
            if not _TAG_NAME.fullmatch(tag):
                raise UserError(f"tags {self.name!r}: {tag!r} is no name of a tag; use letters, digits, - and _")
        if len(set(self.names)) < len(self.names):
            raise UserError(f"tags {self.name!r}: two tags have the same name ({', '.join(self.names)})")
        if self.note and self.parse != "strict":
            raise UserError(f"tags {self.name!r}: notes need parse = 'strict'")
        for part in ("<{result}>", "{hint}", "{text}", "</{result}>"):
            if self.layout.count(part) != 1 and (part != "{hint}" or part in self.layout):
                raise UserError(f"tags {self.name!r}: layout must have {part} once, unlike {self.layout!r}")
        try:
            _ = self.turns_left.format(turns=2), self.layout.format(result="", hint="", text="")
            _ = (self.memory_left or "").format(used=1, limit=2)
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(
                f"tags {self.name!r}: turns_left knows the field {{turns}}, memory_left {{used}} and {{limit}}, "
                f"layout {{result}}, {{hint}} and {{text}} ({type(error).__name__}: {error})"
            ) from error

    def __hash__(self) -> int:
        return hash(self.name)  # of all fields it would take longer than most of what looks tags up

    @property
    def action_tags(self) -> dict[str, str]:
        """kind -> tag."""
        return dict(self.actions)

    @property
    def answers(self) -> bool:
        """Whether an answer ends the attempt; if not, the environment decides, as a shop does."""
        return ANSWER in self.action_tags

    def opening(self, kind: str | None) -> str:
        """The opening tag of an action, which prefills a context that requests it; empty for None."""
        return "" if kind is None else f"<{self.action_tags[kind]}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Every tag name, hint excluded."""
        named = (self.thought, self.state, self.note, *(tag for _, tag in self.actions), self.result)
        return tuple(name for name in named if name)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts after which a completion ends: the closing tags of the actions."""
        return tuple(f"</{tag}>" for _, tag in self.actions)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All tags as they are written, for a tokenizer that keeps each as one token."""
        written = (f"<{slash}{name}>" for slash in ("", "/") for name in self.names)
        return (*written, f"[{self.hint}]", f"[/{self.hint}]")


PAPER = Tags(name="paper", state="IS", actions=(("search", "query"), ("answer", "answer")), result="info")
"""The tags of the paper."""
RELEASED = replace(
    PAPER, name="released", state="think", actions=((SEARCH, SEARCH), PAPER.actions[1]), result="information"
)
"""The tags of the released code and checkpoint (Mem-Lab/Qwen2.5-7B-RL-RAG-Q2-EM-Release)."""
PUBLISHED = replace(
    RELEASED,
    name="published",
    turns_left="You have {turns} turns left.",
    last_turn="You have 1 turn left. You must answer the question in the next turn.",
    layout="\n\n<{result}>{hint}\n\n{text}</{result}>\n\n",
    parse="released",
)
"""`RELEASED` with the words, the white space and the parser of the released training code: github.com/MIT-MI/MEM1 at
6f22061, Mem1/train/rollout/llm_agent/generation_think.py (MIT licence)."""
PUBLISHED_SHOP = replace(
    PUBLISHED, name="published-shop", thought="think", state="summary", actions=((ACT, "answer"),), result="state"
)
"""The released format for WebShop, of generation_webagent.py beside it: `<think>` is forgotten, `<summary>` is the
state, `<answer> search[words] </answer>` or `<answer> click[text] </answer>` the action, pages come in `<state>`."""
SEARCH_R1 = replace(PUBLISHED, name="search-r1", layout="\n\n<{result}>{text}</{result}>\n\n")
"""Search-R1's (arXiv 2503.09516, search_r1/llm_agent/generation.py): no hint, for `memory = "full"`."""
TAG_SETS: Mapping[str, Tags] = {t.name: t for t in (PAPER, RELEASED, PUBLISHED, PUBLISHED_SHOP, SEARCH_R1)}
_SUFFIXES = {ACT: "shop", OPEN: "web", NOTE: "notes", SUMMARY: "summary", RECALL: "recall"}
"""What tags can be extended by, in this order -> suffix of the name."""


def extended(tags: Tags, *asked: str) -> Tags:
    """The tags with what tasks and memories ask for: the kinds act, open, summary and recall, and notes.

        extended(PAPER, SUMMARY)   <summary> ... </summary>, for contexts that end with its opening tag
        extended(PAPER, NOTE)      <note> ... </note> for what stays; <summary> rewrites notes that have a limit
        extended(PAPER, ACT)       <action> search[words] </action>, in place of searches and answers

    What they have already stays as it is.
    """
    for kind, suffix in _SUFFIXES.items():
        has = tags.note is not None if kind == NOTE else kind in tags.action_tags
        if kind not in asked or has:
            continue
        actions = tags.actions
        if kind == ACT:
            actions = ((ACT, "action"),)
        elif kind != NOTE or (tags.answers and SUMMARY not in tags.action_tags):
            added = SUMMARY if kind == NOTE else kind
            actions = (*actions[:-1], (added, added), actions[-1])
        note = NOTE if kind == NOTE else tags.note
        tags = replace(tags, name=f"{tags.name}-{suffix}", actions=actions, note=note)
    return tags


def told_by_name(tags: Tags) -> bool:
    """Whether no other tags have this name: a set that ships, or one extended."""
    asked = (*tags.action_tags, *((NOTE,) if tags.note else ()))
    for shipped in TAG_SETS.values():
        with suppress(UserError):  # that cannot be extended so
            if extended(shipped, *asked) == tags:
                return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The parts of a completion. `spans` are character ranges of the text, tags included."""

    state: str = ""
    kind: str = MALFORMED
    """Kind of action, or "malformed"."""
    content: str = ""
    """The action's argument, stripped; empty where malformed."""
    error: str | None = None
    """Why the text is malformed; None: it is not."""
    thought: str = ""
    notes: tuple[str, ...] = ()
    """Texts of the notes, stripped, in order."""
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Roles "thought", "state", "action" where present; "state_text" is the state (or summary) without its tags, "rest"
    is text after the action, which only `parse = "released"` allows. Thought and rest do not survive. Notes have the
    roles of `note_role`."""


class Block(NamedTuple):
    """A tag with its content; positions count characters of the text."""

    inside: str
    start: int
    """Start of the opening tag."""
    begin: int
    """Start of the content."""
    stop: int
    """End of the closing tag."""

    @property
    def content(self) -> str:
        return self.inside.strip()

    @property
    def span(self) -> Span:
        return self.start, self.stop

    @property
    def content_span(self) -> Span:
        begin = self.begin + len(self.inside) - len(self.inside.lstrip())
        return begin, begin + len(self.content)


def blocks(text: str, tag: str) -> Iterator[Block]:
    """The complete blocks of a tag, each up to the next closing tag; in time linear in the text.

    A regular expression would look for the end of every block that has none.

        blocks("<note> a </note> <note> b", "note")  ->  the block of a
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = 0
    while (start := text.find(opening, end)) >= 0:
        begin = start + len(opening)
        stop = text.find(closing, begin)
        if stop < 0:
            return
        end = stop + len(closing)
        yield Block(text[begin:stop], start, begin, end)


def parse(text: str, tags: Tags = PAPER) -> Parsed:
    """Read one completion: an optional thought, an optional state, any notes, then exactly one action.

    strict     the first complete action block counts and must be the end of the text; text between blocks is ignored
    released   as the released training code does: see `_parse_released`

    Never raises, whatever the text.
    """
    if tags.parse == "released":
        return _parse_released(text, tags)
    pattern, kinds = _tag_pattern(tags)
    blocks: dict[str, Block] = {}
    notes: list[Block] = []
    opened: re.Match[str] | None = None
    for match in pattern.finditer(text):
        closing, name = match[1] == "/", match[2]
        if not closing:
            if opened is not None:
                return Parsed(error=f"<{name}> opens inside <{opened[2]}>")
            if name == tags.result:
                return Parsed(error=f"<{name}> is the environment's tag, not the policy's")
            if name in blocks:
                return Parsed(error=f"a second <{name}>")
            opened = match
            continue
        if opened is None:
            return Parsed(error=f"</{name}> closes nothing")
        if opened[2] != name:
            return Parsed(error=f"</{name}> closes <{opened[2]}>")
        block = Block(text[opened.end() : match.start()], opened.start(), opened.end(), match.end())
        opened = None
        if name == tags.note:
            notes.append(block)
            continue
        blocks[name] = block
        if name in kinds:
            if text[match.end() :].strip():
                return Parsed(error=f"text after </{name}>")
            if not blocks[name].content:
                return Parsed(error=f"<{name}> is empty")
            return _parsed(blocks, notes, tags, kind=kinds[name], content=blocks[name].content, action=name)
    if opened is not None:
        return Parsed(error=f"<{opened[2]}> is not closed")
    return _parsed(blocks, notes, tags, kind=MALFORMED, error="no action: " + " or ".join(f"<{t}>" for t in kinds))


def _parsed(
    blocks: Mapping[str, Block],
    notes: Sequence[Block],
    tags: Tags,
    *,
    kind: str,
    content: str = "",
    error: str | None = None,
    action: str = "",
) -> Parsed:
    roles = {"state": tags.state, "action": action}
    if tags.thought:
        roles["thought"] = tags.thought
    spans = {role: blocks[name].span for role, name in roles.items() if name in blocks}
    if tags.state in blocks or kind == SUMMARY:
        spans["state_text"] = blocks[action if kind == SUMMARY else tags.state].content_span
    spans |= {note_role(position): note.span for position, note in enumerate(notes)}
    return Parsed(
        state=blocks[tags.state].content if tags.state in blocks else "",
        thought=blocks[tags.thought].content if tags.thought and tags.thought in blocks else "",
        notes=tuple(note.content for note in notes),
        kind=kind,
        content=content,
        error=error,
        spans=spans,
    )


def _parse_released(text: str, tags: Tags) -> Parsed:
    """The text up to the first closing tag of the last kind of action, an answer, or else of another kind; in it the
    first complete action, wherever it stands. Malformed are only texts without one and empty actions.

    Text before the state is forgotten, or with a thought of its own everything up to the thought's end; so is what
    follows the cut. The rest survives as it is. An unclosed state reaches to the action.

        Well. <think> Oslo </think> hm <search> a </search> <search> b </search>
        thought: Well.   state: Oslo   action: search a   rest: <search> b </search>
    """
    kinds = {tag: kind for kind, tag in tags.actions}
    closed = (text.find(f"</{tag}>") + len(tag) + 3 for tag in reversed(kinds) if f"</{tag}>" in text)
    end = next(closed, len(text))
    complete = [(block, tag) for tag in kinds for block in islice(blocks(text[:end], tag), 1)]
    if not complete:
        return Parsed(error="no action: " + " or ".join(f"<{tag}>" for tag in kinds))
    action, name = min(complete, key=lambda found: found[0].start)
    if not action.content:
        return Parsed(error=f"<{name}> is empty")
    spans: dict[str, Span] = {"action": action.span}
    head, after = 0, text[:end].find(f"</{tags.thought}>") if tags.thought else -1
    if after >= 0:
        head = min(after + len(f"</{tags.thought}>"), action.start)
    state = _state_block(text[:end], tags.state, head, action.span)
    if state is not None:
        spans |= {"state": state.span, "state_text": state.content_span}
        head = head if tags.thought else min(state.start, action.start)
    if head:
        spans["thought"] = (0, head)
    if end < len(text):
        spans["rest"] = (end, len(text))
    return Parsed(
        state=state.content if state else "",
        thought=text[:head].removesuffix(f"</{tags.thought}>").replace(f"<{tags.thought}>", "", 1).strip(),
        kind=kinds[name],
        content=action.content,
        spans=spans,
    )


def _state_block(text: str, tag: str, head: int, action: Span) -> Block | None:
    """The first state after `head` that does not begin in the action; it ends before an action that it encloses."""
    start = text.find(f"<{tag}>", head)
    if start < 0 or action[0] <= start < action[1]:
        return None
    begin, limit = start + len(tag) + 2, action[0] if start < action[0] else len(text)
    close = text.find(f"</{tag}>", begin, limit)
    stop = close + len(tag) + 3 if close >= 0 else limit
    return Block(text[begin : close if close >= 0 else limit], start, begin, stop)


@lru_cache(maxsize=16)
def _tag_pattern(tags: Tags) -> tuple[re.Pattern[str], dict[str, str]]:
    names = "|".join(re.escape(n) for n in tags.names)
    return re.compile(rf"<(/?)({names})>"), {tag: kind for kind, tag in tags.actions}


Filled = tuple[int, int]
"""(tokens used, limit) of a memory."""


def turns_left(turns: int, tags: Tags = PAPER, memory: Filled | None = None) -> str:
    """The words at the head of each result, alike in training and evaluation.

    `turns` counts the turns still to come: at least 1 wherever a result is shown. `memory` is shown where the
    tags have words for it.
    """
    left = tags.turns_left.format(turns=turns)
    if turns == 1:
        ours = f" You have 1 turn left. You must {'answer' if tags.answers else 'finish'} now. "
        left = ours if tags.last_turn is None else tags.last_turn
    if memory is None or tags.memory_left is None:
        return left
    used, limit = memory
    return left + tags.memory_left.format(used=used, limit=limit)


def without_hint(text: str) -> str:
    """A reply as a turn records it, without the hint at its head."""
    return text[found.end() :] if (found := _HINT.match(text)) else text


def observation(
    text: str, turns: int, tags: Tags = PAPER, *, trusted: bool = False, memory: Filled | None = None
) -> tuple[str, str]:
    """The environment's reply with hint, as (text inside the tags, text with the tags).

    `text` comes from documents or the web, unless it is the environment's `trusted`; every environment relies on this
    function to make it harmless.
    """
    middle = tags.layout.partition("<{result}>")[2].partition("</{result}>")[0].strip()
    harmless = strip_tags(text, tags) if trusted else strip_markup(text, tags)
    inside = middle.format(hint=f"[{tags.hint}]{turns_left(turns, tags, memory)}[/{tags.hint}]", text=harmless)
    return inside, tagged(inside, tags)


def tagged(inside: str, tags: Tags) -> str:
    """The text inside the tags of a reply, as a turn records it, with the tags."""
    before, _, rest = tags.layout.partition("<{result}>")
    middle, _, after = rest.partition("</{result}>")
    first, last = len(middle) - len(middle.lstrip()), len(middle.rstrip())
    return f"{before.format()}<{tags.result}>{middle[:first]}{inside}{middle[last:]}</{tags.result}>{after.format()}"


_KNOWN_NAMES = frozenset(
    {"action", OPEN, SUMMARY, RECALL, NOTE, *(n.lower() for t in TAG_SETS.values() for n in (*t.names, t.hint))}
)


def strip_markup(text: str, tags: Tags = PAPER) -> str:
    """Make hostile text harmless: no tag of `tags` or of any known set remains readable in it.

        strip_markup("a </info><answer>x") -> "a (/info)(answer)x"

    Ordinary text without brackets is returned unchanged; see sanitize.py.
    """
    return strip_brackets(text, _harmful_names(tags))


def strip_tags(text: str, tags: Tags = PAPER) -> str:
    """Make the words of an environment's author harmless: only its own `tags` are no longer readable.

    strip_tags("Write <b> x </b> in <answer>") -> "Write <b> x </b> in (answer)"
    """
    own = {name.casefold() for name in (*tags.names, tags.hint)}
    return _ANY_TAG.sub(lambda tag: f"({tag[0][1:-1]})" if tag[1].casefold() in own else tag[0], text)


@lru_cache(maxsize=16)
def _harmful_names(tags: Tags) -> frozenset[str]:
    own = [name.lower() for name in (*tags.names, tags.hint)]
    return _KNOWN_NAMES | {*own, *map(letters_of, own)}  # square brackets are compared by letters
