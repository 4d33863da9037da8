"""Public benchmarks in files of their own formats: MemoryAgentBench read part by part, questions and documents of
BrowseComp-Plus. The samples are invented."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from samples import BROWSECOMP_PLUS, write_lines, write_rows
from terminals import Terminal
from worlds import SAMPLING

from mem1.bench.memory_agent_bench import MemoryAgentBenchTasks, parts
from mem1.dialogue import TagDialogue
from mem1.engines.base import ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.base import Action, TaskSource
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.evaluation.judge import answers
from mem1.evaluation.metrics import contained
from mem1.memory import memory_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER, SEARCH
from mem1.records import Ended, Trajectory, task_from_json, task_to_json
from mem1.retrieval.corpus import read_passages
from mem1.rollout import Budget, Rollout
from mem1.tasks.datasets import read_dataset

FACTS = "\n".join(f"{n}. The mayor of Town{n} is Person{n}." for n in range(40))


def record(source: str = "factconsolidation_sh_6k", **changed: Any) -> dict[str, Any]:
    asked = [f"Who is the mayor of Town{n}?" for n in range(5)]
    fields = {"context": FACTS, "questions": asked, "answers": [[f"Person{n}"] for n in range(5)]}
    return {**fields, "metadata": {"source": source, "qa_pair_ids": None}, **changed}


def source(path: Path, **settings: Any) -> TaskSource:
    return MemoryAgentBenchTasks(file=str(path), **{"part_words": 80, **settings}).source("evaluation", PAPER)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "Conflict_Resolution.jsonl", record())


def test_a_text_is_shown_part_by_part_and_its_questions_last(facts):
    made = source(facts)
    (task,) = made.tasks(objectives=2, count=1, seed=0)
    assert not any(question.text in task.prompt for question in task.questions), "unknown while it is read"
    assert "The text has 4 parts. Number of questions: 2." in task.prompt and task.turn_limit == 6
    shown = []
    for number in range(6):
        history = tuple((SEARCH, "next") for _ in range(number))
        (seen,) = made.environment.observe([Action(task, SEARCH, "next", history)])
        shown.append(seen.text)
    assert [text.split(":")[0] for text in shown[:4]] == [f"Part {n} of 4" for n in range(1, 5)]
    assert "\n".join(text.partition(": ")[2] for text in shown[:4]) == FACTS, "nothing is lost, lines stay lines"
    assert (
        shown[4]
        == shown[5]
        == "The text ends here. Answer:\n"
        + "\n".join(f"Q{n} {question.text}" for n, question in enumerate(task.questions, start=1))
    )
    right = "; ".join(f"Q{n} {question.answers[0]}" for n, question in enumerate(task.questions, start=1))
    assert made.environment.score(task, right).metrics["em"] == (1.0, 1.0)
    assert made.environment.score(task, "Q2 nobody").metrics["em"] == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "answer", "em"),
    [
        ("factconsolidation_mh_32k", "It is Person7, I think", 1.0),
        ("ruler_qa1_197K", "person7", 1.0),
        ("eventqa_full", "Then Person7 left; he was tired", 1.0),
        ("longmemeval_s*", "Person8", 0.0),
        ("detective_qa", "It is Person7", 0.0),
        ("detective_qa", "Person7.", 1.0),
        ("icl_banking77_5900shot_balance", "label: Person7", 1.0),
        ("icl_banking77_5900shot_balance", "I say Person7", 0.0),
        ("ruler_qa1_197K", "", 0.0),
    ],
)
def test_an_answer_is_right_by_the_rule_of_its_source(tmp_path, name, answer, em):
    path = write_lines(tmp_path / "f.jsonl", record(name, questions=["Who?"], answers=[["Person7", "P. Seven"]]))
    made = source(path)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    assert made.environment.score(task, f"Q1 {answer}").metrics["em"] == (em,)
    assert made.environment.score(task, answer).metrics["em"] == (em,), "with and without a label"


@pytest.mark.parametrize(
    "answer",
    [
        "Q1 Oslo; Q2 in spring; with Person1",
        "Answer: Q1 Oslo; Q2 in spring; with Person1",
        "<think>\nQ1 may be Rome\nQ2 no idea\n</think>\n- **Q1**: Oslo\n- **Q2**: in spring; with Person1",
        "<answer>Q1 Oslo; Q2 in spring; with Person1</answer>",
    ],
)
def test_score_judge_and_contains_read_the_same_answers_up_to_the_next_label(tmp_path, answer):
    path = write_lines(tmp_path / "f.jsonl", record("longmemeval_s", answers=[["Oslo", "Person1"]] * 5))
    made = source(path)
    (task,) = made.tasks(objectives=2, count=1, seed=0)
    attempt = Trajectory(turns=(), task=task, ended=Ended.ANSWERED, answer=answer)
    assert made.environment.score(task, answer).metrics["em"] == (1.0, 1.0)
    assert contained(attempt) == 1.0
    assert [one.prediction for one in answers(attempt)] == ["Oslo", "in spring; with Person1"]
    assert task_from_json(task_to_json(task)) == task


def test_where_a_gold_answer_has_to_be_equalled_semicolons_separate_answers(tmp_path):
    made = source(write_lines(tmp_path / "f.jsonl", record("detective_qa", answers=[["Oslo"]] * 5)))
    (task,) = made.tasks(objectives=2, count=1, seed=0)
    assert made.environment.score(task, "Q2 Oslo; it rained; Q1: Oslo").metrics["em"] == (1.0, 1.0)
    assert made.environment.score(task, "Oslo; Oslo").metrics["em"] == (1.0, 1.0)


def test_a_text_without_lines_is_cut_between_words():
    text = " ".join(f"w{n}" for n in range(25))
    assert list(parts(text, 10)) == [" ".join(f"w{n}" for n in range(a, b)) for a, b in ((0, 10), (10, 20), (20, 25))]
    assert list(parts("a b\nc d e f", 4)) == ["a b", "c d e f"], "at the end of a line in the second half"
    assert list(parts(" a b ", 2)) == ["a b"]


def test_every_question_of_a_text_is_asked_before_one_is_asked_again(tmp_path):
    path = write_lines(tmp_path / "f.jsonl", record(), record("ruler_qa1_197K"))
    tasks = source(path).tasks(objectives=2, count=8, seed=0)
    assert [task.corpus for task in tasks[:4]] == ["factconsolidation_sh_6k-0", "ruler_qa1_197K-1"] * 2
    of_one = [question.id for task in tasks[::2][:2] for question in task.questions]
    assert len(set(of_one)) == 4
    assert len({task.id for task in tasks}) > 2 and tasks == source(path).tasks(objectives=2, count=8, seed=0)
    only = source(path, source_name="ruler").tasks(objectives=1, count=3, seed=0)
    assert {task.corpus for task in only} == {"ruler_qa1_197K-1"}


def test_parquet_as_published_is_read_the_same(tmp_path, facts):
    path = write_rows(tmp_path / "Conflict_Resolution-00000-of-00001.parquet", record())
    assert source(path).tasks(objectives=2, count=3, seed=0) == source(facts).tasks(objectives=2, count=3, seed=0)


def test_a_reader_who_remembers_answers_and_one_who_forgets_does_not(facts):
    made = source(facts)
    tasks = made.tasks(objectives=2, count=2, seed=0)

    def script(context: str) -> str:
        asked = context.rpartition("Answer:")[2] if "text ends here" in context else ""
        if not asked:
            return "<IS> reading </IS> <query> next </query>"
        towns = [line.split("Town")[1].split("?")[0] for line in asked.split("Q")[1:]]
        known = [f"Person{town}" if f"mayor of Town{town} is" in context else "?" for town in towns]
        # the last turn is opened with the answer's tag
        return f"{'; '.join(f'Q{n} {answer}' for n, answer in enumerate(known, start=1))} </answer>"

    def run(context: str) -> list[float]:
        codec = Codec(bpe_tokenizer([FACTS], vocab_size=500, tags=PAPER))
        rollout = Rollout(
            engine=ScriptedEngine(codec, script),
            dialogue=TagDialogue(codec),
            environment=made.environment,
            context=memory_policy(context),
            budget=Budget(completion_extra=300, context=20_000),
        )
        attempts = rollout(tasks, sampling=SAMPLING)
        assert {attempt.ended for attempt in attempts} == {Ended.ANSWERED}
        return [em for attempt in attempts for em in attempt.per_objective("em")]

    assert run("full") == [1.0] * 4
    assert run("constant") == [0.0] * 4, "its state says nothing, and the parts are gone"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"context": " "}, r"f.jsonl:1: 'context' must be a text"),
        ({"answers": [["a"]]}, r":1: 'questions' and 'answers' must be lists of the same length"),
        ({"questions": [1], "answers": [["a"]]}, r":1: question 0 must be a text"),
        ({"questions": ["Who?"], "answers": [[]]}, r":1: question 0 must be a text, and its answers a list of texts"),
        ({"metadata": None}, r"no metadata with a source; is this a file of MemoryAgentBench\?"),
        ({"metadata": {"source": "odd"}}, r"the source 'odd' is unknown; known: ruler_qa"),
        ({"metadata": {"source": "recsys_redial_full"}}, r"recsys_redial_full is scored by the titles of a film"),
        ({"metadata": {"source": "infbench_sum_eng_shots2"}}, "only a model can judge"),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path, changed, said):
    path = write_lines(tmp_path / "f.jsonl", record(**changed))
    with pytest.raises(UserError, match=said):
        source(path).tasks(objectives=1, count=1, seed=0)


def test_what_cannot_be_asked_of_a_text_is_said(tmp_path, facts):
    with pytest.raises(UserError, match=r"no text of Conflict_Resolution.jsonl has 6 questions; the most is 5"):
        source(facts).tasks(objectives=6, count=1, seed=0)
    with pytest.raises(UserError, match="has only test data"):
        MemoryAgentBenchTasks(file=str(facts)).source("train", PAPER)
    with pytest.raises(UserError, match=r"nothing.parquet .tasks.file. does not exist"):
        source(tmp_path / "nothing.parquet").tasks(objectives=1, count=1, seed=0)
    (task,) = source(facts).tasks(objectives=1, count=1, seed=0)
    with pytest.raises(UserError, match="a text has no action 'open'"):
        source(facts).environment.observe([Action(task, "open", "x")])


def test_it_is_evaluated_by_the_command(terminal: Terminal, facts: Path):
    code, said, err = terminal(
        "eval", "engine.kind=script", "engine.answer=Q1 nobody", "tasks.kind=memory-agent-bench",
        f"tasks.file={facts}", "--objectives", "1", "--limit", "2", "--json",
        "--tokenizer", "stand-in",
    )  # fmt: skip
    assert code == 0, err
    assert [row["em"] for row in json.loads(said)["rows"]] == [0.0]


def test_browsecomp_plus_is_searched_in_its_own_documents(tmp_path):
    questions = write_lines(tmp_path / "browsecomp_plus_decrypted.jsonl", BROWSECOMP_PLUS)
    documents = [{"docid": str(n), "text": f"Page {n} about Alvex{n}", "url": "https://a.example"} for n in range(3)]
    corpus = write_lines(tmp_path / "corpus.jsonl", *documents)
    assert [passage.id for passage in read_passages(corpus)] == ["0", "1", "2"]
    made = MultihopTasks(questions=str(questions), corpus=str(corpus), top_k=1).source("evaluation", PAPER)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    (seen,) = made.environment.observe([Action(task, SEARCH, "alvex2")])
    assert seen.text == "Doc 1 Page 2 about Alvex2"
    assert made.environment.score(task, "Q1 Mira Toll").reward == 1
    data = read_dataset(questions)
    assert [passage.id for passage in data.passages] == ["41", "7", "9"], "gold, evidence, negatives, each once"
    assert data.questions[0].passage_ids == ("41", "7")


def test_a_file_of_browsecomp_plus_that_is_still_encrypted_is_named(tmp_path):
    hidden = base64.b64encode(BROWSECOMP_PLUS["query"].encode()).decode()
    path = write_lines(tmp_path / "f.jsonl", {**BROWSECOMP_PLUS, "query": hidden})
    with pytest.raises(UserError, match=r"f.jsonl:1: the query is still encrypted; run .*decrypt_dataset.py"):
        read_dataset(path)
    odd = write_lines(tmp_path / "g.jsonl", {**BROWSECOMP_PLUS, "gold_docs": [{"text": "no id"}]})
    with pytest.raises(UserError, match=r"g.jsonl:1: 'docid' must be a string"):
        read_dataset(odd)
