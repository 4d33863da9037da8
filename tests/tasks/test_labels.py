"""Labels that a task draws for its questions: in the prompt, in references, in answers and their scores."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tag_sets import PAPER_NOTES
from worlds import rollout

from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.evaluation.judge import answers
from mem1.evaluation.metrics import contained
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, Tags
from mem1.records import Question, Task, task_from_json, task_to_json
from mem1.scoring import score_answers, split_answers
from mem1.tasks.atlas import Expert

ATLAS = AtlasTasks(worlds=1, entities=120, questions_per_world=120, labels=128)


def tasks(objectives: int, count: int = 8, config: AtlasTasks = ATLAS) -> list[Task]:
    return config.source("train", PAPER).tasks(objectives=objectives, count=count, seed=0)


def test_each_task_draws_labels_that_increase():
    drawn = [task.labels for task in tasks(5)]
    assert len(set(drawn)) == 8
    for labels in drawn:
        assert len(labels) == 5
        assert list(labels) == sorted(set(labels))
        assert min(labels) >= 1
        assert max(labels) <= 128
    assert drawn == [task.labels for task in tasks(5)]


def test_the_questions_are_the_same_with_and_without():
    plain = ATLAS.model_copy(update={"labels": None})
    for labelled, other in zip(tasks(5), tasks(5, config=plain), strict=True):
        assert labelled.questions == other.questions
        assert labelled.seed == other.seed
        assert other.labels == ()
        assert other.numbers == (1, 2, 3, 4, 5)


def test_the_prompt_lists_the_questions_under_their_labels_and_ends_with_their_order():
    (task,) = tasks(3, count=1, config=ATLAS.model_copy(update={"prompt": "ordered"}))
    listed = " ".join(f"Q{n} {q.text}" for n, q in zip(task.labels, task.questions, strict=True))
    order = "".join(f"Q{n} then " for n in task.labels)
    assert task.prompt == f"{listed} {order}done"


def test_a_task_needs_as_many_labels_as_questions():
    with pytest.raises(UserError, match=r"raise tasks\.labels"):
        tasks(5, config=ATLAS.model_copy(update={"labels": 4}))
    assert tasks(4, config=ATLAS.model_copy(update={"labels": 4}))[0].labels == (1, 2, 3, 4)


@pytest.mark.parametrize("labels", [(1,), (2, 1), (1, 1), (0, 1)])
def test_labels_that_no_reader_could_follow_are_refused(labels: tuple[int, ...]):
    with pytest.raises(ValueError, match="labels"):
        replace(tasks(2, count=1)[0], labels=labels)


def test_a_task_and_its_labels_survive_json():
    for task in tasks(3):
        assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task
    (plain,) = tasks(2, count=1, config=ATLAS.model_copy(update={"labels": None}))
    assert "labels" not in task_to_json(plain)
    assert task_from_json(task_to_json(plain)) == plain


@pytest.mark.parametrize("tags", [PAPER, PAPER_NOTES], ids=lambda tags: tags.name)
@pytest.mark.parametrize("composition", ["independent", "chain", "shared"])
@pytest.mark.parametrize("prompt", ["plain", "ordered"])
def test_the_clean_expert_answers_everything_under_any_labels(tags: Tags, composition: str, prompt: str):
    source = ATLAS.model_copy(update={"composition": composition, "prompt": prompt}).source("train", tags)
    codec, context = Codec(atlas_tokenizer(tags, 128)), "constant" if tags.note is None else "notes"
    run = rollout(Expert(tags=tags), source.environment, context=context, codec=codec, tags=tags)
    for attempt in run(source.tasks(objectives=5, count=6, seed=0), sampling=Sampling()):
        assert attempt.per_objective("em") == (1.0,) * 5
        assert contained(attempt) == 1.0
        assert all(given.prediction in given.golds for given in answers(attempt))


def test_a_reference_names_the_label_of_the_question():
    for task in tasks(6, config=ATLAS.model_copy(update={"composition": "chain"})):
        for question in task.questions:
            for earlier in question.depends_on:
                assert f"answer Q{task.labels[earlier - 1]} " in question.text


def test_an_answer_goes_to_the_question_with_its_label():
    assert split_answers("Q31 b; Q7 a", (7, 31)) == ["a", "b"]
    assert split_answers("a; b; c", (7, 31)) == ["a", "b"]
    assert split_answers("Q1 a; Q2 b", (7, 31)) == ["", ""]
    assert score_answers("Q31 b; Q7 a", [["a"], ["b"]], (7, 31)).em == [1.0, 1.0]


@given(st.lists(st.integers(1, 9999), unique=True, min_size=1, max_size=8).map(sorted), st.randoms())
def test_answers_in_any_order_find_their_questions(labels: list[int], rng: random.Random):
    pieces = [f"Q{label} word {label}" for label in labels]
    rng.shuffle(pieces)
    assert split_answers(" ; ".join(pieces), labels) == [f"word {label}" for label in labels]


def test_without_labels_a_task_has_the_numbers_one_to_n():
    questions = tuple(Question(id=x, text=f"What is {x}?", answers=(x,)) for x in "ab")
    assert Task(id="t", questions=questions, prompt="p", turn_limit=1).numbers == (1, 2)
