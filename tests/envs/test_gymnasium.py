"""Gymnasium environments as tasks: seeds, observations, returns, and the same state whoever goes on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from native_models import check_episodes
from tag_sets import PAPER_SHOP

from mem1.configuration.model import plain
from mem1.envs.base import Action
from mem1.errors import UserError
from mem1.protocol import PAPER

pytest.importorskip("gymnasium")

import text_games

from mem1.envs.gymnasium import SEEDS, GymnasiumTasks

NAMES = ["take one", "take two"]


def source(split: Any = "train", **keys: Any) -> Any:
    keys = {"id": "text_games:Games", "actions": NAMES, "prompt": "plain", **keys}
    return GymnasiumTasks(**keys).source(split, PAPER_SHOP)


def act(task: Any, *actions: str) -> Action:
    return Action(task, "act", actions[-1], tuple(("act", action) for action in actions[:-1]))


def test_tasks_of_a_seed_are_the_same_and_no_seed_is_in_two_parts():
    def drawn(split: str, **keys: Any) -> set[str]:
        return {task.id for task in source(split, **keys).tasks(objectives=1, count=50, seed=3)}

    assert drawn("train") == drawn("train") and len(drawn("train")) == 50
    parts = [drawn("train"), drawn("evaluation", evaluated="development"), drawn("evaluation")]
    for number, part in enumerate(parts):
        assert {int(task.rpartition(" ")[2]) // SEEDS for task in part} == {number}
    assert plain(GymnasiumTasks(id="a:b").development())["evaluated"] == "development"


def test_a_prompt_has_the_first_observation_and_the_actions():
    (task,) = source().tasks(objectives=1, count=1, seed=0)
    left, _, actions = task.prompt.partition(" are left.\n")
    assert int(left) >= 5 and actions == "Actions: take one, take two"
    (explained,) = source(prompt="episode").tasks(objectives=1, count=1, seed=0)
    assert "<action> ... </action>" in explained.prompt and explained.prompt.endswith(task.prompt + "\n")


@pytest.mark.parametrize("live", [1, 100])
def test_attempts_that_act_alike_or_apart_see_what_their_own_actions_lead_to(live: int):
    made = source(live=live)
    task, other = made.tasks(objectives=1, count=2, seed=0)
    start, others = (int(t.prompt.split()[0]) for t in (task, other))
    environment = made.environment
    paths = [(task, start, (1, 0, 1)), (task, start, (1, 1, 0)), (task, start, (1, 0, 0)), (other, others, (0, 0, 0))]
    for turn in range(1, 4):
        replies = environment.observe([act(t, *(NAMES[n] for n in path[:turn])) for t, _, path in paths])
        for (_, first, path), reply in zip(paths, replies, strict=True):
            assert reply.text == f"{first - sum(n + 1 for n in path[:turn])} are left."
            assert reply.failed is None and reply.ended == (turn == 3)
    for (t, _, path), reply in zip(paths, replies, strict=True):
        assert environment.score(t, reply.answer).reward == sum(n + 1 for n in path)
        later = source().environment.score(t, reply.answer)  # in another process
        assert dict(later.metrics) == {"score": sum(n + 1 for n in path), "steps": 3.0}


def test_an_attempt_that_stops_early_is_scored_as_far_as_it_went():
    made = source(turn_limit=2)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    environment = made.environment
    (reply,) = environment.observe([act(task, "take two")])
    assert environment.score(task, "").reward == 0 and environment.score(task, reply.answer).reward == 2
    environment.observe([act(task, "take two")])
    (reply,) = environment.observe([act(task, "take two", "take two")])
    assert not reply.ended and json.loads(reply.answer or "") == ["take two", "take two"]
    assert environment.score(task, reply.answer).reward == 4


def test_environments_are_closed_once_their_episodes_are_over_or_too_many():
    text_games.made.clear()
    made = source(live=3)
    tasks = made.tasks(objectives=1, count=10, seed=0)
    assert len(text_games.made) == 3
    environment = made.environment
    for turn in range(1, 4):
        replies = environment.observe([act(task, *["take one"] * turn) for task in tasks])
    assert all(reply.ended for reply in replies) and not text_games.made


def test_unknown_actions_are_answered_and_take_no_step():
    made = source()
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    (first,) = made.environment.observe([act(task, "take </info> three")])
    assert first.text == "There is no action 'take </info> three'. The actions are: take one, take two."
    (second,) = made.environment.observe([act(task, "take </info> three", " take one ")])
    assert int(second.text.split()[0]) == int(task.prompt.split()[0]) - 1
    numbered = source(actions=[])
    (task,) = numbered.tasks(objectives=1, count=1, seed=0)
    assert task.prompt.endswith("Actions: 0, 1")


def test_actions_can_be_texts_and_what_fails_ends_the_attempt_with_its_reason():
    made = source(id="text_games:Echo", actions=[])
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    actions = ["hello", "stop", "much too long a text", "fail", "number", "nan"]
    replies = made.environment.observe([act(task, action) for action in actions])
    assert [reply.text for reply in replies[:2]] == ["hello hello", "stop stop"] and replies[1].ended
    assert replies[2].text.startswith("This is no action that the environment accepts: it must be one of Text(1, 10")
    assert [reply.failed for reply in replies] == [
        *(None, None, None, "RuntimeError: the echo is broken"),
        *("its observation is a int, not a text", "the reward of its action 'nan' is nan, not a finite number"),
    ]


@pytest.mark.parametrize("first", ["Three are left.", None])
def test_a_reset_that_returns_an_observation_alone_is_named(first: Any):
    with pytest.raises(
        UserError, match=rf"'text_games:Old', seed \d+: its reset returned {first!r}, not \(obs.*, info"
    ):
        source(id="text_games:Old", args={"first": first}).tasks(objectives=1, count=1, seed=0)


def test_a_step_of_four_values_ends_the_attempt_with_its_reason():
    made = source(id="text_games:Old", args={"first": "new"})
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    (reply,) = made.environment.observe([act(task, "take one")])
    assert reply.failed is not None and reply.failed.startswith("its step returned ('Two are left.', 1.0, False, {}),")


def test_an_episode_that_cannot_be_repeated_is_told():
    made = source()
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    (reply,) = made.environment.observe([act(task, *["take one"] * 4)])
    assert reply.failed == "its actions, repeated, ended the episode too early: it is not reproducible"
    assert dict(made.environment.score(task, json.dumps(["take one"] * 5)).metrics) == {"score": 0.0, "unscored": 1.0}


def test_a_model_in_its_own_protocol_is_trained_on_what_it_sampled(tmp_path: Path):
    check_episodes(tmp_path, {"kind": "gymnasium", "id": "text_games:Games", "actions": NAMES, "turn_limit": 4})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"id": "text_games:Nothing"}, "text_games has no 'Nothing'"),
        ({"id": "Nothing-v7"}, r"tasks.id = 'Nothing-v7' cannot be made: NameNotFound: "),
        ({"args": {"begin": 3}}, "cannot be made: TypeError: .*unexpected keyword"),
        ({"id": "text_games:Picture"}, "its observations are Box.*, not Text; name a function that wraps it"),
        ({"id": "text_games:Handles", "actions": []}, "its actions are Box.*; they must be Text or Discrete"),
        ({"actions": ["one"]}, "tasks.actions names 1 actions, but 'text_games:Games' has 2"),
        ({"actions": ["a", "a"]}, "tasks.actions must be different names of discrete actions"),
        ({"id": "text_games:Echo"}, "tasks.actions must be different names of discrete actions"),
    ],
)
def test_an_environment_that_is_not_one_of_texts_is_one_line(keys: Any, said: str):
    with pytest.raises(UserError, match=said) as error:
        source(**keys)
    assert "\n" not in str(error.value)


def test_other_mistakes_are_one_line_each(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="'paper' have no action of the kind act"):
        GymnasiumTasks(id="text_games:Games").source("train", PAPER)
    both = replace(PAPER, name="both", actions=(("act", "do"), ("answer", "answer")))
    with pytest.raises(UserError, match="'both' have answers, but this environment decides when it is over"):
        GymnasiumTasks(id="text_games:Games").source("train", both)
    made = source()
    with pytest.raises(UserError, match=r"one objective, not 2: use objectives = \[1\]"):
        made.tasks(objectives=2, count=1, seed=0)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    with pytest.raises(UserError, match="has no action 'search'; it has: act"):
        made.environment.observe([Action(task, "search", "gold")])
    with pytest.raises(UserError, match="'gold' is not a JSON list of actions"):
        made.environment.score(task, "gold")
    with pytest.raises(UserError, match="is none of the environment"):
        source(id="text_games:Echo", actions=[]).environment.observe([act(task, "hello")])
    with pytest.raises(UserError, match="a Gymnasium environment has no expert"):
        GymnasiumTasks(id="text_games:Games").expert([task], made.environment, PAPER_SHOP, seed=0)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"pip install \"mem1-agents\[gymnasium\]\""):
        source()


def test_an_environment_whose_close_fails_keeps_its_score_and_its_attempts(caplog: pytest.LogCaptureFixture):
    made = source(id="text_games:Gone")
    assert "close() fails, which is passed over: ConnectionError: the game's server has gone" in caplog.text
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    for number in range(1, 4):
        (reply,) = made.environment.observe([act(task, *["take one"] * number)])
    assert reply.ended and made.environment.score(task, reply.answer).reward == 3
    assert made.environment.score(task, "").reward == 0
