"""Losses of sampled tokens, the KL penalty, and importance weights.

    clipped surrogate    L = -sum_k c_k min(w_k A_k, clip(w_k, 1 - low, 1 + high) A_k) / denominator
    policy gradient      L = -sum_k c_k A_k logp_k / denominator
    likelihood           L = -sum_k logp_k / denominator                          w_k = exp(logp_k - old_logp_k)

`denominator` is fixed for the whole optimiser step, so micro-batches, packing and ranks cannot change the gradient.

Truncated importance weights c_k correct for a sampler that is not quite the trainer's policy; else they are 1:

    token level       c_k = min(pi_trainer(k) / pi_sampler(k), cap)
    sequence level    c_k = min(prod_{j in its sequence} pi_trainer(j) / pi_sampler(j), cap)

Both are of the policy *before* the update. Use them where kernels, precision or stale weights set the sampler apart.
Only the sequence level is unbiased (before the cap), but over many tokens its product runs to the cap or to nothing.
The token level, the usual choice, ignores how the tokens before were reached.

The penalty on the distance from a reference policy is estimated on the sampled tokens:

    d_k = logp_k - reference_k          k1 = d          k2 = d^2 / 2          k3 = exp(-d) - 1 + d

| | estimates KL(policy, reference) | sign | its gradient, used as a loss, is on average |
|---|---|---|---|
| k1 | without bias, high variance | either | 0: teaches nothing |
| k2 | with bias, low variance | never negative | that of KL(policy, reference): the right one |
| k3 | without bias, low variance | never negative | that of KL(reference, policy): right to first order |

So: k1 in the reward (subtracted from each token's reward, without gradient), k2 in the loss; k3 to log, and in the
loss where GRPO's own choice (arXiv 2402.03300, equation 4) is wanted.

Sources: PPO (arXiv 1707.06347), equation 7, with two clip bounds as in DAPO (arXiv 2503.14476), equation 10; Williams
1992, "Simple statistical gradient-following algorithms", equation 11; Ionides 2008, "Truncated importance sampling",
and between the two engines of one model, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy
RL training"; Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from mem1.configuration import Config

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and the statistics to log with it."""

    loss: Tensor
    """Scalar with gradient; those of the micro-batches of a step add up."""
    clipped: Tensor | int
    """Number of tokens on which a clip took effect; a scalar that nobody has waited for yet, or 0 without a clip."""


def clipped_surrogate(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: float,
    weights_M: Tensor | None = None,
) -> Loss:
    """PPO's clipped objective, as a loss.

    Old log-probs are those from before the first update, at the sampler's temperature: the sampler's own, or the
    trainer's where `weights_M` correct for the difference.
    """
    ratio_M = (logprobs_M - old_logprobs_M).exp()
    free_M = ratio_M * advantages_M
    held_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantages_M
    clipped = (held_M < free_M).sum()
    terms_M = free_M.minimum(held_M)
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return Loss(-terms_M.sum() / denominator, clipped)


def policy_gradient(
    logprobs_M: Tensor, advantages_M: Tensor, *, denominator: float, weights_M: Tensor | None = None
) -> Tensor:
    """REINFORCE, as a scalar loss whose gradient alone means something.

    It is right for one update per rollout; for more, use a surrogate.
    """
    terms_M = logprobs_M * advantages_M
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return -terms_M.sum() / denominator


def negative_log_likelihood(logprobs_M: Tensor, *, denominator: float) -> Tensor:
    """Scalar loss of M demonstrated tokens."""
    return -logprobs_M.sum() / denominator


