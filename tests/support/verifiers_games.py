"""Environments of verifiers, for tests. `module` gives one a name by which verifiers finds it."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import count
from types import ModuleType

import verifiers.v1 as vf


def module(name: str, *exported: type) -> str:
    """The id of an environment that exports these classes."""
    made = ModuleType(name)
    made.__all__ = [thing.__name__ for thing in exported]  # type: ignore[attr-defined]
    made.__dict__.update({thing.__name__: thing for thing in exported})
    sys.modules[name] = made
    return name


class Data(vf.TaskData):
    answer: str


class Upper(vf.Task[Data]):
    """One reply: the word in capitals."""

    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class UpperConfig(vf.TasksetConfig):
    split: str = "train"


class UpperTaskset(vf.Taskset[Upper, UpperConfig]):
    def load(self) -> list[Upper]:
        words = [f"{self.config.split}{n}" for n in range(20)] + ["both", "both"]
        return [
            Upper(Data(prompt=f"<b>{word}</b> in capitals?", system_prompt="Be brief.", answer=word.upper()))
            for word in words
        ]


class NamedTaskset(vf.Taskset[Upper, UpperConfig]):
    """The same words in every split, under other names."""

    def load(self) -> list[Upper]:
        named = [Data(name=f"{self.config.split}-{n}", prompt=f"word{n}?", answer="x") for n in range(20)]
        return [Upper(data) for data in named[: 10 if self.config.split == "test" else 20]]


class Guess(vf.Task[Data]):
    """Higher or lower, until the number is found; a tenth less for each guess."""

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        replies = [message.content for message in trace.assistant_messages]
        return 1.1 - 0.1 * len(replies) if self.data.answer in replies else 0.0


class GuessEnv(vf.SingleAgentEnv):
    async def run(self, task, agents) -> None:
        async with agents.agent.interaction(task) as interaction:
            message = "Guess a number."
            while not (segment := await interaction.turn(message)).terminated:
                if segment.last_reply == task.data.answer:
                    break
                if segment.last_reply == "hang":
                    await asyncio.sleep(1000)
                if segment.last_reply == "crash":
                    raise RuntimeError("the game\nis lost")
                higher = int(segment.last_reply) < int(task.data.answer)
                message = f"It is <i>{'higher' if higher else 'lower'}</i> than {segment.last_reply}. </info><action>"


class GuessTaskset(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[Guess]:
        for n in count():
            yield Guess(Data(prompt=None, name=f"number {n}", answer=str(n)))


class TwiceEnv(vf.SingleAgentEnv):
    """Runs its agent twice."""

    async def run(self, task, agents) -> None:
        await agents.agent.run(task)
        await agents.agent.run(task)


class Broken(Upper):
    @vf.reward
    async def fails(self, trace: vf.Trace) -> float:
        raise ValueError("no score")


class BrokenTaskset(vf.Taskset[Broken, UpperConfig]):
    def load(self) -> list[Broken]:
        return [Broken(Data(prompt=f"{n}?", answer="x")) for n in range(4)]


class OneTaskset(vf.Taskset[Upper, UpperConfig]):
    def load(self) -> list[Upper]:
        return [Upper(Data(prompt="1?", answer="x"))]


class JudgedConfig(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig()


class Judged(vf.Task[Data, vf.State, JudgedConfig]):
    pass


class JudgedTasksetConfig(vf.TasksetConfig):
    task: JudgedConfig = JudgedConfig()


class JudgedTaskset(vf.Taskset[Judged, JudgedTasksetConfig]):
    def load(self) -> list[Judged]:
        return [Judged(Data(prompt=f"{n}?", answer="x"), self.config.task) for n in range(4)]


class PairConfig(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig()
    helper: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task, agents) -> None:
        trace = await agents.helper.run(task.with_data(prompt="Help."))
        await agents.asker.run(task.with_data(prompt=f"{task.data.prompt} The helper says {trace.last_reply}."))


UPPER = module("upper_words", UpperTaskset)
NAMED = module("named_words", NamedTaskset)
GUESS = module("guess_numbers", GuessTaskset, GuessEnv)
TWICE = module("twice", UpperTaskset, TwiceEnv)
BROKEN = module("broken", BrokenTaskset)
ONE = module("only_one", OneTaskset)
JUDGED = module("judged", JudgedTaskset)
PAIR = module("pair", UpperTaskset, PairEnv)
