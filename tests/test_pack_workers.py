"""Packs computed in threads and on ranks: their order, their sums, the caller's mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from builders import tiny_model, trajectory
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from mem1.packing import Pack, split_into_packs
from mem1.records import Trajectory, Turn
from mem1.training.gradients import pack_workers
from mem1.training.gradients.pack_workers import PackWorkers, Pass, assign, costs
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks

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


@dataclass
class Stats:
    number: int


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_the_packs_however_long_each_takes(threads: int):
    later_done = threading.Event()

    def slow_at_first(pack: Pack) -> dict[str, Tensor]:
        if threads > 1 and number(pack) == 0:
            assert later_done.wait(10)
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
        workers.backward(PACKS, lambda pack: (weight * 1.0, Stats(len(look(pack)))), [weight])
    else:
        workers.forward(PACKS, look)
    assert seen == {(backward, 1, "mem1_tree")}
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, before)


def test_an_error_in_a_pack_is_raised_and_the_remaining_packs_are_not_begun():
    begun: list[int] = []

    def fails(pack: Pack) -> dict[str, Tensor]:
        begun.append(number(pack))
        raise MemoryError("of a pack")

    many = [pack for _ in range(50) for pack in PACKS]
    with pytest.raises(MemoryError, match="of a pack"):
        PackWorkers(models=[MODEL], threads=2).forward(many, fails)
    assert len(begun) < len(many)
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, "sdpa")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_gradients_are_added_in_the_order_of_the_packs_to_what_is_there(threads: int):
    # 1e8 swallows what is added to it one by one, so the order of addition shows
    weight, unused = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(1.0))
    weight.grad = torch.tensor(1.0)
    factors = [3.0, 1e8, 3.0, -1e8, 3.0, 3.0]
    workers = PackWorkers(models=[], threads=threads)
    found = workers.backward(PACKS, lambda p: (weight * factors[number(p)], Stats(number(p))), [weight, unused])
    expected = torch.tensor(1.0)
    for factor in factors:
        expected = expected + factor
    assert [one.number for one in found] == [0, 1, 2, 3, 4, 5]
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

    def loss_of(pack: Pack) -> tuple[Tensor, Stats]:
        return (weight * 10 ** number(pack)).sum(), Stats(10 + number(pack))

    others = {0: json.dumps([[0, {"number": 0}], [1, {"number": 1}]]).encode()}
    workers = on_rank(monkeypatch, [Pass(2), Pass(1, weight=0.0)], others, rank=1)
    assert [one.number for one in workers.backward(PACKS[:3], loss_of, [weight])] == [0, 1, 12]
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
