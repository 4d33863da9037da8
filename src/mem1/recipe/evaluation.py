"""`[evaluation]`, `[judge]` and `[warnings]` of a recipe: what is measured, and who judges beside exact match.

[evaluation]                [judge]                                 [warnings]
objectives = [1, 2, 4]      url = "http://127.0.0.1:8000/v1"        off = ["long_outputs"]
tasks = 100                 model = "qwen"                          entropy = 0.05
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mem1.configuration import Config
from mem1.configuration.model import MOST_TASKS, MOST_TOKENS, GreedyOrWarm, Seed, Sizes

VERDICT_TOKENS = 1024
"""Enough for a verdict, of which about 30 are its own, and a short thought."""


class Evaluation(Config):
    """`[evaluation]`: what is measured, on the evaluation half of the tasks."""

    objectives: Sizes = (1, 2, 4, 8, 16)
    tasks: int = Field(default=100, ge=1, le=MOST_TASKS)
    """Tasks per number of objectives."""
    questions: int | None = Field(default=None, ge=1)
    """Questions per number of objectives at most: large tasks take longer, and fewer of them say as much; None: any."""
    temperature: GreedyOrWarm = 0.0
    """0: greedy."""
    seed: Seed = 0
    every: int = Field(default=0, ge=0)
    """Steps of [rl] between validations, which attempt development tasks greedily while the run trains; 0: none."""
    validation_objectives: Sizes | None = None
    """Numbers of objectives of the validation; None: those of the last phase of rl.curriculum."""
    validation_tasks: int = Field(default=50, ge=1, le=MOST_TASKS)
    """Development tasks per number of objectives."""

    def count(self, objectives: int) -> int:
        """How many tasks of so many questions are measured."""
        return self.tasks if self.questions is None else max(1, min(self.tasks, self.questions // objectives))


class JudgeConfig(Config):
    """A language model that judges the answers of `mem1 eval`, beside exact match."""

    url: str
    """Base address of a server that speaks OpenAI's chat protocol; its key is read from MEM1_JUDGE_API_KEY."""
    model: str
    """The judge's name on the server."""
    max_tokens: int = Field(default=VERDICT_TOKENS, ge=1, le=MOST_TOKENS)
    """Token limit of a verdict; a model that reasons first may need more."""


RuleName = Literal[
    "equal_rewards", "long_outputs", "cut_attempts", "malformed", "entropy", "sampler_trainer", "critic", "all"
]


class RunWarnings(Config):
    """`[warnings]`: from where on `mem1 train` says that a run of [rl] goes wrong. Each is said once."""

    off: tuple[RuleName, ...] = ()
    """Warnings that are not wanted, by name; ["all"]: none."""
    steps: int = Field(default=5, ge=1)
    """Steps that must look wrong in a row, or over which the means are taken."""
    equal_rewards: float = Field(default=0.05, ge=0, le=1)
    """Largest share of groups with variance that is too low to learn from."""
    long_outputs: float = Field(default=3.0, gt=1)
    """Growth of the sampled tokens per turn, as a factor of those at the start of the phase."""
    cut_attempts: float = Field(default=0.3, gt=0, le=1)
    """Rise of the share of attempts that a limit of turns or tokens ended."""
    malformed: float = Field(default=0.2, gt=0, le=1)
    """Rise of the share of malformed turns."""
    entropy: float = Field(default=0.1, gt=0, lt=1)
    """Fall of the entropy, as a share of that at the start of the phase."""
    sampler_trainer: float | None = Field(default=None, gt=0)
    """Largest `sampler_trainer_mean` in nats. None: 0.001, or 0.1 where bfloat16 is involved."""
    critic: float = Field(default=-0.1, lt=1)
    """Explained variance of the returns at which a critic does harm; 0 is that of a constant."""
