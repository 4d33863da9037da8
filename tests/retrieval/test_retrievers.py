"""What every search engine must do, a new one joining by a line in RETRIEVERS; and what combinations add."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from corpora import TOWNS, HashedWords
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import in_a_thread
from sites import as_json, site

from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25, RetrievalFailed, Retriever
from mem1.retrieval.bm25 import stemmer
from mem1.retrieval.client import HttpRetriever, RetrievalServer
from mem1.retrieval.combine import Hybrid, Snippets, snippet
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import Prefixes
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.search import WebSearch, search_api
from mem1.words import words_of


def built(passages: Sequence[Passage], folder: Path) -> Retriever:
    return BM25.build(passages)


def saved_and_loaded(passages: Sequence[Passage], folder: Path) -> Retriever:
    BM25.build(passages).save(folder / "index")
    return BM25.load(folder / "index")


def dense(passages: Sequence[Passage], folder: Path) -> Retriever:
    Dense.build(passages, HashedWords(), prefixes=Prefixes()).save(folder / "index")
    return Dense.load(folder / "index", HashedWords())


def hybrid(passages: Sequence[Passage], folder: Path) -> Retriever:
    return Hybrid([BM25.build(passages), Dense.build(passages, HashedWords(), prefixes=Prefixes())])


@contextmanager
def served(passages: Sequence[Passage], folder: Path) -> Iterator[Retriever]:
    with in_a_thread(BM25.build(passages)) as address:
        yield HttpRetriever(RetrievalServer(urls=(address,)))


class WithShortIds:
    """A web search knows passages by their addresses; here the last part of an address stands for it."""

    def __init__(self, web: WebSearch) -> None:
        self.web = web

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        found = self.web.search(queries, k)
        return [[(replace(p, id=p.id.rpartition("/")[2]), score) for p, score in result] for result in found]


@contextmanager
def asked_of_searxng(passages: Sequence[Passage], folder: Path) -> Iterator[Retriever]:
    """A server that speaks SearXNG's interface and finds what BM25 finds."""
    index = BM25.build(passages)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (found,) = index.search([parse_qs(urlsplit(handler.path).query)["q"][0]], 10)
        shown = [{"url": f"https://towns.example/{p.id}", "title": p.title, "content": p.text} for p, _ in found]
        as_json({"results": shown})(handler)

    with site({"/search": answer}) as server:
        yield WithShortIds(WebSearch(search_api("searxng", server.url), WebCache(folder / "web.sqlite")))


RETRIEVERS: dict[str, Callable[[Sequence[Passage], Path], Retriever | AbstractContextManager[Retriever]]] = {
    "bm25-built": built,
    "bm25-loaded": saved_and_loaded,
    "http": served,
    "dense": dense,
    "hybrid": hybrid,
    "snippets": lambda passages, folder: Snippets(BM25.build(passages), words=30),
    "web-searxng": asked_of_searxng,
}


@pytest.fixture(scope="module", params=list(RETRIEVERS))
def retriever(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    made = RETRIEVERS[request.param](TOWNS, tmp_path_factory.mktemp(request.param))
    with made if isinstance(made, AbstractContextManager) else nullcontext(made) as ready:
        yield ready


def test_one_list_of_results_a_query_in_the_order_of_the_queries(retriever: Retriever):
    results = retriever.search(["who founded Alvex", "capital of Sweden"], 1)
    assert [[p.id for p, _ in result] for result in results] == [["p3"], ["p2"]]


def test_whole_passages_come_back_best_first(retriever: Retriever):
    (result,) = retriever.search(["Oslo, capital of Norway"], 4)
    scores = [score for _, score in result]
    assert result[0][0] == TOWNS[0]
    assert len(scores) >= 2
    assert scores == sorted(scores, reverse=True)


def test_at_most_k_and_never_more_than_there_are(retriever: Retriever):
    assert [len(retriever.search(["Norway Sweden Bergen"], k)[0]) for k in (1, 2, 4, 1000)] == [1, 2, 4, 4]


def test_a_query_has_the_same_answer_alone_and_in_a_batch(retriever: Retriever):
    assert retriever.search([], 3) == []
    queries = ["capital of Norway", "", "rainy city", "Alvex", "capital of Norway"]
    together = retriever.search(queries, 3)
    assert together == [retriever.search([query], 3)[0] for query in queries]
    assert together[0]


def test_many_threads_get_the_answers_of_one(retriever: Retriever):
    queries = [f"{word} {other}" for word in ("capital", "city", "Alvex") for other in ("Norway", "Sweden", "founding")]
    alone = [retriever.search([query], 3) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: retriever.search([q], 3), queries * 8)) == alone * 8
    assert any(alone)


def test_k_below_one_and_a_lone_string_are_refused(retriever: Retriever):
    for k in (0, -1):
        with pytest.raises(ValueError, match="k >= 1"):
            retriever.search(["Oslo"], k)
    with pytest.raises(TypeError, match="a list of queries"):
        retriever.search("Oslo", 3)


OSLO, BERGEN, STOCKHOLM, MIRA = TOWNS


@dataclass
class Fixed:
    """Answers every query with these passages, whatever their score is worth."""

    passages: Sequence[Passage]
    asked: int = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        self.asked = k
        return [[(passage, 1000.0 - i) for i, passage in enumerate(self.passages)][:k] for _ in queries]


def test_ranks_are_added_up_as_reciprocals():
    hybrid = Hybrid([Fixed([OSLO, BERGEN, STOCKHOLM]), Fixed([BERGEN, MIRA])])
    (result,) = hybrid.search(["any"], 10)
    assert [passage for passage, _ in result] == [BERGEN, OSLO, MIRA, STOCKHOLM]
    assert [score for _, score in result] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])


