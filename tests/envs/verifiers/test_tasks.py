"""Environments of verifiers as tasks: its own prompts, replies, ends and scores. `make test-verifiers` runs these."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tag_sets import PAPER_SHOP

import mem1
from mem1.envs.base import Action, Observation
from mem1.envs.verifiers.tasks import VerifiersTasks
from mem1.errors import UserError
from mem1.protocol import PAPER, observation

pytest.importorskip("verifiers.v1")

import verifiers_games as games
from chat_servers import Reply, chat_server

PAGE = Path(__file__).parents[3] / "docs" / "extending" / "verifiers.md"


def source(taskset: str, split: Any = "train", **keys: Any) -> Any:
    return VerifiersTasks(taskset=taskset, **{"prompt": "plain", **keys}).source(split, PAPER_SHOP)


def act(task: Any, *actions: str) -> Action:
    return Action(task, "act", actions[-1], tuple(("act", action) for action in actions[:-1]))


def one(made: Any, *actions: str, task: Any = None) -> Observation:
    (reply,) = made.environment.observe([act(task or made.tasks(objectives=1, count=1, seed=0)[0], *actions)])
    return reply


def test_one_reply_is_scored_with_weight_and_metrics():
    made = source(games.UPPER)
    task, other = made.tasks(objectives=1, count=2, seed=0)
    assert task.prompt.startswith("Be brief.\n\n<b>") and task.prompt.endswith("</b> in capitals?")
    word = task.prompt.split("b>")[1].removesuffix("</").upper()
    right, wrong = made.environment.observe([act(task, word), act(other, word)])
    assert (right.text, right.failed, right.ended, right.answer) == ("", None, True, json.dumps([word]))
    scored = made.environment.score(task, right.answer)
    assert (scored.reward, scored.metrics) == (2.0, {"right": 1.0, "length": float(len(word)), "score": 2.0})
    assert made.environment.score(other, wrong.answer).reward == 0
    again = source(games.UPPER).environment.score(task, right.answer)  # as in another process
    assert again == scored
    assert dict(made.environment.score(task, "").metrics) == {"score": 0.0}


def test_halves_have_no_task_in_common_and_the_same_task_twice_is_one():
    def drawn(split: str, taskset: str = games.UPPER, **keys: Any) -> set[str]:
        return {task.prompt for task in source(taskset, split, **keys).tasks(objectives=1, count=99, seed=1)}

    train, evaluation = drawn("train"), drawn("evaluation")
    assert len(train) == 17 and len(evaluation) == 4 and not train & evaluation
    own = {"args": {"split": "train"}, "evaluation_args": {"split": "test"}}
    train, evaluation = drawn("train", **own), drawn("evaluation", **own)
    assert len(train) == 20 and len(evaluation) == 21  # "both" is in both splits
    assert all("test" in prompt or "both" in prompt for prompt in evaluation) and not train & evaluation
    train, evaluation = drawn("train", games.NAMED, **own), drawn("evaluation", games.NAMED, **own)
    assert len(train) == len(evaluation) == 10 and not train & evaluation  # though "train-3" is "test-3" there
    tasks = source(games.UPPER).tasks(objectives=1, count=17, seed=1)
    assert len({task.id for task in tasks}) == 17
    assert tasks == source(games.UPPER).tasks(objectives=1, count=17, seed=1)


@pytest.mark.parametrize("live", [1, 100])
def test_a_conversation_goes_on_in_the_state_that_its_own_replies_led_to(live: int):
    made = source(games.GUESS, most_tasks=20, live=live)
    tasks = made.tasks(objectives=1, count=3, seed=0)
    numbers = [int(made.tasks_by_id[task.id].data.answer) for task in tasks]
    assert [task.prompt for task in tasks] == ["Guess a number."] * 3
    first = made.environment.observe([act(task, "-1") for task in tasks])
    paths = [("-1", "99", str(numbers[0])), ("-1", str(numbers[0])), ("-1", "98"), ("-1", "-1"), ("99",)]
    played = [tasks[0], tasks[0], tasks[1], tasks[2], tasks[2]]
    assert {reply.text for reply in first} == {"It is <i>higher</i> than -1. </info><action>"}
    for turn in (2, 3):
        going = [(task, path[:turn]) for task, path in zip(played, paths, strict=True) if len(path) >= turn]
        replies = made.environment.observe([act(task, *path) for task, path in going])
        for (task, path), reply in zip(going, replies, strict=True):
            number = numbers[tasks.index(task)]
            assert reply.failed is None and reply.ended == (path[-1] == str(number))
            if not reply.ended:
                word = "lower" if int(path[-1]) > number else "higher"
                assert reply.text == f"It is <i>{word}</i> than {path[-1]}. </info><action>"
    scores = [made.environment.score(task, json.dumps(path)).reward for task, path in zip(played, paths, strict=True)]
    assert scores == pytest.approx([0.8, 0.9, 0, 0, 0])


def test_the_words_of_an_environment_keep_their_tags_but_none_of_the_vocabulary():
    reply = one(source(games.GUESS, most_tasks=5), "-1")
    assert reply.trusted
    inside, _ = observation(reply.text, 3, PAPER_SHOP, trusted=True)
    assert inside.endswith("It is <i>higher</i> than -1. (/info)(action)")
    assert observation(reply.text, 3, PAPER_SHOP)[0].endswith("It is (i)higher(/i) than -1. (/info)(action)")


def test_an_attempt_that_ends_early_is_scored_by_the_environment():
    made = source(games.GUESS, most_tasks=5, turn_limit=2)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    assert not one(made, "-1", "99", task=task).ended  # the last turn
    assert dict(made.environment.score(task, '["-1", "99"]').metrics) == {"found": 0.0, "score": 0.0}
    assert dict(made.environment.score(task, '["-1"]').metrics) == {"found": 0.0, "score": 0.0}


@pytest.mark.parametrize(
    ("taskset", "said"),
    [
        (games.GUESS, "RuntimeError: the game is lost"),
        (games.TWICE, "it ran agent 2 times; only once is supported"),
        (games.BROKEN, "no score"),
    ],
)
def test_an_environment_that_fails_ends_the_attempt_with_its_reason(taskset: str, said: str):
    reply = one(source(taskset, most_tasks=5), "crash")
    assert reply.failed is not None and "\n" not in reply.failed
    assert all(part in reply.failed for part in said.split(": ")), reply.failed


def test_an_environment_that_hangs_ends_the_attempt_and_the_others_go_on():
    made = source(games.GUESS, most_tasks=5, timeout_s=2)
    task, other = made.tasks(objectives=1, count=2, seed=0)
    hung, going = made.environment.observe([act(task, "hang"), act(other, "-1")])
    assert hung.failed == "it took longer than 2 s" and going.failed is None
    assert one(made, "-1", "-2", task=other).failed is None


def test_another_agent_has_a_model_of_its_own():
    choice = {"index": 0, "message": {"role": "assistant", "content": "nothing"}, "finish_reason": "stop"}
    said = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    with chat_server(lambda body, number: Reply(body=json.dumps(said).encode())) as server:
        client = {"type": "eval", "base_url": server.url, "api_key_var": "A"}
        made = source(games.PAIR, agent="asker", env={"helper": {"model": "m", "client": client}})
        (task,) = made.tasks(objectives=1, count=1, seed=0)
        assert task.prompt.endswith("in capitals? The helper says nothing.")
        assert one(made, "x", task=task).failed is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"taskset": "no-such-package"}, "taskset 'no-such-package' not found"),
        ({"taskset": "json"}, "taskset module 'json'"),
        ({"taskset": games.UPPER, "args": {"spilt": "x"}}, r"taskset\.spilt Extra inputs are not permitted"),
        ({"taskset": games.UPPER, "env": {"spilt": "x"}}, "spilt Extra inputs are not permitted"),
        ({"taskset": games.ONE}, "has no tasks for train; give it more, or others"),
        ({"taskset": games.JUDGED}, r"asks a judge, a model: give tasks.args.task.judge the keys model, base_url"),
        ({"taskset": games.PAIR}, "has the agents asker, helper: name the policy's as tasks.agent"),
        ({"taskset": games.PAIR, "agent": "third"}, "'third' is no agent of this environment; it has: asker, helper"),
        ({"taskset": games.PAIR, "agent": "asker"}, r"the agent helper needs a model of its own, as tasks.env.helper"),
    ],
)
def test_an_environment_that_cannot_be_played_is_one_line(keys: Any, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    with pytest.raises(UserError, match=said) as error:
        source(**keys)
    assert "\n" not in str(error.value)


def test_other_mistakes_are_one_line_each(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="'paper' have no action of the kind act"):
        VerifiersTasks(taskset=games.UPPER).source("train", PAPER)
    made = source(games.UPPER)
    (task,) = made.tasks(objectives=1, count=1, seed=0)
    with pytest.raises(UserError, match="is none of the train tasks of 'guess_numbers'"):
        source(games.GUESS, most_tasks=5).environment.observe([act(task, "x")])
    with pytest.raises(UserError, match=r"one objective, not 2"):
        made.tasks(objectives=2, count=1, seed=0)
    with pytest.raises(UserError, match="has no expert"):
        VerifiersTasks(taskset=games.UPPER).expert([task], made.environment, PAPER_SHOP, seed=0)
    assert "verifiers.v1" in sys.modules


def test_the_page_s_environment_is_drawn_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', PAGE.read_text("utf-8"), flags=re.M | re.S))
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = mem1.load_recipe("recipe.toml", "model.path=shipped-shop")
    made = config.tasks.source("evaluation", PAPER_SHOP)
    tasks = made.tasks(objectives=1, count=20, seed=0)
    assert len({task.id for task in tasks}) == 20 and "<action> ... </action>" in tasks[0].prompt
    word = tasks[0].prompt.split(" in capitals.")[0].split()[-1]
    (reply,) = made.environment.observe([act(tasks[0], word.upper())])
    assert reply.ended and made.environment.score(tasks[0], reply.answer or "").reward == 1
