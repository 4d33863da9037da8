"""Random valid conversations of every kind of call, under every memory: what is shown is valid and loses no pair."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from every_kind import KINDS_OF_FORMS, form_named, pairs_of, random_steps

from mem1.errors import UserError
from mem1.memory.policies import POLICIES
from mem1.messages import Bounds, Memory, check, fold

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
CONVERSATIONS = 150


def test_every_memory_that_ships_is_tried():
    assert {name.partition("(")[0] for name in MEMORIES} == set(POLICIES)


def shown_of(name: str, messages: list[Any], form: str, bounds: Bounds) -> list[Any] | None:
    """What the model sees, by a memory with a stand-in writer; None: not even the newest fits."""
    try:
        return Memory(name, form=form, bounds=bounds, write=lambda asked: "- what was done").prompt(messages)
    except UserError as error:
        assert bounds.prompt, error
        return None


@pytest.mark.parametrize("kind", KINDS_OF_FORMS)
def test_what_is_shown_of_any_valid_conversation_is_valid_and_loses_no_pair(kind: str):
    random, form = Random(kind), form_named(kind)
    dropped = seen = 0
    for number in range(CONVERSATIONS):
        steps = random_steps(random, kind)
        steps = steps[: random.randint(2, len(steps))]
        messages = [message for step in steps for message in step]
        check(messages, form)
        name, bounds = MEMORIES[number % len(MEMORIES)], BOUNDS[number % len(BOUNDS)]
        shown = shown_of(name, messages, form, bounds)
        if shown is None:
            continue
        seen += 1
        check(shown, form)
        calls, answers = pairs_of(shown, kind)
        given, answered = pairs_of(messages, kind)
        assert calls & answered == answers & given == answers, (name, bounds)
        assert fold(shown, name, form=form, bounds=bounds) == shown, (name, bounds)
        dropped += len(given - calls)
    assert seen > CONVERSATIONS * 0.9 and dropped > CONVERSATIONS
