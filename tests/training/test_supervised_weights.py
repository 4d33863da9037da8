"""Every token of an epoch of demonstrations weighs the same, whatever the size of its step and of its packs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, cast

import pytest
import torch
from builders import tiny_model
from rank_steps import attempts
from torch import Tensor

from mem1.policy.policy import Policy
from mem1.recipe.supervised import Sft
from mem1.records import Trajectory
from mem1.training.logprobs import completion_logprobs
from mem1.training.ranks.optimizers import Optimizers
from mem1.training.supervised import SftStage, sampled_tokens

SHOWN = [attempt for group in attempts(groups=5) for attempt in group.trajectories]


class Noting(Optimizers):
    """Notes the gradient of each step, and takes none."""

    def step(self, *, scale: float, max_grad_norm: float = 1.0) -> float:
        del scale, max_grad_norm
        noted = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        GRADIENTS.append(torch.cat([gradient.flatten() for gradient in noted]))
        for parameter in self.parameters:
            parameter.grad = None
        return 0.0


GRADIENTS: list[Tensor] = []


def begun(*, pack_tokens: int = 100, workers: int = 1) -> SftStage:
    policy = Policy(tiny_model("qwen3"), cast(Any, None))
    config = Sft(steps=30, tokens=100, pack_tokens=pack_tokens)
    stage = SftStage(policy, config, lambda: SHOWN, seed=0, workers=workers)
    made = stage.optimizers
    stage.optimizers = Noting(made.members, made.rates, made.parameters)
    GRADIENTS.clear()
    return stage


def epochs(stage: SftStage) -> list[list[list[Trajectory]]]:
    """The steps of each whole epoch."""
    whole = sampled_tokens(SHOWN)
    ends = [
        step
        for step, tokens in enumerate(accumulate(map(sampled_tokens, stage._batches)), start=1)
        if tokens % whole == 0
    ]
    return [stage._batches[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def negative_log_likelihood(stage: SftStage, batch: Sequence[Trajectory]) -> Tensor:
    turns = [turn for t in completion_logprobs(stage.model, batch, packed=False) for turn in t]
    return -torch.cat(turns).sum()


@pytest.mark.numeric
@pytest.mark.parametrize(("pack_tokens", "workers"), [(100, 1), (64, 1), (64, 2)])
def test_the_gradients_of_an_epoch_sum_to_that_of_all_its_tokens(pack_tokens: int, workers: int):
    stage = begun(pack_tokens=pack_tokens, workers=workers)
    first, second, *_ = epochs(stage)
    full = fmean(map(sampled_tokens, first[:-1]))
    sizes = list(map(sampled_tokens, first))
    assert len(first) > 2 and len({*sizes[:-1]}) > 1 and sizes[-1] < 0.8 * min(sizes[:-1])
    rows = [stage.step(index) for index in range(len(first) + len(second))]

    def gradient(batch: Sequence[Trajectory]) -> Tensor:
        loss = negative_log_likelihood(stage, batch) / full
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, stage.optimizers.parameters)])

    of_one = gradient(SHOWN)
    torch.testing.assert_close(torch.stack(GRADIENTS[: len(first)]).sum(0), of_one, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.stack(GRADIENTS[len(first) :]).sum(0), of_one, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(GRADIENTS[len(first) - 1], gradient(first[-1]), rtol=1e-9, atol=1e-12)
    # the loss that is logged is the mean over the tokens of the step
    with torch.no_grad():
        for batch, row in zip(first, rows, strict=False):
            assert row["loss"] == pytest.approx(float(negative_log_likelihood(stage, batch)) / sampled_tokens(batch))


def test_an_epoch_of_one_step_divides_by_its_own_tokens():
    stage = begun()
    stage.config = stage.config.model_copy(update={"tokens": 100_000})
    stage.step(0)
    loss = negative_log_likelihood(stage, SHOWN) / sampled_tokens(SHOWN)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, stage.optimizers.parameters)])
    torch.testing.assert_close(GRADIENTS[0], wanted, rtol=1e-9, atol=1e-12)
