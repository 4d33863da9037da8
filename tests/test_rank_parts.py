"""The parts of a training on several ranks, without any process but this one."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders import random_group, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_pack_workers import Recorded
from torch import distributed

from mem1.cli.train import Upload
from mem1.errors import UserError
from mem1.packing import split_into_packs
from mem1.records import Group, Question, Task, Trajectory, Turn
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.loop.group_sampling import GroupSampler
from mem1.training.loop.recipe import Distributed
from mem1.training.loop.rl_config import Phase, Rl
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, joined
from mem1.training.weights.checkpoint import BackgroundSaves, latest_checkpoint
from mem1.training.weights.snapshot import Snapshot


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_packs_for_several_ranks_are_at_most_a_multiple_of_them(seed: int, ranks: int):
    rng = random.Random(seed)
    batch = [t for _ in range(4) for t in random_group(rng, 2, policy="constant", turns=3)]
    cut = split_into_packs(batch, max_tokens=60, ranks=ranks)
    fewest = len(split_into_packs(batch, max_tokens=60))
    assert fewest <= len(cut) <= -(-fewest // ranks) * ranks


def test_three_like_attempts_on_three_ranks_become_three_packs_and_not_two():
    three = [Trajectory(turns=(Turn(context_ids=(n, 1, 2), completion_ids=(3,)),)) for n in range(3)]
    sizes = [[len(p.pieces) for p in split_into_packs(three, max_tokens=8, ranks=ranks)] for ranks in (1, 3)]
    assert sizes == [[2, 1], [1, 1, 1]]


def tasks(count: int) -> list[Task]:
    # two tasks with one id: their attempts are numbered on
    names = [f"t{min(n, count - 2)}" for n in range(count)]
    return [
        Task(id=name, questions=(Question(id="q", text="?", answers=("a",)),), prompt="p", turn_limit=1)
        for name in names
    ]


@dataclass
class Tasks:
    """Draws tasks and attempts them."""

    count: int
    made: list[int] = field(default_factory=list)
    """Number of attempts of each call."""

    def tasks(self, **_: Any) -> list[Task]:
        return tasks(self.count)

    def __call__(self, own: Sequence[Task], *, numbers: Sequence[int], **_: Any) -> list[Trajectory]:
        self.made.append(len(own))
        turn = Turn(context_ids=(1,), completion_ids=(2,), logprobs=(-0.1,))
        return [Trajectory(turns=(turn,), task=task, attempt=n) for task, n in zip(own, numbers, strict=True)]


def sampled(source: Tasks, ranks: Ranks, *, served: bool = False) -> list[Group]:
    config = Rl(curriculum=(Phase(steps=1),), tasks_per_step=source.count, group_size=3)
    sampler = GroupSampler(cast(Any, None), config, cast(Any, source), cast(Any, source), seed=0)
    sampler.placement, sampler._served = Placement(ranks=ranks), served
    return sampler.sample(0)


@pytest.mark.parametrize("count", [2, 5, 6])
def test_each_rank_attempts_its_share_of_the_tasks_and_has_all_groups_in_order(count: int):
    wanted = sampled(Tasks(count), ONE_PROCESS)
    assert [t.attempt for t in wanted[-1].trajectories] == [3, 4, 5]
    source, others = Tasks(count), dict[int, bytes]()
    for rank in (1, 2, 0):  # the last has what all the others sent
        try:
            found = sampled(source, Recorded(rank=rank, size=3, others=others))
        except json.JSONDecodeError:
            continue  # some rank had not sent anything yet
    assert found == wanted  # pyright: ignore[reportPossiblyUnboundVariable]
    assert sum(source.made) == 3 * count and max(source.made) <= 3 * -(-count // 3)


def test_where_servers_sample_rank_0_alone_calls_them_and_all_have_the_groups():
    wanted = sampled(Tasks(4), ONE_PROCESS)
    source = Tasks(4)
    answers = {rank: b'{"value": null}' for rank in range(2)}
    assert sampled(source, Recorded(rank=0, size=2, others=answers), served=True) == wanted
    assert sampled(source, Recorded(rank=1, size=2, others=answers), served=True) == wanted
    assert source.made == [12]


def test_a_mistake_on_another_rank_is_raised_here():
    others = {1: json.dumps({"mistake": "the disk is full"}).encode()}
    with pytest.raises(UserError, match="the disk is full"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)
    others = {1: json.dumps({"error": "KeyError: 3"}).encode()}
    with pytest.raises(RuntimeError, match="rank 1 failed: KeyError: 3"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)


def test_contexts_one_by_one_are_refused_where_weights_are_shared():
    config = Rl(curriculum=(Phase(steps=1),), packed=False)
    with pytest.raises(UserError, match=r"rl\.packed = false is not supported with"):
        ActorCritic.make(config, tiny_model("qwen2"), placement=Placement(config=Distributed()))


def test_a_checkpoint_written_in_the_background_holds_the_moment_it_was_asked_for(tmp_path: Path):
    model = tiny_model("qwen2")
    weight = model.get_parameter("model.embed_tokens.weight")
    before = weight.detach().clone()
    saved: list[Path] = []
    with BackgroundSaves(tmp_path, ONE_PROCESS, on_saved=saved.append) as saves:
        saves.save(lambda: Snapshot.take(1, model, [], fingerprint="f"))
        with torch.no_grad():
            weight.zero_()
    (path,) = saved
    assert path == latest_checkpoint(tmp_path)
    assert torch.equal(load_file(path / "model" / "model.safetensors")["model.embed_tokens.weight"], before)


def test_a_full_disk_in_the_background_is_told_of_at_the_end(tmp_path: Path):
    def fails() -> Snapshot:
        snapshot = Snapshot.take(1, tiny_model("qwen2"), [], fingerprint="f")
        return cast(Any, Broken(snapshot))

    class Broken:
        def __init__(self, snapshot: Snapshot) -> None:
            self.step = snapshot.step

        def write_rest(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    with (
        pytest.raises(UserError, match="no space left on the disk while writing"),
        BackgroundSaves(tmp_path, ONE_PROCESS) as saves,
    ):
        saves.save(fails)
    assert latest_checkpoint(tmp_path) is None


def test_an_upload_runs_the_command_with_the_checkpoint_and_a_failure_is_only_told(tmp_path: Path):
    told: list[str] = []
    program = "import sys, pathlib; pathlib.Path(sys.argv[1], 'seen').write_text('x')"
    Upload(f'{sys.executable} -c "{program}" {{}}', told.append)(tmp_path)
    assert (tmp_path / "seen").exists() and not told
    Upload(f"{sys.executable} -c 'raise SystemExit(\"quota\")' {{}}", told.append)(tmp_path)
    Upload("no-such-program {}", told.append)(tmp_path)
    assert "was not uploaded (exit code 1): quota" in told[0] and "no-such-program" in told[1]
    for command in ("rclone copy", "a 'b {}"):
        with pytest.raises(UserError, match="--upload"):
            Upload(command, told.append)


def test_a_recipe_alone_joins_nobody():
    with joined() as ranks:
        assert ranks is ONE_PROCESS and not distributed.is_initialized()
