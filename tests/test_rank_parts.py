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
from torch import distributed

from mem1.cli.upload import Upload
from mem1.errors import UserError
from mem1.packing import Pack, Piece, split_into_packs
from mem1.records import Group, Question, Task, Trajectory, Turn
from mem1.training.balance import Pass, costs, deal
from mem1.training.checkpoints.checkpoint import BackgroundSaves, Snapshot, latest_checkpoint
from mem1.training.loop.recipe import Distributed
from mem1.training.networks import Networks
from mem1.training.rank_packs import RankPacks
from mem1.training.rank_rollouts import in_groups, of_the_first, on_all_ranks
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, joined
from mem1.training.rl_config import Phase, Rl


def test_packs_of_like_cost_make_a_round_and_a_rank_without_one_repeats_the_cheapest():
    assert deal([9, 2, 8, 1, 3], 2) == [[Pass(0), Pass(4), Pass(3)], [Pass(2), Pass(1), Pass(3, counts=False)]]
    assert deal([], 3) == [[], [], []]


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 5))
def test_every_pack_counts_once_and_all_ranks_make_as_many_passes(prices: list[int], ranks: int):
    passes = deal([float(p) for p in prices], ranks)
    assert sorted(p.pack for own in passes for p in own if p.counts) == list(range(len(prices)))
    assert len({len(own) for own in passes}) == 1
    lockstep = sum(max(prices[own[i].pack] for own in passes) for i in range(len(passes[0])))
    in_order = sum(max(prices[i : i + ranks]) for i in range(0, len(prices), ranks))
    assert lockstep <= in_order


