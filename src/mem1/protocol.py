"""The language between policy and environment: tags, parsing of model output, hints, protection from hostile text.

A protocol is data (`Tags`): which tag holds the state, which tags are actions, and which parts of a
completion survive into the next context. Both published vocabularies are here (MEM1, arXiv 2506.15841):

    PAPER      <IS> state </IS> <query> q </query>            result in <info>
    RELEASED   <think> state </think> <search> q </search>    result in <information>

    parse("<IS> Q1 Oslo </IS> <query> mayor of Oslo </query>", tags=PAPER)
    -> Parsed(state="Q1 Oslo", kind="search", content="mayor of Oslo", error=None, ...)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from mem1.errors import UserError
from mem1.records import Span
from mem1.registry import register
from mem1.sanitize import strip_brackets

ANSWER = "answer"
SEARCH = "search"
OPEN = "open"
ACT = "act"
SUMMARY = "summary"
MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """A vocabulary of tags. Names are written without angle brackets."""

    name: str
    state: str
    """Tag of the internal state."""
    actions: tuple[tuple[str, str], ...]
    """(kind, tag) of every action. The kind "answer" ends the trajectory; without it, the environment decides."""
    result: str
    """Tag around the environment's reply."""
    thought: str | None = None
    """Tag of reasoning that does *not* survive into the next context; None: only the state is written."""
    hint: str = "HINT"
    """Tag, in square brackets, of the turns-left hint at the head of each result."""

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
        """Every tag name of this vocabulary, hint excluded."""
        thought = (self.thought,) if self.thought else ()
        return (*thought, self.state, *(tag for _, tag in self.actions), self.result)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts after which a completion ends: the closing tags of the actions."""
        return tuple(f"</{tag}>" for _, tag in self.actions)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All tags as they are written, for a tokenizer that keeps each as one token."""
        opened = [f"<{n}>" for n in self.names]
        closed = [f"</{n}>" for n in self.names]
        return (*opened, *closed, f"[{self.hint}]", f"[/{self.hint}]")


PAPER = Tags(name="paper", state="IS", actions=(("search", "query"), ("answer", "answer")), result="info")
"""The vocabulary of the paper."""
RELEASED = Tags(
    name="released", state="think", actions=(("search", "search"), ("answer", "answer")), result="information"
)
"""The vocabulary of the released code and checkpoint (Mem-Lab/Qwen2.5-7B-RL-RAG-Q2-EM-Release)."""


def _with(tags: Tags, suffix: str, kind: str) -> Tags:
    """The same vocabulary with one more action, whose tag is its kind; the answer remains last."""
    *others, answer = tags.actions
    return replace(tags, name=f"{tags.name}-{suffix}", actions=(*others, (kind, kind), answer))


PAPER_WEB = _with(PAPER, "web", OPEN)
"""The paper's tags and `<open> address </open>`, or `<open> address 2 </open>` for the second piece of a page."""
RELEASED_WEB = _with(RELEASED, "web", OPEN)
PAPER_SUMMARY = _with(PAPER, "summary", SUMMARY)
"""The paper's tags and `<summary> ... </summary>`, for contexts that end with its opening tag."""
RELEASED_SUMMARY = _with(RELEASED, "summary", SUMMARY)


def _in_a_shop(tags: Tags) -> Tags:
    """The same vocabulary with actions instead of searches and answers: the purchase is the answer."""
    return replace(tags, name=f"{tags.name}-shop", actions=((ACT, "action"),))


PAPER_SHOP = _in_a_shop(PAPER)
"""The paper's tags and `<action> search[words] </action>` or `<action> click[text] </action>`."""
RELEASED_SHOP = _in_a_shop(RELEASED)
VOCABULARIES: Mapping[str, Tags] = {
    t.name: t
    for t in (PAPER, RELEASED, PAPER_WEB, RELEASED_WEB, PAPER_SUMMARY, RELEASED_SUMMARY, PAPER_SHOP, RELEASED_SHOP)
}


