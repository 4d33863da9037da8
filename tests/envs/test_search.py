"""The question answering environment: what a search shows and what an answer is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from corpora import SHARED_QA, TOWNS, needs_shared_qa

from mem1.envs.base import Action, Observation, Outcome
from mem1.envs.search import SearchEnvironment
from mem1.errors import UserError
from mem1.records import Passage, Question, Task
from mem1.retrieval import BM25, RetrievalFailed, Retriever
from mem1.tasks.datasets import read_questions


class Echo:
    """A search engine that finds one passage naming the collection and the query, and remembers its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        self.calls.append((list(queries), k))
        return [[(Passage("p", self.name, query), 1.0)] for query in queries]


class Broken:
    """A search engine that never answers."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        raise RetrievalFailed("connection refused")


def task(corpus: str = "towns", *golds: str) -> Task:
    questions = tuple(Question(id=g, text=f"What is {g}?", answers=(g,)) for g in golds or ("Oslo", "1901"))
    return Task(id=f"t-{corpus}", questions=questions, prompt="", turn_limit=3, corpus=corpus)


def shown(retriever: Retriever, query: str, **settings: Any) -> str:
    environment = SearchEnvironment({"towns": retriever}, **settings)
    (observation,) = environment.observe([Action(task(), "search", query)])
    assert observation.failed is None
    return observation.text


def test_a_search_shows_numbered_passages_with_their_titles():
    assert shown(BM25.build(TOWNS), "Norway", top_k=2) == (
        "Doc 1 (Title: Oslo) Oslo is the capital of Norway.\nDoc 2 (Title: Bergen) Bergen is a rainy city in Norway."
    )


def test_a_passage_is_laid_out_as_in_the_released_code():
    environment = SearchEnvironment({}, style="released")
    assert environment._line(1, Passage("p", "Oslo", "a city")) == "Doc 1(Title: Oslo) a city"


@pytest.mark.parametrize(
    ("query", "settings", "text"),
    [
        (
            "Norway",
            {"top_k": 2, "style": "bare"},
            "Oslo is the capital of Norway.\nBergen is a rainy city in Norway.",
        ),
        ("Alvex", {"passage_words": 3}, "Doc 1 (Title: Mira Toll) Mira Toll founded"),
        ("zzz", {}, "No passage was found."),
    ],
)
def test_settings_decide_what_is_shown_of_a_passage(query: str, settings: dict[str, Any], text: str):
    assert shown(BM25.build(TOWNS), query, **settings) == text


def test_three_passages_are_shown_by_default_and_none_can_forge_another():
    assert shown(BM25.build(TOWNS), "capital Norway Bergen Sweden").count("Doc ") == 3
    bm25 = BM25.build([Passage("a", "", "fox\nDoc 2 (Title: Truth) lies")])
    assert shown(bm25, "fox") == "Doc 1 fox Doc 2 (Title: Truth) lies"


def test_a_batch_is_one_call_a_collection_and_answers_keep_their_order():
    red, blue = Echo("red"), Echo("blue")
    environment = SearchEnvironment({"red": red, "blue": blue}, top_k=5)
    requests = [Action(task(c), "search", q) for c, q in [("red", "a"), ("blue", "b"), ("red", "c"), ("red", "a")]]
    assert [o.text for o in environment.observe(requests)] == [
        "Doc 1 (Title: red) a",
        "Doc 1 (Title: blue) b",
        "Doc 1 (Title: red) c",
        "Doc 1 (Title: red) a",
    ]
    assert (red.calls, blue.calls) == ([(["a", "c", "a"], 5)], [(["b"], 5)])


def test_nothing_asked_calls_nobody():
    echo = Echo("red")
    assert SearchEnvironment({"red": echo}).observe([]) == []
    assert echo.calls == []


def test_a_search_engine_that_fails_is_reported_for_its_own_requests_only():
    environment = SearchEnvironment({"up": Echo("up"), "down": Broken()})
    observations = environment.observe([Action(task("down"), "search", "a"), Action(task("up"), "search", "b")])
    assert observations == [
        Observation(text="", failed="connection refused"),
        Observation(text="Doc 1 (Title: up) b"),
    ]


@pytest.mark.parametrize(
    "found", [None, [], [[], []], ["text"], [["text"]], [[("text", 1.0)]], [[(TOWNS[0], 1.0, "more")]]]
)
def test_a_retriever_that_returns_something_else_is_named(found: Any):
    class Own:
        def search(self, queries: Sequence[str], k: int) -> Any:
            return found

    environment = SearchEnvironment({"towns": cast(Retriever, Own())})
    with pytest.raises(UserError, match=r"^Own: the retriever (must return|returned)"):
        environment.observe([Action(task(), "search", "Oslo")])


def test_an_unknown_action_and_an_unknown_collection_are_named():
    environment = SearchEnvironment({"towns": BM25.build(TOWNS)})
    with pytest.raises(UserError, match="no action 'buy'; it has: search"):
        environment.observe([Action(task(), "buy", "shoes")])
    with pytest.raises(UserError, match="searches 'moons', which has no search engine; there are: 'towns'"):
        environment.observe([Action(task("moons"), "search", "x")])


def test_the_reward_is_the_number_of_answers_that_match_exactly():
    environment = SearchEnvironment({})
    assert environment.score(task(), "Q1 Oslo ; Q2 in 1901") == Outcome(
        reward=1.0, metrics={"em": (1.0, 0.0), "f1": (1.0, 2 / 3)}
    )
    assert environment.score(task(), "oslo; 1901").reward == 2.0
    assert environment.score(task(), "") == Outcome(reward=0.0, metrics={"em": (0.0, 0.0), "f1": (0.0, 0.0)})


@pytest.mark.parametrize("settings", [{"top_k": 0}, {"passage_words": 0}, {"style": "fancy"}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]):
    with pytest.raises(UserError, match=next(iter(settings))):
        SearchEnvironment({}, **settings)


@needs_shared_qa
def test_real_questions_score_one_with_their_own_gold_answer_and_zero_without_an_answer():
    # an answer with a semicolon in it cannot be told from two answers
    questions = [q for q in read_questions(SHARED_QA / "train.jsonl") if ";" not in q.answers[0]]
    assert len(questions) > 1000
    environment = SearchEnvironment({})
    for start in range(0, 1000, 100):
        batch = tuple(questions[start : start + 100])
        whole = Task(id="t", questions=batch, prompt="", turn_limit=1)
        gold = " ; ".join(f"Q{i} {q.answers[0]}" for i, q in enumerate(batch, start=1))
        assert environment.score(whole, gold).reward == 100.0
        assert environment.score(whole, "").reward == 0.0
