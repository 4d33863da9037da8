"""Reading passages, the cache of indexes, and whatever --corpus may name."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import TOWNS, HashedWords

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.corpus import read_passages
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import Prefixes
from mem1.retrieval.index_folder import open_bm25, open_passages, open_retriever
from mem1.tasks.datasets import write_passages

GOOD = '{"id": "p0", "title": "Oslo", "text": "Capital of Norway."}'


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_passages_are_read_in_order(tmp_path: Path):
    path = write(tmp_path / "c.jsonl", GOOD, "", '{"id": 7, "text": "No title.", "year": 1901}')
    assert read_passages(path) == [Passage("p0", "Oslo", "Capital of Norway."), Passage("7", "", "No title.")]


def test_the_layout_of_search_r1_is_title_in_quotes_then_text(tmp_path: Path):
    path = write(
        tmp_path / "c.jsonl",
        json.dumps({"id": "0", "contents": '"Oslo"\nCapital of Norway.\nA city.'}),
        json.dumps({"id": "1", "contents": "Only a text."}),
    )
    assert read_passages(path) == [
        Passage("0", "Oslo", "Capital of Norway.\nA city."),
        Passage("1", "", "Only a text."),
    ]


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_written_passages_are_read_back(tmp_path: Path, name: str):
    odd = [*TOWNS, Passage("ü", "«Zürich»", "東京\nline two \ud800")]
    write_passages(tmp_path / name, odd)
    assert read_passages(tmp_path / name) == odd
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_gzip_is_recognised_by_content_and_the_same_passages_give_the_same_bytes(tmp_path: Path):
    write_passages(tmp_path / "a.jsonl.gz", TOWNS)
    write_passages(tmp_path / "b.jsonl.gz", TOWNS)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert len(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()) == len(TOWNS)
    (tmp_path / "a.jsonl.gz").rename(tmp_path / "a.jsonl")
    assert read_passages(tmp_path / "a.jsonl") == TOWNS


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path):
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert read_passages(tmp_path / "c.jsonl")[0].id == "p0"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "p1", "text": "cut in mid', "not a whole JSON object"),
        ("[" * 100_000, "not a whole JSON object"),
        ('["p1", "Oslo", "text"]', "must hold one JSON object, not list"),
        ('{"id": "p1", "title": "Oslo"}', "passage 'p1' has no text"),
        ('{"id": "p1", "text": "  "}', "passage 'p1' has no text"),
        ('{"id": "p1", "text": 5}', "passage 'p1' has no text"),
        ('{"id": "p1", "contents": "Oslo\\n"}', "passage 'p1' has no text"),
        ('{"id": "p1", "title": 5, "text": "x"}', "the title of passage 'p1' is not a string"),
        ('{"text": "no id"}', "a passage needs an id"),
        ('{"id": true, "text": "x"}', "a passage needs an id"),
        (GOOD, "passage id 'p0' is already used on line 1"),
    ],
)
def test_a_faulty_line_is_named_with_file_and_line(tmp_path: Path, line: str, complaint: str):
    path = write(tmp_path / "c.jsonl", GOOD, "", line)
    with pytest.raises(UserError, match=complaint) as caught:
        read_passages(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_bytes_that_are_not_utf8_are_named_with_file_and_line(tmp_path: Path):
    (tmp_path / "c.jsonl").write_bytes(GOOD.encode() + b'\n{"id": "p1", "text": "Z\xfcrich"}\n')
    with pytest.raises(UserError, match=r"c\.jsonl:2: not UTF-8"):
        read_passages(tmp_path / "c.jsonl")


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_gzip_is_named_with_file_and_line(tmp_path: Path, damage: str):
    passages = [Passage(str(i), "", f"text {i * 7919 % 1000}") for i in range(2000)]
    write_passages(tmp_path / "c.jsonl.gz", passages)
    content = (tmp_path / "c.jsonl.gz").read_bytes()
    damaged = content[:-100] if damage == "cut" else content[:-6] + b"\x00\x00" + content[-4:]
    (tmp_path / "c.jsonl.gz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"c\.jsonl\.gz:\d+: the gzip data is cut short or damaged"):
        read_passages(tmp_path / "c.jsonl.gz")


def test_a_missing_file_a_folder_and_an_empty_file_are_errors(tmp_path: Path):
    with pytest.raises(UserError, match="no file"):
        read_passages(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="cannot read"):
        read_passages(tmp_path)
    with pytest.raises(UserError, match="holds no passage"):
        read_passages(write(tmp_path / "c.jsonl", ""))


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(UserError, match="cannot write"):
        write_passages(tmp_path / "nowhere" / "c.jsonl", TOWNS)
    assert list(tmp_path.iterdir()) == []


def test_the_index_is_built_once_with_a_line_on_stderr_and_then_cached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_passages(tmp_path / "c.jsonl", TOWNS)
    first = open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    said = capsys.readouterr()
    (folder,) = (tmp_path / "cache").iterdir()
    assert said.out == ""
    assert "Indexed 4 passages" in said.err
    assert folder.name in said.err.replace("\n", "")
    made = folder.stat().st_mtime_ns
    again = open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    assert capsys.readouterr().err == ""
    assert folder.stat().st_mtime_ns == made
    assert again.search(["Alvex"], 1) == first.search(["Alvex"], 1) != [[]]


def test_the_cache_goes_by_content_not_by_name(tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", TOWNS)
    open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    write_passages(tmp_path / "copy.jsonl", TOWNS)
    open_bm25(tmp_path / "copy.jsonl", tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 1
    write_passages(tmp_path / "c.jsonl", TOWNS[:2])
    assert len(open_bm25(tmp_path / "c.jsonl", tmp_path / "cache").passages) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_damaged_cache_is_built_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_passages(tmp_path / "c.jsonl", TOWNS)
    open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "data.csc.index.npy").write_bytes(b"")
    assert open_bm25(tmp_path / "c.jsonl", tmp_path / "cache").search(["Alvex"], 1)[0][0][0] == TOWNS[3]
    assert "rebuilding it" in capsys.readouterr().err


def test_a_faulty_corpus_leaves_no_index(tmp_path: Path):
    path = write(tmp_path / "c.jsonl", GOOD, "{")
    with pytest.raises(UserError, match=r"c\.jsonl:2"):
        open_bm25(path, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(UserError, match="no corpus file"):
        open_bm25(tmp_path / "nowhere.jsonl", tmp_path / "cache")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_build_that_is_killed_leaves_no_index_that_is_used(tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", TOWNS)
    open_bm25(tmp_path / "c.jsonl", tmp_path / "other")
    (index,) = (tmp_path / "other").iterdir()
    code = f"""
