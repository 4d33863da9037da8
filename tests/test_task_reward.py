"""`tasks.reward`: the number of exact matches or their share, for every source of questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mem1.envs.atlas.tasks import AtlasTasks
from mem1.envs.cloze.tasks import ClozeTasks
from mem1.envs.search.env import SearchEnvironment
from mem1.envs.search.tasks import MultihopTasks
from mem1.envs.web.tasks import WebTasks
from mem1.errors import UserError
from mem1.protocol import PAPER
from mem1.records import Question, Task

PAIR = Task(
    id="t",
    questions=(Question(id="1", text="x?", answers=("x",)), Question(id="2", text="y?", answers=("y",))),
    prompt="x? y?",
    turn_limit=9,
)


def test_the_reward_is_the_number_of_exact_matches_or_their_share_and_exact_match_is_the_same():
    by_sum, by_mean = (
        SearchEnvironment({}).score(PAIR, "Q1 x; Q2 y"),
        SearchEnvironment({}, reward="mean").score(PAIR, "Q1 x"),
    )
    assert (by_sum.reward, by_sum.metrics["em"]) == (2.0, (1.0, 1.0))
    assert (by_mean.reward, by_mean.metrics["em"]) == (0.5, (1.0, 0.0))


def test_an_unknown_reward_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown reward 'median'; known: sum, mean"):
        SearchEnvironment({}, reward="median")
    with pytest.raises(ValueError, match=r"unknown reward; known: sum, mean, or package\.module:name"):
        AtlasTasks(reward="median")


@pytest.mark.parametrize("reward", ["sum", "mean"])
def test_every_source_of_questions_hands_the_key_on(reward, tmp_path: Path):
    questions, corpus = tmp_path / "questions.jsonl", tmp_path / "corpus.jsonl"
    questions.write_text('{"id": "1", "question": "Who?", "answers": ["x"]}\n', encoding="utf-8")
    corpus.write_text('{"id": "p", "title": "T", "text": "x is here"}\n', encoding="utf-8")
    sources = [
        AtlasTasks(entities=20, worlds=1, reward=reward),
        MultihopTasks(questions=str(questions), corpus=str(corpus), reward=reward),
        WebTasks(questions=str(questions), api="searxng", cache=str(tmp_path / "web.sqlite"), reward=reward),
    ]
    for tasks in sources:
        assert (
            tasks.source("evaluation", PAPER).environment.score(PAIR, "Q1 x").reward
            == {"sum": 1.0, "mean": 0.5}[reward]
        )
    assert ClozeTasks(corpus="clozes", reward=reward).reward == reward
