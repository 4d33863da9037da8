"""An engine that follows a script: for tests, demonstrations, warm starts and checks of the accounting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mem1.engines.base import Completion, Sampling
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.tasks.prompts import first_question

Script = Callable[[str], str]
"""Text of a context -> text of the completion."""


class ScriptedEngine:
    """Completes each context with what `script` writes for its text; it has no log-probabilities."""

    def __init__(self, codec: Codec, script: Script, chat_template: ChatTemplate | None = None) -> None:
        """`chat_template` surrounds the prompt of every context; the script does not see it."""
        self.codec = codec
        self.script = script
        self.chat_template = chat_template or ChatTemplate()

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, cut off at its budget like a model's."""
        del sampling  # a script does not sample
        completions = []
        for context, budget in zip(contexts, max_tokens, strict=True):
            ids = self.codec.encode(self.script(self.codec.decode(self.chat_template.without(tuple(context)))))
            completions.append(Completion(token_ids=ids[:budget], stopped=len(ids) <= budget))
        return completions


def search_then_answer(answer: str, *, state: str, search: str) -> Script:
    """A script that searches the first question itself, then answers with a fixed text.

    `state` and `search` are the tag names of the protocol. Used to check scores and token counts by hand.
    """
    note = f"<{state}> now Q1 </{state}>"  # a prompt may show every tag, but not this note

    def script(context: str) -> str:
        if context.rstrip().endswith("<answer>"):
            return f"{answer} </answer>"
        if note in context:
            return f"<{state}> {answer} </{state}> <answer> {answer} </answer>"
        return f"{note} <{search}> {first_question(context)} </{search}>"

    return script
