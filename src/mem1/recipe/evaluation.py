"""`[evaluation]` and `[judge]` of a recipe: what is measured, and who judges beside exact match.

[evaluation]                        [judge]
objectives = [1, 2, 4]              url = "http://127.0.0.1:8000/v1"
tasks = 100                         model = "qwen"
"""

from __future__ import annotations

from pydantic import Field

from mem1.configuration import Config
from mem1.configuration.model import MOST_TASKS, GreedyOrWarm, Seed, Sizes


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
