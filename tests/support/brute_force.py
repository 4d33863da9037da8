"""A step of reinforcement learning by brute force, written from the papers: what `RlStage.update` must come to.

One plain forward pass over the turns, each a row of its own; advantages, losses and AdamW spelled out. Nothing of
`mem1` is called; its records and settings are read. In float64 (`torch.set_default_dtype`), so that both agree to
rounding.

    brute = Brute(config, policy, reference, critic)         copies of the networks as the stage starts
    metrics = brute.update(groups, index)                    then compare weights, AdamW's moments and metrics
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.recipe.rl import Rl
from mem1.records import Ended, Group, Trajectory

IN_GROUPS = ("grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo")
"""Compare the attempts at a task."""


@dataclass
class Attempt:
    """A trajectory, and what is known of its K sampled tokens before the first update."""

    trajectory: Trajectory
    sampler: Tensor
    old: Tensor
    reference: Tensor
    values: Tensor
    raw: float
    """Reward as earned."""
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    returns: Tensor | None = None
    weights: Tensor | None = None
    teaches: bool = True


class Adam:
    """AdamW (Loshchilov and Hutter 2019) without weight decay, betas 0.9 and 0.95, after clipping to a norm."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float, max_norm: float) -> float:
        self.steps += 1
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        scale = min(1.0, max_norm / (norm + 1e-6))
        for p, g, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            first.copy_(0.9 * first + 0.1 * scale * g)
            second.copy_(0.95 * second + 0.05 * (scale * g) ** 2)
            unbiased = first / (1 - 0.9**self.steps), second / (1 - 0.95**self.steps)
            p -= rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
            p.grad = None
        return norm


