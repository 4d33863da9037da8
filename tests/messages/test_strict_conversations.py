"""Random conversations of every kind of call against the strict server of their form: folds are never refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from every_kind import KINDS_OF_FORMS, form_named, random_steps
from strict_forms import refused

from mem1.errors import UserError
from mem1.messages import Bounds, Memory, fold

MEMORIES = (
    *("full", "window(2)", "masked(1)", "archive(2)", "fold(2)", "notes", "notebook(4)", "discard_all(300)"),
    *("summary(300)", "capped(60)", "constant", "dropout(50)", "belief", "external(2)", "none"),
)
BOUNDS = (
    Bounds(),
    Bounds(result=60, state=60, images=1),
    Bounds(prompt=1_500, result=200, state=100),
    Bounds(images=0, handles=True),
)
CONVERSATIONS = 300


@pytest.mark.parametrize("kind", KINDS_OF_FORMS)
def test_nothing_that_a_memory_shows_or_asks_is_refused(kind: str):
    random, form = Random(f"strict {kind}"), form_named(kind)
    shown_of: list[int] = []
    asked: list[Any] = []

    def write(messages: Any) -> str:
        asked.append(messages)
        return "- what was done"

    for number in range(CONVERSATIONS):
        steps = random_steps(random, kind)
        given = [message for step in steps[: random.randint(2, len(steps))] for message in step]
        assert refused(kind, given, given) == ""
        name, bounds = MEMORIES[number % len(MEMORIES)], BOUNDS[number % len(BOUNDS)]
        asked.clear()
        try:
            shown = Memory(name, form=form, bounds=bounds, write=write).prompt(given)
            again = fold(shown, name, form=form, bounds=bounds)
        except UserError as error:
            assert bounds.prompt, error  # not even the newest fits
            continue
        for messages in (shown, again, *asked):
            assert refused(kind, messages, given) == "", (number, name, bounds)
        shown_of.append(len(given) - len(shown))
    assert len(shown_of) > 0.9 * CONVERSATIONS and sum(shown_of) > CONVERSATIONS


@pytest.mark.parametrize("kind", KINDS_OF_FORMS)
def test_a_conversation_that_lost_one_message_is_refused_where_a_pair_is_broken(kind: str):
    """The strict servers have teeth."""
    random = Random(f"lost {kind}")
    tried = 0
    while tried < 100:
        given = [message for step in random_steps(random, kind) for message in step]
        if paired := [at for at, message in enumerate(given) if _paired(message)]:
            lost = random.choice(paired)
            assert refused(kind, [*given[:lost], *given[lost + 1 :]], given) != "", given[lost]
            tried += 1


def _paired(message: Any) -> bool:
    """Whether a result, or a message with calls, is in it."""
    kind, content = message.get("type", "message"), message.get("content")
    if kind.endswith(("function_call", "function_call_output")) or message.get("tool_calls"):
        return True
    blocks = content if isinstance(content, list) else []
    return message.get("role") == "tool" or any(block.get("type") in ("tool_use", "tool_result") for block in blocks)
