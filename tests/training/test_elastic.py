"""A training whose machines leave and return goes on from its last checkpoint, on as many ranks as there are.

The slow test plays two machines on this one, each with a torchrun of its own, started by the command of
docs/distributed.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from safetensors.torch import load_file
from small_runs import config as config

from mem1.configuration import load_toml, to_toml
from mem1.durable import read_manifest
from mem1.errors import UserError
from mem1.policy.policy import make_policy
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase
from mem1.run_folder import RunFolder, read_metrics
from mem1.training.ranks.processes import joined
from mem1.training.runs.checkpoint import latest_checkpoint
from mem1.training.runs.snapshot import named_tensors
from mem1.training.train import NOT_FINGERPRINTED, train

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"
STEPS = 6


@pytest.fixture(scope="module")
def demonstrated(config: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Reinforcement learning alone, of a policy that has seen demonstrations: some rewards of a group differ."""
    folder = tmp_path_factory.mktemp("demonstrated")
    without = {"recall": None, "evaluation": Evaluation(objectives=(1,)), "checkpoint_every": 2}
    train(config.model_copy(update={**without, "rl": None}), folder, command=["mem1"])
    model = ModelConfig(path=str(folder / "policy"))
    return config.model_copy(update={**without, "sft": None, "model": model})


def recipe(config: Recipe, file: Path, *, steps: int) -> Recipe:
    assert config.rl is not None
    rl = config.rl.model_copy(update={"curriculum": (Phase(steps=steps, objectives=(1,)),)})
    made = config.model_copy(update={"rl": rl})
    file.write_text(to_toml(made))
    return made


def one_rank(file: Path, out: Path, until: int) -> None:
    """Train on this rank, and stop after the step `until`, unless it is the last."""
    torch.set_num_threads(1)
    with joined() as ranks:

        def on_step(progress: Any) -> None:
            if progress.step == until < STEPS:
                signal.raise_signal(signal.SIGTERM)

        train(load_toml(file, Recipe), out, command=["mem1"], resume=True, on_step=on_step, ranks=ranks)


def starts(out: Path) -> list[tuple[int, int]]:
    """(steps done before, ranks) of each start of a run."""
    file = out / "resolved.json"
    found = json.loads(file.read_text()).get("starts", []) if file.is_file() else []
    return [(start["after_step"], start["ranks"]) for start in found]


def trained(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "policy" / "model.safetensors")


@pytest.mark.slow
def test_a_run_goes_on_with_one_rank_and_with_two_again_as_if_it_had_two_all_the_time(
    demonstrated: Recipe, tmp_path: Path
):
    made = recipe(demonstrated, tmp_path / "recipe.toml", steps=STEPS)
    on_ranks(2, one_rank, tmp_path / "recipe.toml", tmp_path / "two", STEPS)
    for ranks, until in ((2, 2), (1, 4), (2, STEPS)):
        on_ranks(ranks, one_rank, tmp_path / "recipe.toml", tmp_path / "changing", until)
    assert starts(tmp_path / "two") == [(0, 2)] and starts(tmp_path / "changing") == [(0, 2), (2, 1), (4, 2)]
    wanted, found = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("two", "changing"))
    assert any(row["grad_norm"] > 0 for row in wanted) and len(wanted) == STEPS
    for row, other in zip(found, wanted, strict=True):
        sampled = ("reward", "endings", "answer_tokens", "groups_with_variance")
        assert {name: row[name] for name in sampled} == {name: other[name] for name in sampled}
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-5)
    before = {name: tensor.detach() for name, tensor in named_tensors(make_policy(made).model).items()}
    one, other = trained(tmp_path / "changing"), trained(tmp_path / "two")
    moved = sum(float((other[name] - before[name]).norm()) for name in other)
    apart = sum(float((one[name] - other[name]).norm()) for name in other)
    assert apart < 1e-2 * moved, "AdamW divides by a gradient's size, so where that is 0 rounding decides"


def test_starts_are_recorded_and_those_whose_steps_are_lost_forgotten(config: Recipe, tmp_path: Path):
    folder = RunFolder.create(tmp_path / "run", config, command=["mem1"], exclude=NOT_FINGERPRINTED)
    for after, ranks in ((0, 2), (8, 1), (6, 2), (6, 1)):
        folder.note_start(after_step=after, ranks=ranks)
    assert starts(tmp_path / "run") == [(0, 2), (6, 1)]


def test_a_start_that_was_killed_before_its_recipe_was_written_is_repeated(config: Recipe, tmp_path: Path):
    RunFolder.create(tmp_path / "run", config, command=["mem1"])
    (tmp_path / "run" / "config.toml").unlink()
    folder = RunFolder.create(tmp_path / "run", config, command=["mem1"])
    folder.check_seen()
    with pytest.raises(UserError, match=r"is not to be seen on .*; give an --out on a file system that all"):
        RunFolder(path=tmp_path / "elsewhere", fingerprint=folder.fingerprint).check_seen()


def lose_a_rank(folder: Path) -> None:
    """Rank 1 ends without a word while rank 0 waits for it."""
    try:
        with joined() as ranks:
            if ranks.rank:
                os._exit(0)
            ranks.gather(b"")
    except UserError as error:
        (folder / "said").write_text(str(error))