class Brute:
    def __init__(self, config: Rl, policy: PreTrainedModel, reference: PreTrainedModel, critic: Any) -> None:
        """`critic` None, or a module with a `head` and a `trunk`; its trunk None: it reads the policy's states."""
        self.config = config
        self.algorithm: Any = config.algorithm
        self.policy = copy.deepcopy(policy)
        self.reference = copy.deepcopy(reference)
        self.critic: Any = copy.deepcopy(critic)
        self.actor = Adam(self.policy)
        self.critics = None if critic is None else Adam(self.critic)
        self.coefficient = config.kl.coefficient if config.kl else 0.0

    # Forward passes, the contexts of all turns as rows

    def rows(self, trunk: Any, attempts: Sequence[Trajectory]) -> list[Tensor]:
        """Per attempt, the state (K, D) before each sampled token. What pads a row on the right is seen by nobody."""
        turns = [turn for t in attempts for turn in t.turns]
        if not turns:
            return [torch.zeros(0, self.policy.config.hidden_size) for _ in attempts]
        ids = [torch.tensor(turn.context_ids + turn.completion_ids) for turn in turns]
        states = trunk(input_ids=nn.utils.rnn.pad_sequence(ids, batch_first=True), use_cache=False).last_hidden_state
        of_turns = iter(
            state[len(turn.context_ids) - 1 : len(turn.context_ids) + len(turn.completion_ids) - 1]
            for state, turn in zip(states, turns, strict=True)
        )
        empty = torch.zeros(0, states.shape[-1])
        return [torch.cat([empty, *(next(of_turns) for _ in t.turns)]) for t in attempts]

    def logprobs(self, model: Any, states: Tensor, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """Of the sampled tokens, and the entropies of what they were sampled from."""
        logits = states @ model.get_output_embeddings().weight.T / self.config.temperature
        logits = logits - logits.amax(-1, keepdim=True)
        all_of = logits - logits.exp().sum(-1, keepdim=True).log()
        tokens = [token for turn in trajectory.turns for token in turn.completion_ids]
        return all_of[range(len(tokens)), tokens], -(all_of.exp() * all_of).sum(-1)

    def values(self, states: Tensor, trajectory: Trajectory) -> Tensor:
        if self.critic is None:
            return torch.zeros(len(states))
        if self.critic.trunk is not None:
            (states,) = self.rows(self.critic.trunk, [trajectory])
        else:
            share = self.algorithm.value_grad_scale
            states = share * states + (1 - share) * states.detach()
        return (states * self.critic.head.weight).sum(-1) + self.critic.head.bias

    # Before the first update

    @torch.no_grad()
    def before(self, trajectories: Sequence[Trajectory]) -> list[Attempt]:
        made = []
        states = self.rows(self.policy.get_decoder(), trajectories)
        theirs = self.rows(self.reference.get_decoder(), trajectories) if self.config.kl else states
        for t, own, its in zip(trajectories, states, theirs, strict=True):
            sampler = torch.tensor([p for turn in t.turns for p in turn.logprobs])
            trainer = self.logprobs(self.policy, own, t)[0]
            old = trainer if self.config.importance or self.config.old_logprobs_from == "trainer" else sampler
            reference = self.logprobs(self.reference, its, t)[0]
            assert t.reward is not None
            made.append(Attempt(t, sampler, old, reference, self.values(own, t), t.reward))
        return made

    def groups(self, groups: Sequence[Group]) -> list[list[Attempt]]:
        """Without attempts whose tool failed, and without groups that the algorithm cannot compare."""
        compares = self.algorithm.name in IN_GROUPS or getattr(self.algorithm, "group_baseline", False)
        judged = [[t for t in g.trajectories if t.ended is not Ended.TOOL_FAILED] for g in groups]
        judged = [g for g in judged if len(g) >= (2 if compares else 1)]
        if self.algorithm.name == "dapo":
            judged = [g for g in judged if max(t.reward for t in g) > min(t.reward for t in g)]
        attempts = iter(self.before([t for g in judged for t in g]))
        return [[next(attempts) for _ in g] for g in judged]

    def advantages(self, groups: list[list[Attempt]]) -> None:
        """Sets advantages, returns, importance weights, and whether there is anything to learn."""
        if self.algorithm.name == "ppo":
            self.of_tokens([a for g in groups for a in g])
        else:
            for group, numbers in zip(groups, self.of_attempts(groups), strict=True):
                for a, number in zip(group, numbers, strict=True):
                    a.advantages = torch.full((len(a.old),), number)
        always = self.algorithm.name == "ppo" or self.config.entropy or (self.config.kl and self.where == "loss")
        for group in groups:
            told = always or any(float(a.advantages.abs().sum()) > 0 for a in group)
            for a in group:
                a.teaches = bool(told) and len(a.old) > 0
                if self.config.importance is not None:
                    drift = a.old - a.sampler
                    if self.config.importance.level == "sequence":
                        drift = drift.sum().expand(len(drift))
                    a.weights = drift.exp().clamp(max=self.config.importance.cap)

    @property
    def where(self) -> str:
        return self.config.kl.where if self.config.kl else ""

    def reward(self, a: Attempt) -> float:
        """As earned, less the penalty on attempts that sampled too much in all their turns."""
        overlong = getattr(self.algorithm, "overlong", None)
        if overlong is None:
            return a.raw
        beyond = len(a.old) - (overlong.limit - overlong.buffer)
        return a.raw - min(1.0, max(0.0, beyond / overlong.buffer))

    def of_attempts(self, groups: list[list[Attempt]]) -> list[list[float]]:
        name = self.algorithm.name
        if name == "rejection":
            return [self.kept(g) for g in groups]
        earned = {a.raw for g in groups for a in g}
        net = []
        for g in groups:
            alone = name in IN_GROUPS or getattr(self.algorithm, "group_baseline", False)
            equal = len({a.raw for a in g} if alone else earned) == 1 and name != "reinforce"
            taken = 0.0 if equal or self.where != "reward" else self.coefficient
            net.append([self.reward(a) - taken * float((a.old - a.reference).sum()) for a in g])
        if name == "reinforce":
            return [[r - self.algorithm.baseline for r in g] for g in net]
        if name == "dr_grpo":
            return [[r - sum(g) / len(g) for r in g] for g in net]
        if name == "rloo":
            return [[r - (sum(g) - r) / (len(g) - 1) for r in g] for g in net]
        if name == "reinforce_pp":
            if self.algorithm.group_baseline:
                centred = [[r - sum(g) / len(g) for r in g] for g in net]
                deviation = math.sqrt(sum(x**2 for g in centred for x in g) / sum(map(len, net)))
                return [[x / (deviation + 1e-4) for x in g] for g in centred]
            numbers = iter(self.normalised([r for g in net for r in g]))
            return [[next(numbers) for _ in g] for g in net]
        return [self.normalised(g) for g in net]

    def normalised(self, rewards: Sequence[float]) -> list[float]:
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        return [(r - mean) / (deviation + 1e-4) if deviation > 1e-12 else 0.0 for r in rewards]

    def kept(self, group: list[Attempt]) -> list[float]:
        good = [i for i, a in enumerate(group) if a.raw >= self.algorithm.threshold]
        best = sorted(good, key=lambda i: (-group[i].raw, i))[: self.algorithm.best or len(good)]
        return [1.0 if i in best else 0.0 for i in range(len(group))]

    def of_tokens(self, attempts: list[Attempt]) -> None:
        """GAE, from the last token of an attempt to its first, whatever context each was sampled in."""
        gamma, lam = self.algorithm.gamma, self.algorithm.lam
        for a in attempts:
            rewards = torch.zeros(len(a.old))
            if self.where == "reward":
                rewards -= self.coefficient * (a.old - a.reference)
            if len(a.old):
                rewards[-1] += a.raw
            found, following, advantage = [], 0.0, 0.0
            for r, v in reversed(list(zip(rewards.tolist(), a.values.tolist(), strict=True))):
                advantage = r + gamma * following - v + gamma * lam * advantage
                following = v
                found.insert(0, advantage)
            a.advantages = torch.tensor(found)
            a.returns = a.advantages + a.values
        if self.algorithm.whiten:
            every = torch.cat([a.advantages for a in attempts])
            for a in attempts:
                a.advantages = (a.advantages - every.mean()) / (every.var(correction=0) + 1e-8).sqrt()

    def centre(self, attempts: list[Attempt]) -> None:
        """The critic's bias moves to where it fits the returns; that move is not clipped."""
        returns = torch.cat([a.returns for a in attempts if a.returns is not None])
        errors = returns - torch.cat([a.values for a in attempts])
        with torch.no_grad():
            self.critic.head.bias += errors.mean()
        for a in attempts:
            a.values = a.values + errors.mean()

    # Updates

    def parts(self, groups: list[list[Attempt]], index: int) -> Iterator[list[Attempt]]:
        everyone = [a for g in groups for a in g]
        for epoch in range(self.config.epochs):
            order = list(range(len(everyone)))
            if self.config.minibatches > 1:
                order = random.Random(f"0/rl/{index}/{epoch}").sample(order, len(order))
            for n in range(self.config.minibatches):
                chosen = order[len(order) * n // self.config.minibatches :][
                    : len(order) * (n + 1) // self.config.minibatches - len(order) * n // self.config.minibatches
                ]
                yield [everyone[i] for i in sorted(chosen)]

    def update(self, groups: Sequence[Group], index: int) -> dict[str, float | None]:
        made = self.groups(groups)
        self.advantages(made)
        if self.critic is not None:
            self.centre([a for g in made for a in g])
        if self.algorithm.name == "rejection":
            made = [[a for a in g if a.advantages.any()] for g in made]
        log: dict[str, list[float]] = {}
        rate = self.config.learning_rate * min(1.0, (index + 1) / self.config.warmup)
        for number, part in enumerate(self.parts(made, index)):
            said = self.loss(part, first=number == 0, version=index * self.config.updates)
            for key, value in said.items():
                log.setdefault(key, []).append(value)
            log.setdefault("grad_norm", []).append(self.actor.step(rate, self.config.max_grad_norm))
            if self.critics is not None:
                critic_rate = self.algorithm.critic_learning_rate * rate / self.config.learning_rate
                norm = self.critics.step(critic_rate, self.config.max_grad_norm)
                log.setdefault("critic_grad_norm", []).append(norm)
            stale = self.staleness(part, index * self.config.updates + number)
            log.setdefault("stale", []).extend(stale)
        return self.metrics([a for g in made for a in g], log)

    def loss(self, part: list[Attempt], *, first: bool, version: int) -> dict[str, float]:
        """Gradients of one optimiser step; what is logged of it."""
        told = [a for a in part if a.teaches]
        tokens = sum(len(a.old) for a in part)
        total, said = torch.zeros(()), dict.fromkeys(("clipped", "entropy", "tokens", "values_clipped"), 0.0)
        value_total, gaps = torch.zeros(()), []
        states = self.rows(self.policy.get_decoder(), [a.trajectory for a in told])
        for a, own in zip(told, states, strict=True):
            new, entropy = self.logprobs(self.policy, own, a.trajectory)
            loss, clipped = self.surrogate(a, new, len(part), tokens)
            total = total + loss - self.config.entropy * entropy.sum() / tokens
            if self.where == "loss":
                d = new - a.reference
                k = d.square() / 2 if self.config.kl and self.config.kl.estimator != "k3" else (-d).exp() - 1 + d
                total = total + self.coefficient * k.sum() / tokens
            if a.returns is not None:
                values = self.values(own, a.trajectory)
                squares, clipped_values = self.squares(a, values)
                value_total = value_total + 0.5 * squares.sum() / tokens
                said["values_clipped"] += clipped_values
            said["clipped"] += clipped
            said["entropy"] += float(entropy.detach().sum())
            said["tokens"] += len(a.old)
            if first or self.config.importance or self.config.old_logprobs_from == "trainer":
                trainer = (
                    a.old if self.config.importance or self.config.old_logprobs_from == "trainer" else new.detach()
                )
                same = [v == version for turn in a.trajectory.turns for v, n in turn.weights_versions for _ in range(n)]
                gaps += (trainer - a.sampler).abs()[torch.tensor(same)].tolist()
        (total + value_total).backward()
        gap = {"gap": sum(gaps), "gaps": float(len(gaps)), "largest": max(gaps, default=0.0)}
        return said | gap | {"loss": float(total.detach()), "value_loss": float(value_total.detach())}

    def squares(self, a: Attempt, values: Tensor) -> tuple[Tensor, int]:
        assert a.returns is not None
        free = (values - a.returns) ** 2
        if self.algorithm.value_clip is None:
            return free, 0
        clip = self.algorithm.value_clip
        held = (torch.minimum(torch.maximum(values, a.values - clip), a.values + clip) - a.returns) ** 2
        return torch.maximum(free, held), int((held > free).sum())

    def surrogate(self, a: Attempt, new: Tensor, attempts: int, tokens: int) -> tuple[Tensor, int]:
        """Loss of one attempt, and its clipped tokens."""
        name, made = self.algorithm.name, a.advantages
        weights = torch.ones(len(new)) if a.weights is None else a.weights
        if name == "rejection":
            return -new.sum() / tokens, 0
        if name in ("rloo", "reinforce"):
            return -(weights * made * new).sum() / tokens, 0
        low, high = self.algorithm.clip_low, self.algorithm.clip_high
        if name == "cispo":
            ratio = (new - a.old).exp().detach()
            held = ratio.clamp(-math.inf if low is None else 1 - low, 1 + high)
            return -(weights * held * made * new).sum() / tokens, int((held != ratio).sum())
        if name == "gspo":
            counts = [len(turn.completion_ids) for turn in a.trajectory.turns if turn.completion_ids]
            counts = counts if self.algorithm.unit == "turn" else [sum(counts)]
            loss, clipped, start = torch.zeros(()), 0, 0
            for n in counts:
                span = slice(start, start + n)
                ratio = (new - a.old)[span].mean().exp()
                free, held = ratio * made[start], ratio.clamp(1 - low, 1 + high) * made[start]
                loss = loss - torch.minimum(free, held) * weights[span].mean() / len(counts) / attempts
                clipped += n * int(held < free)
                start += n
            return loss, clipped
        ratio = (new - a.old).exp()
        free, held = ratio * made, ratio.clamp(1 - low, 1 + high) * made
        divided = attempts * self.algorithm.tokens_per_attempt if name == "dr_grpo" else tokens
        return -(weights * torch.minimum(free, held)).sum() / divided, int((held < free).sum())

    def staleness(self, part: list[Attempt], version: int) -> list[float]:
        turns = [turn for a in part if a.teaches for turn in a.trajectory.turns]
        return [float(version - v) for turn in turns for v, n in turn.weights_versions for _ in range(n)]

    def metrics(self, attempts: list[Attempt], log: dict[str, list[float]]) -> dict[str, float | None]:
        """Those of a row that follow from the numbers of the step; adapts the coefficient of the KL."""
        mean = {key: sum(values) / len(values) for key, values in log.items()}
        tokens, gaps = sum(log["tokens"]), sum(log["gaps"])
        row: dict[str, float | None] = {
            "loss": mean["loss"],
            "grad_norm": mean["grad_norm"],
            "clip_fraction": sum(log["clipped"]) / tokens,
            "entropy": sum(log["entropy"]) / tokens,
            "sampler_trainer_mean": sum(log["gap"]) / gaps,
            "sampler_trainer_max": max(log["largest"]),
            "staleness_mean": mean["stale"],
            "staleness_max": max(log["stale"]),
        }
        if self.critic is not None:
            values, returns = (torch.cat(x) for x in zip(*((a.values, a.returns) for a in attempts), strict=True))
            row["value_loss"] = mean["value_loss"]
            row["value_clip_fraction"] = sum(log["values_clipped"]) / tokens
            row["critic_grad_norm"] = mean["critic_grad_norm"]
            row["explained_variance"] = float(1 - (returns - values).var(correction=0) / returns.var(correction=0))
        if self.config.importance is not None:
            capped = sum(
                float((a.weights == self.config.importance.cap).sum()) for a in attempts if a.weights is not None
            )
            row["capped_share"] = capped / sum(len(a.old) for a in attempts)
        if self.config.kl is not None:
            d = torch.cat([a.old - a.reference for a in attempts])
            row["kl"], row["kl_coefficient"] = float(((-d).exp() - 1 + d).mean()), self.coefficient
            if self.config.kl.target is not None:
                off = (row["kl"] - self.config.kl.target) / self.config.kl.target
                self.coefficient *= 1 + min(0.2, max(-0.2, off)) / self.config.kl.horizon
        return row
