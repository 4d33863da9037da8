"""The expert of clozes: it reads answers off results, keeps a list, and is lazy where it is told to."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from cloze_documents import corpus
from tag_sets import PAPER_NOTES

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.base import TaskSource
from mem1.envs.cloze import ClozeTasks, make_cloze_folder
from mem1.memory import memory_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER, SUMMARY, extended
from mem1.records import Ended, Trajectory
from mem1.rollout import Budget, Rollout
from mem1.tasks.atlas import Laziness
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.cloze.expert import ClozeExpert, read_answer

LAZY = Laziness(diligent=0.25, stop=0.9, forget=0.5)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TaskSource:
    out = tmp_path_factory.mktemp("clozes") / "made"
    make_cloze_folder(corpus(120), out, ClozeOptions(development=0.2, test=0.2), corpus="towns")
    return ClozeTasks(corpus=str(out)).source("train", PAPER)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(bpe_tokenizer([passage.text for passage in corpus(120)], vocab_size=600, tags=PAPER))


def attempts(
    source: TaskSource,
    codec: Codec,
    expert: ClozeExpert,
    objectives: int,
    *,
    context: str = "constant",
    count: int = 30,
) -> list[Trajectory]:
    rollout = Rollout(
        engine=ScriptedEngine(codec, expert),
        dialogue=TagDialogue(codec, expert.tags),
        environment=source.environment,
        context=memory_policy(context),
        budget=Budget(completion_per_objective=60, completion_extra=300, context=8192),
    )
    return rollout(source.tasks(objectives=objectives, count=count, seed=0), sampling=Sampling())


def em(trajectories: list[Trajectory]) -> float:
    return statistics.mean(statistics.mean(t.per_objective("em")) for t in trajectories)


@pytest.mark.parametrize(
    ("window", "result", "answer"),
    [
        ("and asteroid ____ Armstrong are", "site, and asteroid 6469 Armstrong are named", "6469"),
        ("in New Zealand and ____, where it", "such as New Zealand and Japan, where it was", "Japan"),
        ("Campaign (____), the first", "Prevention Campaign (CFFP), the first poster", "CFFP"),
        ("with films such as", "no blank at all", "unknown"),
        ("the ____ of Oslo", "nothing of the kind", "unknown"),
        # of two places the one with more of the window around it
        ("the old mayor of ____ was", "the new mayor of Bergen was here; the old mayor of Oslo was", "Oslo"),
        ("____ was born in", "Mira Toll was born in Bergen", "Mira Toll"),
        ("she was born in ____", "and she was born in Bergen", "Bergen"),
        ("cost $ ____ (then)", "it cost $ 40 (then) and", "40"),
    ],
)
def test_what_stands_in_the_place_of_the_blank_is_the_answer(window: str, result: str, answer: str):
    assert read_answer(window, result) == answer


@pytest.mark.parametrize("context", ["constant", "fold(3)", "full"])
@pytest.mark.parametrize("objectives", [1, 2, 4])
def test_a_diligent_expert_answers_all_questions_with_any_memory(source, codec, objectives, context):
    done = attempts(source, codec, ClozeExpert(tags=PAPER), objectives, context=context)
    assert {t.ended for t in done} == {Ended.ANSWERED} and em(done) == 1.0
    assert {len(t.turns) for t in done} == {objectives + 1}, "one search a question"


@pytest.mark.parametrize("objectives", [1, 2, 4, 8])
@pytest.mark.parametrize("tags", [PAPER, PAPER_NOTES])
@pytest.mark.parametrize("context", ["summary(60)", "summary(150)"])
def test_asked_for_a_summary_it_writes_its_list_and_goes_on_from_there(source, codec, objectives, tags, context):
    done = attempts(source, codec, ClozeExpert(tags=extended(tags, SUMMARY)), objectives, context=context)
    assert {t.ended for t in done} == {Ended.ANSWERED} and em(done) == 1.0
    summaries = [[turn.action for turn in t.turns].count(SUMMARY) for t in done]
    assert min(summaries) > 0 or objectives < 4 or context == "summary(150)"
    assert all(len(t.turns) - n == objectives + 1 for t, n in zip(done, summaries, strict=True)), (
        "one search a question"
    )


def test_everything_it_writes_is_copied_from_what_it_sees(source, codec):
    (attempt,) = attempts(source, codec, ClozeExpert(tags=PAPER), 2, count=1)
    first, second, last = attempt.turns
    one, two = (question.text for question in attempt.task.questions)  # type: ignore[union-attr]
    assert first.state == "Q1" and first.content == f"Q1 {one}"
    found = attempt.answer.split(" ; ")[0].removeprefix("Q1 = ")
    assert second.state == f"{one.split('____')[0].strip()} -> {found} | Q1 = {found} ; Q1 then Q2".lstrip()
    assert second.content == f"Q2 {two}" and found in first.observation
    assert last.state.endswith(f"| {attempt.answer} Q2 then done") and attempt.answer.startswith(
        f"Q1 = {found} ; Q2 = "
    )


def test_a_lazy_expert_stops_early_and_forgets_in_most_tasks_and_always_alike(source, codec):
    expert = ClozeExpert(tags=PAPER, laziness=LAZY)
    done = attempts(source, codec, expert, 4, count=120)
    whole = sum(all(t.per_objective("em")) for t in done) / len(done)
    assert 0.15 < whole < 0.45, "a quarter is diligent"
    assert sum(len(t.turns) == 2 for t in done) / len(done) > 0.5, "most stop after the first question"
    forgetful = attempts(source, codec, ClozeExpert(tags=PAPER, laziness=Laziness(forget=1.0)), 3)
    assert all(t.answer.count("Q") == 1 for t in forgetful), "each new answer drives out the one before"
    assert [t.answer for t in attempts(source, codec, expert, 4, count=20)] == [t.answer for t in done[:20]]


def test_where_turns_run_out_it_gives_what_it_knows(source, codec):
    (task,) = source.tasks(objectives=3, count=1, seed=0)
    limited = type(task)(**{**{f: getattr(task, f) for f in task.__dataclass_fields__}, "turn_limit": 2})
    rollout = Rollout(
        engine=ScriptedEngine(codec, ClozeExpert(tags=PAPER)),
        dialogue=TagDialogue(codec),
        environment=source.environment,
        context=memory_policy("constant"),
        budget=Budget(completion_per_objective=60, completion_extra=300, context=8192),
    )
    (done,) = rollout([limited], sampling=Sampling())
    assert done.turns[-1].prefilled and done.per_objective("em") == (1.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskSource, Codec]:
    out = tmp_path_factory.mktemp("clozes") / "made"
    texts = [passage.text for passage in corpus(120)]
    make_cloze_folder(corpus(120), out, ClozeOptions(development=0.2, test=0.2), corpus="towns")
    source = ClozeTasks(corpus=str(out)).source("train", PAPER_NOTES)
    return source, Codec(bpe_tokenizer(texts, vocab_size=600, tags=PAPER_NOTES))


@pytest.mark.parametrize("objectives", [1, 2, 4])
def test_with_notes_each_answer_is_written_once_and_the_answer_is_the_notes(noting, objectives: int):
    source, codec = noting
    done = attempts(source, codec, ClozeExpert(tags=PAPER_NOTES), objectives, context="notes")
    assert {t.ended for t in done} == {Ended.ANSWERED} and em(done) == 1.0
    for attempt in done:
        notes = [note for turn in attempt.turns for note in turn.notes]
        assert [note.split(" = ")[0] for note in notes] == [f"Q{number}" for number in range(1, objectives + 1)]
        assert attempt.turns[-1].content == "notes" and attempt.answer == "; ".join(notes)
        assert not any(" = " in turn.state for turn in attempt.turns), "the state keeps nothing"


def test_with_notes_a_forgetful_expert_does_not_note_what_it_found(noting):
    (source, codec), forgetful = noting, ClozeExpert(tags=PAPER_NOTES, laziness=Laziness(forget=1.0))
    done = attempts(source, codec, forgetful, 3, context="notes")
    assert all([note.split(" = ")[0] for turn in t.turns for note in turn.notes] == ["Q1"] for t in done)
    assert {t.per_objective("em") for t in done} == {(1.0, 0.0, 0.0)}


def test_with_notes_an_answer_that_is_forced_has_what_the_last_search_found(noting):
    source, codec = noting
    (task,) = source.tasks(objectives=3, count=1, seed=0)
    rollout = Rollout(
        engine=ScriptedEngine(codec, ClozeExpert(tags=PAPER_NOTES)),
        dialogue=TagDialogue(codec, PAPER_NOTES),
        environment=source.environment,
        context=memory_policy("notes"),
        budget=Budget(completion_per_objective=60, completion_extra=300, context=8192),
    )
    (done,) = rollout([replace(task, turn_limit=3)], sampling=Sampling())
    assert done.turns[-1].prefilled and done.per_objective("em") == (1.0, 1.0, 0.0)


def test_a_recipe_for_clozes_is_demonstrated_by_it(source, tmp_path: Path):
    from mem1.recipe.recipe import Recipe

    tasks = {"kind": "cloze", "corpus": str(source.config.corpus), "laziness": {"stop": 0.5}}  # type: ignore[attr-defined]
    config = Recipe.model_validate({"tasks": tasks})
    found = config.tasks.expert([], source.environment, PAPER, seed=0)
    assert found == ClozeExpert(tags=PAPER, laziness=Laziness(stop=0.5), seed=0)
