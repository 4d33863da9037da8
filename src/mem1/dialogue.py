r"""Writes the turns of an attempt in tokens: in tags, or in the model's own messages and tool calls.

    tokens of the task's prompt                             dialogue.prompt(task)
    + what opens a requested action                         dialogue.opening(kind)
    -> the model's completion, read as a turn               dialogue.read(...), dialogue.actions(turn)
    + the environment's replies to its actions              dialogue.replies([...])

Everything is encoded once; a memory puts the pieces together (`mem1.memory`). In tags, prompt, completions and results
are one text (`mem1.protocol`). In the model's own protocol the task is the user's message, and actions are calls of
tools:

    <|im_start|>user\nQ1 ...<|im_end|>\n<|im_start|>assistant\n                                 prompt
    Oslo first.\n<tool_call>\n{"name": "search", ...}\n</tool_call><|im_end|>                   completion
    \n<|im_start|>user\n<tool_response>\n...\n</tool_response><|im_end|>\n<|im_start|>assistant\n   result

A message without calls is the answer, or an action where the environment decides when an attempt is over. Text before
a call is the state, and a thought is forgotten or kept (`ChatMessages.thoughts`). Calls of one message are answered
together. One that cannot be run (broken JSON, an unknown tool) is answered with an error, and the attempt goes on; the
environment does not see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from mem1.engines.chat_messages import ChatMessages, Message
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.engines.tool_calls import Asked, called
from mem1.memory import Context
from mem1.protocol import ACT, ANSWER, CALLS, MALFORMED, PAPER, SUMMARY, Filled, Tags, observation, parse, turns_left
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


@dataclass(frozen=True)
class TagDialogue:
    """For models that learn the tags, and those whose prompt explains them."""

    codec: Codec
    tags: Tags = PAPER
    chat_template: ChatTemplate = field(default_factory=ChatTemplate)
    """Tokens around the prompt, which go with it into every context; none: the prompt by itself."""
    forces_answers = True

    @property
    def name(self) -> str:
        return self.tags.name

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.tags.stop_strings

    @property
    def framed(self) -> str:
        return "" if self.chat_template == ChatTemplate() else "framed"

    def general(self, task: Task) -> bool:
        # no question can hold a tag, so one in the prompt is part of instructions
        return self.chat_template != ChatTemplate() or f"<{self.tags.state}>" in task.prompt

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> TagDialogue:
        del tools  # the tags are all there is, and the prompt explains them
        return self

    def prompt(self, task: Task) -> tuple[int, ...]:
        return self.codec.with_bos(self.chat_template.around(self.codec.encode_untrusted(task.prompt, self.tags)))

    def opening(self, kind: str | None) -> tuple[int, ...]:
        return () if kind is None else self.codec.encode(self.tags.opening(kind))

    def read(self, text: str, requested: str | None) -> Read:
        opening = self.tags.opening(requested)
        parsed = parse(opening + text, self.tags)
        in_text = {r: (max(a - len(opening), 0), b - len(opening)) for r, (a, b) in parsed.spans.items()}
        return Read(parsed.kind, parsed.error or parsed.content, parsed.state, in_text, notes=parsed.notes)

    def actions(self, turn: Turn) -> tuple[Wanted, ...]:
        return (Wanted(turn.action, turn.content),)

    def forced(self, requested: str | None) -> Sequence[tuple[int, ...]]:
        tags, encode = self.tags, self.codec.encode
        if requested is not None:
            return (), encode(f"</{tags.action_tags[requested]}>")
        action = next(tag for kind, tag in tags.actions if kind not in (ANSWER, SUMMARY))
        noted = (encode(f"</{tags.state}><{tags.note}>"), encode(f"</{tags.note}><{action}>"))
        between = noted if tags.note else (encode(f"</{tags.state}><{action}>"),)
        begun = (encode(f"<{tags.state}>"),)
        if tags.thought:
            begun = encode(f"<{tags.thought}>"), encode(f"</{tags.thought}><{tags.state}>")
        return *begun, *between, encode(f"</{action}>")

    def replies(self, shown: Sequence[Shown]) -> list[tuple[str, tuple[int, ...]]]:
        texts = [
            observation(one.texts[0], one.turns_left, self.tags, trusted=one.trusted, memory=one.memory)
            for one in shown
        ]
        encoded = self.codec.encode_each_untrusted([tagged for _, tagged in texts], self.tags)
        return [(inside, ids) for (inside, _), ids in zip(texts, encoded, strict=True)]


_ARGUMENTS = {"search": "query", "open": "address", "act": "action"}
_DESCRIBED = {
    "search": "Searches the documents and returns the best passages.",
    "open": "Opens a page by its address; a number after the address opens a later piece of it.",
    "act": "Takes one action in the environment and returns what it shows then.",
}
_SUMMARY = "<summary>\n"


@dataclass(frozen=True)
class NativeDialogue:
    """For models that were trained on chats and tools."""

    messages: ChatMessages
    tags: Tags
    own_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools of the environment; one of them replaces the action of its name."""
    chat_template = ChatTemplate()
    framed = "tools"
    forces_answers = False

    @property
    def codec(self) -> Codec:
        return self.messages.codec

    @property
    def name(self) -> str:
        return f"{self.tags.name} as {self.messages.name}"

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.messages.stop_strings

    def general(self, task: Task) -> bool:
        return True

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> NativeDialogue:
        return replace(self, own_tools=tuple(tools))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return offered(self.tags, self.own_tools)

    @cached_property
    def _parameters(self) -> Mapping[str, Mapping[str, Any]]:
        return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}

    @cached_property
    def _required(self) -> Mapping[str, Sequence[str]]:
        return {name: schema.get("required", ()) for name, schema in self._parameters.items()}

    def prompt(self, task: Task) -> tuple[int, ...]:
        return self.messages.encode([{"role": "user", "content": task.prompt}], self.tools, opened=self._keeping)

    @property
    def _keeping(self) -> bool:
        """Whether contexts hold thoughts, and what opened them; else only the newest message is opened."""
        return self.messages.thoughts == "keep"

    def opening(self, kind: str | None) -> tuple[int, ...]:
        if kind is None:
            return () if self._keeping else self.messages.opened_ids
        thinking = self._keeping and self.messages.opened.rstrip().endswith("<think>")
        return self.codec.encode(f"</think>\n\n{_SUMMARY}" if thinking else _SUMMARY)

    def read(self, text: str, requested: str | None) -> Read:
        said = self.messages.read(text)
        wanted = tuple(self._wanted(call) for call in said.calls)
        state = _inside(text, said.spans.get("state_text"))
        if not text.endswith(self.stop_strings):
            return Read(MALFORMED, "the message does not end", state, said.spans)
        if requested == SUMMARY:
            return Read(SUMMARY, said.text, said.text, said.spans)
        if len(wanted) == 1 and not wanted[0].error:
            return Read(wanted[0].kind, wanted[0].argument, state, said.spans, wanted)
        if wanted:
            return Read(CALLS, "\n".join(map(_shown, wanted)), state, said.spans, wanted)
        if not said.text:
            return Read(MALFORMED, "the message has neither text nor a call", state, said.spans)
        kind = ANSWER if self.tags.answers else ACT if ACT in self.tags.action_tags else CALLS
        return Read(kind, said.text, state, said.spans)

    def actions(self, turn: Turn) -> tuple[Wanted, ...]:
        if turn.calls:
            return tuple(Wanted(*call) for call in turn.calls)
        missing = f"error: call one of the tools: {', '.join(self._parameters)}" if turn.action == CALLS else ""
        return (Wanted(turn.action, turn.content, missing),)

    def forced(self, requested: str | None) -> Sequence[tuple[int, ...]]:
        encode, end = self.codec.encode, self.messages.end
        if requested is not None:
            return (), encode(end)
        tool = next(tool["function"]["name"] for tool in self.tools)
        before, after = self.messages.calls.around(tool, next(iter(self._parameters[tool].get("properties", {})), ""))
        thought = encode("</think>") if self.messages.opened.rstrip().endswith("<think>") else ()
        return thought, encode(before), encode(after + end)

    def replies(self, shown: Sequence[Shown]) -> list[tuple[str, tuple[int, ...]]]:
        return [self._reply(one) for one in shown]

    def _reply(self, shown: Shown) -> tuple[str, tuple[int, ...]]:
        first, *others = shown.texts
        texts = [f"{turns_left(shown.turns_left, self.tags, shown.memory).strip()}\n{first}".rstrip(), *others]
        role = "tool" if shown.turn.calls else "user"
        told: list[Message] = [{"role": role, "content": text} for text in texts]
        ids = self.messages.after(shown.turn.completion_ids, told, opened=self._keeping)
        return "\n".join(texts), ids

    def _wanted(self, call: Asked) -> Wanted:
        (checked,) = called([call], self._required)
        if checked.error:
            return Wanted(MALFORMED, json.dumps(dict(call.arguments)), f"error: {checked.error}")
        properties = self._parameters[call.name].get("properties", {})
        only = next(iter(properties.values()), {}) if len(properties) == 1 else {}
        if only.get("type") == "string":
            return Wanted(call.name, str(next(iter(call.arguments.values()), "")))
        return Wanted(call.name, json.dumps(dict(call.arguments), ensure_ascii=False))


def offered(tags: Tags, own_tools: Sequence[Mapping[str, Any]] = ()) -> tuple[Mapping[str, Any], ...]:
    """Schemas of all tools: of the environment, and of the actions of the tags."""
    own = {tool["function"]["name"] for tool in own_tools}
    kinds = [kind for kind in tags.action_tags if kind not in (ANSWER, SUMMARY) and kind not in own]
    return (*own_tools, *map(_tool, kinds))


def _tool(kind: str) -> Mapping[str, Any]:
    """The schema of an action with a text as its argument."""
    name = _ARGUMENTS.get(kind, "argument")
    parameters = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    described = _DESCRIBED.get(kind, f"Takes the action {kind}.")
    return {"type": "function", "function": {"name": kind, "description": described, "parameters": parameters}}


def _inside(text: str, span: tuple[int, int] | None) -> str:
    return "" if span is None else text[slice(*span)]


def _shown(wanted: Wanted) -> str:
    return wanted.error or f"{wanted.kind}({wanted.argument})"
