"""The scripted expert for English worlds: questions in their own words, notes written once, lazy habits."""

from __future__ import annotations

from typing import Any

import pytest

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.engines.config import STAND_IN
from mem1.envs.english import ByTitle, EnglishSource, EnglishTasks
from mem1.evaluation.metrics import em_by_question
from mem1.memory import memory_policy
from mem1.policy.folders import tokenizer_folder
from mem1.protocol import PAPER, extended
from mem1.records import Trajectory
from mem1.rollout import Budget, Rollout

EASY: dict[str, Any] = {"remarks": False, "asked": ["value"], "two_hops": 0, "top_k": 1, "searches": "questions"}


def demonstrations(memory: str, *, objectives: int = 3, count: int = 12, **settings: Any) -> list[Trajectory]:
    tags = extended(PAPER, *memory_policy(memory).asks)
    config = EnglishTasks.model_validate({"prompt": "plain", "worlds": 2, "entities": 80, **EASY, **settings})
    source, codec = config.source("train", tags), Codec.load(tokenizer_folder(STAND_IN, ""))
    tasks = source.tasks(objectives=objectives, count=count, seed=0)
    rollout = Rollout(
        engine=ScriptedEngine(codec, config.expert(tasks, source.environment, tags, seed=0)),
        dialogue=TagDialogue(codec, tags),
        environment=source.environment,
        context=memory_policy(memory),
        budget=Budget(context=100_000, completion_extra=4_000),
    )
    return rollout(tasks, sampling=Sampling(seed=0))


@pytest.mark.parametrize("memory", ["notebook(1)", "notes", "constant", "full", "summary(400)"])
def test_every_question_is_asked_as_the_task_has_it_once_and_answered(memory: str):
    for shown in demonstrations(memory):
        assert em_by_question(shown) == (1.0,) * 3
        queries = [turn.content for turn in shown.turns if turn.action == "search"]
        assert shown.task is not None
        assert queries == [f"Q{n} {question.text}" for n, question in enumerate(shown.task.questions, 1)]


def test_a_note_is_written_once_and_the_answer_is_the_notes():
    for shown in demonstrations("notebook(1)"):
        assert shown.task is not None
        notes = [note for turn in shown.turns for note in turn.notes]
        expected = [f"Q{i} {question.answers[0]}" for i, question in enumerate(shown.task.questions, start=1)]
        assert [note.strip() for note in notes] == expected
        assert shown.turns[-1].content.strip() == "notes"
        assert [turn.state.strip() for turn in shown.turns] == ["Q1;", "Q1 then Q2;", "Q2 then Q3;", "Q3 then done;"]


def test_a_forced_answer_has_what_was_found_last():
    for shown in demonstrations("notes", turn_limit={"per_objective": 1, "extra": 0}):
        assert len(shown.turns) == 3 and em_by_question(shown) == (1.0, 1.0, 0.0)
        assert shown.turns[-1].prefilled and shown.turns[-1].content.startswith("notes; Q2 ")


@pytest.mark.parametrize("memory", ["notebook(4)", "constant"])
def test_lazy_demonstrations_stop_or_forget_and_diligent_ones_do_neither(memory: str):
    def found(**laziness: float) -> list[int]:
        return [int(sum(em_by_question(one))) for one in demonstrations(memory, laziness=laziness)]

    assert found(stop=1.0) == [1] * 12
    assert found(forget=1.0) == [1] * 12
    assert found(stop=1.0, diligent=1.0) == [3] * 12
    mixed = found(stop=1.0, diligent=0.5)
    assert set(mixed) == {1, 3}


@pytest.mark.parametrize(("family", "level"), [("chain", 2), ("constraint", 2), ("update", 1), ("budget", 1)])
def test_notes_serve_every_family(family: str, level: int):
    for shown in demonstrations("notes", family=family, level=level, two_hops=0.4, objectives=4, count=4):
        assert em_by_question(shown) == (1.0,) * 4, family


def test_passages_without_remarks_say_the_same_facts_in_fewer_words():
    def words(remarks: bool) -> list[int]:
        source = EnglishTasks(remarks=remarks, worlds=1, prompt="plain").source("train", PAPER)
        assert isinstance(source, EnglishSource)
        (library,) = source.environment.search.retrievers.values()
        assert isinstance(library, ByTitle)
        return [len(passage.text.split()) for passage in library.titles.values()]

    short, long = words(False), words(True)
    assert 0.7 * sum(long) < sum(short) < 0.8 * sum(long)


def test_only_the_kinds_that_are_asked_for_are_drawn():
    tasks = EnglishTasks.model_validate({"prompt": "plain", "worlds": 1, **EASY}).source("train", PAPER)
    drawn = [q for task in tasks.tasks(objectives=4, count=40, seed=0) for q in task.questions]
    assert all("/" not in question.id.split(":")[1] and question.hops == 1 for question in drawn)
    odd = EnglishTasks.model_validate({"prompt": "plain", "worlds": 1, "asked": ["odd"], "two_hops": 1.0})
    drawn = [q for task in odd.source("train", PAPER).tasks(objectives=4, count=20, seed=0) for q in task.questions]
    assert all("/odd:" in question.id and question.hops == 2 for question in drawn)
