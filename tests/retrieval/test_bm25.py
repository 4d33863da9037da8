"""BM25: scores by hand and by another implementation, saving, damage, and recall on real text."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import SHARED_QA, TOWNS, needs_shared_qa

from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.index_folder import open_bm25
from mem1.tasks.datasets import write_passages


def ids(bm25: BM25, query: str, k: int = 10) -> list[str]:
    return [passage.id for passage, _ in bm25.search([query], k)[0]]


def test_a_score_computed_by_hand():
    bm25 = BM25.build([Passage("a", "red", "red fox"), Passage("b", "", "blue")], k1=0.9, b=0.4)
    # 2 passages of 3 and 1 words, mean 2; "red" is in one of them, twice
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 / (2 + 0.9 * (1 - 0.4 + 0.4 * 3 / 2))
    ((passage, score),) = bm25.search(["red"], 3)[0]
    assert passage.id == "a"
    assert score == pytest.approx(expected, rel=1e-6)
    assert bm25.search(["red red"], 3)[0][0][1] == pytest.approx(2 * expected, rel=1e-6)


NAMED = {
    "vitamin A": "Vitamin A, of which carrots and liver have much, keeps the eyes healthy.",
    "vitamin B": "Vitamin B is for nerves.",
    "the IT department": "New passwords come from the IT department on the second floor of the old house.",
    "a department": "It is a department.",
    "trade in OR": "Trade of timber in OR and WA grew for years on end.",
    "trade": "Trade or war.",
    "article": "A vitamin is needed. A department, too. A trade.",
}


@pytest.mark.parametrize("query", ["vitamin A", "the IT department", "trade in OR"])
def test_a_letter_or_a_stop_word_in_capitals_is_a_name(query: str):
    bm25 = BM25.build([Passage(name, "", text) for name, text in NAMED.items()])
    assert ids(bm25, f"What is {query}?")[0] == query
    assert ids(bm25, "A") == [] and "A" in bm25.index.vocab_dict


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 0.0)])
def test_the_scores_of_random_passages_are_those_of_the_formula(k1: float, b: float):
    rng = random.Random(0)
    words = [f"word{i}" for i in range(30)]
    documents = [rng.choices(words, k=rng.randint(1, 12)) for _ in range(60)]
    mean = sum(map(len, documents)) / 60
    bm25 = BM25.build([Passage(str(i), "", " ".join(d)) for i, d in enumerate(documents)], k1=k1, b=b, stem=False)

    def score(query: list[str], document: list[str]) -> float:
        total = 0.0
        for word in query:
            df, tf = sum(word in d for d in documents), document.count(word)
            idf = math.log(1 + (60 - df + 0.5) / (df + 0.5))
            total += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean)) if tf else 0.0
        return total

    compared = 0
    for _ in range(20):
        query = rng.choices(words, k=3)
        expected = [score(query, document) for document in documents]
        found = bm25.search([" ".join(query)], 60)[0]
        assert len(found) == sum(e > 0 for e in expected)
        for passage, found_score in found:
            assert found_score == pytest.approx(expected[int(passage.id)], rel=1e-5)
            compared += 1
    assert compared > 200


def test_titles_are_searched_too_and_words_are_stemmed():
    bm25 = BM25.build([Passage("a", "Painters", "She was born there."), Passage("b", "", "A quiet city.")])
    assert ids(bm25, "painter") == ["a"]
    assert ids(bm25, "cities") == ["b"]


def test_without_stemming_only_the_same_word_is_found():
    bm25 = BM25.build([Passage("a", "", "painters"), Passage("b", "", "painter")], stem=False)
    assert ids(bm25, "painters") == ["a"]


@pytest.mark.parametrize("query", ["", "   ", "!?", "the of and", "zzz unknown", "a", "\ud800", "<IS>"])
def test_a_query_without_a_known_word_finds_nothing(query: str):
    assert BM25.build(TOWNS).search([query], 3) == [[]]


def test_equal_scores_keep_the_order_of_the_passages():
    bm25 = BM25.build([Passage(f"p{i}", "", "same words here") for i in range(20)])
    assert ids(bm25, "same words", k=5) == ["p0", "p1", "p2", "p3", "p4"]


def test_the_best_come_first_whatever_k():
    texts = ["fox"] * 3 + ["fox fox", "fox fox fox", "hen"]
    bm25 = BM25.build([Passage(f"p{i}", "", t) for i, t in enumerate(texts)], b=0.0)
    everything = ids(bm25, "fox")
    assert everything == ["p4", "p3", "p0", "p1", "p2"]
    assert [ids(bm25, "fox", k) for k in range(1, 8)] == [everything[:k] for k in range(1, 8)]


def test_passages_of_other_scripts_and_of_stop_words_do_no_harm():
    bm25 = BM25.build(
        [Passage("a", "東京", "東京 は 首都"), Passage("b", "", "the of"), Passage("c", "Österreich", "Wien")]
    )
    assert ids(bm25, "東京") == ["a"]
    assert ids(bm25, "österreich") == ["c"]


@pytest.mark.parametrize("passages", [[], [Passage("a", "The", "of and . !")]])
def test_nothing_to_search_is_an_error(passages: list[Passage]):
    with pytest.raises(UserError, match=f"none of the {len(passages)} passages"):
        BM25.build(passages)


@pytest.mark.parametrize(("k1", "b"), [(-0.1, 0.4), (0.9, 1.1), (0.9, -0.1)])
def test_parameters_out_of_range_are_refused(k1: float, b: float):
    with pytest.raises(UserError, match="k1 >= 0 and 0 <= b <= 1"):
        BM25.build(TOWNS, k1=k1, b=b)


def test_a_loaded_index_answers_like_the_built_one(tmp_path: Path):
    odd = [*TOWNS, Passage("ü", 'quote "x"\n', "line\u2028separator \ud800 half a surrogate, Müller")]
    bm25 = BM25.build(odd, stem=False)
    bm25.save(tmp_path / "index")
    loaded = BM25.load(tmp_path / "index")
    queries = ["capital of Norway", "müller", "capitals", "surrogate"]
    assert loaded.search(queries, 5) == bm25.search(queries, 5)
    assert loaded.passages[-1] == odd[-1]
    assert list(loaded.passages) == odd
    assert loaded.passages[1:3] == odd[1:3]
    with pytest.raises(IndexError):
        loaded.passages[5]


def test_a_missing_and_a_foreign_folder_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="is not a folder"):
        BM25.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a bm25 index"):
        BM25.load(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "dense", "format": 1}))
    with pytest.raises(UserError, match="is not a bm25 index"):
        BM25.load(tmp_path)


def test_an_index_of_another_format_must_be_built_again(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "index" / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(UserError, match="format 99"):
        BM25.load(tmp_path / "index")


def test_an_index_of_other_words_is_never_searched_and_the_cache_builds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_passages(tmp_path / "towns.jsonl", TOWNS)
    with monkeypatch.context() as before:
        before.setattr("mem1.retrieval.bm25.VERSION", 1)
        open_bm25(tmp_path / "towns.jsonl", tmp_path / "cache")
        BM25.build(TOWNS).save(tmp_path / "index")
    with pytest.raises(UserError, match="cuts texts into other words; build the index again"):
        BM25.load(tmp_path / "index")
    capsys.readouterr()
    assert ids(open_bm25(tmp_path / "towns.jsonl", tmp_path / "cache"), "Sweden") == ["p2"]
    assert "other words" in (said := capsys.readouterr().err) and "rebuilding it" in said
    open_bm25(tmp_path / "towns.jsonl", tmp_path / "cache")
    assert not capsys.readouterr().err


INDEX_FILES = [
    *("passages.jsonl", "offsets.npy", "vocab.index.json", "params.index.json"),
    *("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"),
]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
@pytest.mark.parametrize("name", INDEX_FILES)
def test_damage_to_any_file_is_noticed(tmp_path: Path, name: str, damage: str):
    BM25.build(TOWNS).save(tmp_path / "index")
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == sorted([*INDEX_FILES, "manifest.json"])
    file = tmp_path / "index" / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=re.escape(name)):
        BM25.load(tmp_path / "index")


def test_a_full_disk_while_saving_leaves_the_old_index_and_nothing_half_written(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "index")
    code = f"""
