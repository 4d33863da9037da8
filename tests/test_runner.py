"""Evaluation in sizes: one row each, kept on disk, and run again when something else is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import SMALL, rollout

from mem1.engines.scripted import Script
from mem1.evaluation.runner import evaluate
from mem1.protocol import PAPER
from mem1.tasks.atlas import Expert
from mem1.training.config import Evaluation

SOURCE = SMALL.source("evaluation", PAPER)
TWO_SIZES = Evaluation(objectives=(1, 3), tasks=6)


def expert(calls: list[str]) -> Script:
    """The clean expert, which remembers what it was asked."""
    clean = Expert(tags=PAPER)

    def script(context: str) -> str:
        calls.append(context)
        return clean(context)

    return script


def run(config: Evaluation, folder: Path | None = None) -> tuple[list[tuple[int, int, float]], int]:
    """(objectives, tasks, exact match) of each row, and how often the policy was called."""
    calls: list[str] = []
    rows, trajectories = evaluate(
        rollout(expert(calls), SOURCE.environment), SOURCE, config, policy="expert", folder=folder
    )
    assert list(trajectories) == [row.objectives for row in rows]
    assert {row.policy for row in rows} == {"expert"}
    return [(row.objectives, row.tasks, row.em) for row in rows], len(calls)


def test_every_size_is_one_row():
    rows, calls = run(TWO_SIZES)
    assert rows == [(1, 6, 1.0), (3, 6, 1.0)]
    assert calls > 12


def test_a_size_that_was_done_is_read_and_not_run_again(tmp_path: Path):
    rows, _ = run(TWO_SIZES, tmp_path / "evaluation")
    assert sorted(p.name for p in (tmp_path / "evaluation").iterdir()) == ["expert-1.jsonl", "expert-3.jsonl"]
    assert run(TWO_SIZES, tmp_path / "evaluation") == (rows, 0)
    (tmp_path / "evaluation" / "expert-3.jsonl").unlink()
    again, calls = run(TWO_SIZES, tmp_path / "evaluation")
    assert again == rows and calls > 0


@pytest.mark.parametrize("other", [{"tasks": 4}, {"seed": 1}])
def test_other_tasks_are_run_whatever_lies_in_the_folder(tmp_path: Path, other: dict[str, int]):
    run(TWO_SIZES, tmp_path)
    config = TWO_SIZES.model_copy(update=other)
    rows, calls = run(config, tmp_path)
    assert calls > 0
    assert rows == run(config)[0]


def test_progress_is_told_by_size():
    seen: list[tuple[int, int, int]] = []
    evaluate(
        rollout(expert([]), SOURCE.environment),
        SOURCE,
        TWO_SIZES,
        policy="expert",
        on_round=lambda objectives, done, of: seen.append((objectives, done, of)),
    )
    assert [s for s in seen if s[1] == s[2]] == [(1, 6, 6), (3, 6, 6)]
