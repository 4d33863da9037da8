"""Muon: its iterations, and its steps beside torch's."""

from __future__ import annotations

import pytest
import torch

from mem1.training.ranks.optimizers import Muon, adamw, orthogonal

SHAPES = [(24, 24), (16, 48), (48, 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_singular_values_come_near_1_and_the_singular_vectors_stay(shape: tuple[int, int]):
    left, values, right = torch.linalg.svd(
        torch.randn(shape, generator=torch.Generator().manual_seed(0)), full_matrices=False
    )
    found = left.T @ orthogonal(left @ torch.diag(values) @ right) @ right.T
    torch.testing.assert_close(found, torch.diag(found.diagonal()), rtol=0, atol=1e-4)
    # values far below the largest one take more than five iterations
    near = found.diagonal()[values > 0.1 * values.max()]
    assert len(near) > 10 and near.min() > 0.5 and near.max() < 1.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_is_computed_in_its_own_precision_on_a_cpu(dtype: torch.dtype):
    matrix = torch.randn(12, 20, generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert orthogonal(matrix).dtype == dtype
    assert orthogonal(matrix.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_torch_up_to_the_rounding_of_bf16(shape: tuple[int, int]):
    random = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(shape, generator=random), torch.randn((3, *shape), generator=random)
    after = []
    for kind in (Muon, torch.optim.Muon):
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight], lr=0.1, weight_decay=0.1)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        after.append(weight.detach())
    ours, theirs = after
    assert 0 < (ours - theirs).norm() < 0.02 * (theirs - start).norm()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_scalar_learns_without_decay_and_its_gradient_is_cleared(weight_decay: float):
    model = torch.nn.Linear(3, 2)
    model.gate = torch.nn.Parameter(torch.tensor(1.0))
    (model.gate * model(torch.ones(3))).sum().backward()
    adamw(model, 0.1, weight_decay).step(scale=1.0)
    assert abs(1 - float(model.gate.detach())) == pytest.approx(0.1, rel=1e-3)  # AdamW's first step is the rate
    assert all(p.grad is None for p in model.parameters())
