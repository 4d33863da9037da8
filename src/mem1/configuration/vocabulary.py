"""`vocabulary` of a recipe: a name, or the table [vocabulary] with the differences from another vocabulary.

[vocabulary]
base = "released"
state = "memory"            # mem1.protocol.vocabulary makes the Tags: all as in "released", but <memory>
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from mem1.configuration.model import Config, name_or

Parse = Literal["strict", "released"]
"""How completions are read: see `mem1.protocol.parse`."""


class Vocabulary(Config):
    """`[vocabulary]`: a vocabulary of your own, as its differences from another one. None: as there."""

    base: str = "paper"
    """Name of the other one."""
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


VocabularyChoice = Annotated[
    Annotated[str, Tag("str")] | Annotated[Vocabulary, Tag("Vocabulary")], name_or("Vocabulary")
]
"""`vocabulary` of a recipe: a name, or the table [vocabulary]."""
