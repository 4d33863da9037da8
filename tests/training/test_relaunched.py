"""Runs whose own vLLM dies: a process that is killed in the middle of a step, before a script that answers as vLLM."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sites import site, status
from small_runs import SMALL_RL
from vllms import FORWARDS, Vllm, environment

from mem1.engines.launched import GivenUp, Launch
from mem1.recipe.recipe import Kept, Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.run_folder import kept_steps, read_metrics
from mem1.training.runs.checkpoint import latest_checkpoint
from mem1.training.sampling.served import VLLM_LOG
from mem1.training.train import train
from mem1.trajectory_files import read_trajectories

ATTEMPTS = 6


class Mortal(Vllm):
    """Its process is killed at the given completions of attempts by the weights of a version, counted from 1."""

    def __init__(self, *kills: tuple[str, int]) -> None:
        super().__init__(device="cpu")
        self.kills, self.processes = kills, list[int]()
        self.updates: list[tuple[int, str]] = []
        """(number of the process, version) of each update of the weights."""
        self.sampled: Counter[tuple[int, str]] = Counter()
        """Completions of attempts by process and version."""
        self.pages["/started"] = self._started

    def _started(self, handler: Any) -> None:
        self.processes.append(int(handler.path.partition("?")[2]))
        self.version = "default"
        self.awake.set()
        status(200)(handler)

    def _set(self, handler: Any) -> None:
        super()._set(handler)
        self.updates.append((len(self.processes), self.version))

    def _complete(self, handler: Any) -> None:
        body = json.loads(handler.body)
        if body["max_tokens"] > 1 and body["top_k"] != 1:  # otherwise the trainer tries it
            self.sampled[len(self.processes), self.version] += 1
            if (self.version, self.by_version(self.version)) in self.kills:
                os.kill(self.processes[-1], signal.SIGKILL)
        super()._complete(handler)

    def by_version(self, version: str) -> int:
        return sum(count for (_, found), count in self.sampled.items() if found == version)


def recipe(folder: Path, port: int) -> Recipe:
    """`SMALL_RL`, sampled by a vLLM of its own, whose process answers at this port."""
    python = environment(folder, FORWARDS.replace("PORT", str(port)))
    rollout = ServerRollouts(
        kind="vllm", launch=Launch(python=python), weights_folder=str(folder / "weights"), poll_s=0.05
    )
    assert SMALL_RL.rl is not None
    rl = SMALL_RL.rl.model_copy(update={"old_logprobs_from": "trainer"})
    return SMALL_RL.model_copy(update={"rl": rl, "rollout": rollout, "trajectories": Kept(groups=2)})


def assert_whole(run: Path) -> None:
    """All attempts of both steps are there, each by the weights of its step."""
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row, (step, file) in zip(rows, kept_steps(run), strict=True):
        attempts = read_trajectories(file)
        assert len(attempts) == ATTEMPTS == sum(row["endings"].values())
        assert "engine_failed" not in row["endings"] and all(attempt.ended.scorable for attempt in attempts)
        versions = {version for t in attempts for turn in t.turns for version, _ in turn.weights_versions}
        assert versions == {step - 1}


def test_one_that_is_killed_in_the_middle_of_a_step_is_started_again_with_the_weights_of_the_step(tmp_path: Path):
    vllm = Mortal(("0", 4), ("1", 3))
    with site(vllm.pages) as running:
        train(recipe(tmp_path, running.port), tmp_path / "run", command=["mem1"])
    assert_whole(tmp_path / "run")
    assert vllm.updates == [(1, "0"), (2, "0"), (2, "1"), (3, "1")]
    assert vllm.sampled.keys() == set(vllm.updates), "nothing is sampled by the weights that a process begins with"
    assert (tmp_path / "run" / VLLM_LOG).read_text().count("started") == 3


def test_after_the_third_start_in_vain_the_run_ends_with_a_checkpoint_from_which_it_goes_on(tmp_path: Path):
    vllm, run = Mortal(*(("1", number) for number in range(1, 100))), tmp_path / "run"
    with site(vllm.pages) as running:
        config = recipe(tmp_path, running.port)
        with pytest.raises(GivenUp, match=r"(?s)ended with status -9.*; the end of .*vllm\.log:.*--resume") as end:
            train(config, run, command=["mem1"])
        assert "it was started again 3 times" in str(end.value)
        assert [number for number, version in vllm.updates if version == "1"] == [1, 2, 3, 4]
        reached = latest_checkpoint(run / "checkpoints")
        assert reached is not None and reached.name == "checkpoint-000001"
        assert len(read_metrics(run / "metrics.jsonl")) == 1
        vllm.kills = ()
        train(config, run, command=["mem1"], resume=True)
    assert_whole(run)
    assert vllm.updates[-1] == (5, "1") and (5, "0") not in vllm.updates
