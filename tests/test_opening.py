"""Whatever --corpus may name: files of passages, Parquet too, and folders of indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpora import TOWNS

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.corpus import read_passages
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import HashedWords, Prefixes
from mem1.retrieval.open_index import open_passages, open_retriever
from mem1.tasks.datasets import write_passages


def parquet(path: Path, columns: dict[str, list], row_group_size: int = 2) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
    return path


def test_parquet_is_read_like_jsonl_whatever_it_is_called(tmp_path: Path):
    columns = {
        "id": [p.id for p in TOWNS],
        "title": [p.title for p in TOWNS],
        "text": [p.text for p in TOWNS],
        "embedding": [[0.5, 0.5]] * 4,
    }
    assert read_passages(parquet(tmp_path / "c.data", columns)) == TOWNS


def test_parquet_of_search_r1(tmp_path: Path):
    path = parquet(tmp_path / "c.parquet", {"id": [0, 1], "contents": ['"Oslo"\nCapital of Norway.', "Only a text."]})
    assert read_passages(path) == [Passage("0", "Oslo", "Capital of Norway."), Passage("1", "", "Only a text.")]


def test_a_faulty_row_is_named(tmp_path: Path):
    path = parquet(tmp_path / "c.parquet", {"id": ["a", "b", "c"], "text": ["x", "y", None]})
    with pytest.raises(UserError, match=r"c\.parquet:3: passage 'c' has no text"):
        read_passages(path)


def test_a_cut_parquet_file_is_named(tmp_path: Path):
    path = parquet(tmp_path / "c.parquet", {"id": ["a"], "text": ["x"]})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"c\.parquet: the Parquet data is cut short or damaged"):
        read_passages(path)


def test_a_file_is_indexed_and_an_index_is_opened_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    write_passages(tmp_path / "c.jsonl", TOWNS)
    BM25.build(TOWNS).save(tmp_path / "words")
    for path in (tmp_path / "c.jsonl", tmp_path / "words"):
        retriever = open_retriever(path)
        assert isinstance(retriever, BM25)
        assert [p.id for p, _ in retriever.search(["Alvex"], 1)[0]] == ["p3"]
        assert list(open_passages(path)) == TOWNS


def test_a_dense_index_looks_for_its_encoder(tmp_path: Path):
    Dense.build(TOWNS, HashedWords(), prefixes=Prefixes()).save(tmp_path / "dense")
    with pytest.raises(UserError, match=r"no folder hashed-words, and no model of that id|pip install 'mem1\[dense\]'"):
        open_retriever(tmp_path / "dense")
    assert list(open_passages(tmp_path / "dense")) == TOWNS


def test_a_folder_of_indexes_is_searched_as_their_hybrid(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "both" / "stemmed")
    BM25.build(TOWNS, stem=False).save(tmp_path / "both" / "words")
    (tmp_path / "both" / ".half.embedding").mkdir()
    passage, score = open_retriever(tmp_path / "both").search(["Alvex"], 3)[0][0]
    assert (passage.id, score) == ("p3", 2 / 61)
    assert list(open_passages(tmp_path / "both")) == TOWNS


def test_a_hybrid_of_different_passages_is_refused(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "a")
    BM25.build([*TOWNS[:-1], Passage(TOWNS[-1].id, "", "other words")]).save(tmp_path / "b")
    with pytest.raises(UserError, match="a and b hold different passages"):
        open_retriever(tmp_path)


def test_a_folder_of_indexes_and_something_else_is_refused(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="holds indexes and notes, which is not an index"):
        open_retriever(tmp_path)


@pytest.mark.parametrize("opened", [open_retriever, open_passages])
def test_what_is_no_index_says_what_to_do(tmp_path: Path, opened):
    with pytest.raises(UserError, match=f"is a folder without an index; make one with: mem1 index {tmp_path}"):
        opened(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "colbert", "format": 1, "facts": {}, "files": {}}))
    with pytest.raises(UserError, match="an index of the unknown kind 'colbert'; known: bm25, dense"):
        opened(tmp_path)
    with pytest.raises(UserError, match="check the path"):
        opened(tmp_path / "nowhere")
