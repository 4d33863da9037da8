"""Tasks whose passages are on a server: configuration, searching, evaluation from the command line, resuming."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from corpora import TOWNS
from servers import in_a_thread
from typer.testing import CliRunner

from mem1.cli.main import app
from mem1.configuration import fingerprint, load_toml, to_toml
from mem1.envs.base import Action
from mem1.envs.search import FileQuestions, MultihopTasks
from mem1.envs.web import WebTasks
from mem1.errors import UserError
from mem1.evaluation.store import made_with
from mem1.jsonl import write_objects
from mem1.policy.policy import make_policy
from mem1.protocol import PAPER
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval import BM25
from mem1.retrieval.client import RetrievalServer
from mem1.retrieval.documents import read_documents
from mem1.retrieval.web.search import SERPER
from mem1.training.train import NOT_FINGERPRINTED

RECIPE = """
[tasks]
kind = "multihop"
questions = "q.jsonl"

[tasks.retriever]
urls = ["http://127.0.0.1:8000", "http://b:8000/retrieve"]
deadline_s = 20.0

[rl]
curriculum = [{ steps = 1 }]
"""
RL = Rl(curriculum=(Phase(steps=1),))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with in_a_thread(BM25.build(TOWNS)) as address:
        yield address


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    texts = {"capital of Norway": "Oslo", "capital of Sweden": "Stockholm", "founder of Alvex": "Mira Toll"}
    write_objects(path, ({"id": text, "text": text, "answers": [gold]} for text, gold in texts.items()))
    return path


def test_a_recipe_names_servers_in_place_of_a_corpus(tmp_path: Path):
    (tmp_path / "a.toml").write_text(RECIPE)
    config = load_toml(tmp_path / "a.toml", Recipe)
    assert isinstance(config.tasks, MultihopTasks)
    urls = ("http://127.0.0.1:8000/retrieve", "http://b:8000/retrieve")
    assert config.tasks.retriever == RetrievalServer(urls=urls, deadline_s=20.0)
    source = config.tasks.source("evaluation", PAPER)
    assert isinstance(source, FileQuestions)
    assert source.corpus == "passages", "wherever the servers are"
    (tmp_path / "b.toml").write_text(to_toml(config))
    assert load_toml(tmp_path / "b.toml", Recipe) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks.corpus=c.jsonl", "give one collection to search: corpus"),
        ("tasks.retriever=null", "give one collection to search: corpus"),
        ('tasks.retriever.urls=["b"]', "tasks.retriever.urls .*'b' is not the address of a retriever"),
        ("tasks.retriever.urls=[]", "tasks.retriever.urls .*at least 1"),
        (
            "tasks.retriever.deadline=3",
            r"unknown key tasks.retriever.deadline .*did you mean tasks.retriever.deadline_s",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, change: str, message: str):
    (tmp_path / "a.toml").write_text(RECIPE)
    with pytest.raises(UserError, match=message):
        load_toml(tmp_path / "a.toml", Recipe, [change])


def test_tasks_are_searched_on_the_server(address: str, questions: Path):
    config = MultihopTasks(questions=str(questions), retriever=RetrievalServer(urls=(address,)), top_k=1)
    source = config.source("evaluation", PAPER)
    (task,) = source.tasks(objectives=2, count=1, seed=0)
    (seen,) = source.environment.observe([Action(task, "search", "capital of Norway")])
    assert (seen.text, seen.failed) == ("Doc 1 (Title: Oslo) Oslo is the capital of Norway.", None)


def test_a_server_that_is_not_there_is_said_before_anything_is_sampled(questions: Path):
    server = RetrievalServer(urls=("http://127.0.0.1:9",), deadline_s=0.05)
    source = MultihopTasks(questions=str(questions), retriever=server).source("evaluation", PAPER)
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9/retrieve: .*refused; start one with mem1 serve-ret"):
        _ = source.environment


def test_an_evaluation_searches_on_the_server(address: str, questions: Path):
    options = ["--questions", str(questions), f'tasks.retriever.urls=["{address}"]', "--objectives", "1"]
    script = ["engine.kind=script", "engine.answer=Q1 Oslo", "--tokenizer", "stand-in", "--limit", "3", "--json"]
    script += ["tasks.prompt=plain", "budget.completion_extra=200"]
    before = searched(address)
    result = CliRunner().invoke(app, ["eval", *options, *script], catch_exceptions=False)
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["searches"], row["endings"]["answered"], row["endings"]["tool_failed"]) == (1.0, 3, 0)
    assert searched(address) - before == 3 + 1, "a search a task, and one to see that the server is there"


def searched(address: str) -> int:
    (number,) = re.findall(r"queries_total (\d+)", httpx.get(f"{address}/metrics", trust_env=False).text)
    return int(number)


def test_an_evaluation_with_another_class_of_retriever_has_other_settings_and_one_at_another_address_has_not():
    def settings(retriever: RetrievalServer | str) -> dict[str, Any]:
        return made_with("m", MultihopTasks(questions="q.jsonl", retriever=retriever))

    here, there = (settings(RetrievalServer(urls=(url,))) for url in ("http://a:1", "http://b:2"))
    assert here == there
    assert here != settings("mine:Retriever") != settings("mine:Another")


def test_a_run_goes_on_with_a_server_that_has_moved():
    def config(**tasks: Any) -> Recipe:
        return Recipe(rl=RL, tasks=MultihopTasks(questions="q.jsonl", **tasks))

    here, there = (config(retriever=RetrievalServer(urls=(url,))) for url in ("http://a:1", "http://b:2"))
    assert fingerprint(here, NOT_FINGERPRINTED) == fingerprint(there, NOT_FINGERPRINTED)
    assert fingerprint(here, NOT_FINGERPRINTED) != fingerprint(config(corpus="c.jsonl"), NOT_FINGERPRINTED)


def test_without_a_corpus_a_new_tokenizer_is_trained_on_the_training_questions(tmp_path: Path):
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Who?", "answers": ["x"]}\n', encoding="utf-8")
    server = RetrievalServer(urls=("http://a",))
    tasks = MultihopTasks(questions=str(tmp_path / "q.jsonl"), retriever=server)
    config = Recipe(rl=RL, model=ModelConfig(new=TinyModel(tokenizer="bpe")), tasks=tasks)
    with pytest.raises(UserError, match=r"tasks\.train_questions is missing"):
        make_policy(config)


OWN = '''
from mem1.records import Passage

class Echo:
    """Finds one passage, which repeats the query."""
    def search(self, queries, k):
        return [[(Passage(q, "Echo", q), 1.0)] for q in queries]

def read_csv(content, path):
    return "a table", content.decode().replace(",", " ")
'''


def test_a_retriever_a_search_api_and_a_reader_of_documents_can_be_your_own(
    tmp_path: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_search.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = MultihopTasks(questions=str(questions), retriever="own_search:Echo").source("evaluation", PAPER)
    (task,) = source.tasks(objectives=1, count=1, seed=0)
    assert source.environment.observe([Action(task, "search", "hello")])[0].text == "Doc 1 (Title: Echo) hello"

    monkeypatch.setitem(register.search_api._registered, "mine", replace(SERPER, base_url="https://search.example"))
    assert WebTasks(questions=str(questions), api="mine").api == "mine"
    with pytest.raises(ValueError, match="unknown search_api 'yours'; known: serper, brave, tavily, searxng, mine"):
        WebTasks(questions=str(questions), api="yours")

    monkeypatch.setitem(register.document._registered, ".csv", register.document.get("own_search:read_csv"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "t.csv").write_text("Oslo,Norway")
    assert read_documents(tmp_path / "tables").passages == (Passage("t.csv#1", "a table", "Oslo Norway"),)
