"""Benchmarks of trainings: which sizes of finished runs are still to be evaluated, when a curve reaches a level, and
where a note is that a question needs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from compare import RECIPE, Compare
from credit_steps import curve, step_at
from references import place_of
from result_files import saved

from mem1.memory import memory_policy
from mem1.records import Turn


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    saved(tmp_path / "runs" / "fold(3)-seed0.json", {"tokens": {"2": {"em": [1.0]}, "4": {"em": [0.5]}}})
    saved(tmp_path / "runs" / "fold(3)-seed1.json", {"tokens": {"2": {"em": [0.0]}, "4": {"em": [0.25]}}})
    saved(tmp_path / "runs" / "fold(3)-start.json", {"start": {"2": {"em": [0.1]}}})
    saved(tmp_path / "sizes" / "fold(3)-seed1-N8.json", {"8": {"em": [0.75]}})
    given = argparse.Namespace(
        results=tmp_path, out=tmp_path / "out", policies=["fold(3)", "full"], seeds=[0, 1], objectives=[2, 4, 8]
    )
    given.tasks, given.trained_under, given.no_start = [1, 1, 1], None, False
    given.development, given.start, given.train_objectives, given.set, given.recipe = False, "shipped", [2], [], RECIPE
    return Compare(given=given)


def test_a_size_that_was_evaluated_later_is_found(compare: Compare):
    def em(budget: str, objectives: int) -> list[list[float]]:
        return [run["em"] for run in compare.evaluated("fold(3)", budget, objectives)]

    assert [em("tokens", n) for n in (2, 4, 8)] == [[[1.0], [0.0]], [[0.5], [0.25]], [[0.75]]]
    assert [em("start", n) for n in (2, 4)] == [[[0.1]], []]
    assert compare.evaluated("full", "tokens", 2) == []


def test_only_sizes_that_finished_runs_lack_are_to_do(compare: Compare):
    to_do = [path.name for path, _ in compare.size_jobs()]
    assert to_do == ["fold(3)-seed0-N8.json", "fold(3)-start-N4.json", "fold(3)-start-N8.json"]


def test_the_start_may_be_left_out(compare: Compare):
    compare.given.no_start = True
    assert [path.name for path, _ in compare.size_jobs()] == ["fold(3)-seed0-N8.json"]
    assert [path.name for path, _ in compare.run_jobs()] == [
        f"{policy}-seed{seed}.json" for seed in (0, 1) for policy in ("fold(3)", "full")
    ]


def test_development_worlds_are_those_of_searches(compare: Compare):
    compare.given.set = ["tasks.first_world=8"]
    assert dict(compare.config("fold(3)", 0).tasks)["first_world"] == 8
    compare.given.development = True
    assert dict(compare.config("fold(3)", 0).tasks)["first_world"] == 500


def test_a_size_needs_the_policy_of_its_run(compare: Compare):
    compare.given.no_search, compare.given.learning_rates = True, [3e-4]
    (path, evaluate), *_ = compare.size_jobs()
    with pytest.raises(SystemExit, match=r"N = 8 of fold\(3\)-seed0 needs its policy, .*; move .* away to train"):
        evaluate()
    assert not path.exists()


def test_policies_that_another_memory_trained_are_found(compare: Compare, tmp_path: Path):
    assert compare.trained_in("fold(3)", 1) == tmp_path / "out" / "train" / "fold(3)-seed1"
    compare.given.trained_under = "full"
    assert compare.trained_in("fold(3)", 1) == tmp_path / "out" / "train" / "full-seed1"


def test_a_level_is_reached_where_the_mean_of_five_steps_is():
    means = curve([0, 0, 0, 0, 5, 5, 5])
    assert means == [1, 2, 3] and step_at(means, 2) == 6 and step_at(means, 3.5) is None


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("Q1", "out of sight"),
        ("Q2", "in sight"),
        ("Q3", "says that it is unknown"),
        ("Q4", "in sight"),
        ("Q5", "in sight"),
        ("Q6", "never written"),
    ],
)
def test_where_the_note_of_another_answer_is(key: str, place: str):
    written = ("Q1 Mira Toll", "Q2 Ana Brul"), ("Q3 unknown", "Q4 Moru Kest"), ("Q5 Sela Prand",)
    turns = [Turn(context_ids=(1,), completion_ids=(2,), notes=notes) for notes in written]
    assert place_of(key, turns, memory_policy("notebook(1)")) == place
