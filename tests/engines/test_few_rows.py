"""Linear layers in bf16 whose few rows are computed in the other order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mem1.engines.few_rows import quick_for_few

BF16 = torch.bfloat16


class Products:
    """The shapes of weights' products, as `nn.functional.linear` is told them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plain: list[int] = []
        linear = torch.nn.functional.linear

        def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.plain.append(x.shape[-2])
            return linear(x, *rest)

        monkeypatch.setattr(torch.nn.functional, "linear", counted)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Products:
    return Products(monkeypatch)


def layer(*, bias: bool = False, dtype: torch.dtype = BF16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 40, bias=bias, dtype=dtype)


def inside(made: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(), quick_for_few(nn.Sequential(made)):
        return made(x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 24, 64])
def test_few_rows_are_what_they_are_in_the_usual_order(products: Products, rows: int, bias: bool):
    made, x = layer(bias=bias), torch.randn(1, rows, 96).to(BF16)
    exact = x.double() @ made.weight.double().T + (made.bias.double() if made.bias is not None else 0)
    found = inside(made, x)
    assert not products.plain
    assert found.shape == (1, rows, 40) and found.is_contiguous() and found.dtype == BF16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1), BF16), ((1, 65), BF16), ((2, 3), BF16), ((1, 3), torch.float32), ((1, 3), torch.float64)],
    ids=["one", "many", "a batch", "fp32", "fp64"],
)
def test_all_else_is_computed_as_before(products: Products, shape: tuple[int, int], dtype: torch.dtype):
    made, x = layer(dtype=dtype), torch.randn(*shape, 96).to(dtype)
    before = made(x)
    assert torch.equal(inside(made, x), before) and products.plain == [shape[1]] * 2


def test_a_layer_is_its_own_again_afterwards_also_of_one_that_is_inside_already(products: Products):
    made, x = layer(), torch.randn(1, 3, 96).to(BF16)
    with pytest.raises(RuntimeError, match="broken off"), quick_for_few(made):
        with quick_for_few(made):
            pass
        made(x)
        assert not products.plain
        raise RuntimeError("broken off")
    made(x)
    assert products.plain == [3] and "forward" not in vars(made)


class Own(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def test_a_layer_with_a_forward_pass_of_its_own_keeps_it(products: Products):
    made = Own(96, 40, dtype=BF16)
    inside(made, torch.randn(1, 3, 96).to(BF16))
    assert products.plain == [3]
