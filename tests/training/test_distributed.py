"""Training on several ranks is the same training: loss, gradient norm, metrics and weights, and it goes on exactly.

The ranks are processes on this machine, with gloo; `rank_steps.py` is what they do. The slow tests start them with
torchrun.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from precision import gradient_rounding
from rank_steps import (
    ALGORITHMS,
    FOUR_BITS,
    FOUR_BITS_RATE,
    SAVED_AFTER,
    STEPS,
    adapted,
    four_bits_model,
    one_rank,
    resumed,
    run,
)
from ranks import on_ranks
from small_runs import config as config

from mem1.configuration import to_toml
from mem1.engines.workers import one_thread
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase
from mem1.training.ranks.placement import SINGLE_PROCESS
from mem1.training.ranks.processes import ONE_PROCESS
from mem1.training.runs.checkpoint import latest_checkpoint

# importing it costs every worker seconds, also the one that runs none of these
pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")

TOLERANCE = 1e-9
TOKENS_DIFFER = ("tokens",)
"""Metrics of how a step is cut into packs, which depends on the ranks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    with one_thread():
        return run(ONE_PROCESS, folder)


def found_on(folder: Path, ranks: int, resume: Mapping[str, Path]) -> list[dict[str, Any]]:
    """What each rank found."""
    on_ranks(ranks, one_rank, folder, resume)
    return [json.loads((folder / f"found-{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]


def checkpoints(folder: Path, ranks: int) -> dict[str, Path]:
    found = {name: latest_checkpoint(folder / f"{name} on {ranks}") for name in ALGORITHMS}
    return {name: path for name, path in found.items() if path is not None}


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    assert found["weights"] == pytest.approx(wanted["weights"], abs=TOLERANCE), what
    assert len(found["rows"]) == len(wanted["rows"]) > 0
    for row, other in zip(found["rows"], wanted["rows"], strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - TOKENS_DIFFER:
            assert row[key] == pytest.approx(other[key], abs=TOLERANCE), (what, key)


@pytest.fixture(scope="module")
def two(folder: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return found_on(folder, 2, checkpoints(folder, 1))


def test_two_ranks_are_one_in_metrics_and_weights_after_every_step(alone: dict[str, Any], two: list[dict[str, Any]]):
    assert all(row["grad_norm"] > 1e-3 for row in alone["grpo"]["rows"]), "something must have been learnt"
    for rank, found in enumerate(two):
        for name in alone.keys() - {FOUR_BITS, "served"}:
            assert_same(found[name], alone[name], f"{name}, rank {rank}")
        assert found["sft"]["published"]


def test_weights_for_servers_are_gathered_one_at_a_time_and_only_rank_0_holds_a_policy_at_the_end(
    alone: dict[str, Any], two: list[dict[str, Any]]
):
    first, second = (found["served"] for found in two)
    assert (first["without"], second["without"]) == ([True, False], [True, True])
    assert first["published"] == first["weights"] == second["weights"]
    assert first["published"] == pytest.approx(alone["served"]["published"], abs=TOLERANCE)


def test_layers_in_four_bits_are_whole_on_every_rank_and_the_adapters_learn_the_same(
    alone: dict[str, Any], two: list[dict[str, Any]]
):
    wanted = alone[FOUR_BITS]
    model = four_bits_model()
    rounding = gradient_rounding(model, tokens=100, magnitude=1.0)  # gradients are clipped to a norm of 1
    tolerance = STEPS * FOUR_BITS_RATE * rounding
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert sum((torch.tensor(wanted["weights"]) - before).abs() > tolerance) > 1000, "something must have been learnt"
    for found in (rank[FOUR_BITS] for rank in two):
        assert found["rounded"] == wanted["rounded"] > 0
        assert found["weights"] == pytest.approx(wanted["weights"], abs=tolerance)
        for row, other in zip(found["rows"], wanted["rows"], strict=True):
            assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=rounding) and row["grad_norm"] > 1e-3


def test_layers_that_are_computed_again_or_kept_whole_change_nothing(alone: dict[str, Any], two: list[dict[str, Any]]):
    assert_same(two[0]["grpo, layers computed again"], alone["grpo"], "grpo")


def test_a_checkpoint_of_one_rank_resumes_on_two(alone: dict[str, Any], two: list[dict[str, Any]]):
    for name in ALGORITHMS:
        wanted = {**alone[name], "rows": alone[name]["rows"][SAVED_AFTER:]}
        assert_same(two[1][f"{name}, resumed"], wanted, name)


@pytest.mark.usefixtures("two")
def test_a_checkpoint_of_two_ranks_resumes_on_one(folder: Path, alone: dict[str, Any]):
    found = checkpoints(folder, 2)
    assert found.keys() == ALGORITHMS.keys()
    for name, checkpoint in found.items():
        assert len(list(checkpoint.rglob("shard-*.safetensors"))) >= 4, "model and optimizers, of two ranks each"
        assert not list(checkpoint.rglob("*.distcp")) and not list(checkpoint.rglob(".metadata")), "nothing is pickled"
        with one_thread():
            after = resumed(ALGORITHMS[name], adapted(name, SINGLE_PROCESS), checkpoint)
        assert_same(after, {**alone[name], "rows": alone[name]["rows"][SAVED_AFTER:]}, name)


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_four_ranks_are_one_and_resume_a_checkpoint_of_two(folder: Path, alone: dict[str, Any]):
    for rank, found in enumerate(found_on(folder, 4, checkpoints(folder, 2))):
        for name in alone.keys() - {FOUR_BITS, "served"}:
            assert_same(found[name], alone[name], f"{name}, rank {rank}")
        for name in ALGORITHMS:
            wanted = {**alone[name], "rows": alone[name]["rows"][SAVED_AFTER:]}
            assert_same(found[f"{name}, resumed"], wanted, f"{name}, rank {rank}")


def training(recipe: Path, out: Path) -> list[str]:
    """Two ranks, as from a terminal."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*torchrun, "-m", "mem1", "train", str(recipe), "--out", str(out), "--no-evaluate", "--resume"]


def begun(config: Recipe, folder: Path, *, steps: int, checkpoint_every: int) -> tuple[list[str], Mapping[str, str]]:
    """Trains without a break in `whole`; the command that does it in `broken`, and its environment."""
    assert config.rl is not None
    rl = config.rl.model_copy(update={"curriculum": (Phase(steps=steps, objectives=(1,)),)})
    changes = {"recall": None, "checkpoint_every": checkpoint_every, "rl": rl}
    (folder / "recipe.toml").write_text(to_toml(config.model_copy(update=changes)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    whole, broken = (training(folder / "recipe.toml", folder / name) for name in ("whole", "broken"))
    subprocess.run(whole, env=environment, capture_output=True, timeout=900, check=True)
    return broken, environment


def assert_goes_on_as_unbroken(broken: list[str], environment: Mapping[str, str], folder: Path) -> None:
    subprocess.run(broken, env=environment, capture_output=True, timeout=900, check=True)
    for name in ("metrics.jsonl", "policy/model.safetensors"):
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes()


@pytest.mark.slow
def test_a_run_on_two_ranks_of_which_one_is_killed_again_and_again_is_an_unbroken_one(config: Recipe, tmp_path: Path):
    broken, environment = begun(config, tmp_path, steps=12, checkpoint_every=2)
    rows = tmp_path / "broken" / "metrics.jsonl"
    draw = random.Random(0)
    for _ in range(4):
        before = rows.read_bytes() if rows.exists() else b""
        with subprocess.Popen(broken, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            until = time.monotonic() + 300
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
                if rows.exists() and rows.read_bytes() != before:
                    break
            time.sleep(draw.uniform(0, 1))
            assert process.poll() is None, "it was not killed"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(draw.choice(children)), signal.SIGKILL)
            assert process.wait(120) != 0
    assert_goes_on_as_unbroken(broken, environment, tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_on_two_ranks_after_its_step_and_it_resumes_as_if_unbroken(config: Recipe, tmp_path: Path):
    broken, environment = begun(config, tmp_path, steps=8, checkpoint_every=1000)
    rows = tmp_path / "broken" / "metrics.jsonl"
    # as a terminal does it: the launcher and all ranks are of one process group, and all are told
    with subprocess.Popen(
        broken, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        until = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < until and not rows.exists():
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    trained = len(rows.read_text().splitlines())
    assert 1 <= trained < 8, said
    assert "with a checkpoint; resume with: mem1 train" in said, said
    assert "KeyboardInterrupt" not in said, said
    assert latest_checkpoint(tmp_path / "broken" / "checkpoints") is not None, said
    assert_goes_on_as_unbroken(broken, environment, tmp_path)