def test_a_long_context_costs_more_than_as_many_tokens_in_short_ones():
    model = tiny_model("qwen2")
    short = [Trajectory(turns=(Turn(context_ids=(n, *range(20)), completion_ids=(n,)),)) for n in range(20)]
    long = [Trajectory(turns=(Turn(context_ids=tuple(n % 40 for n in range(439)), completion_ids=(1,)),))]
    packs = [split_into_packs(ts, max_tokens=1000) for ts in (short, long)]
    assert [len(p) for p in packs] == [1, 1]
    (of_short,), (of_long,) = (costs(p, ts, model) for p, ts in zip(packs, (short, long), strict=True))
    assert 1.2 * of_short < of_long


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_packs_for_several_ranks_are_at_most_a_multiple_of_them(seed: int, ranks: int):
    rng = random.Random(seed)
    batch = [t for _ in range(4) for t in random_group(rng, 2, policy="constant", turns=3)]
    cut = split_into_packs(batch, max_tokens=60, balanced=True, multiple_of=ranks)
    fewest = len(split_into_packs(batch, max_tokens=60))
    assert fewest <= len(cut) <= -(-fewest // ranks) * ranks


def test_three_like_attempts_on_three_ranks_become_three_packs_and_not_two():
    three = [Trajectory(turns=(Turn(context_ids=(n, 1, 2), completion_ids=(3,)),)) for n in range(3)]
    sizes = [
        [len(p) for p in split_into_packs(three, max_tokens=8, balanced=True, multiple_of=ranks)] for ranks in (1, 3)
    ]
    assert sizes == [[2, 1], [1, 1, 1]]


@dataclass(frozen=True)
class Recorded(Ranks):
    """One rank of several, whose fellows have already said what they will say."""

    others: dict[int, bytes] = field(default_factory=dict)

    def gather(self, data: bytes) -> list[bytes]:
        self.others[self.rank] = data
        return [self.others.get(rank, b"") for rank in range(self.size)]


def tasks(count: int) -> list[Task]:
    # two tasks with one id: their attempts are numbered on
    names = [f"t{min(n, count - 2)}" for n in range(count)]
    return [
        Task(id=name, questions=(Question(id="q", text="?", answers=("a",)),), prompt="p", turn_limit=1)
        for name in names
    ]


def attempt(own: Sequence[Task], numbers: Sequence[int]) -> list[Trajectory]:
    return [
        Trajectory(turns=(Turn(context_ids=(1,), completion_ids=(2,), logprobs=(-0.1,)),), task=task, attempt=number)
        for task, number in zip(own, numbers, strict=True)
    ]


@pytest.mark.parametrize("count", [2, 5, 6])
def test_each_rank_attempts_its_share_of_the_tasks_and_has_all_groups_in_order(count: int):
    wanted = on_all_ranks(ONE_PROCESS, tasks(count), 3, attempt)
    assert [t.attempt for t in wanted[-1].trajectories] == [3, 4, 5]
    others: dict[int, bytes] = {}
    made: list[int] = []

    def counting(own: Sequence[Task], numbers: Sequence[int]) -> list[Trajectory]:
        made.append(len(own))
        return attempt(own, numbers)

    for rank in (1, 2, 0):  # the last has what all the others said
        try:
            found = on_all_ranks(Recorded(rank=rank, size=3, others=others), tasks(count), 3, counting)
        except json.JSONDecodeError:
            continue  # somebody had not spoken yet
    assert found == wanted  # pyright: ignore[reportPossiblyUnboundVariable]
    assert sum(made) == 3 * count and max(made) <= 3 * -(-count // 3)


def test_where_servers_sample_the_first_rank_alone_asks_them_and_all_have_the_groups():
    wanted = on_all_ranks(ONE_PROCESS, tasks(4), 3, attempt)
    others: dict[int, bytes] = {}
    made: list[int] = []

    def make() -> list[Group]:
        made.append(1)
        return in_groups(tasks(4), 3, attempt)

    with pytest.raises(json.JSONDecodeError):  # rank 1 has not spoken yet
        of_the_first(Recorded(rank=0, size=2, others=others), make)
    assert of_the_first(Recorded(rank=1, size=2, others=others), make) == wanted and made == [1]


def rank_packs(passes: list[Pass], others: dict[int, bytes], rank: int = 0) -> RankPacks:
    packs = [[Piece(trajectory=n, turns=(0, 1), tokens=(0, 1))] for n in range(3)]
    place = Placement(ranks=Recorded(rank=rank, size=2, others=others))
    return RankPacks(place=place, packs=packs, passes=passes, workers=1)


def test_a_pack_gone_through_again_for_company_adds_no_gradient_and_is_said_once():
    weight = torch.tensor([2.0], requires_grad=True)
    others: dict[int, bytes] = {0: json.dumps([[0, "pack 0"], [1, "pack 1 of rank 0"]]).encode()}
    made = rank_packs([Pass(2), Pass(1, counts=False)], others, rank=1)

    def loss_of(packed: Pack) -> tuple[torch.Tensor, Any]:
        number = packed[0].trajectory
        return (weight * 10**number).sum(), f"pack {number} of rank 1"

    said = made.backward(loss_of, models=[], parameters=[weight])
    assert said == ["pack 0", "pack 1 of rank 0", "pack 2 of rank 1"]
    assert weight.grad is not None and weight.grad.tolist() == [100.0]
    weight.grad = None
    counted = rank_packs([Pass(2), Pass(1)], {1: json.dumps([[0, "pack 0"]]).encode()})
    counted.backward(loss_of, models=[], parameters=[weight])
    assert weight.grad is not None and weight.grad.tolist() == [110.0]


def test_what_the_ranks_say_of_packs_comes_in_the_order_of_the_packs():
    from safetensors.torch import save

    others = {1: save({"0/x": torch.tensor([0.0]), "1/x": torch.tensor([1.0])})}
    made = rank_packs([Pass(2), Pass(1, counts=False)], others)
    found = made.forward(lambda packed: {"x": torch.tensor([10.0 + packed[0].trajectory])}, models=[])
    assert [one["x"].tolist() for one in found] == [[0.0], [1.0], [12.0]]


def test_a_mistake_on_another_rank_is_raised_here():
    others = {1: json.dumps({"mistake": "the disk is full"}).encode()}
    with pytest.raises(UserError, match="the disk is full"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)
    others = {1: json.dumps({"error": "KeyError: 3"}).encode()}
    with pytest.raises(RuntimeError, match="rank 1 failed: KeyError: 3"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)


def test_contexts_one_by_one_are_refused_where_weights_are_shared():
    config = Rl(phases=(Phase(steps=1),), packed=False)
    with pytest.raises(UserError, match=r"rl\.packed = false takes as many passes as there are turns"):
        Networks.make(config, tiny_model("qwen2"), place=Placement(config=Distributed()))


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
