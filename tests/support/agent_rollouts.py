"""Rollouts of an agent on the other side of an endpoint."""

from __future__ import annotations

import json
import time
from typing import Any

from worlds import CODEC, SAMPLING, shelf, task

from mem1.dialogue import NativeDialogue
from mem1.endpoint.rollout import AgentRollout
from mem1.endpoint.runs import AgentConfig
from mem1.engines.base import Engine, ScriptedEngine
from mem1.engines.chat_messages import ChatMessages
from mem1.envs.base import Environment, Observation, Outcome
from mem1.protocol import PAPER, Tags
from mem1.records import Trajectory
from mem1.rollout import Budget

TAGS = ChatMessages.in_tags(CODEC, PAPER)
ANSWERED = "<IS> Q1 </IS> <answer> Q1 author </answer>"


def rollout(
    name: str = "",
    script: Any = lambda _context: ANSWERED,
    *,
    environment: Environment | None = None,
    engine: Engine | None = None,
    chat: ChatMessages = TAGS,
    tags: Tags = PAPER,
    budget: Budget | None = None,
    reward: Any = None,
    **agent: Any,
) -> AgentRollout:
    given = {"entry": f"endpoint_agents:{name}", **agent} if name else agent
    return AgentRollout(
        agent=AgentConfig.model_validate(given),
        engine=engine or ScriptedEngine(CODEC, script),
        dialogue=NativeDialogue(chat, tags),
        environment=environment or shelf("the author ."),
        budget=budget or Budget(completion_per_objective=8, completion_extra=32),
        reward=reward,
    )


def attempt(made: AgentRollout, **more: Any) -> Trajectory:
    (found,) = made([task("author", **more)], sampling=SAMPLING)
    return found


class Down:
    """An environment that does not work."""

    def observe(self, actions: Any) -> list[Observation]:
        return [Observation(text="", failed="the search engine is down") for _ in actions]

    def score(self, task: Any, answer: str) -> Outcome:
        raise AssertionError("a score would measure the tool")


class Steps:
    """An episode of so many steps, each worth 1; the answer lists those that were taken."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def observe(self, actions: Any) -> list[Observation]:
        time.sleep(0.05)  # actions that are sent at the same time would meet here
        return [self._reply([*(taken for _, taken in action.history), action.argument]) for action in actions]

    def _reply(self, taken: list[str]) -> Observation:
        text = f"{len(taken)} of {self.steps}"
        return Observation(text=text, answer=json.dumps(taken), ended=len(taken) == self.steps)

    def score(self, task: Any, answer: str) -> Outcome:
        return Outcome(float(len(json.loads(answer or "[]"))))
