"""A dialogue in tags: one text in which prompt, completions and results follow one another (`mem1.protocol`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mem1.dialogue.base import Read, Shown, Wanted
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.protocol import ANSWER, PAPER, SUMMARY, Tags, observation, parse
from mem1.records import Task, Turn


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
