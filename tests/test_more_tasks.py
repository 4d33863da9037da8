"""Of every source of tasks the first ones stay the same when more are asked for, so an evaluation can be extended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mem1.envs.atlas.tasks import AtlasTasks
from mem1.envs.search.tasks import MultihopTasks
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.protocol import PAPER, PAPER_SHOP, Tags
from mem1.records import Question
from mem1.tasks.datasets import write_questions, write_tasks

QUESTIONS = [
    Question(id=str(i), text=f"Who follows Ana{i}?", answers=(f"Ana{i + 1}",), titles=(f"Ana{i}",)) for i in range(30)
]


def check(config: Any, tags: Tags = PAPER, *, counts: tuple[int, ...] = (1, 7, 23), seed: int = 3) -> None:
    most = config.source("evaluation", tags).tasks(objectives=2, count=counts[-1], seed=seed)
    assert len({task.questions for task in most}) > len(most) / 2, "they must not all be the same"
    for count in counts:
        assert config.source("evaluation", tags).tasks(objectives=2, count=count, seed=seed) == most[:count]


@pytest.mark.parametrize("composition", ["independent", "chain"])
def test_of_atlas(composition: Any):
    check(AtlasTasks(entities=60, worlds=3, questions_per_world=20, composition=composition))


@pytest.mark.parametrize("composition", ["independent", "chain"])
def test_of_questions_in_a_file_which_are_shuffled_anew_when_they_are_used_up(tmp_path: Path, composition: Any):
    write_questions(tmp_path / "q.jsonl", QUESTIONS)
    check(MultihopTasks(questions=str(tmp_path / "q.jsonl"), corpus="c.jsonl", composition=composition))


def test_of_composed_tasks_in_a_file(tmp_path: Path):
    tasks = AtlasTasks(entities=60, worlds=1).source("evaluation", PAPER).tasks(objectives=2, count=30, seed=0)
    write_tasks(tmp_path / "t.jsonl", tasks)
    check(MultihopTasks(questions=str(tmp_path / "t.jsonl"), corpus="c.jsonl", composition="file"))


def test_of_a_shop():
    check(WebShopTasks(products=150), PAPER_SHOP, counts=(1, 7, 100))  # a goal comes up again after 75 tasks
