"""Public data sets in their original layouts: what is read, what comes with it, and what a faulty file says."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpora import SHARED_QA, needs_shared_qa
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import (
    BAMBOOGLE,
    BROWSECOMP_PLUS,
    HOTPOTQA,
    HOTPOTQA_ON_THE_HUB,
    MUSIQUE,
    NQ,
    POPQA,
    TRIVIAQA,
    TWOWIKI,
    TWOWIKI_ALIASES,
    mem1,
    searchr1,
    write_json,
    write_lines,
    write_rows,
    write_table,
)

from mem1.errors import UserError
from mem1.protocol import RELEASED
from mem1.records import Question
from mem1.registry import register
from mem1.retrieval.corpus import read_passages
from mem1.scoring import exact_match, normalize
from mem1.tasks.compose import compose, same_text, split_of
from mem1.tasks.datasets import (
    FORMATS,
    read_dataset,
    read_questions,
    read_tasks,
    write_passages,
    write_questions,
    write_tasks,
)
from mem1.tasks.datasets.files import Record, Sample, Wanted
from mem1.tasks.datasets.reading import Format, read_pool
from mem1.tasks.prompts import TaskTemplate

FILES: dict[str, Callable[[Path], Path]] = {
    "hotpotqa": lambda folder: write_json(folder / "hotpot_dev_distractor_v1.json", [HOTPOTQA]),
    "2wikimultihopqa": lambda folder: write_json(folder / "dev.json", [TWOWIKI]),
    "musique": lambda folder: write_lines(folder / "musique_ans_v1.0_dev.jsonl", MUSIQUE),
    "nq": lambda folder: write_lines(folder / "NQ-open.dev.jsonl", NQ),
    "triviaqa": lambda folder: write_json(folder / "web-dev.json", {"Data": [TRIVIAQA], "Version": 1.0}, indent=4),
    "popqa": lambda folder: write_table(folder / "test.tsv", POPQA, delimiter="\t"),
    "bamboogle": lambda folder: write_table(folder / "bamboogle.csv", BAMBOOGLE),
    "browsecomp-plus": lambda folder: write_lines(folder / "browsecomp_plus_decrypted.jsonl", BROWSECOMP_PLUS),
    "searchr1": lambda folder: write_rows(folder / "train.parquet", searchr1("who founded alvex", ["Mira Toll"])),
}
EXPECTED = {
    "hotpotqa": (HOTPOTQA["question"], ("Bergen",), None, ("Alvex", "Mira Toll")),
    "2wikimultihopqa": (TWOWIKI["question"], ("Tromso",), None, ("Grey Tide", "Ole Brand")),
    "musique": (MUSIQUE["question"], ("Sela Prand", "S. Prand"), 3, ("Alvex", "Mira Toll", "Bergen")),
    "nq": ("who founded alvex", ("Mira Toll", "Toll"), None, ()),
    "triviaqa": (TRIVIAQA["Question"], ("Mira Toll", "M. Toll", "mira toll", "m toll"), None, ()),
    "popqa": (POPQA["question"], ("Mira Toll", "M. Toll"), 1, ("Alvex", "Alvex (company)")),
    "bamboogle": (BAMBOOGLE["Question"], ("Sela Prand",), None, ()),
    "browsecomp-plus": (BROWSECOMP_PLUS["query"], ("Mira Toll",), None, ()),
    "searchr1": ("who founded alvex?", ("Mira Toll",), None, ()),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_seen_in_its_content_and_can_be_named(name: str, tmp_path: Path):
    path = FILES[name](tmp_path)
    (question,) = read_questions(path)
    assert (question.text, question.answers, question.hops, question.titles) == EXPECTED[name]
    assert question.source == ("nq" if name == "searchr1" else name)
    assert read_questions(path, format=name) == [question]


@pytest.mark.parametrize("name", sorted(set(FILES) - {"searchr1"}))
def test_a_gzipped_file_is_read_the_same(name: str, tmp_path: Path):
    path = FILES[name](tmp_path)
    zipped = tmp_path / "zipped.bin"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read_questions(zipped) == read_questions(path)


def test_a_long_first_line_is_no_obstacle(tmp_path: Path):
    long = {**MUSIQUE, "question": "Who? " * 30_000}
    assert len(read_questions(write_lines(tmp_path / "m.jsonl", long, {**MUSIQUE, "id": "b"}))) == 2
    many = [{**HOTPOTQA, "_id": str(i)} for i in range(300)]
    assert len(read_questions(write_json(tmp_path / "h.json", many))) == 300


def test_trivia_as_the_hub_has_it(tmp_path: Path):
    answer = {"value": "Mira Toll", "aliases": ["M. Toll"], "normalized_aliases": ["m toll"]}
    row = {"question": "Which engineer founded Alvex?", "question_id": "tc_33", "answer": answer}
    (question,) = read_questions(write_lines(tmp_path / "rows.jsonl", row))
    assert (question.id, question.answers, question.source) == ("tc_33", ("Mira Toll", "M. Toll", "m toll"), "triviaqa")


def test_trivia_with_a_row_for_the_web_and_one_for_wikipedia_has_the_question_once(tmp_path: Path):
    answer = {"value": "Mira Toll", "aliases": ["M. Toll"], "normalized_aliases": ["m toll"]}
    row = {"question": "Which engineer founded Alvex?", "question_id": "tc_33", "answer": answer}
    again = {**row, "answer": {**answer, "aliases": ["Toll"]}}
    (question,) = read_questions(write_lines(tmp_path / "rc.jsonl", row, again))
    assert question.answers == ("Mira Toll", "M. Toll", "m toll", "Toll")
    other = {**row, "question": "Who owns Berl?"}
    with pytest.raises(UserError, match=r"rc\.jsonl:2: question id 'tc_33' is already on line 1"):
        read_questions(write_lines(tmp_path / "rc.jsonl", row, other))


def test_trivia_on_one_line_is_a_document_too(tmp_path: Path):
    (question,) = read_questions(write_json(tmp_path / "web-dev.json", {"Data": [TRIVIAQA]}))
    assert question.id == "tc_33"


@pytest.mark.parametrize(
    ("name", "gold"),
    [("hotpotqa", {"Alvex", "Mira Toll"}), ("musique", {"Alvex", "Mira Toll", "Bergen"})],
)
def test_the_paragraphs_become_a_corpus_and_the_question_names_the_gold_ones(name: str, gold: set[str], tmp_path: Path):
    data = read_dataset(FILES[name](tmp_path))
    write_passages(tmp_path / "corpus.jsonl", data.passages)
    corpus = {p.id: p for p in read_passages(tmp_path / "corpus.jsonl")}
    assert {corpus[i].title for i in data.questions[0].passage_ids} == gold
    assert {p.title for p in corpus.values()} == {*gold, "Berl"}


def test_a_paragraph_of_two_questions_is_one_passage_with_its_sentences_joined(tmp_path: Path):
    twice = [HOTPOTQA, {**HOTPOTQA, "_id": "other", "question": "Who founded Alvex?"}]
    data = read_dataset(write_json(tmp_path / "two.json", twice))
    assert [p.text for p in data.passages] == [
        "Alvex is a company. It was founded by Mira Toll.",
        "Mira Toll is an engineer. She was born in Bergen.",
        "Berl is a river.",
    ]
    assert data.questions[0].passage_ids == data.questions[1].passage_ids


def test_the_columns_of_the_hub_give_the_same_question_as_the_original_file(tmp_path: Path):
    original = read_dataset(write_json(tmp_path / "a.json", [HOTPOTQA]))
    assert read_dataset(write_lines(tmp_path / "b.jsonl", HOTPOTQA_ON_THE_HUB)) == original


def test_the_aliases_of_2wiki_answers_are_added_from_their_own_file(tmp_path: Path):
    path, aliases = FILES["2wikimultihopqa"](tmp_path), write_lines(tmp_path / "id_aliases.json", *TWOWIKI_ALIASES)
    (question,) = read_questions(path, aliases=aliases)
    assert question.answers == ("Tromso", "Tromsø", "Tromsoer")
    first, second = read_questions(path, aliases=aliases, decompose=True)
    assert (first.answers, second.answers) == (("Ole Brand", "O. Brand"), ("Tromso", "Tromsø", "Tromsoer"))


def test_the_columns_of_the_hub_give_the_question_and_the_hops_of_2wiki(tmp_path: Path):
    facts, relations, entities = zip(*TWOWIKI["evidences"], strict=True)
    titles, texts = zip(*TWOWIKI["context"], strict=True)
    columns = {
        **TWOWIKI,
        "context": {"title": titles, "content": texts},
        "supporting_facts": {"title": titles, "sent_id": [0, 0]},
        "evidences": {"fact": facts, "relation": relations, "entity": entities},
    }
    published, hub = FILES["2wikimultihopqa"](tmp_path), write_lines(tmp_path / "hub.jsonl", columns)
    for decompose in (False, True):
        assert read_dataset(hub, decompose=decompose) == read_dataset(published, decompose=decompose)


def test_2wiki_whose_ids_have_the_hubs_name_keeps_its_source_and_its_aliases(tmp_path: Path):
    renamed = {"id" if field == "_id" else field: value for field, value in TWOWIKI.items()}
    aliases = write_lines(tmp_path / "id_aliases.json", *TWOWIKI_ALIASES)
    (question,) = read_questions(write_lines(tmp_path / "hub.jsonl", renamed), aliases=aliases)
    assert (question.source, question.answers) == ("2wikimultihopqa", ("Tromso", "Tromsø", "Tromsoer"))


def test_ones_own_questions_with_a_context_and_evidences_are_ones_own(tmp_path: Path):
    own = {"id": "a", "question": "Who owns Berl?", "answers": ["Ole"], "context": "A long text.", "evidences": ["x"]}
    (question,) = read_questions(write_lines(tmp_path / "own.jsonl", own))
    assert (question.text, question.answers) == ("Who owns Berl?", ("Ole",))


def test_aliases_that_no_answer_gets_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    aliases = write_lines(tmp_path / "id_aliases.json", *TWOWIKI_ALIASES)
    read_questions(FILES["2wikimultihopqa"](tmp_path), aliases=aliases)
    assert not caplog.records
    read_questions(FILES["hotpotqa"](tmp_path), aliases=aliases)
    assert "hotpot_dev_distractor_v1.json: the answers get no other names from" in caplog.text


def test_musique_taken_apart_gives_single_hops_that_speak_of_one_another_by_name(tmp_path: Path):
    hops = read_questions(FILES["musique"](tmp_path), decompose=True)
    assert [(q.id, q.text, q.answers) for q in hops] == [
        ("3hop1__1_2_3#1", "What is the founded by of Alvex?", ("Mira Toll",)),
        ("3hop1__1_2_3#2", "Where was Mira Toll born?", ("Bergen",)),
        ("3hop1__1_2_3#3", "who is the mayor of Bergen ?", ("Sela Prand",)),
    ]
    assert [q.titles for q in hops] == [("Alvex",), ("Mira Toll",), ("Bergen",)]
    assert all(q.hops == 1 and len(q.passage_ids) == 1 for q in hops)


def test_2wiki_taken_apart_asks_its_evidences(tmp_path: Path):
    hops = read_questions(FILES["2wikimultihopqa"](tmp_path), decompose=True)
    assert [q.text for q in hops] == [
        "What is the director of Grey Tide?",
        "What is the place of birth of Ole Brand?",
    ]


def test_what_has_no_single_hops_cannot_be_taken_apart(tmp_path: Path):
    with pytest.raises(UserError, match="only musique, 2wikimultihopqa can be decomposed"):
        read_questions(FILES["hotpotqa"](tmp_path), decompose=True)


def test_unanswerable_questions_of_musique_are_left_out(tmp_path: Path):
    twin = {**MUSIQUE, "answerable": False}
    assert len(read_questions(write_lines(tmp_path / "full.jsonl", twin, MUSIQUE))) == 1


def test_an_id_made_from_the_text_is_the_same_in_every_file_and_a_repeat_is_read_once(tmp_path: Path):
    other = {"question": "who owns berl", "answer": ["no one"]}
    once = read_questions(write_lines(tmp_path / "a.jsonl", NQ, other))
    again = read_questions(write_lines(tmp_path / "b.jsonl", other, NQ, {**other, "answer": ["Bergen", "no one"]}))
    assert {q.id for q in once} == {q.id for q in again}
    assert [q.answers for q in again if q.text == other["question"]] == [("no one", "Bergen")]
    assert len(again) == 2


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("hotpotqa", {"answer": None}, r"[0]: question '5a8b57f25542995d1e6f1371' has no answer"),
        ("hotpotqa", {"context": 3}, "[0]: 'context' must be a list of [title, sentences], not 3"),
        ("hotpotqa", {"context": [["Alvex"]]}, "an entry of 'context' must be [title, sentences], not ['Alvex']"),
        ("hotpotqa", {"question": 7}, "[0]: 'question' must be a string, not 7"),
        ("hotpotqa", {"supporting_facts": [3]}, "'supporting_facts' must be a list of [title, sentence number]"),
        (
            "hotpotqa",
            {"supporting_facts": 3},
            "[0]: 'supporting_facts' must be a list of [title, sentence number], not 3",
        ),
        ("hotpotqa", {"_id": None}, "[0]: a question needs an id"),
        ("2wikimultihopqa", {"answer": ""}, "has no answer"),
        ("musique", {"paragraphs": "none"}, ":1: 'paragraphs' must be a list, not 'none'"),
        ("musique", {"question_decomposition": 3}, ":1: 'question_decomposition' must be a list, not 3"),
        ("musique", {"paragraphs": [3]}, ":1: paragraph 0 must be an object, not 3"),
        ("musique", {"paragraphs": [{"idx": "x", "title": "T", "paragraph_text": "t"}]}, "'idx' of paragraph 0"),
        ("musique", {"answer_aliases": "Toll"}, "'answer_aliases' must be a list of strings, not 'Toll'"),
        ("nq", {"answer": "Mira Toll"}, ":1: 'answer' must be a list of strings, not 'Mira Toll'"),
        ("triviaqa", {"Answer": "Mira Toll"}, "[0]: 'Answer' must be an object, not 'Mira Toll'"),
        ("triviaqa", {"QuestionId": None}, "[0]: a question needs an id"),
        ("popqa", {"possible_answers": "Mira"}, ":2: 'possible_answers' must be a JSON list in a string, not 'Mira'"),
        ("bamboogle", {"Answer": " "}, ":2: question"),
    ],
)
def test_a_faulty_record_is_named_with_its_place(name: str, change: dict[str, Any], complaint: str, tmp_path: Path):
    make: dict[str, Callable[[dict[str, Any]], Path]] = {
        "hotpotqa": lambda changed: write_json(tmp_path / "f", [{**HOTPOTQA, **changed}]),
        "2wikimultihopqa": lambda changed: write_json(tmp_path / "f", [{**TWOWIKI, **changed}]),
        "musique": lambda changed: write_lines(tmp_path / "f", {**MUSIQUE, **changed}),
        "nq": lambda changed: write_lines(tmp_path / "f", {**NQ, **changed}),
        "triviaqa": lambda changed: write_json(tmp_path / "f", {"Data": [{**TRIVIAQA, **changed}]}),
        "popqa": lambda changed: write_table(tmp_path / "f", {**POPQA, **changed}, delimiter="\t"),
        "bamboogle": lambda changed: write_table(tmp_path / "f", {**BAMBOOGLE, **changed}),
    }
    with pytest.raises(UserError) as caught:
        read_questions(make[name](change), format=name)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'f'}")


@pytest.mark.parametrize("step", [{"question": "Where was #2 born?"}, {"question": "Where was #0 born?"}])
def test_a_step_may_speak_of_earlier_steps_alone(step: dict[str, Any], tmp_path: Path):
    steps = [{"answer": "x", "paragraph_support_idx": 1, **step}]
    path = write_lines(tmp_path / "m.jsonl", {**MUSIQUE, "question_decomposition": steps})
    with pytest.raises(UserError, match="step 1 of question '3hop1__1_2_3' refers to a step that is not before it"):
        read_questions(path, decompose=True)


def capitals(record: Record, wanted: Wanted) -> Sample:
    """A format from outside the package."""
    question = Question(id=record["country"], text=f"Capital of {record['country']}?", answers=(record["capital"],))
    return Sample((question,))


CAPITALS = Format(capitals, (("country", "capital"),))


def test_a_format_of_your_own_is_recognised_once_registered_and_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_lines(tmp_path / "q.jsonl", {"country": "Norway", "capital": "Oslo"})
    (by_path,) = read_questions(path, format=f"{__name__}:CAPITALS")
    with pytest.raises(UserError, match="no known format has the fields country, capital"):
        read_questions(path)
    monkeypatch.setitem(register.dataset._registered, "capitals", CAPITALS)  # as register.dataset("capitals", CAPITALS)
    assert read_questions(path) == read_questions(path, format="capitals") == [by_path]
    assert by_path.answers == ("Oslo",)


UNSOUND = Format(lambda record, wanted: record["text"], (("title", "text"),))  # pyright: ignore[reportArgumentType]


def test_a_format_that_is_none_or_fails_is_named_with_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_lines(tmp_path / "q.jsonl", {"country": "Norway"})
    with pytest.raises(
        UserError, match=f"the format '{__name__}:capitals' is <function capitals .* must be a .*Format"
    ):
        read_questions(path, format=f"{__name__}:capitals")
    with pytest.raises(UserError, match=r"q.jsonl:1: the format's translate fails: KeyError: 'capital'"):
        read_questions(path, format=f"{__name__}:CAPITALS")
    with pytest.raises(UserError, match=r"t.jsonl:1: the format's translate returned 'Oslo'; it must return a Sample"):
        read_questions(write_lines(tmp_path / "t.jsonl", {"text": "Oslo"}), format=f"{__name__}:UNSOUND")
    monkeypatch.setitem(register.dataset._registered, "capitals", capitals)
    with pytest.raises(UserError, match=r"the format 'capitals' is <function capitals .* must be a .*Format"):
        read_questions(path)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path):
    path = write_lines(tmp_path / "q.jsonl", {"prompt": "Who?", "completion": "A"})
    with pytest.raises(UserError) as caught:
        read_questions(path)
    assert "no known format has the fields prompt, completion" in str(caught.value)
    assert all(name in str(caught.value) for name in FORMATS)
    with pytest.raises(UserError, match="unknown dataset 'squad'; known: searchr1, tasks, musique, 2wiki"):
        read_questions(path, format="squad")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (json.dumps([HOTPOTQA])[:-40], "not a complete JSON document"),
        (json.dumps({"Data": [TRIVIAQA]}, indent=2)[:-40], "not a complete JSON document"),
        ('[{"id": "a", "text": "Who?", "answers": ["A"]}, 3]', r"\[1\]: must be a JSON object, not int"),
        ('{\n"Version": 1}', 'must be a list of objects, or contain one under "Data"'),
        ("Question,Answer\nWho?\n", ":2: this row does not have as many fields"),
        ("Question,Answer\nWho?,A,B\n", ":2: this row does not have as many fields"),
        ("PAR1 and no more", "the Parquet data is cut short or damaged"),
        ("Who founded Alvex?", ":1: not a whole JSON object"),
        ('{"question": "who", "answer"', ":1: not a whole JSON object"),
        ("[]", "has no questions"),
    ],
)
def test_a_cut_or_strange_file_is_an_error_of_its_own(content: str, complaint: str, tmp_path: Path):
    (tmp_path / "f").write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_questions(tmp_path / "f")


def test_search_r1_rows_keep_ids_apart_that_begin_anew_in_each_data_set(tmp_path: Path):
    path = write_rows(
        tmp_path / "train.parquet",
        searchr1("who founded alvex", ["Mira Toll", "Toll"]),
        searchr1("Where was Mira Toll born", ["Bergen"], source="hotpotqa"),
    )
    assert read_questions(path) == [
        Question(id="nq:train_0", text="who founded alvex?", answers=("Mira Toll", "Toll"), source="nq"),
        Question(id="hotpotqa:train_0", text="Where was Mira Toll born?", answers=("Bergen",), source="hotpotqa"),
    ]


def test_mem1s_own_file_gives_the_questions_of_each_task(tmp_path: Path):
    path = write_rows(
        tmp_path / "train.parquet",
        mem1(["who founded alvex", "where is it"], [["Mira Toll", "Toll"], ["Bergen"]]),
        mem1(["who owns berl", "Who founded Alvex; and when"], [["no one"], ["Mira Toll, 1901"]], source="hotpotqa"),
    )
    tasks = read_tasks(path)
    assert [[(q.text, q.answers) for q in task] for task in tasks] == [
        [("who founded alvex?", ("Mira Toll", "Toll")), ("where is it?", ("Bergen",))],
        [("who owns berl?", ("no one",)), ("Who founded Alvex; and when?", ("Mira Toll, 1901",))],
    ]
    assert [q.text for q in read_questions(path)] == [q.text for task in tasks for q in task]


def test_a_row_whose_questions_and_answers_do_not_match_is_named(tmp_path: Path):
    path = write_rows(tmp_path / "t.parquet", mem1(["a", "b?; c"], [["1"], ["2"]]))
    with pytest.raises(UserError, match=r"t\.parquet\[0\]: 3 questions for 2 lists of answers"):
        read_tasks(path)


def composed(count: int, objectives: int) -> list:
    questions = [
        Question(id=f"q{i}", text=f"who is {i}", answers=(f"n {i}", f"alias {i}"), source="nq", hops=1 + i % 2)
        for i in range(count)
    ]
    form = TaskTemplate(prompt="released", tags=RELEASED)
    return compose(questions, form, objectives=objectives, count=count // objectives, seed=0)


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_composed_tasks_are_read_back_as_they_were(name: str, objectives: int, tmp_path: Path):
    tasks = composed(12, objectives)
    write_tasks(tmp_path / name, tasks)
    assert read_tasks(tmp_path / name) == [task.questions for task in tasks]
    assert Counter(read_questions(tmp_path / name)) == Counter(q for task in tasks for q in task.questions)


def test_a_written_row_has_what_mem1s_and_search_r1s_code_reads(tmp_path: Path):
    import pyarrow.parquet

    write_tasks(tmp_path / "t.parquet", composed(4, 2), split="evaluation")
    row = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()[1]
    (message,) = row["prompt"]
    asked = [f"{question['text']}?" for question in row["questions"]]
    target = row["reward_model"]["ground_truth"]["target"]
    assert (row["data_source"], row["ability"], row["reward_model"]["style"]) == ("nq", "fact-reasoning", "rule")
    assert target == row["golden_answers"] == [question["answers"] for question in row["questions"]]
    assert row["extra_info"] == {"split": "test", "index": 1, "indices": [2, 3]}
    write_tasks(tmp_path / "u.parquet", [*composed(4, 2)[:1], *composed(4, 1)[:2]])
    rows = pyarrow.parquet.read_table(tmp_path / "u.parquet").to_pylist()
    assert [row["extra_info"]["indices"] for row in rows] == [[0, 1], [2], [3]]
    assert message["role"] == "user"
    # joined as MEM1's own files are, and without labels, which its scorer would take for part of the answers
    assert message["content"].endswith(f"Answer the following questions: {'; '.join(asked)}\n")
    assert row["question"] == "; ".join(asked)
    # MEM1's reward looks for the last of at least two answers in prompt and completion together
    assert message["content"].count("<answer>") == message["content"].count("</answer>") == 1


def test_mem1s_reward_of_the_right_answers_is_their_number(tmp_path: Path):
    import pyarrow.parquet

    write_tasks(tmp_path / "t.parquet", composed(6, 3))
    row = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()[0]
    golds = row["reward_model"]["ground_truth"]["target"]
    completion = f"<think> done </think><answer> {'; '.join(gold[-1] for gold in golds)} </answer>"
    # its rule: the last of at least two answers in prompt and completion, cut at semicolons, compared by position
    answers = re.findall(r"<answer>(.*?)</answer>", row["prompt"][0]["content"] + completion, re.DOTALL)
    assert len(answers) > 1
    assert sum(exact_match(a, golds[i]) for i, a in enumerate(answers[-1].strip().split(";"))) == 3


def test_one_objective_is_written_as_search_r1_has_it(tmp_path: Path):
    import pyarrow.parquet

    write_tasks(tmp_path / "t.parquet", composed(2, 1))
    row = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()[0]
    assert row["reward_model"]["ground_truth"]["target"] == row["questions"][0]["answers"]
    assert row["data_source"] == "nq"


def test_another_ending_and_single_questions_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"must end in \.parquet \(for MEM1's code\) or \.jsonl"):
        write_tasks(tmp_path / "t.csv", composed(2, 1))
    write_questions(tmp_path / "q.jsonl", composed(2, 1)[0].questions)
    with pytest.raises(UserError, match="has single questions, not composed tasks"):
        read_tasks(tmp_path / "q.jsonl")


def test_without_pyarrow_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = FILES["searchr1"](tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'mem1-agents\[parquet\]'"):
        read_questions(path)


def test_a_data_set_of_the_hub_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, configuration: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, configuration, split))
        return [POPQA]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (question,) = read_questions("hf:akariasai/PopQA:test")
    read_questions("hf:owner/name/distractor:dev", format="popqa")
    assert question.id == "4222362"
    assert asked == [("akariasai/PopQA", None, "test"), ("owner/name", "distractor", "dev")]


def test_a_data_set_that_is_not_to_be_had_is_explained(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="write hf:owner/name:split"):
        read_questions("hf:PopQA")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'mem1-agents\[datasets\]'"):
        read_questions("hf:akariasai/PopQA:test")

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=offline))
    with pytest.raises(UserError, match=r"cannot load hf:akariasai/PopQA:test \(ConnectionError: offline\)"):
        read_questions("hf:akariasai/PopQA:test")


TEXTS = st.text("abcTHE aeé東?!,", min_size=1, max_size=12).filter(lambda text: bool(text.strip()))


@given(TEXTS, st.floats(0, 1), st.floats(0, 1))
def test_the_half_of_a_question_hangs_on_its_normalised_text_alone(text: str, share: float, other: float):
    half = split_of(text, evaluation_share=share)
    if normalize(text):
        assert split_of(f"  The {text}! ", evaluation_share=share) == half
    assert split_of(text, evaluation_share=1.0) == "evaluation"
    assert split_of(text, evaluation_share=0.0) == "train"
    if other >= share and half == "evaluation":
        assert split_of(text, evaluation_share=other) == "evaluation"


def test_the_halves_of_a_hash_are_fixed_for_ever():
    halves = [split_of(f"Who is number {i}?") for i in range(2000)]
    assert 150 < halves.count("evaluation") < 250
    assert [i for i in range(40) if halves[i] == "evaluation"] == [5, 10, 22, 24, 28]


@settings(max_examples=20)
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_question_of_several_files_in_any_order_is_in_one_half_and_once(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]], shuffled: Any
):
    folder = tmp_path_factory.mktemp("pool")
    paths: list[str] = []
    for number, texts in enumerate(files):
        # each file numbers its questions from 0, as public files do
        records = [{"id": f"train_{i}", "question": text, "golden_answers": ["x"]} for i, text in enumerate(texts)]
        paths.append(str(write_lines(folder / f"{number}.jsonl", *records)))

    def keys_of(split: Any) -> set[str]:
        try:
            files = read_pool(paths, split=split, evaluation_share=0.5)
        except UserError:
            return set()
        questions = [question for file in files for question in file]
        keys = [same_text(q.text) for q in questions]
        assert len(keys) == len(set(keys)) == len({q.id for q in questions})
        return set(keys)

    train, evaluation = keys_of("train"), keys_of("evaluation")
    shuffled.shuffle(paths)
    assert not train & evaluation
    assert train | evaluation == {same_text(text) for texts in files for text in texts}
    assert (keys_of("train"), keys_of("evaluation")) == (train, evaluation)


def test_questions_that_differ_in_a_sign_are_all_kept_and_repetitions_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    texts = ["8 - 2?", "8 + 2?", "Who made C?", "Who made C++?", "1.5 m?", "15 m?"]
    records = [{"id": str(i), "text": text, "answers": ["x"]} for i, text in enumerate(texts)]
    first = write_lines(tmp_path / "a.jsonl", *records)
    second = write_lines(tmp_path / "b.jsonl", {"id": "y", "text": "who made C", "answers": ["x"]}, records[0])
    files = read_pool([str(first), str(second)])
    assert [[q.text for q in file] for file in files] == [texts, []]
    assert f"2 repeated questions of {first}, {second} are left out" in caplog.text
    kept = read_pool([str(first)], without=[str(second)])
    assert [[q.text for q in file] for file in kept] == [[texts[1], *texts[3:]]]


def test_questions_whose_texts_ask_the_same_are_in_one_half(tmp_path: Path):
    # the first alone would be trained on
    one, other = "Is it Mary\u2019s 5?", "Is it Mary's 5?"
    pairs = [(one.replace("5", str(n)), other.replace("5", str(n))) for n in range(40)]
    assert any(split_of(a) != split_of(b) for a, b in pairs)
    files = [[{"id": text, "text": text, "answers": ["x"]} for text in of] for of in zip(*pairs, strict=True)]
    paths = [str(write_lines(tmp_path / f"{number}.jsonl", *records)) for number, records in enumerate(files)]
    halves = [{same_text(q.text) for file in read_pool(paths, split=s) for q in file} for s in ("train", "evaluation")]
    assert not halves[0] & halves[1] and len(halves[0]) + len(halves[1]) == 40


@needs_shared_qa
def test_the_halves_of_five_real_data_sets_are_apart():
    paths = [str(SHARED_QA / f"{name}.jsonl") for name in ("dev", "test")]
    halves = [[q for file in read_pool(paths, split=split) for q in file] for split in ("train", "evaluation")]
    keys = [{same_text(q.text) for q in half} for half in halves]
    assert not keys[0] & keys[1]
    assert 0.08 < len(halves[1]) / (len(halves[0]) + len(halves[1])) < 0.12
    assert {q.source for q in halves[1]} == {"hotpotqa", "2wiki", "nq", "popqa", "triviaqa"}