import dataclasses, os, signal
from mem1.retrieval import BM25

class KilledAfterTwo(tuple):
    def __iter__(self):
        yield from self[:2]
        os.kill(os.getpid(), signal.SIGKILL)

bm25 = BM25.load({str(index)!r})
bm25 = dataclasses.replace(bm25, passages=KilledAfterTwo(bm25.passages[:]))
bm25.save({str(tmp_path / "cache" / index.name)!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (half_written,) = (tmp_path / "cache").iterdir()
    assert half_written.name.startswith(f".{index.name}.partial-")
    assert [p.name for p in half_written.iterdir()] == ["passages.jsonl"]
    assert len(open_bm25(tmp_path / "c.jsonl", tmp_path / "cache").passages) == 4


def test_leftovers_of_killed_builds_are_swept_once_they_are_old(tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", TOWNS)
    open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    (index,) = (tmp_path / "cache").iterdir()
    old, fresh = (tmp_path / "cache" / f".{index.name}.partial-{n}" for n in ("00000000", "11111111"))
    old.mkdir()
    fresh.mkdir()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    (index / "data.csc.index.npy").unlink()
    open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    assert not old.exists()
    assert fresh.exists()


def parquet(path: Path, columns: dict[str, list], row_group_size: int = 2) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
    return path


def test_parquet_is_read_like_jsonl_under_any_file_name(tmp_path: Path):
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
    assert [p.name[:5] for p in (tmp_path / "cache").iterdir()] == ["bm25-"]


def test_a_dense_index_looks_for_its_encoder(tmp_path: Path):
    Dense.build(TOWNS, HashedWords(), prefixes=Prefixes()).save(tmp_path / "dense")
    with pytest.raises(
        UserError, match=r"no folder hashed-words, and no model of that id|pip install 'mem1-agents\[dense\]'"
    ):
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
def test_a_folder_without_an_index_is_an_error_with_the_next_step(tmp_path: Path, opened):
    with pytest.raises(UserError, match=f"is a folder without an index; make one with: mem1 index {tmp_path}"):
        opened(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "colbert", "format": 1, "facts": {}, "files": {}}))
    with pytest.raises(UserError, match="an index of the unknown kind 'colbert'; known: bm25, dense"):
        opened(tmp_path)
    with pytest.raises(UserError, match="check the path"):
        opened(tmp_path / "nowhere")
