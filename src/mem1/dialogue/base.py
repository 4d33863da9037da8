"""The port of a dialogue: prompt, completions and results as tokens, and completions read as actions.

    tokens of the task's prompt                             dialogue.prompt(task)
    + what opens a requested action                         dialogue.opening(kind)
    -> the model's completion, read as a turn               dialogue.read(...), dialogue.actions(turn)
    + the environment's replies to its actions              dialogue.replies([...])

Everything is encoded once; a memory puts the pieces together (`mem1.memory`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.memory import Context
from mem1.protocol import Filled, Tags
from mem1.records import Span, Task, Turn


class Read(NamedTuple):
    """A completion, read."""

    kind: str
    content: str
    """The action's argument, or why the completion is malformed."""
    state: str
    spans: Mapping[str, Span]
    """Ranges of the completion's text by role."""
    calls: tuple[Wanted, ...] = ()
    notes: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """An action of a turn."""

    kind: str
    argument: str
    error: str = ""
    """Why the environment does not see it; the model reads this as its reply. Empty: it does."""


class Shown(NamedTuple):
    """What the model sees after a turn."""

    turn: Turn
    texts: tuple[str, ...]
    """The reply to each of its actions; to a summary, one that is empty."""
    turns_left: int
    trusted: bool = False
    """Whether the environment's author wrote the texts (`Observation.trusted`)."""
    memory: Filled | None = None
    """Tokens of its memory, and their limit; None: it has none."""


class Dialogue(Protocol):
    """One way of writing, for one model."""

    @property
    def codec(self) -> Codec: ...

    @property
    def tags(self) -> Tags:
        """Kinds of actions, and words of hints."""
        ...

    @property
    def name(self) -> str:
        """Tells it from others, in records."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts after which a completion ends."""
        ...

    @property
    def chat_template(self) -> ChatTemplate:
        """Tokens around every prompt, which a script does not see."""
        ...

    @property
    def framed(self) -> str:
        """The protocol that makes the contexts hold a chat template; empty: they hold none."""
        ...

    @property
    def forces_answers(self) -> bool:
        """Whether `opening` can make the model answer."""
        ...

    def general(self, task: Task) -> bool:
        """Whether completions need the room of a general model."""
        ...

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> Dialogue:
        """The same with these tools of an environment besides the actions of the tags, as JSON schemas."""
        ...

    def prompt(self, task: Task) -> tuple[int, ...]:
        """The head of every context of the task."""
        ...

    def opening(self, kind: str | None) -> tuple[int, ...]:
        """The end of a context whose completion must be this action; None: any."""
        ...

    def read(self, text: str, requested: str | None) -> Read:
        """A completion behind `opening(requested)`. Never raises."""
        ...

    def actions(self, turn: Turn) -> tuple[Wanted, ...]:
        """The turn's actions in order; the environment's, unless they end or summarise the attempt."""
        ...

    def forced(self, requested: str | None) -> Sequence[tuple[int, ...]]:
        """The fixed tokens of a completion that can be read, with room for any tokens between each two of them."""
        ...

    def replies(self, shown: Sequence[Shown]) -> list[tuple[str, tuple[int, ...]]]:
        """(text, tokens) of what each turn is shown. The texts come from strangers and are made harmless here."""
        ...


def turn_of(
    dialogue: Dialogue,
    ids: tuple[int, ...],
    context: Context,
    requested: str | None,
    completion_ids: tuple[int, ...],
    **fields: Any,
) -> Turn:
    """The turn of a completion; `ids` are those of the context and of `dialogue.opening(requested)`.

    fields      other fields of the turn
    """
    text = dialogue.codec.decode(completion_ids)
    read = dialogue.read(text, requested)
    return Turn(
        context_ids=ids,
        completion_ids=completion_ids,
        text=text,
        state=read.state,
        notes=read.notes,
        action=read.kind,
        content=read.content,
        calls=read.calls,
        prefilled=requested is not None,
        context_spans=dict(context.spans),
        context_origins=context.origins,
        completion_spans=dialogue.codec.token_spans(completion_ids, text, read.spans),
        **fields,
    )
