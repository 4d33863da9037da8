"""The nouns: what they refuse, and that a trajectory survives its JSON line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from mem1.records import (
    Ended,
    Group,
    Passage,
    Question,
    Task,
    Trajectory,
    Turn,
    trajectory_from_json,
    trajectory_to_json,
)

QUESTION = Question(id="q1", text="Who founded Alvex?", answers=("Mira Toll", "M. Toll"), source="atlas", hops=1)
TASK = Task(
    id="t1", questions=(QUESTION,), prompt="Q1 Who founded Alvex?", turn_limit=6, corpus="world-1", seed=7, labels=(1,)
)
TURNS = (
    Turn(
        context_ids=(1, 2),
        completion_ids=(5, 6),
        logprobs=(-0.5, -0.25),
        observation_ids=(9,),
        text="<IS> </IS> <query> Alvex </query>",
        action="search",
        content="Alvex",
        observation="[HINT] You have 5 turns left. [/HINT] Alvex ...",
        context_spans={"prompt": (0, 2)},
        completion_spans={"state": (0, 1), "action": (1, 2)},
    ),
    Turn(
        context_ids=(1, 2, 5, 6, 9),
        completion_ids=(7, 8),
        logprobs=(-0.1, -1.5),
        action="answer",
        prefilled=True,
        context_origins=((1, "state", 2, 3), (1, "query", 3, 4), (1, "result", 4, 5)),
    ),
)
TRAJECTORY = Trajectory(
    turns=TURNS,
    task=TASK,
    answer="Q1 Mira Toll",
    reward=1.0,
    metrics={"em": (1.0,), "f1": (1.0,)},
    context="constant",
    seconds=0.25,
)


def test_a_record_holds_every_field():
    record = json.loads(json.dumps({"version": 3, **dataclasses.asdict(TRAJECTORY)}))
    assert (record["task"].pop("scorer"), record["task"].pop("whole")) == ("", False), "defaults are not written"
    assert [question.pop("read_at") for question in record["task"]["questions"]] == [None] * len(TASK.questions)
    assert json.loads(json.dumps(trajectory_to_json(TRAJECTORY))) == record


def test_a_trajectory_written_as_a_line_of_json_reads_back_equal():
    line = json.dumps(trajectory_to_json(TRAJECTORY))
    again = trajectory_from_json(json.loads(line))
    assert again == TRAJECTORY
    assert again.turns[0].completion_spans == {"state": (0, 1), "action": (1, 2)}
    assert again.task is not None
    assert again.task.questions[0].answers == ("Mira Toll", "M. Toll")


def test_the_turn_that_reads_what_a_question_is_about_survives_json():
    task = dataclasses.replace(TASK, questions=(dataclasses.replace(QUESTION, read_at=3),), labels=())
    record = json.loads(json.dumps(trajectory_to_json(dataclasses.replace(TRAJECTORY, task=task))))
    assert trajectory_from_json(record).task == task


def test_what_a_question_depends_on_survives_json_and_a_record_without_it_depends_on_nothing():
    second = Question(id="q2", text="Where was the answer to Q1 born?", answers=("B",), titles=("T",), depends_on=(1,))
    task = dataclasses.replace(TASK, questions=(QUESTION, second), labels=())
    record = json.loads(json.dumps(trajectory_to_json(dataclasses.replace(TRAJECTORY, task=task))))
    assert trajectory_from_json(record).task == task
    assert task.depths == (0, 1)
    for question in record["task"]["questions"]:
        del question["depends_on"], question["titles"]
    again = trajectory_from_json(record).task
    assert again is not None and again.depths == (0, 0)


@pytest.mark.parametrize("depends_on", [(2,), (3,), (0,), (-1,)])
def test_a_question_depends_on_earlier_ones_alone(depends_on: tuple[int, ...]):
    second = dataclasses.replace(QUESTION, depends_on=depends_on)
    with pytest.raises(ValueError, match="Q2 depends on"):
        dataclasses.replace(TASK, questions=(QUESTION, second), labels=())


@pytest.mark.parametrize("ended", list(Ended))
def test_every_ending_survives_json(ended: Ended):
    trajectory = Trajectory(turns=(), ended=ended, detail="why")
    again = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory))))
    assert again.ended is ended
    assert again.detail == "why"


def test_never_scored_and_scored_zero_stay_different_through_json():
    never, zero = Trajectory(turns=()), Trajectory(turns=(), reward=0.0)
    assert trajectory_from_json(trajectory_to_json(never)).reward is None
    assert trajectory_from_json(trajectory_to_json(zero)).reward == 0.0


@pytest.mark.parametrize("version", [None, 0, 1, "2"])
def test_a_record_of_another_version_is_refused(version: object):
    with pytest.raises(ValueError, match="version"):
        trajectory_from_json({**trajectory_to_json(TRAJECTORY), "version": version})


def test_trajectories_are_equal_by_value_and_differ_in_one_token():
    same = dataclasses.replace(TRAJECTORY, turns=tuple(dataclasses.replace(t) for t in TURNS))
    other = dataclasses.replace(TRAJECTORY, turns=(TURNS[0], dataclasses.replace(TURNS[1], completion_ids=(7, 9))))
    assert same == TRAJECTORY
    assert other != TRAJECTORY


@pytest.mark.parametrize(
    ("record", "field"),
    [(QUESTION, "text"), (TASK, "seed"), (TURNS[0], "logprobs"), (TRAJECTORY, "reward"), (Passage("p", "", "x"), "id")],
)
def test_records_are_frozen(record: object, field: str):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, getattr(record, field))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        *(
            (lambda text=text, answers=answers: Question(id="q9", text=text, answers=answers), "'q9' has no")
            for text, answers in (("", ("a",)), (" \n", ("a",)), ("Who?", ()), ("Who?", ("", " ")))
        ),
        (lambda: Question(id="q9", text="Who?", answers="Oslo"), r"tuple of texts, such as \('Oslo',\)"),  # type: ignore
        (lambda: Passage("p1", "title", " "), "'p1' has no text"),
        (lambda: Task(id="t", questions=(), prompt="", turn_limit=3), "no questions"),
        (lambda: dataclasses.replace(TASK, turn_limit=0), "turn_limit must be at least 1, not 0"),
        (lambda: Turn(context_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0,)), "2 completion tokens but 1 logprobs"),
        (lambda: Turn(context_ids=(), completion_ids=(2,)), "at least one context token"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused(make: Callable[[], object], why: str):
    with pytest.raises(ValueError, match=why):
        make()


def test_tokens_of_a_turn_are_context_plus_completion_and_of_a_trajectory_its_completions():
    assert [turn.num_tokens for turn in TURNS] == [4, 7]
    assert [turn.prompt_tokens for turn in TURNS] == [2, 0]
    assert TRAJECTORY.num_completion_tokens == 4
    assert (TASK.objectives, Turn(context_ids=(1,), completion_ids=(2, 3)).logprobs) == (1, ())


def test_only_budgets_truncate():
    assert {e for e in Ended if e.truncated} == {Ended.OUT_OF_TURNS, Ended.OUT_OF_TOKENS, Ended.OUT_OF_TIME}
    known = "answered out_of_turns out_of_tokens out_of_time bad_tags agent_failed tool_failed engine_failed"
    assert sorted(map(str, Ended)) == sorted(known.split())


def test_a_group_holds_scored_attempts_at_one_task():
    assert Group(trajectories=(TRAJECTORY, dataclasses.replace(TRAJECTORY, reward=0.0))).rewards == (1.0, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        Group(trajectories=())
    other = dataclasses.replace(TRAJECTORY, task=dataclasses.replace(TASK, id="t2"))
    with pytest.raises(ValueError, match="not at 2"):
        Group(trajectories=(TRAJECTORY, other))
    with pytest.raises(ValueError, match="never scored"):
        _ = Group(trajectories=(TRAJECTORY, dataclasses.replace(TRAJECTORY, reward=None))).rewards
