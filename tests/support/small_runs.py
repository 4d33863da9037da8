"""Recipes of a few small steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from policies import SHAPE

from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import MultihopTasks
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Recall, Sft
from mem1.records import Passage, Question
from mem1.rollout import Budget
from mem1.tasks.datasets import write_passages, write_questions
from mem1.tasks.prompts import TurnLimit

RECALL_STEPS, SFT_STEPS, RL_STEPS = 2, 10, 3
SMALL_RL = Recipe(
    model=ModelConfig(new=SHAPE),
    tasks=AtlasTasks(entities=40, worlds=1, questions_per_world=50),
    budget=Budget(completion_extra=10, context=400),
    # the entropy bonus moves the weights although a policy that knows nothing earns nothing
    rl=Rl(
        curriculum=(Phase(steps=2, objectives=(1,)),),
        tasks_per_step=2,
        group_size=3,
        warmup=1,
        learning_rate=0.01,
        entropy=0.1,
    ),
    writers=(),
)
"""Two steps of six attempts."""
COLOURS = ("red", "blue", "green", "white", "black", "grey", "pink", "brown")


def yes_or_no(half: str) -> list[Question]:
    """Which answer is right does not follow from anything."""
    return [
        Question(id=f"{half}{i}", text=f"Is {half} {colour} ?", answers=("yes" if i % 2 else "no",))
        for i, colour in enumerate(COLOURS)
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    data = tmp_path_factory.mktemp("data")
    write_questions(data / "train.jsonl", yes_or_no("ink"))
    write_questions(data / "test.jsonl", yes_or_no("wax"))
    write_questions(data / "development.jsonl", yes_or_no("oak"))
    write_passages(data / "corpus.jsonl", [Passage(c, c, f"Q1 {c} is a colour ; yes or no") for c in COLOURS])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MEM1_CACHE", str(data / "cache"))
        yield _config(data)


def _config(data: Path) -> Recipe:
    return Recipe(
        model=ModelConfig(new=TinyModel(hidden_size=32, layers=2, feed_forward=64, tokenizer="bpe", vocab_size=300)),
        tasks=MultihopTasks(
            questions=str(data / "test.jsonl"),
            train_questions=str(data / "train.jsonl"),
            development_questions=str(data / "development.jsonl"),
            corpus=str(data / "corpus.jsonl"),
            prompt="plain",
            turn_limit=TurnLimit(per_objective=1, extra=0),  # so that the first turn must answer
        ),
        recall=Recall(steps=RECALL_STEPS, tokens=256, pairs=(4,)),
        sft=Sft(
            steps=SFT_STEPS, objectives=(1,), tasks=8, tokens=512, warmup=1, learning_rate=0.05, adam_learning_rate=0.05
        ),
        rl=Rl(
            curriculum=(Phase(steps=RL_STEPS, objectives=(1,)),),
            tasks_per_step=4,
            group_size=6,
            warmup=1,
            learning_rate=3e-3,
        ),
        evaluation=Evaluation(objectives=(1,), tasks=4, every=1, validation_tasks=8),
        checkpoint_every=4,
        writers=(),
    )
