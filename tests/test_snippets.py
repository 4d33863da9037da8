"""What is shown of a result: the words around the best match of the query."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.envs.search.tasks import MultihopTasks
from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.bm25 import stemmer, words_of
from mem1.retrieval.combine import Snippets, snippet

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


def test_a_match_at_an_end_is_shown_with_what_stands_at_the_end():
    text = " ".join(["filler"] * 30 + ["it", "was", "sold", "again", "in", "1923."])
    assert snippet(text, "it was sold again in ____.", words=10).endswith("sold again in 1923.")


@settings(max_examples=150, deadline=None)
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
    snippet("mill was built " * 10_000, "the mill was built by ____", words=24)
    assert time.process_time() - started < 5


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
