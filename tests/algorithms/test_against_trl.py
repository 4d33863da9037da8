"""Our losses against TRL's, on the same tensors: trajectories of one context, where the two mean the same thing.

What runs is TRL's own `GRPOTrainer._compute_loss`; the stand-in below has the settings that it reads and returns
our log-probabilities where a trainer would ask its model for them. Needs mem1-agents[reference]; skipped without.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import loss_inputs
from torch import Tensor

from mem1.algorithms.losses import Loss, clipped_surrogate, kl_estimate
from mem1.algorithms.ratios import Cispo, Gspo

pytest.importorskip("accelerate")  # TRL's own needs, which an installation without dependencies lacks
pytest.importorskip("datasets")
Trainer = pytest.importorskip("trl").GRPOTrainer

LENGTHS = [4, 1, 6, 3]
MASK = torch.tensor([[1] * n + [0] * (6 - n) for n in LENGTHS])
REAL = MASK.bool()
NUMBERS = torch.Generator().manual_seed(0)
OLD = -torch.rand(4, 6, generator=NUMBERS, dtype=torch.float64)
NEW = OLD + 0.3 * torch.randn(4, 6, generator=NUMBERS, dtype=torch.float64)
REFERENCE = OLD + 0.3 * torch.randn(4, 6, generator=NUMBERS, dtype=torch.float64)
WEIGHTS = 2 * torch.rand(4, 6, generator=NUMBERS, dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -0.5, -1.25, 0.75], dtype=torch.float64)
ADVANTAGES_M = ADVANTAGES.repeat_interleave(torch.tensor(LENGTHS))
BUDGET = 10
"""Tokens that a completion may have, for Dr. GRPO."""
LOW, HIGH = 0.2, 0.28


def trl(loss_type: str, *, level: str = "token", high: float = HIGH, beta: float = 0.0, weighted: bool = False):
    """TRL's loss and its gradient on the log-probabilities of the M real tokens."""
    logprobs = NEW.clone().requires_grad_()
    stand_in: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_high=high,
        epsilon_low=LOW,
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=BUDGET,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=weighted,
        vllm_importance_sampling_correction=weighted,
    )
    inputs = {
        "prompt_ids": torch.zeros(4, 1, dtype=torch.long),
        "prompt_mask": torch.ones(4, 1, dtype=torch.long),
        "completion_ids": torch.zeros(4, 6, dtype=torch.long),
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": OLD,
        "ref_per_token_logps": REFERENCE,
        "importance_sampling_ratio": WEIGHTS,
        "num_items_in_batch": MASK.sum(),
    }
    loss = Trainer._compute_loss(stand_in, stand_in.model, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient[~REAL].abs().max() == 0
    return loss.detach(), gradient[REAL]


def new() -> Tensor:
    return NEW[REAL].requires_grad_()


def ppo(logprobs_M: Tensor, *, denominator: float, weights_M: Tensor | None = None) -> Loss:
    return clipped_surrogate(
        logprobs_M,
        OLD[REAL],
        ADVANTAGES_M,
        clip_low=LOW,
        clip_high=HIGH,
        denominator=denominator,
        weights_M=weights_M,
    )


def assert_same(loss: Tensor, logprobs_M: Tensor, theirs: tuple[Tensor, Tensor]) -> None:
    assert theirs[1].abs().max() > 0.01
    (gradient_M,) = torch.autograd.grad(loss, logprobs_M)
    torch.testing.assert_close(loss.detach(), theirs[0], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(gradient_M, theirs[1], rtol=1e-13, atol=1e-15)


def test_the_numbers_reach_every_clip():
    result = ppo(new(), denominator=1.0)
    ratio_M = (NEW - OLD).exp()[REAL]
    assert 0 < result.clipped < len(ratio_M)
    assert ratio_M.min() < 1 - LOW and ratio_M.max() > 1 + HIGH


def test_dapo_divides_by_the_sampled_tokens():
    logprobs_M = new()
    assert_same(ppo(logprobs_M, denominator=float(sum(LENGTHS))).loss, logprobs_M, trl("dapo"))


def test_grpo_divides_each_trajectory_by_its_own_length():
    logprobs_M = new()
    lengths = torch.tensor(LENGTHS)
    own_M = (1 / lengths.double()).repeat_interleave(lengths)
    assert_same(ppo(logprobs_M, denominator=4.0, weights_M=own_M).loss, logprobs_M, trl("grpo"))


def test_dr_grpo_divides_by_a_budget_of_tokens():
    logprobs_M = new()
    assert_same(ppo(logprobs_M, denominator=4.0 * BUDGET).loss, logprobs_M, trl("dr_grpo"))


@pytest.mark.parametrize("clip", [0.01, 0.05, 0.2])
def test_gspo_has_one_ratio_a_trajectory(clip: float):
    logprobs_M = new()
    inputs = loss_inputs(logprobs_M, OLD[REAL], ADVANTAGES_M, *([n] for n in LENGTHS))
    result = Gspo(clip_low=LOW, clip_high=clip).loss(inputs, denominator=4.0)
    assert_same(result.loss, logprobs_M, trl("grpo", level="sequence", high=clip))


def test_cispo_bounds_the_weight_from_above():
    logprobs_M = new()
    inputs = loss_inputs(logprobs_M, OLD[REAL], ADVANTAGES_M)
    result = Cispo(clip_high=HIGH).loss(inputs, denominator=float(sum(LENGTHS)))
    # TRL's bound is the largest ratio itself, ours how far it is above 1
    assert_same(result.loss, logprobs_M, trl("cispo", high=1 + HIGH))


def test_importance_weights_multiply_each_token():
    logprobs_M = new()
    result = ppo(logprobs_M, denominator=float(sum(LENGTHS)), weights_M=WEIGHTS[REAL])
    assert_same(result.loss, logprobs_M, trl("dapo", weighted=True))


def test_the_kl_in_the_loss_is_k3():
    logprobs_M = new()
    tokens = float(sum(LENGTHS))
    penalty = 0.1 * kl_estimate(logprobs_M, REFERENCE[REAL], "k3").sum() / tokens
    assert_same(ppo(logprobs_M, denominator=tokens).loss + penalty, logprobs_M, trl("dapo", beta=0.1))