def per_sequence(values_M: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """One view per sequence, a trajectory or a turn: values a b c d e, lengths (3, 2) -> (a b c, d e).

    Raises ValueError unless the lengths sum to M.
    """
    if sum(lengths) != len(values_M):
        raise ValueError(f"the lengths sum to {sum(lengths)}, but there are {len(values_M)} tokens")
    return values_M.split(list(lengths))


def sums(values_M: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sum over each sequence, (S,), with gradient; 0 for one without tokens."""
    import torch

    return torch.stack([part.sum() for part in per_sequence(values_M, lengths)])


def spread(values_S: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each sequence's value on all its tokens, (M,), with gradient: x y, lengths (3, 2) -> x x x y y."""
    import torch

    lengths_S = torch.tensor(lengths).to(values_S.device, non_blocking=True)
    return values_S.repeat_interleave(lengths_S, output_size=sum(lengths))


KlEstimator = Literal["k1", "k2", "k3"]


class Kl(Config):
    """A penalty on the distance from the policy at the start of reinforcement learning."""

    coefficient: float = Field(default=0.001, ge=0)
    """Weight of the penalty, applied to the mean per-token KL (loss) or to each token's estimate (reward)."""
    where: Literal["reward", "loss"] = "loss"
    estimator: KlEstimator | None = None
    """None: k2 in the loss, k1 in the reward, which takes no other."""
    negative: bool = True
    """Whether negative estimates count in the reward. false: as 0, as in MEM1's released code; the penalty is then too
    high on average, as k1 is unbiased only with both signs."""
    target: float | None = Field(default=None, gt=0)
    """KL in nats per token towards which the coefficient is adapted; None: it is constant."""
    horizon: float = Field(default=10.0, ge=1)
    """Steps over which the coefficient is adapted; without effect if there is no target."""

    @model_validator(mode="after")
    def _teaches(self) -> Kl:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError('estimator = "k1" in the loss has a gradient of 0 on average; take k2 or k3 there')
        if self.where == "reward" and self.estimator in ("k2", "k3"):
            raise ValueError(
                f'estimator = "{self.estimator}" in the reward has a policy gradient that is not that of the KL; '
                "take k1 there"
            )
        if self.where == "loss" and not self.negative:
            raise ValueError("negative = false is for where = reward; the estimates in the loss are never negative")
        if self.target is not None and not self.coefficient:
            raise ValueError("a coefficient of 0 stays 0 whatever the target; set a positive one, or leave target out")
        return self

    @property
    def loss_estimator(self) -> Literal["k2", "k3"]:
        """Estimator of the penalty in the loss."""
        return "k3" if self.estimator == "k3" else "k2"


def kl_estimate(logprobs_M: Tensor, reference_M: Tensor, estimator: KlEstimator) -> Tensor:
    """One estimate per token, (M,), with the gradient of `logprobs_M`."""
    difference_M = logprobs_M - reference_M
    if estimator == "k1":
        return difference_M
    if estimator == "k2":
        return difference_M.square() / 2
    return (-difference_M).expm1() + difference_M


def adapted(coefficient: float, *, measured: float, target: float, horizon: float) -> float:
    """The KL coefficient after an update that measured this KL: larger above the target, smaller below.

        e = clip((measured - target) / target, -0.2, 0.2)          coefficient (1 + e / horizon)

    Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2; `horizon` in updates, its K = 1 / horizon = 0.1.
    """
    error = min(max((measured - target) / target, -0.2), 0.2)
    return coefficient * (1 + error / horizon)


class Importance(Config):
    """Truncated importance weights between the sampler and the trainer."""

    level: Literal["token", "sequence"] = "token"
    """sequence: one weight per trajectory."""
    cap: float = Field(default=2.0, ge=1)
    """Largest weight."""


def truncated_weights(
    trainer_M: Tensor, sampler_M: Tensor, *, cap: float, lengths: Sequence[int] | None = None
) -> tuple[Tensor, int]:
    """Weights (M,) from the log-probs of trainer and sampler, without gradient, and how many were cut to the cap.

    `lengths` None: token level. Otherwise sequence level, of trajectories or turns by what the lengths count; raises
    ValueError unless they sum to M.
    """
    difference_M = trainer_M.detach() - sampler_M.detach()
    if lengths is not None:
        difference_M = spread(sums(difference_M, lengths), lengths)
    ratio_M = difference_M.exp()
    return ratio_M.clamp(max=cap), int((ratio_M > cap).sum())
