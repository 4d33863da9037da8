"""What every search engine must do. A new one joins by a line in `RETRIEVERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from corpora import TOWNS
from servers import in_a_thread
from sites import as_json, site

from mem1.records import Passage
from mem1.retrieval import BM25, Retriever
from mem1.retrieval.client import HttpRetriever, RetrievalServer
from mem1.retrieval.combine import Hybrid, Reranked, Snippets
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import HashedWords, Prefixes
from mem1.retrieval.vector_search import NearestKind
from mem1.retrieval.web.apis import search_api
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.search import WebSearch


def built(passages: Sequence[Passage], folder: Path) -> Retriever:
    return BM25.build(passages)


def saved_and_loaded(passages: Sequence[Passage], folder: Path) -> Retriever:
    BM25.build(passages).save(folder / "index")
    return BM25.load(folder / "index")


def dense(kind: NearestKind) -> Callable[[Sequence[Passage], Path], Retriever]:
    def make(passages: Sequence[Passage], folder: Path) -> Retriever:
        if kind != "flat":
            pytest.importorskip("faiss")
        Dense.build(passages, HashedWords(), prefixes=Prefixes(), kind=kind).save(folder / "index")
        return Dense.load(folder / "index", HashedWords())

    return make


def hybrid(passages: Sequence[Passage], folder: Path) -> Retriever:
    return Hybrid([BM25.build(passages), Dense.build(passages, HashedWords(), prefixes=Prefixes())])


def reranked(passages: Sequence[Passage], folder: Path) -> Retriever:
    def words_in_common(query: str, passages: Sequence[Passage]) -> list[float]:
        words = set(query.lower().replace(",", "").split())
        return [len(words & set(passage.text.lower().rstrip(".").split())) for passage in passages]

    return Reranked(Dense.build(passages, HashedWords(), prefixes=Prefixes()), words_in_common)


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
    "dense-flat": dense("flat"),
    "dense-ivf": dense("ivf"),
    "dense-hnsw": dense("hnsw"),
    "hybrid": hybrid,
    "reranked": reranked,
    "snippets": lambda passages, folder: Snippets(BM25.build(passages), words=30),
    "web-searxng": asked_of_searxng,
}


@pytest.fixture(params=list(RETRIEVERS))
def retriever(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Retriever]:
    made = RETRIEVERS[request.param](TOWNS, tmp_path)
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


def test_no_queries_give_no_results(retriever: Retriever):
    assert retriever.search([], 3) == []


def test_a_query_is_answered_the_same_alone_and_in_a_batch(retriever: Retriever):
    queries = ["capital of Norway", "", "rainy city", "Alvex", "capital of Norway"]
    together = retriever.search(queries, 3)
    assert together == [retriever.search([query], 3)[0] for query in queries]
    assert together[0]


def test_many_threads_get_the_answers_of_one(retriever: Retriever):
    queries = [f"{word} {other}" for word in ("capital", "city", "Alvex") for other in ("Norway", "Sweden", "founding")]
    alone = [retriever.search([query], 3) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: retriever.search([q], 3), queries * 40)) == alone * 40
    assert any(alone)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_a_mistake_of_the_caller(retriever: Retriever, k: int):
    with pytest.raises(ValueError, match="k >= 1"):
        retriever.search(["Oslo"], k)


def test_a_lone_string_is_not_taken_for_a_list_of_letters(retriever: Retriever):
    with pytest.raises(TypeError, match="a list of queries"):
        retriever.search("Oslo", 3)
