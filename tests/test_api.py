"""`mem1.evaluate`: attempts of one model are not taken for another's, and what cannot be used is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_servers import Model, model_site
from worlds import CODEC, SMALL, task

import mem1
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.records import Task
from mem1.rollout import Rollout

SEARCHES, ANSWERS = "<IS> a </IS> <query> b </query>", "<IS> a </IS> <answer> Q1 b </answer>"
"""Turns of two models."""


class Books:
    """Tasks of one question, whatever is asked for."""

    def __init__(self, reward: float = 0.0) -> None:
        self.reward = reward

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        return [task("city")]

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        return [Observation(text="a book .") for _ in actions]

    def score(self, task: Task, answer: str) -> Outcome:
        return Outcome(self.reward, {"em": (self.reward,)})


def scripted(text: str) -> ScriptedEngine:
    return ScriptedEngine(CODEC, lambda context: text)


def evaluated(of: Any, engine: Any, **more: Any) -> mem1.Row:
    (row,) = mem1.evaluate(of, engine, **{"objectives": 1, "tasks": 2, **more})
    return row


def test_attempts_of_objects_that_say_nothing_of_themselves_are_kept_under_an_identity(tmp_path: Path):
    with pytest.raises(UserError, match="attempts of Books and ScriptedEngine cannot be told from those of others"):
        evaluated(Books(), scripted(SEARCHES), out=tmp_path)
    kept = [evaluated(SMALL, scripted(text), out=tmp_path, identity="one") for text in (SEARCHES, ANSWERS)]
    assert kept[0] == kept[1] and kept[0].turns > 1, "what is done is not done again"
    with pytest.raises(
        UserError, match=r"was made with other settings:\n  model: .*, one\" in the folder, .*, two\" now"
    ):
        evaluated(SMALL, scripted(ANSWERS), out=tmp_path, identity="two")
    paid = [evaluated(Books(r), "shipped", out=tmp_path / str(r), identity=f"pays {r}").reward for r in (0.0, 1.0)]
    assert paid == [0.0, 1.0]


def test_models_on_a_server_have_their_own_attempts(tmp_path: Path):
    served = Model(CODEC, lambda context: ANSWERS)
    with model_site(served) as server:

        def engine(model: str) -> OpenAIEngine:
            config = ModelServer(urls=(f"{server.url}/v1",), model=model)
            return OpenAIEngine.open(config, CODEC, mem1.PAPER.stop_strings)

        for _ in range(2):
            assert evaluated(SMALL, engine("small"), out=tmp_path).turns == 1
        assert len([body for body in served.bodies if body["max_tokens"] > 1]) == 2, "the second time, none is missing"
        with pytest.raises(UserError, match=r'model: "small by .* in the folder, "large by '):
            evaluated(SMALL, engine("large"), out=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tasks": 0}, "tasks: input should be greater than or equal to 1, got 0"),
        ({"objectives": []}, "objectives: .* at least 1 item"),
        ({"model": None}, "model = None: give a policy, the folder of one, or an engine"),
        ({"tasks_or_recipe": []}, "list has no method tasks"),
        ({"tasks_or_recipe": Books(), "objectives": (1, 2)}, r"Books\.tasks returned a task of 1 questions, not 2, as"),
        ({"name": "../x", "out": "runs"}, r"name = '\.\./x' names files in runs; leave out the folder: 'x'"),
    ],
    ids=["tasks", "objectives", "model", "environment", "questions", "name"],
)
def test_what_cannot_be_used_is_named_before_any_attempt(wrong: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said):
        mem1.evaluate(**{"tasks_or_recipe": SMALL, "model": ScriptedEngine(CODEC, lambda _: pytest.fail()), **wrong})


@pytest.mark.parametrize(
    ("tasks", "said"),
    [([{"id": 1}], "{'id': 1}; it returns a list of Task"), (7, "a int; it returns a list of Task")],
)
def test_a_source_that_returns_no_tasks_is_named(monkeypatch: pytest.MonkeyPatch, tasks: Any, said: str):
    monkeypatch.setattr(Books, "tasks", lambda self, **asked: tasks)
    with pytest.raises(UserError, match=rf"Books\.tasks returned {said}"):
        evaluated(Books(), scripted(ANSWERS))


def test_numbers_of_numpy_are_numbers():
    assert evaluated(SMALL, scripted(ANSWERS), objectives=np.int64(2), tasks=np.int64(1)).objectives == 2
    assert evaluated(SMALL, scripted(ANSWERS), objectives=np.array([2]), tasks=1).objectives == 2


def test_a_rollout_names_what_is_no_memory_too_few_numbers_and_no_temperature():
    source = SMALL.source("train", mem1.PAPER)
    parts: dict[str, Any] = {
        "engine": scripted(ANSWERS), "dialogue": mem1.TagDialogue(CODEC), "environment": source.environment
    }  # fmt: skip
    with pytest.raises(UserError, match=r"context = 'full' is no memory; give one, such as mem1\.memory_policy"):
        Rollout(**parts, context="full")  # type: ignore[arg-type]
    rollout = Rollout(**parts, context=memory_policy("full"))
    with pytest.raises(UserError, match="numbers has 1 entries for 2 tasks"):
        rollout(source.tasks(objectives=1, count=2, seed=0), sampling=Sampling(), numbers=[0])
    for temperature in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"temperature = {temperature}: give 0"):
            Sampling(temperature=temperature)