import resource
from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.records import Passage
from mem1.retrieval import BM25
bm25 = BM25.build([Passage(str(i), "", "word " * 100) for i in range(100)])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    bm25.save({str(tmp_path / "index")!r})
except UserError as error:
    print(error)
"""
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True)
    assert "cannot write the bm25 index" in done.stdout
    assert "free some space" in done.stdout
    assert len(BM25.load(tmp_path / "index").passages) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["index"]


@needs_shared_qa
@pytest.mark.parametrize(
    ("every", "size", "recalls"),
    [
        (64, 3365, {"hotpotqa": (53, 78, 87), "2wiki": (36, 43, 49)}),
        pytest.param(1, 64_047, {"hotpotqa": (29, 44, 63), "2wiki": (23, 30, 37)}, marks=pytest.mark.slow),
    ],
)
def test_recall_of_gold_titles_on_real_passages(every: int, size: int, recalls: dict[str, tuple[int, int, int]]):
    """Percentage of questions with all gold titles among the first 3, 5 and 10; `every`: distance of other passages."""
    records = [record for name in ("dev", "test") for _, record in read_objects(SHARED_QA / f"{name}.jsonl")]
    records = [r for r in records if r["dataset"] in recalls and r["gold_titles"]]
    gold = {title for record in records for title in record["gold_titles"]}
    corpus = (record for _, record in read_objects(SHARED_QA / "corpus.jsonl.gz"))
    index = BM25.build([Passage(**r) for i, r in enumerate(corpus) if i % every == 0 or r["title"] in gold])
    assert len(index.passages) == size
    for dataset, recall in recalls.items():
        of_set = [r for r in records if r["dataset"] == dataset]
        assert len(of_set) > 200
        results = index.search([r["question"] for r in of_set], 10)
        for k, expected in zip((3, 5, 10), recall, strict=True):
            hits = [
                set(record["gold_titles"]) <= {passage.title for passage, _ in result[:k]}
                for record, result in zip(of_set, results, strict=True)
            ]
            assert 100 * sum(hits) / len(hits) == pytest.approx(expected, abs=3 if every > 1 else 6)
