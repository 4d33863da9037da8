"""Several packs at a time: in their order, in the caller's mode, and everything as it was afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from builders import tiny_model, trajectory

from mem1.packing import Pack, split_into_packs
from mem1.training.parallel_packs import backward_in_order, in_order

pytestmark = pytest.mark.numeric

MODEL = tiny_model("qwen2")
PACKS = split_into_packs([trajectory(((1, 2, n), (4, 5))) for n in range(6)], max_tokens=6)


@pytest.fixture(autouse=True)
def two_threads_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def first(pack: Pack) -> int:
    return pack[0].trajectory


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_packs_however_long_each_takes(workers: int):
    later_done = threading.Event()

    def slow_at_first(pack: Pack) -> int:
        if workers > 1 and first(pack) == 0:
            assert later_done.wait(10)
        later_done.set()
        return first(pack)

    assert len(PACKS) == 6
    assert list(in_order(slow_at_first, PACKS, models=[MODEL], workers=workers)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("enabled", [False, True])
def test_each_thread_has_the_callers_gradient_mode_one_thread_of_torch_and_the_tree_attention(enabled: bool):
    def seen(pack: Pack) -> tuple[bool, int, str | None]:
        return torch.is_grad_enabled(), torch.get_num_threads(), MODEL.config._attn_implementation

    before = MODEL.config._attn_implementation
    with torch.set_grad_enabled(enabled):
        assert set(in_order(seen, PACKS, models=[MODEL], workers=2)) == {(enabled, 1, "mem1_tree")}
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, before)


def test_an_error_in_a_pack_comes_out_and_the_packs_behind_it_are_not_begun():
    begun: list[int] = []

    def fails(pack: Pack) -> None:
        begun.append(first(pack))
        raise MemoryError("of a pack")

    many = [pack for _ in range(50) for pack in PACKS]
    with pytest.raises(MemoryError, match="of a pack"):
        list(in_order(fails, many, models=[MODEL], workers=2))
    assert len(begun) < len(many)
    assert (torch.get_num_threads(), MODEL.config._attn_implementation) == (2, "sdpa")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gradients_are_added_in_the_order_of_the_packs_to_what_is_there(workers: int):
    # 1e8 swallows what is added to it one by one, so the order of addition shows
    weight, unused = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(1.0))
    weight.grad = torch.tensor(1.0)
    factors = [3.0, 1e8, 3.0, -1e8, 3.0, 3.0]
    told = list(
        backward_in_order(
            lambda pack: (weight * factors[first(pack)], first(pack)),
            PACKS,
            models=[],
            parameters=[weight, unused],
            workers=workers,
        )
    )
    expected = torch.tensor(1.0)
    for factor in factors:
        expected = expected + factor
    assert told == [0, 1, 2, 3, 4, 5]
    assert (weight.grad.item(), unused.grad) == (expected.item(), None)
