"""`[engine] kind = "script"`: no model, but a search and a fixed answer, to check scores and token counts by hand.

[engine]
kind = "script"
answer = "Oslo"
"""

from __future__ import annotations

from mem1.engines.base import Engine, Script
from mem1.engines.config import OwnEngine, Speaks
from mem1.errors import UserError
from mem1.protocol import SEARCH
from mem1.tasks.prompts import first_question


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


class ScriptedAnswer(OwnEngine):
    """No model: searches the first question itself, then gives a fixed answer; to check scores and token counts."""

    kind: str = "script"
    answer: str

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def identity(self) -> str:
        return f"script {self.answer!r}"

    def engine(self, speaks: Speaks) -> Engine:
        from mem1.engines.base import ScriptedEngine

        tags = speaks.tags
        if SEARCH not in tags.action_tags:
            raise UserError(f"engine.kind = script searches, but the tags {tags.name!r} have no search action")
        follows = search_then_answer(self.answer, state=tags.state, search=tags.action_tags[SEARCH])
        return ScriptedEngine(speaks.codec, follows, speaks.chat_template)
