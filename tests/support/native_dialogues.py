"""Dialogues of a model that has tool calls of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chat_templates import QWEN25_LIKE, tokenizer_with

from mem1.dialogue import NativeDialogue
from mem1.engines.base import Engine, Script, ScriptedEngine
from mem1.engines.chat_messages import ChatMessages
from mem1.envs.base import Action, Environment, Observation, Outcome
from mem1.memory import memory_policy
from mem1.protocol import PAPER, Tags
from mem1.records import Task
from mem1.rollout import Budget, Rollout

END = "<|im_end|>"


def call(query: str, name: str = "search") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


def dialogue(template: str = QWEN25_LIKE, tags: Tags = PAPER, **options) -> NativeDialogue:
    tokenizer, codec = tokenizer_with(template)
    return NativeDialogue(ChatMessages.of(tokenizer, codec, where="the test", **options), tags)


def native(
    script: Script | Engine, environment: Environment, speaks: NativeDialogue, *, context: str = "constant"
) -> Rollout:
    return Rollout(
        engine=ScriptedEngine(speaks.codec, script) if callable(script) else script,
        dialogue=speaks.offering(getattr(environment, "tools", ())),
        environment=environment,
        context=memory_policy(context),
        budget=Budget(context=20_000),
    )


@dataclass
class Noting:
    """Replies to everything with its number, and notes what it saw."""

    tools: tuple = ()
    seen: list[tuple[str, str, int]] = field(default_factory=list)

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        self.seen += [(a.kind, a.argument, len(a.history)) for a in actions]
        return [Observation(text=f"found {a.argument}") for a in actions]

    def score(self, task: Task, answer: str) -> Outcome:
        return Outcome(float(answer == task.questions[0].answers[0]))
