"""The expert for questions with gold answers: what it searches, what it writes, and that it never writes what nobody
could have read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mem1.protocol import NOTE, PAPER, SUMMARY, Tags, extended
from mem1.records import Passage, Question, Task
from mem1.tasks.gold_expert import GoldExpert, readable
from mem1.tasks.prompts import render

EMMA = Passage(id="1", title="Emma", text="Emma is a novel by Jane Austen.")
AUSTEN = Passage(id="2", title="Jane Austen", text="Jane Austen was born in Steventon.")
ELY = Passage(id="3", title="Ely Cathedral", text="Its lantern was built by Alan of Walsingham.")
FOUND: Mapping[str, Sequence[Passage]] = {
    "Q1 Where was the author of Emma born?": [EMMA],
    "Jane Austen": [AUSTEN, EMMA],
    "Q2 Who built the lantern of Ely?": [ELY],
    "Q2 Is Emma a novel?": [ELY],
}
BORN = Question(
    id="a", text="Where was the author of Emma born?", answers=("Steventon",), titles=("Jane Austen", "Emma")
)
LANTERN = Question(id="b", text="Who built the lantern of Ely?", answers=("Alan", "alan of walsingham"))
NOVEL = Question(id="c", text="Is Emma a novel?", answers=("yes",), titles=("Emma",))
NOTED = extended(PAPER, NOTE)


def task(*questions: Question, tags: Tags = PAPER) -> Task:
    prompt = render("plain", questions, tags)
    return Task(id="t", questions=questions, prompt=prompt, turn_limit=9, corpus="c")


def script(tags: Tags, one: Task, *, found: bool = True) -> list[str]:
    """All completions, each after the context of constant memory."""
    expert = GoldExpert(tags, [one], (lambda _, query: FOUND.get(query, [])) if found else None)
    said = [expert(one.prompt)]
    while "<answer>" not in said[-1]:
        assert len(said) < 9
        said.append(expert(f"{one.prompt}{said[-1]}<info> [HINT] Q7; (query) [/HINT] Emma </info>"))
    return said


def test_a_second_hop_is_searched_and_answers_are_kept_in_the_state():
    assert script(PAPER, task(BORN, LANTERN)) == [
        "<IS> Q1; </IS> <query> Q1 Where was the author of Emma born? </query>",
        "<IS> Q1; </IS> <query> Jane Austen </query>",
        "<IS> Q1 then Q2; Q1 = Steventon; </IS> <query> Q2 Who built the lantern of Ely? </query>",
        "<IS> Q2 then done; Q1 = Steventon; Q2 = Alan; </IS> <answer> Q1 Steventon; Q2 Alan </answer>",
    ]


def test_with_notes_an_answer_is_written_once():
    assert script(NOTED, task(BORN, LANTERN, tags=NOTED))[2:] == [
        "<IS> Q1 then Q2; </IS> <note> Q1 Steventon </note> <query> Q2 Who built the lantern of Ely? </query>",
        "<IS> Q2 then done; </IS> <note> Q2 Alan </note> <answer> notes </answer>",
    ]


def test_what_the_searches_do_not_show_is_unknown():
    said = script(PAPER, task(BORN, NOVEL))
    assert said[3] == "<IS> Q2; Q1 = Steventon; </IS> <query> Emma </query>", "the gold passage is looked for by title"
    assert said[-1].endswith("<answer> Q1 Steventon; Q2 unknown </answer>")


def test_without_a_search_engine_each_question_is_searched_once_and_answered():
    said = script(PAPER, task(BORN, NOVEL), found=False)
    assert [text.count("<query>") for text in said] == [1, 1, 0]
    assert said[-1].endswith("<answer> Q1 Steventon; Q2 yes </answer>")


@pytest.mark.parametrize(
    ("question", "passages", "answer"),
    [
        (BORN, [EMMA, AUSTEN], "Steventon"),
        (BORN, [EMMA], "unknown"),
        (NOVEL, [EMMA], "yes"),
        (NOVEL, [ELY], "unknown"),
        (Question(id="d", text="?", answers=("Walsing",)), [ELY], "unknown"),
        (Question(id="e", text="?", answers=("no such", "Alan of Walsingham")), [ELY], "Alan of Walsingham"),
        (Question(id="f", text="?", answers=("two",), titles=("Emma", "Ely Cathedral")), [ELY, EMMA], "two"),
    ],
)
def test_an_answer_is_given_where_the_passages_show_it(question: Question, passages: list[Passage], answer: str):
    assert readable(question, passages) == answer


@pytest.mark.parametrize(
    ("tags", "forced"),
    [
        (PAPER, " Q1 Steventon; Q2 yes; Q3 unknown </answer>"),
        (NOTED, " notes; Q1 Steventon; Q2 yes; Q3 unknown </answer>"),
    ],
)
def test_a_forced_answer_has_what_was_read_last_and_guesses_where_there_are_two_answers(tags: Tags, forced: str):
    one = task(BORN, NOVEL, LANTERN, tags=tags)
    expert = GoldExpert(tags, [one], lambda _, query: FOUND.get(query, []))
    second = "<IS> Q1; </IS> <query> Jane Austen </query><info> x </info>"
    assert expert(f"{one.prompt}{second} <answer>") == forced


def test_a_summary_keeps_the_place_and_goes_on_from_it():
    one = task(BORN, LANTERN)
    expert = GoldExpert(PAPER, [one], lambda _, query: FOUND.get(query, []))
    second = "<IS> Q1; </IS> <query> Jane Austen </query><info> x </info>"
    summary = expert(f"{one.prompt}{second} <{SUMMARY}>")
    assert summary == f" Q1 then Q2; Q1 = Steventon; </{SUMMARY}>"
    assert expert(f"{one.prompt}<{SUMMARY}>{summary}").startswith("<IS> Q2; Q1 = Steventon; </IS> <query> Q2 Who built")
