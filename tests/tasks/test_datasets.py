"""Reading and writing questions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from corpora import SHARED_QA, needs_shared_qa

from mem1.errors import UserError
from mem1.records import Question
from mem1.tasks.datasets import read_questions, write_questions

GOOD = {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll", "M. Toll"]}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def test_our_own_form(tmp_path: Path):
    full = {**GOOD, "source": "atlas-7", "hops": 2, "passage_ids": ["p1", "p2"]}
    assert read_questions(write(tmp_path / "q.jsonl", full)) == [
        Question(
            id="q1",
            text="Who founded Alvex?",
            answers=("Mira Toll", "M. Toll"),
            source="atlas-7",
            hops=2,
            passage_ids=("p1", "p2"),
        )
    ]


def test_the_shared_layout_keeps_the_fields_we_know(tmp_path: Path):
    record = {
        "id": "nq_3",
        "dataset": "nq",
        "question": "Who?",
        "answers": ["A"],
        "gold_titles": ["T"],
        "gold_ids": ["g1"],
        "type": None,
        "answerable": True,
    }
    (question,) = read_questions(write(tmp_path / "q.jsonl", record))
    assert question == Question(id="nq_3", text="Who?", answers=("A",), source="nq", passage_ids=("g1",), titles=("T",))


@pytest.mark.parametrize(
    "record",
    [
        {"id": 5, "question": "Who?", "golden_answers": ["A"]},
        {"_id": "5", "question": "Who?", "answer": "A"},
        {"id": "5", "text": "Who?", "answers": ["A", " "], "hops": None, "gold_ids": None},
    ],
)
def test_other_names_of_the_same_fields(tmp_path: Path, record: dict[str, object]):
    assert read_questions(write(tmp_path / "q.jsonl", record)) == [Question(id="5", text="Who?", answers=("A",))]


def test_a_list_of_answers_in_a_table_is_a_list(tmp_path: Path):
    rows = [
        """1,Who?,"[""Sela Prand"", ""S. Prand""]",2""",
        "2,When?,[sic] 1900,",
        "3,Who?,\"['S. Prand', 'O\"\"N']\",1.0",
        "4,Who?,\"['S. Prand','T']\",",
        "5,Who?,\"['S. Prand',]\",",
    ]
    (tmp_path / "q.csv").write_text("\n".join(["id,text,answers,hops", *rows]))
    read = read_questions(tmp_path / "q.csv")
    answers = [("Sela Prand", "S. Prand"), ("[sic] 1900",), ("S. Prand", 'O"N'), ("S. Prand", "T"), ("S. Prand",)]
    assert [question.answers for question in read] == answers
    assert [question.hops for question in read] == [2, None, 1, None, None]
    (tmp_path / "q.csv").write_text("id,text,answers,passage_ids\n1,Who?,A,\"['p1', 'p2']\"")
    assert read_questions(tmp_path / "q.csv")[0].passage_ids == ("p1", "p2")
    (tmp_path / "q.csv").write_text("id,text,answers\n1,Who?,['Sela Prand' 'S. Prand']")
    with pytest.raises(UserError, match=r"q.csv:2: the answers of question '1' are no list with commas"):
        read_questions(tmp_path / "q.csv")


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_written_passages_are_read_back(tmp_path: Path, name: str):
    questions = [
        Question(id="a", text="Who founded Zürich\n?", answers=("«X»", "東京")),
        Question(id="b", text="\ud800 half", answers=("y",), source="s", hops=2, passage_ids=("p",)),
    ]
    write_questions(tmp_path / name, questions)
    assert read_questions(tmp_path / name) == questions


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"id": "q2", "text": "Who?"}, "question 'q2' has no answer"),
        ({"id": "q2", "text": "Who?", "answers": []}, "question 'q2' has no answer"),
        ({"id": "q2", "text": "Who?", "answers": ["", " "]}, "question 'q2' has no answer"),
        ({"id": "q2", "text": "Who?", "answers": [1901]}, "answers of question 'q2' must be a list of strings"),
        ({"id": "q2", "text": "Who?", "answers": {"a": 1}}, "answers of question 'q2' must be a list of strings"),
        ({"id": "q2", "answers": ["A"]}, "question 'q2' has no text"),
        ({"id": "q2", "text": " ", "answers": ["A"]}, "question 'q2' has no text"),
        ({"id": "q2", "text": ["Who?"], "answers": ["A"]}, "the text of question 'q2' is not a string"),
        ({"id": "q2", "text": "Who?", "answers": ["A"], "hops": "two"}, "hops of question 'q2' must be an integer"),
        ({"id": "q2", "text": "Who?", "answers": ["A"], "source": 3}, "the source of question 'q2' is not a string"),
        ({"id": "q2", "text": "Who?", "answers": ["A"], "gold_ids": [3]}, "passage ids of question 'q2' must be"),
        ({"text": "Who?", "answers": ["A"]}, "a question needs an id"),
        (GOOD, "question id 'q1' is already on line 1"),
        (["q2"], "one JSON object, not list"),
    ],
)
def test_a_faulty_line_is_named_with_file_and_line(tmp_path: Path, record: object, complaint: str):
    path = write(tmp_path / "q.jsonl", GOOD, record)
    with pytest.raises(UserError, match=complaint) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_missing_an_empty_and_a_cut_file_are_errors(tmp_path: Path):
    with pytest.raises(UserError, match="no file"):
        read_questions(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="has no questions"):
        read_questions(write(tmp_path / "empty.jsonl"))
    (tmp_path / "cut.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:30])
    with pytest.raises(UserError, match=r"cut\.jsonl:2: not a whole JSON object"):
        read_questions(tmp_path / "cut.jsonl")


@needs_shared_qa
def test_the_shared_test_split_is_read_whole():
    questions = read_questions(SHARED_QA / "test.jsonl")
    assert len(questions) == 1763
    assert set(Counter(q.source for q in questions)) == {"hotpotqa", "2wiki", "nq", "popqa", "triviaqa"}
    assert sum(bool(q.passage_ids) for q in questions) > 300
