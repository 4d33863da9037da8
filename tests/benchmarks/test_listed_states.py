"""The answer that the harness lists from all states of an attempt."""

from __future__ import annotations

import dataclasses

import pytest
from listed_states import listed, listed_answer

from mem1.records import Ended, Question, Task, Trajectory, Turn

TASK = Task(
    id="t",
    prompt="",
    turn_limit=9,
    labels=(2, 5, 7),
    questions=tuple(Question(id=name, text="?", answers=(name,)) for name in ("Moru Kest", "Ana Brul", "Sela Prand")),
)


def attempt(*states: str, answer: str, ended: Ended = Ended.ANSWERED) -> Trajectory:
    turns = tuple(Turn(context_ids=(1,), completion_ids=(2,), logprobs=(0.0,), state=state) for state in states)
    return Trajectory(turns=turns, task=TASK, answer=answer, ended=ended)


def test_what_a_state_lost_is_listed_and_a_later_copy_changes_nothing():
    lost = attempt(
        "now Q2 Velan Toris 's birthplace ? Q2 then Q5",
        "Velan Toris 's birthplace is Moru Kest . Q2 Moru Kest now Q5 Dora Lint 's seat ? Q5 then Q7",
        "Q2 Moru Prand Q5 Ana Brul now Q7 Ana Lint 's mayor ? Q7 last",
        "Ana Lint 's mayor is Sela Prand . done",
        answer="Q7 Sela Prand",
    )
    assert listed_answer(lost) == "Q2 Moru Kest; Q5 Ana Brul; Q7 Sela Prand"
    assert listed(TASK, lost) == 3


def test_a_question_that_is_worked_on_or_unknown_is_not_answered():
    unknown = attempt(
        "Q2 unknown now Q5 Dora Lint 's seat ? Q5 last", "Q2 unknown done", answer="Q2 unknown ; Q5 Ana Brul"
    )
    assert listed_answer(unknown) == "Q5 Ana Brul"
    assert listed(TASK, unknown) == 1


@pytest.mark.parametrize("ended", [e for e in Ended if e is not Ended.ANSWERED])
def test_an_attempt_that_never_answered_gets_nothing(ended: Ended):
    cut = dataclasses.replace(attempt("Q2 Moru Kest done", answer=""), ended=ended)
    assert listed(TASK, cut) == 0