def test_a_rank_that_is_lost_ends_the_others_with_one_line(tmp_path: Path):
    on_ranks(2, lose_a_rank, tmp_path)
    said = (tmp_path / "said").read_text()
    assert said.startswith("the other processes of this training cannot be reached (") and "\n" not in said
    assert "--max-restarts" in said and "--resume" in said


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["127.0.0.1", "127.0.0.2"], ids=["rank 0", "rank 1"])
def test_a_machine_that_leaves_and_returns_gives_the_policy_of_the_same_run_without_a_loss(
    demonstrated: Recipe, tmp_path: Path, leaves: str
):
    stays = "127.0.0.1" if leaves == "127.0.0.2" else "127.0.0.2"
    recipe(demonstrated, tmp_path / "recipe.toml", steps=100_000)
    run = tmp_path / "run"
    with contextlib.ExitStack() as nodes:
        port = free_port()
        staying = nodes.enter_context(node(tmp_path, stays, port))
        wait_until(lambda: is_open(port), tmp_path)  # it holds torchrun's store, without which no other can go on
        leaving = nodes.enter_context(node(tmp_path, leaves, port))
        wait_until(lambda: starts(run) == [(0, 2)] and rows(run) >= 5, tmp_path)
        kill(leaving)
        wait_until(lambda: starts(run)[-1][1] == 1 and rows(run) >= starts(run)[-1][0] + 3, tmp_path)
        returned = nodes.enter_context(node(tmp_path, leaves, port))
        wait_until(lambda: starts(run)[-1][1] == 2 and rows(run) >= starts(run)[-1][0] + 3, tmp_path)
        for process in (returned, staying):
            process.terminate()
        for process in (returned, staying):
            process.wait(120)
    schedule = starts(run)
    assert [ranks for _, ranks in schedule] == [2, 1, 2]
    ends = [after for after, _ in schedule[1:]] + [rows(run)]
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None and last.name == f"checkpoint-{rows(run):06d}"
    for (_, ranks), until in zip(schedule, ends, strict=True):  # the same, but nobody is killed and no step lost
        on_ranks(ranks, one_rank, tmp_path / "recipe.toml", tmp_path / "unbroken", until)
    assert starts(tmp_path / "unbroken") == schedule
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "unbroken" / "metrics.jsonl").read_bytes()
    same, manifest = tmp_path / "unbroken" / "checkpoints" / last.name, read_manifest(last)
    assert manifest is not None
    tensors = [name for name in manifest.files if name.endswith(".safetensors")]
    assert len(tensors) >= 4, "of model and optimizer, from two ranks"
    for name in tensors:
        found, wanted = load_file(last / name), load_file(same / name)
        assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in found), name
    assert (last / "state.json").read_bytes() == (same / "state.json").read_bytes()


@pytest.mark.slow
def test_ranks_that_torchrun_starts_again_give_the_policy_of_an_unbroken_run(demonstrated: Recipe, tmp_path: Path):
    recipe(demonstrated, tmp_path / "recipe.toml", steps=40)
    on_ranks(2, one_rank, tmp_path / "recipe.toml", tmp_path / "unbroken", 40)
    run, file = tmp_path / "run", str(tmp_path / "recipe.toml")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    words = [*launcher, "-m", "mem1", "train", file, "--out", str(run), "--resume", "--no-evaluate"]
    with contextlib.ExitStack() as nodes:
        process = nodes.enter_context(started(words, shared_by_restarts(), tmp_path / "torchrun.log"))
        wait_until(lambda: rows(run) >= 3, tmp_path)
        ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(ranks) == 2
        os.kill(int(ranks[1]), signal.SIGKILL)
        assert process.wait(300) == 0, (tmp_path / "torchrun.log").read_text()[-3000:]
    assert [ranks for _, ranks in starts(run)] == [2, 2]
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "unbroken" / "metrics.jsonl").read_bytes()
    one, other = trained(run), trained(tmp_path / "unbroken")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def shared_by_restarts() -> dict[str, str]:
    """An environment in which torchrun keeps its store from start to start, as it does by default."""
    left = {name: value for name, value in os.environ.items() if name != "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    return {**left, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def command(folder: Path, address: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of the page, with this recipe, folder and addresses, and its environment."""
    block = next(b for b in re.findall(r"```bash\n(.*?)```", DOCS.read_text(), re.S) if "--nnodes 1:2" in b)
    exported, line = block.strip().splitlines()
    words = shlex.split(line)
    ours = {"--rdzv-endpoint": f"127.0.0.1:{port}", "--out": str(folder / "run"), "train": str(folder / "recipe.toml")}
    for word, value in ours.items():
        words[words.index(word) + 1] = value
    launcher, *arguments = words
    assert launcher == "torchrun"
    quick = "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    name, _, value = exported.removeprefix("export ").split("#")[0].strip().partition("=")
    environment = {**os.environ, name: value, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-m", "torch.distributed.run", quick, f"--local-addr={address}", *arguments], environment


@contextlib.contextmanager
def node(folder: Path, address: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A torchrun in a process group of its own, as on a machine of its own; killed at the end."""
    with started(*command(folder, address, port), folder / f"{address}.log") as process:
        yield process


@contextlib.contextmanager
def started(words: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as said:
        process = subprocess.Popen(words, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks, which are no longer found once it has ended, at one stroke."""
    doomed = [process.pid]
    for pid in doomed:
        with contextlib.suppress(OSError):
            doomed += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    if process.poll() is None:
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def rows(out: Path) -> int:
    return len(read_metrics(out / "metrics.jsonl")) if (out / "metrics.jsonl").is_file() else 0


def wait_until(condition: Callable[[], bool], folder: Path, timeout_s: float = 300) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        said = [f"{log.name}: {log.read_text()[-3000:]}" for log in folder.glob("*.log")]
        assert time.monotonic() < until, "\n".join(said)
        time.sleep(0.1)


def is_open(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
