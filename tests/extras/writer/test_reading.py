"""Tasks of reading: each part once, facts in notes within a budget, credit to the turn that read them."""

from __future__ import annotations

import pytest
from readers import READ, TAGS, demonstrated, drawn

from mem1.algorithms.channels import worked_on
from mem1.envs.base import Action
from mem1.errors import UserError
from mem1.extras.probe.transcripts import Fact
from mem1.extras.writer.reading import BETWEEN, END, ReadingTasks
from mem1.messages.exact import verified
from mem1.messages.written import LASTING
from mem1.protocol import strip_markup
from mem1.records import Ended


def test_a_task_has_as_many_facts_as_objectives_and_each_is_in_the_part_that_its_turn_reads():
    for task in drawn(objectives=5):
        parts = READ.excerpt(task).parts
        assert task.objectives == 5 and task.turn_limit == len(parts) + 2
        for question in task.questions:
            assert question.read_at is not None
            assert any(form in parts[question.read_at - 2][0] for form in question.answers)


def test_training_evaluation_and_test_read_other_transcripts():
    evaluated = READ.source("evaluation", TAGS).tasks(objectives=3, count=4, seed=1)
    tested = (
        READ.model_copy(update={"held_out": "test"}).source("evaluation", TAGS).tasks(objectives=3, count=4, seed=1)
    )
    read = [{task.id.rpartition("/")[0].rpartition("/")[0] for task in tasks} for tasks in (drawn(), evaluated, tested)]
    assert not read[0] & read[1] and not (read[0] | read[1]) & read[2]
    assert all("/test/" in task.id for task in tested)


def test_the_demonstration_reads_every_part_once_in_order_and_notes_only_what_stands_there():
    for attempt in demonstrated(drawn()):
        assert attempt.task is not None and attempt.ended is Ended.ANSWERED
        parts = [" ".join(strip_markup(text, TAGS).split()) for text, _ in READ.excerpt(attempt.task).parts]
        shown = [" ".join(turn.observation.split()) for turn in attempt.turns[:-1]]
        assert shown == [*parts, END]
        assert not attempt.turns[0].notes and any(turn.notes for turn in attempt.turns)
        for before, turn in zip(attempt.turns, attempt.turns[1:], strict=False):
            assert all(verified(note.removesuffix(LASTING), before.observation) for note in turn.notes)


def test_what_is_planted_is_noted_and_retained():
    attempts = demonstrated(drawn(objectives=6))
    lasting = [note for attempt in attempts for turn in attempt.turns for note in turn.notes if note.endswith(LASTING)]
    assert len(lasting) >= 4
    recall = [sum(attempt.metrics["em"]) / 6 for attempt in attempts]  # type: ignore[arg-type]
    assert min(recall) >= 1 / 3 and max(recall) == 1.0
    assert all(attempt.metrics["invented"] == attempt.metrics["stale"] == 0 for attempt in attempts)


def test_each_fact_is_credited_to_one_turn_whose_context_shows_it():
    for attempt in demonstrated(drawn()):
        assert attempt.task is not None
        worked = worked_on(attempt)
        assert sorted(j for of_turn in worked for j in of_turn) == [0, 1, 2]
        for number, of_turn in enumerate(worked):
            for j in of_turn:
                shown = attempt.turns[number - 1].observation
                assert any(form in shown for form in attempt.task.questions[j].answers)


def told(fact: Fact, value: str) -> str:
    return f"{fact.subject}: {value}"


def test_notes_count_within_the_budget_and_marked_ones_leave_last():
    (task,) = drawn(objectives=4, count=1)
    environment = READ.source("train", TAGS).environment
    excerpt = READ.excerpt(task)
    notes = [told(fact, fact.forms[0]) for fact in excerpt.facts()]
    assert environment.score(task, BETWEEN.join(notes)).metrics["em"] == (1.0,) * 4
    said = [form for fact in excerpt.facts() for form in fact.forms]
    words = [word for word in excerpt.parts[0][0].split() if word.isalpha() and not any(word in form for form in said)]
    much = [f"{first} {second} {first}" for first in words[:12] for second in words]
    assert environment.score(task, BETWEEN.join([*notes, *much])).metrics["em"] == (0.0,) * 4
    marked = [f"{note}{LASTING}" for note in notes]
    assert environment.score(task, BETWEEN.join([*marked, *much])).metrics["em"] == (1.0,) * 4


def test_a_note_counts_that_use_would_keep_of_one_of_the_parts():
    (task,) = drawn(objectives=8, count=1)
    environment = READ.source("train", TAGS).environment
    excerpt = READ.excerpt(task)
    one, *_, other = [fact for fact in excerpt.facts() if any(sign.isdigit() for sign in fact.forms[0])]
    assert excerpt.read_at(one) != excerpt.read_at(other)
    counted = environment.score(task, told(one, one.forms[0])).metrics["em"]
    mixed = environment.score(task, f"{told(one, one.forms[0])}, as {other.forms[0]}")
    assert sum(counted) == 1.0 and sum(mixed.metrics["em"]) == 0.0 and mixed.metrics["invented"] == 0


def test_an_invented_value_costs_and_no_answer_retains_nothing():
    (task,) = drawn(objectives=4, count=1)
    environment = READ.source("train", TAGS).environment
    right = BETWEEN.join(told(fact, fact.forms[0]) for fact in READ.excerpt(task).facts())
    wrong = environment.score(task, f"{right}{BETWEEN}the code is QX-9481726")
    assert wrong.metrics["invented"] > 0 and wrong.reward < environment.score(task, right).reward
    assert environment.score(task, "").reward == 0.0


def test_what_cannot_be_is_said():
    (task,) = drawn(count=1)
    environment = READ.source("train", TAGS).environment
    with pytest.raises(UserError, match="know no action 'open'"):
        environment.observe([Action(task, "open", "page")])
    with pytest.raises(UserError, match="has 90 facts"):
        drawn(objectives=90, count=1)
    with pytest.raises(ValueError, match="unknown kind of transcript 'ofice'"):
        ReadingTasks(kinds=("ofice",))
