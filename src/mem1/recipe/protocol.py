"""`[protocol]` of a recipe: how a policy speaks. `protocol = "tools"` is short for the kind alone.

[protocol]
kind = "tags"               auto: as the model's folder says (mem1.policy.protocol)
base = "released"           all as in these tags, but
state = "memory"            <memory> in place of <think>
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mem1.configuration import Config
from mem1.engines.tool_calls import call_format
from mem1.errors import UserError
from mem1.protocol import PAPER, Parse, Tags, extended
from mem1.registry import register

AUTO, TAGS, FRAMED, TOOLS = "auto", "tags", "framed", "tools"
_NO_TAGS = ("kind", "base", "add", "thoughts", "template")


def base_tags(name: str) -> Tags:
    """The tags of this name: some that ship, registered ones, or package.module:NAME. Raises UserError."""
    tags = register.tags.get(name)
    if not isinstance(tags, Tags):
        raise UserError(f"the tags {name!r} are a {type(tags).__name__}; they must be a mem1.Tags")
    return tags


def _known_kind(kind: str) -> str:
    if kind not in (AUTO, TAGS, FRAMED):
        try:
            call_format(kind)
        except UserError as error:
            raise ValueError(f"a protocol is auto, tags, framed, or a way of calling tools: {error}") from error
    return kind


class Protocol(Config):
    """How a policy speaks. Tags that are not given follow from the model, the memories and the tasks."""

    kind: Annotated[str, AfterValidator(_known_kind)] = AUTO
    """auto: as the policy was trained, else by the model's chat template, else tags. tags: all in one text. framed:
    tags inside the chat template. tools: messages and calls as Qwen writes them; or another way of calling tools, a
    registered name or package.module:Name."""
    base: Annotated[str, AfterValidator(lambda name: base_tags(name) and name)] | None = None
    """Tags to begin with: paper, released, published, published-shop, search-r1, a registered name, or
    package.module:NAME. None: those that the policy was trained with, else paper."""
    add: tuple[Literal["act", "open", "summary", "recall", "note"], ...] = ()
    """Tags to have although neither memory nor tasks ask for them."""
    state: str | None = None
    thought: str | None = None
    """Tag of reasoning that does not survive into the next context; "": none."""
    note: str | None = None
    """Tag of notes, which stay until they are replaced; "": none."""
    actions: dict[str, str] | None = Field(default=None, min_length=1)
    """Kind -> tag of all actions."""
    result: str | None = None
    hint: str | None = None
    turns_left: str | None = None
    last_turn: str | None = None
    memory_left: str | None = None
    """Text in the hint with the fields {used} and {limit}, for memories with a limit."""
    layout: str | None = None
    parse: Parse | None = None
    thoughts: Literal["drop", "keep"] = "drop"
    """With tools: what becomes of <think> blocks in later contexts. They are trained either way."""
    template: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """With tools: variables of the chat template, such as enable_thinking."""

    @model_validator(mode="after")
    def _makes_tags(self) -> Protocol:
        self.tags(None, ())
        return self

    @property
    def says_tags(self) -> bool:
        """Whether it names a tag or anything else about how tags are written."""
        return self.base is not None or any(value is not None for key, value in self if key not in _NO_TAGS)

    def tags(self, trained: Tags | None, asked: Iterable[str]) -> Tags:
        """The tags to begin with (`trained`: those of the policy), what is asked for, and what this section says.

        Raises UserError where that is no usable set of tags.
        """
        begun = base_tags(self.base or PAPER.name) if self.base is not None or trained is None else trained
        tags = extended(begun, *asked, *self.add)
        given: dict[str, Any] = {key: value for key, value in self if value is not None and key not in _NO_TAGS}
        given |= {key: None for key in ("thought", "note") if given.get(key) == ""}
        if self.actions is not None:
            given["actions"] = tuple(self.actions.items())
        return replace(tags, name="own", **given) if given else tags


def _section(given: Any) -> Any:
    if isinstance(given, str):
        return {"kind": given}
    if isinstance(given, dict) and isinstance(given.get("add"), list):  # a list of JSON, behind which types are strict
        return {**given, "add": tuple(given["add"])}
    return given


ProtocolChoice = Annotated[Protocol, BeforeValidator(_section)]
"""`protocol` of a recipe: a kind, or the section."""