def vocabulary(name: str) -> Tags:
    """The vocabulary called `name`: one that ships, or `Tags` of your own. Raises UserError for an unknown name."""
    tags = register.vocabulary.get(name)
    if not isinstance(tags, Tags):
        raise UserError(f"the vocabulary {name!r} is a {type(tags).__name__}; it must be a mem1.Tags")
    return tags


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
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Roles "thought", "state", "action" where present; "state_text" is the state without its tags."""


def parse(text: str, tags: Tags = PAPER) -> Parsed:
    """Read one completion: an optional thought, an optional state, then exactly one action.

    The first complete action block counts and must be the end of the text. Text between blocks is ignored. This is
    stricter than the published code, which searches for an action with a regular expression and calls nothing
    malformed. Never raises, whatever the text.
    """
    pattern, kinds = _tag_pattern(tags)
    blocks: dict[str, _Block] = {}
    opened: re.Match[str] | None = None
    for match in pattern.finditer(text):
        closing, name = match[1] == "/", match[2]
        if not closing:
            if opened is not None:
                return _malformed(f"<{name}> opens inside <{opened[2]}>")
            if name == tags.result:
                return _malformed(f"<{name}> is the environment's tag, not the policy's")
            if name in blocks:
                return _malformed(f"a second <{name}>")
            opened = match
            continue
        if opened is None:
            return _malformed(f"</{name}> closes nothing")
        if opened[2] != name:
            return _malformed(f"</{name}> closes <{opened[2]}>")
        blocks[name] = _Block(text[opened.end() : match.start()], opened.start(), opened.end(), match.end())
        opened = None
        if name in kinds:
            if text[match.end() :].strip():
                return _malformed(f"text after </{name}>")
            if not blocks[name].content:
                return _malformed(f"<{name}> is empty")
            return _parsed(blocks, tags, kind=kinds[name], content=blocks[name].content, action=name)
    if opened is not None:
        return _malformed(f"<{opened[2]}> is not closed")
    return _parsed(blocks, tags, kind=MALFORMED, error="no action: " + " or ".join(f"<{t}>" for t in kinds))


class _Block(NamedTuple):
    """A tag with its content; positions count characters of the completion."""

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


def _malformed(error: str) -> Parsed:
    return Parsed(kind=MALFORMED, error=error)


def _parsed(
    blocks: Mapping[str, _Block],
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
    if tags.state in blocks:
        spans["state_text"] = blocks[tags.state].content_span
    return Parsed(
        state=blocks[tags.state].content if tags.state in blocks else "",
        thought=blocks[tags.thought].content if tags.thought and tags.thought in blocks else "",
        kind=kind,
        content=content,
        error=error,
        spans=spans,
    )


@lru_cache(maxsize=16)
def _tag_pattern(tags: Tags) -> tuple[re.Pattern[str], dict[str, str]]:
    names = "|".join(re.escape(n) for n in tags.names)
    return re.compile(rf"<(/?)({names})>"), {tag: kind for kind, tag in tags.actions}


def hint(turns_left: int, tags: Tags = PAPER) -> str:
    """The line at the head of each result, worded alike in training and evaluation.

    `turns_left` counts the turns still to come: at least 1 wherever a result is shown.
    """
    last = "You must answer now." if tags.answers else "You must finish now."
    body = f"You have 1 turn left. {last}" if turns_left == 1 else f"You have {turns_left} turns left."
    return f"[{tags.hint}] {body} [/{tags.hint}]"


def observation(text: str, turns_left: int, tags: Tags = PAPER) -> tuple[str, str]:
    """The environment's reply with hint, as (text inside the tags, text with the tags).

    `text` comes from documents or the web; every environment relies on this function to make it harmless.
    """
    inside = f"{hint(turns_left, tags)} {strip_markup(text, tags)}"
    return inside, f"<{tags.result}> {inside} </{tags.result}>"


_KNOWN_NAMES = frozenset(n.lower() for t in VOCABULARIES.values() for n in (*t.names, t.hint))


def strip_markup(text: str, tags: Tags = PAPER) -> str:
    """Make hostile text harmless: no tag of `tags` or of any known vocabulary remains readable in it.

        strip_markup("a </info><answer>x") -> "a (/info)(answer)x"

    Ordinary text without brackets is returned unchanged; see sanitize.py.
    """
    return strip_brackets(text, _harmful_names(tags))


@lru_cache(maxsize=16)
def _harmful_names(tags: Tags) -> frozenset[str]:
    return _KNOWN_NAMES | {name.lower() for name in (*tags.names, tags.hint)}
