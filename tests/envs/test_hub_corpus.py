"""Passages of a data set of the hub: kept once, and searched as a file is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mem1.envs.hub_corpus import check_corpus, local_corpus
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.protocol import PAPER
from mem1.retrieval.corpus import read_passages

PASSAGES = [
    {"id": "p0", "title": "Alvex", "text": "Alvex is in Bergen."},
    {"id": 1, "contents": '"Oslo"\nOslo is a city.'},
]
HOTPOTQA = [
    {
        "id": "q1",
        "question": "Where is Alvex?",
        "answer": "Bergen",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": {"title": ["Alvex"], "sent_id": [0]},
        "context": {"title": ["Alvex", "Oslo"], "sentences": [["Alvex is in Bergen."], ["Oslo is a city. ", "It is."]]},
    }
]


class Rows(list[dict[str, Any]]):
    """A data set that another content gives another fingerprint."""

    @property
    def _fingerprint(self) -> str:
        return repr([*self])


class Hub:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, rows: list[dict[str, Any]]) -> None:
        self.rows = Rows(rows)
        monkeypatch.setenv("MEM1_CACHE", str(folder))
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=self.load))

    def load(self, name: str, configuration: str | None, *, split: str) -> Rows:
        return self.rows


def test_rows_of_passages_are_kept_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    hub = Hub(monkeypatch, tmp_path, PASSAGES)
    files = {local_corpus("hf:owner/wiki:train"), local_corpus("hf:owner/wiki:train")}
    (file,) = files
    assert [(p.id, p.title, p.text) for p in read_passages(file)] == [
        ("p0", "Alvex", "Alvex is in Bergen."),
        ("1", "Oslo", "Oslo is a city."),
    ]
    assert capsys.readouterr().err.count("2 passages of hf:owner/wiki:train are kept in") == 1
    assert local_corpus("wiki.jsonl") == "wiki.jsonl"
    hub.rows[1] = {"id": "1", "title": "Oslo", "text": "Oslo is a town."}
    changed = local_corpus("hf:owner/wiki:train")
    assert changed != file and [p.text for p in read_passages(changed)] == ["Alvex is in Bergen.", "Oslo is a town."]


def test_questions_of_the_hub_are_asked_about_the_paragraphs_that_they_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Hub(monkeypatch, tmp_path, HOTPOTQA)
    address = "hf:hotpotqa/hotpot_qa/distractor:validation"
    tasks = MultihopTasks(questions=address, corpus=address)
    assert "fetched" in tasks.check_search()
    source = tasks.source("evaluation", PAPER)
    (task,) = source.tasks(objectives=1, count=1, seed=0)
    assert task.questions[0].answers == ("Bergen",)
    (found,) = source.environment.retrievers[task.corpus].search(["Where is Alvex?"], 1)  # type: ignore[attr-defined]
    assert found[0][0].text == "Alvex is in Bergen."


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"id": "p0", "title": "Alvex"}], r"hf:owner/wiki:train\[0\]: passage 'p0' has no text"),
        (
            [{"id": 0, "text": "Alvex"}, {"id": "0", "text": "Oslo"}],
            r"train\[1\]: passage id '0' is already used in hf:owner/wiki:train\[0\]",
        ),
        ([], "has no passages"),
        ([{"question": "Where?", "answer": ["Oslo"]}], "has no passages"),
    ],
)
def test_what_holds_no_passages_is_refused(
    rows: list[dict[str, Any]], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Hub(monkeypatch, tmp_path, rows)
    with pytest.raises(UserError, match=why):
        local_corpus("hf:owner/wiki:train")
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith(".")]


def test_every_check_of_a_run_says_the_same_of_a_corpus(tmp_path: Path):
    then = "its index is built"
    hub = check_corpus("hf:owner/wiki:train", "give a file", then)
    assert hub == "hf:owner/wiki:train; it is fetched, and its index is built when the run begins"
    assert check_corpus(str(tmp_path), "give a file", then) == f"{tmp_path}; its index is built when the run begins"
    with pytest.raises(UserError, match="give a file"):
        check_corpus(str(tmp_path / "none"), "give a file", then)