def test_equal_scores_keep_the_order_of_the_first_retriever():
    hybrid = Hybrid([Fixed([OSLO]), Fixed([BERGEN])])
    assert [passage for passage, _ in hybrid.search(["any"], 2)[0]] == [OSLO, BERGEN]


def test_each_retriever_is_searched_deeper_than_k():
    parts = [Fixed(TOWNS), Fixed(TOWNS)]
    Hybrid(parts, depth=20).search(["any"], 3)
    assert [part.asked for part in parts] == [20, 20]
    Hybrid(parts, depth=20).search(["any"], 30)
    assert [part.asked for part in parts] == [30, 30]


def test_each_part_of_a_hybrid_contributes():
    parts = [BM25.build(TOWNS[:2]), BM25.build(TOWNS[2:])]
    assert [p.id for p, _ in Hybrid(parts).search(["Alvex"], 3)[0]] == ["p3"]


def test_a_part_that_fails_fails_the_whole():
    class Down:
        def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
            raise RetrievalFailed("down")

    with pytest.raises(RetrievalFailed, match="down"):
        Hybrid([Fixed(TOWNS), Down()]).search(["any"], 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hybrid([]),
        lambda: Hybrid([Fixed([])], depth=0),
        lambda: Hybrid([Fixed([])], constant=-1),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(UserError, match="depth >= 1"):
        make()


LONG = "a b one two three four five the mill was built by Toll in 1901 six seven eight nine ten"
WORDS = st.lists(st.sampled_from(["mill", "mills", "built", "by", "Toll", "the", "x", "-", "yy zz"]), max_size=40).map(
    " ".join
)


@pytest.mark.parametrize(
    ("query", "words", "shown"),
    [
        ("the mill was built by ____ in 1901", 8, "the mill was built by Toll in 1901"),
        ("the mill was built by ____ in 1901", 12, "four five the mill was built by Toll in 1901 six seven"),
        ("SEVENS, eight", 3, "six seven eight"),
        ("eight nine ten", 4, "seven eight nine ten"),
        ("one", 3, "b one two"),
        ("nothing of it", 99, LONG),
    ],
)
def test_the_words_around_the_best_match_are_shown(query: str, words: int, shown: str):
    assert snippet(LONG, query, words=words) == shown


def test_a_match_at_an_end_is_shown_with_the_words_at_the_end():
    text = " ".join(["filler"] * 30 + ["it", "was", "sold", "again", "in", "1923."])
    assert snippet(text, "it was sold again in ____.", words=10).endswith("sold again in 1923.")


def test_text_without_spaces_is_shortened_around_its_best_match():
    tokyo = "東京都は日本の首都である。"
    text = "雨が降る。" * 2_000 + tokyo + "雪が降る。" * 2_000
    assert snippet(text, "日本の首都", words=11) == "東京都は日本の首都であ"
    bangkok = "กรุงเทพมหานครเป็นเมืองหลวง"
    shown = snippet("ฝนตกหนัก" * 500 + bangkok + "หิมะตก" * 500, "เมืองหลวง", words=8)
    assert "เมืองหลวง" in shown and len(shown) < 60


@settings(max_examples=50)
@given(WORDS, WORDS, st.integers(1, 12))
def test_no_other_stretch_shares_more_words_with_the_query(text: str, query: str, words: int):
    stem = stemmer()

    def shared(piece: str) -> int:
        wanted = list(map(stem, words_of(query)))
        return sum(not wanted.remove(s) for s in map(stem, words_of(piece)) if s in wanted)  # type: ignore[func-returns-value]

    pieces = text.split()
    stretches = [" ".join(pieces[i : i + words]) for i in range(max(1, len(pieces) - words + 1))]
    shown = snippet(text, query, words=words)
    assert shown in stretches
    assert shared(shown) == max(map(shared, stretches))


def test_ids_titles_scores_and_order_are_those_of_the_search():
    passages = [Passage("p0", "Mill", LONG), Passage("p1", "Other", "a mill, and no more")]
    bm25 = BM25.build(passages)
    (whole,), (short,) = bm25.search(["mill built"], 2), Snippets(bm25, words=3).search(["mill built"], 2)
    assert [(p.id, p.title, score) for p, score in short] == [(p.id, p.title, score) for p, score in whole]
    assert {p.id: p.text for p, _ in short} == {"p0": "mill was built", "p1": "a mill, and"}
    with pytest.raises(UserError, match="at least 1 word, not 0"):
        Snippets(bm25, words=0)


def test_a_very_long_passage_takes_linear_time():
    started = time.process_time()
    snippet("mill was built " * 3_000, "the mill was built by ____", words=24)
    assert time.process_time() - started < 2


def test_real_questions_can_be_shown_snippets_too(tmp_path):
    from mem1.envs.base import Action
    from mem1.protocol import PAPER
    from mem1.records import Question
    from mem1.tasks.datasets import write_passages, write_questions

    write_passages(tmp_path / "c.jsonl", [Passage("p0", "Mill", LONG)])
    write_questions(tmp_path / "q.jsonl", [Question(id="q", text="Who built the mill?", answers=("Toll",))])
    BM25.build([Passage("p0", "Mill", LONG)]).save(tmp_path / "index")
    config = MultihopTasks(questions=str(tmp_path / "q.jsonl"), corpus=str(tmp_path / "index"), snippet_words=4)
    source = config.source("evaluation", PAPER)
    (task,) = source.tasks(objectives=1, count=1, seed=0)
    (seen,) = source.environment.observe([Action(task, "search", "mill was built by")])
    assert seen.text == "Doc 1 (Title: Mill) mill was built by"
