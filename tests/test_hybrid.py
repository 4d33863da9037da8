"""Fusion and reranking, with retrievers whose answers are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from corpora import TOWNS

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25, RetrievalFailed
from mem1.retrieval.combine import Hybrid, Reranked
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import HashedWords, Prefixes

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


def test_equal_scores_stand_as_the_first_retriever_has_them():
    hybrid = Hybrid([Fixed([OSLO]), Fixed([BERGEN])])
    assert [passage for passage, _ in hybrid.search(["any"], 2)[0]] == [OSLO, BERGEN]


def test_each_retriever_is_asked_for_more_than_is_wanted():
    parts = [Fixed(TOWNS), Fixed(TOWNS)]
    Hybrid(parts, depth=20).search(["any"], 3)
    assert [part.asked for part in parts] == [20, 20]
    Hybrid(parts, depth=20).search(["any"], 30)
    assert [part.asked for part in parts] == [30, 30]


def test_what_one_part_cannot_find_another_does():
    parts = [BM25.build(TOWNS[:2]), BM25.build(TOWNS[2:])]
    assert [p.id for p, _ in Hybrid(parts).search(["Alvex"], 3)[0]] == ["p3"]


def test_a_part_that_fails_fails_the_whole():
    class Down:
        def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
            raise RetrievalFailed("down")

    with pytest.raises(RetrievalFailed, match="down"):
        Hybrid([Fixed(TOWNS), Down()]).search(["any"], 3)


def test_the_scorer_orders_the_first_results_and_no_others():
    def by_length(query: str, passages: Sequence[Passage]) -> list[int]:
        assert query == "any"
        return [len(passage.title) for passage in passages]

    part = Fixed(TOWNS)
    reranked = Reranked(part, by_length, depth=3)
    assert reranked.search(["any"], 2) == [[(STOCKHOLM, 9.0), (BERGEN, 6.0)]]
    assert part.asked == 3
    assert [p for p, _ in reranked.search(["any"], 4)[0]] == [STOCKHOLM, MIRA, BERGEN, OSLO]


def test_equal_scores_keep_the_order_of_the_retriever():
    assert [p for p, _ in Reranked(Fixed(TOWNS), lambda q, ps: [0] * len(ps)).search(["any"], 4)[0]] == TOWNS


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0, float("nan")], []])
def test_a_scorer_that_does_not_score_every_passage_is_a_mistake(scores: list[float]):
    with pytest.raises(ValueError, match="4 numbers"):
        Reranked(Fixed(TOWNS), lambda query, passages: scores).search(["any"], 3)


def test_a_query_without_results_is_not_scored():
    def never(query: str, passages: Sequence[Passage]) -> list[float]:
        raise AssertionError("nothing to score")

    assert Reranked(BM25.build(TOWNS), never).search(["zzz"], 3) == [[]]


def test_fusion_reranking_and_both_kinds_of_index_go_together():
    dense = Dense.build(TOWNS, HashedWords(), prefixes=Prefixes())
    reranked = Reranked(Hybrid([BM25.build(TOWNS), dense]), lambda query, passages: [p.id == "p1" for p in passages])
    assert reranked.search(["capital of Norway"], 1)[0][0] == (BERGEN, 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hybrid([]),
        lambda: Hybrid([Fixed([])], depth=0),
        lambda: Hybrid([Fixed([])], constant=-1),
        lambda: Reranked(Fixed([]), lambda query, passages: [], depth=0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(UserError, match="depth >= 1"):
        make()
