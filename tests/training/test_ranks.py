"""Packs in threads and on ranks, what ranks exchange, and optimisers, without any process but this one."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders import random_group, tiny_model, trajectory
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from torch import Tensor, distributed
from typer.testing import CliRunner

import mem1
from mem1.cli.main import app
from mem1.cli.train import Upload
from mem1.engines.device import Machine
from mem1.errors import UserError
from mem1.packing import Pack, split_into_packs
from mem1.recipe.model import Distributed
from mem1.recipe.rl import Phase, Rl
from mem1.records import Group, Question, Task, Trajectory, Turn
from mem1.training.gradients import pack_workers
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.pack_workers import PackWorkers, Pass, assign, costs
from mem1.training.monitoring.validation import Validation
from mem1.training.ranks.optimizers import adamw, muon, warmup, warmup_decay
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import ONE_PROCESS, Ranks, joined
from mem1.training.runs.checkpoint import BackgroundSaves, latest_checkpoint
from mem1.training.runs.snapshot import Snapshot
from mem1.training.sampling.group_sampling import GroupSampler

pytestmark = pytest.mark.numeric

MODEL = tiny_model("qwen2")
PACKS = split_into_packs([trajectory(((1, 2, n), (4, 5))) for n in range(6)], max_tokens=6)


@pytest.fixture(autouse=True)
def two_threads_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def number(pack: Pack) -> int:
    return pack.pieces[0].trajectory


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_the_packs_however_long_each_takes(threads: int):
    later_done = threading.Event()

    def slow_at_first(pack: Pack) -> dict[str, Tensor]:
        if threads > 1 and number(pack) == 0:
            assert later_done.wait(60)
        later_done.set()
        return {"x": torch.tensor(number(pack))}

    found = PackWorkers(models=[MODEL], threads=threads).forward(PACKS, slow_at_first)
    assert [int(one["x"]) for one in found] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("backward", [False, True])
def test_each_thread_has_the_callers_gradient_mode_one_thread_of_torch_and_the_tree_attention(backward: bool):
    seen: set[tuple[bool, int, str | None]] = set()
    weight = torch.nn.Parameter(torch.tensor(1.0))

    def look(pack: Pack) -> dict[str, Tensor]:
        seen.add((torch.is_grad_enabled(), torch.get_num_threads(), MODEL.config._attn_implementation))
        return {}

    before = MODEL.config._attn_implementation
    workers = PackWorkers(models=[MODEL], threads=2)
    if backward:
        workers.backward(PACKS, lambda pack: (weight * 1.0, {"number": len(look(pack))}), [weight])
    else:
        workers.forward(PACKS, look)
    assert seen == {(backward, 1, "mem1_tree")}
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, before)


def test_an_error_in_a_pack_is_raised_and_the_remaining_packs_are_not_begun():
    begun: list[int] = []

    def fails(pack: Pack) -> dict[str, Tensor]:
        begun.append(number(pack))
        raise MemoryError("of a pack")

    with pytest.raises(MemoryError, match="of a pack"):
        PackWorkers(models=[MODEL], threads=2).forward([pack for _ in range(50) for pack in PACKS], fails)
    assert begun in ([0], [0, 1], [1, 0])  # the other thread may have begun its first before this one failed
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, "sdpa")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_gradients_are_added_to_existing_ones_in_the_order_of_the_packs(threads: int):
    # 1e8 swallows what is added to it one by one, so the order of addition shows
    weight, unused = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(1.0))
    weight.grad = torch.tensor(1.0)
    factors = [3.0, 1e8, 3.0, -1e8, 3.0, 3.0]
    workers = PackWorkers(models=[], threads=threads)
    found = workers.backward(PACKS, lambda p: (weight * factors[number(p)], {"number": number(p)}), [weight, unused])
    expected = torch.tensor(1.0)
    for factor in factors:
        expected = expected + factor
    assert [one["number"] for one in found] == [0, 1, 2, 3, 4, 5]
    assert (weight.grad.item(), unused.grad) == (expected.item(), None)


def test_packs_of_similar_cost_make_a_round_and_a_rank_without_one_repeats_the_cheapest():
    assert assign([9, 2, 8, 1, 3], 2) == [[Pass(0), Pass(4), Pass(3)], [Pass(2), Pass(1), Pass(3, weight=0.0)]]
    assert assign([], 3) == [[], [], []]


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 5))
def test_every_pack_counts_once_and_all_ranks_make_equally_many_passes(prices: list[int], ranks: int):
    passes = assign([float(p) for p in prices], ranks)
    assert sorted(p.pack for own in passes for p in own if p.weight) == list(range(len(prices)))
    assert len({len(own) for own in passes}) == 1
    lockstep = sum(max(prices[own[i].pack] for own in passes) for i in range(len(passes[0])))
    in_order = sum(max(prices[i : i + ranks]) for i in range(0, len(prices), ranks))
    assert lockstep <= in_order


def test_a_long_context_costs_more_than_as_many_tokens_in_short_ones():
    short = [Trajectory(turns=(Turn(context_ids=(n, *range(20)), completion_ids=(n,)),)) for n in range(20)]
    long = [Trajectory(turns=(Turn(context_ids=tuple(n % 40 for n in range(439)), completion_ids=(1,)),))]
    of_short, of_long = costs([Pack.whole(short), Pack.whole(long)], MODEL)
    assert 1.2 * of_short < of_long


@dataclass(frozen=True)
class Recorded(Ranks):
    """One rank of several, whose fellows have already sent their answers."""

    others: dict[int, bytes] = field(default_factory=dict)

    def gather(self, data: bytes) -> list[bytes]:
        self.others[self.rank] = data
        return [self.others.get(rank, b"") for rank in range(self.size)]


def on_rank(
    monkeypatch: pytest.MonkeyPatch, passes: Sequence[Pass], others: dict[int, bytes], rank: int = 0
) -> PackWorkers:
    """The workers of one of two ranks, with these passes."""
    monkeypatch.setattr(pack_workers, "assign", lambda costs, ranks: {rank: passes})
    placement = Placement(ranks=Recorded(rank=rank, size=2, others=others))
    return replace(PackWorkers(models=[MODEL]), placement=placement)


def test_a_padding_pass_adds_no_gradient_and_its_pack_is_counted_once(monkeypatch: pytest.MonkeyPatch):
    weight = torch.tensor([2.0], requires_grad=True)

    def loss_of(pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        return (weight * 10 ** number(pack)).sum(), {"number": torch.tensor(10 + number(pack))}

    others = {0: json.dumps([[0, {"number": 0}], [1, {"number": 1}]]).encode()}
    workers = on_rank(monkeypatch, [Pass(2), Pass(1, weight=0.0)], others, rank=1)
    assert [one["number"] for one in workers.backward(PACKS[:3], loss_of, [weight])] == [0, 1, 12]
    assert weight.grad is not None and weight.grad.tolist() == [100.0]
    weight.grad = None
    workers = on_rank(monkeypatch, [Pass(2), Pass(1)], {1: json.dumps([[0, {"number": 0}]]).encode()})
    workers.backward(PACKS[:3], loss_of, [weight])
    assert weight.grad is not None and weight.grad.tolist() == [110.0]


def test_tensors_from_all_ranks_come_in_the_order_of_the_packs(monkeypatch: pytest.MonkeyPatch):
    others = {1: save({"0/x": torch.tensor([0.0]), "1/x": torch.tensor([1.0])})}
    workers = on_rank(monkeypatch, [Pass(2), Pass(1, weight=0.0)], others)
    found = workers.forward(PACKS[:3], lambda pack: {"x": torch.tensor([10.0 + number(pack)])})
    assert [one["x"].tolist() for one in found] == [[0.0], [1.0], [12.0]]


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

    def tasks(self, *, objectives: int, **_: Any) -> list[Task]:
        return [replace(task, questions=task.questions * objectives) for task in tasks(self.count)]

    def __call__(self, own: Sequence[Task], *, numbers: Sequence[int], **_: Any) -> list[Trajectory]:
        self.made.append(len(own))
        turn = Turn(context_ids=(1,), completion_ids=(2,), logprobs=(-0.1,))
        return [Trajectory(turns=(turn,), task=task, attempt=n) for task, n in zip(own, numbers, strict=True)]


def sampled(source: Tasks, ranks: Ranks, *, served: bool = False, validation: Validation | None = None) -> list[Group]:
    config = Rl(curriculum=(Phase(steps=1),), tasks_per_step=source.count, group_size=3)
    sampler = GroupSampler(MODEL, config, cast(Any, source), cast(Any, source), seed=0)
    sampler.placement, sampler.served = Placement(ranks=ranks), served
    if validation is not None:
        return [Group(trajectories=(attempt,)) for attempt in sampler.validate(validation, 1)]
    return sampler.sample(0)


def test_the_tasks_of_a_step_go_on_with_the_numbers_of_objectives_of_the_last():
    class Sized(Tasks):
        def tasks(self, *, objectives: int, count: int, **_: Any) -> list[Task]:
            drawn[-1][objectives] += count
            return super().tasks(objectives=objectives)[:count]

    drawn: list[Counter[int]] = []
    config = Rl(curriculum=(Phase(steps=4, objectives=(1, 2, 4)),), tasks_per_step=2, group_size=3)
    source = Sized(2)
    sampler = GroupSampler(MODEL, config, cast(Any, source), cast(Any, source), seed=0)
    for step in range(4):
        drawn.append(Counter())
        sampler.sample(step)
    assert drawn == [{1: 1, 2: 1}, {4: 1, 1: 1}, {2: 1, 4: 1}, {1: 1, 2: 1}]


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


@pytest.mark.parametrize("served", [False, True])
def test_every_rank_has_all_attempts_of_a_validation(served: bool):
    source = Tasks(4)
    validation = Validation(every=1, tasks=tasks(4), rollout=cast(Any, source), seed=0)
    wanted = sampled(source, ONE_PROCESS, validation=validation)
    others = {rank: b'{"value": null}' if served else b'{"value": []}' for rank in range(2)}
    found = []
    for rank in (0, 1) if served else (1, 0):
        found = sampled(source, Recorded(rank=rank, size=2, others=others), served=served, validation=validation)
    assert found == wanted and len(found) == 4
    assert source.made == ([4, 4] if served else [4, 2, 2])


def test_a_mistake_on_another_rank_is_raised_here():
    others = {1: json.dumps({"mistake": "the disk is full"}).encode()}
    with pytest.raises(UserError, match="the disk is full"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)
    others = {1: json.dumps({"error": "KeyError: 3"}).encode()}
    with pytest.raises(RuntimeError, match="rank 1 failed: KeyError: 3"):
        Recorded(rank=0, size=2, others=others).on_each_rank(lambda: 3)


def test_contexts_one_by_one_are_refused_where_weights_are_shared():
    config = Rl(curriculum=(Phase(steps=1),), packed=False)
    with pytest.raises(UserError, match=r"is not supported with \[distributed\]"):
        ActorCritic.make(config, tiny_model("qwen2"), placement=Placement(config=Distributed()))


def test_a_checkpoint_written_in_the_background_holds_the_state_at_the_call(tmp_path: Path):
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


def test_a_full_disk_in_the_background_is_an_error_at_the_end(tmp_path: Path):
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


def test_an_upload_runs_the_command_with_the_checkpoint_and_only_reports_a_failure(tmp_path: Path):
    told: list[str] = []
    program = "import sys, pathlib; pathlib.Path(sys.argv[1], 'seen').write_text('x')"
    Upload(f'{sys.executable} -c "{program}" {{}}', told.append)(tmp_path)
    assert (tmp_path / "seen").exists() and not told
    Upload(f"{sys.executable} -c 'raise SystemExit(\"quota\")' {{}}", told.append)(tmp_path)
    Upload("no-such-program {}", told.append)(tmp_path)
    latin = "import sys; sys.stdin.read(); sys.stderr.buffer.write(b'caf\\xe9'); sys.exit(3)"
    Upload(f'{sys.executable} -c "{latin}" {{}}', told.append)(tmp_path)
    assert "was not uploaded (exit code 1): quota" in told[0] and "no-such-program" in told[1]
    assert "was not uploaded (exit code 3): caf\ufffd" in told[2]
    for command in ("rclone copy", "a 'b {}"):
        with pytest.raises(UserError, match="--upload"):
            Upload(command, told.append)


def test_a_recipe_alone_joins_nobody():
    with joined(machine=Machine()) as ranks:
        assert ranks == ONE_PROCESS and not distributed.is_initialized()


def test_a_process_alone_knows_what_its_cpu_has():
    with joined(machine=Machine(bfloat16=True)) as ranks:
        assert ranks.device.is_cpu and ranks.device.bfloat16


def test_the_function_trains_a_recipe_with_distributed_as_the_command_does(tmp_path: Path):
    changes = (
        *("distributed={}", "workers=1", "tasks.worlds=1", "rl.tasks_per_step=2", "rl.group_size=2"),
        *("model.new.hidden_size=32", "model.new.layers=1", "model.new.heads=2", "model.new.feed_forward=32"),
        *("model.new.look_back=[]", "budget.completion_extra=8", "rl.curriculum=[{ steps = 1, objectives = [1] }]"),
    )
    finished = mem1.train(mem1.load_recipe("atlas-quick", *changes), out=tmp_path / "function")
    assert finished.complete and not distributed.is_initialized()
    command = ["train", "atlas-quick", *changes, "--out", str(tmp_path / "command"), "--no-evaluate"]
    assert CliRunner().invoke(app, command).exit_code == 0
    ours, theirs = ((tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("function", "command"))
    assert ours == theirs


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    model = tiny_model("llama")  # its output matrix is not its embedding
    made = muon(model, 0.02, 0.003)
    names = {id(p): name for name, p in model.named_parameters()}
    of_muon, of_adamw = ({names[id(p)] for g in member.param_groups for p in g["params"]} for member in made.members)
    assert of_muon == {name for name in names.values() if "proj" in name}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} < of_adamw
    assert of_muon | of_adamw == set(names.values()) and not of_muon & of_adamw
    (group,) = made.members[1].param_groups
    assert (group["betas"], group["weight_decay"], made.rates) == ((0.9, 0.95), 0.0, (0.02, 0.003))


def test_two_steps_of_adamw_by_hand_the_second_clipped():
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    made = adamw(model, 0.1)
    model.weight.grad = torch.tensor([[0.5]], dtype=torch.float64)
    assert made.step(scale=0.5, max_grad_norm=2.0) == 0.5
    # the first step of Adam is the rate, whatever the gradient: 0.05
    assert model.weight.item() == pytest.approx(0.95, abs=1e-8)
    assert model.weight.grad is None
    model.weight.grad = torch.tensor([[8.0]], dtype=torch.float64)
    assert made.step(scale=1.0, max_grad_norm=2.0) == 8.0
    # clipped to 2: moments 0.045 + 0.2 = 0.245 over 0.19, and 0.011875 + 0.2 = 0.211875 over 0.0975
    assert model.weight.item() == pytest.approx(0.95 - 0.1 * (0.245 / 0.19) / (0.211875 / 0.0975) ** 0.5, abs=1e-7)


def test_the_rate_rises_from_the_first_step_and_falls_to_a_twentieth():
    assert [warmup(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup(0, 0) == 1.0
    rates = [warmup_decay(step, steps=50, warmup_steps=2, decay=0.8) for step in range(50)]
    assert rates[:3] == [0.5, 1, 1]
    assert rates[10] == 1.0 and rates[11] == 39 / 40 and rates[30] == 0.5
    assert rates[-3:] == pytest.approx([3 / 40, 2 / 40, 0.05])
    assert [warmup_decay(step, steps=5, warmup_steps=0, decay=0) for step in range(5)] == [1.0] * 5
