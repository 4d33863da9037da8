"""How far the paper's stitched sequence is from the contexts that the policy sampled in.

    python benchmarks/stitched.py                          prints a markdown table, in under a minute
    python benchmarks/stitched.py --objectives 2 4 8 16 --tasks 32

The shipped policy attempts tasks of Atlas with constant memory. Every sampled token is then scored exactly (the token
tree) and on the stitched sequence (`stitching.py`), as its mask was meant and with the previous state shown.

    off, mean / max      |log p stitched - log p exact| in nats; the first turn, which is exact, is left out
    outside the clip     share of tokens, the first turn left out, whose ratio p stitched / p exact is outside 1 -/+ 0.2
    wrongly clipped      share of them whose gradient PPO then drops (advantages of GRPO): exactly none should be
    cosine, norm         of the policy gradient sum A grad log p, all turns, against the exact one
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from machine import commit, hardware
from stitching import stitch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.algorithms.group import normalised_advantages
from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling
from mem1.engines.local import LocalEngine
from mem1.envs.atlas import AtlasTasks
from mem1.memory import memory_policy
from mem1.packing import pack
from mem1.policy.policy import Policy, load_policy
from mem1.protocol import PAPER
from mem1.records import Trajectory
from mem1.rollout import Rollout
from mem1.training.logprobs import Scores, flat_logprobs, head_columns

CLIP = 0.2
Score = Callable[[PreTrainedModel, Trajectory], Tensor]


def stitched_scores(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float = 1.0,
    previous_state: bool = False,
) -> Scores:
    """What `mem1.training.logprobs.score` says, on the stitched sequences: one forward pass, side by side."""
    sequences = [stitch(t, previous_state=previous_state) for t in trajectories]
    starts = [0, *accumulate(len(one.input_ids) for one in sequences)]
    ids = torch.cat([one.input_ids for one in sequences])
    targets = torch.cat([one.target_node + start for one, start in zip(sequences, starts, strict=False)])
    hidden = model.get_decoder()(
        input_ids=ids[None],
        position_ids=torch.cat([one.position_ids for one in sequences])[None],
        attention_mask=torch.block_diag(*(one.visible for one in sequences)).bool()[None, None],
        use_cache=False,
    ).last_hidden_state[0]
    states_MD = hidden[targets - 1]
    both_M = head_columns(model, states_MD, ids[targets], temperature, "value")
    return Scores(logprobs_M=both_M[:, 0], entropy_M=both_M[:, 1].detach(), states_MD=states_MD)


def stitched_logprobs(model: PreTrainedModel, trajectory: Trajectory, *, previous_state: bool = False) -> Tensor:
    """Log-prob (M,) of each sampled token on the stitched sequence, with gradient, at temperature 1."""
    return stitched_scores(model, [trajectory], previous_state=previous_state).logprobs_M


def exact_logprobs(model: PreTrainedModel, trajectory: Trajectory) -> Tensor:
    return flat_logprobs(model, pack([trajectory]), temperature=1.0)


SCORES: dict[str, Score] = {
    "as meant": stitched_logprobs,
    "with the previous state": lambda model, t: stitched_logprobs(model, t, previous_state=True),
}


def sample(policy: Policy, objectives: int, tasks: int, attempts: int) -> list[tuple[Trajectory, float]]:
    """Trajectories with their advantages, of the groups whose rewards differ."""
    source = AtlasTasks(kind="atlas").source("evaluation", PAPER)
    rollout = Rollout(
        engine=LocalEngine(policy.model, policy.codec, PAPER.stop_strings),
        dialogue=TagDialogue(policy.codec),
        environment=source.environment,
        context=memory_policy("constant"),
    )
    drawn = [t for t in source.tasks(objectives=objectives, count=tasks, seed=0) for _ in range(attempts)]
    found = rollout(drawn, sampling=Sampling(seed=0))
    advised: list[tuple[Trajectory, float]] = []
    for start in range(0, len(found), attempts):
        group = found[start : start + attempts]
        advantages = normalised_advantages([t.reward or 0.0 for t in group])
        advised += [pair for pair in zip(group, advantages, strict=True) if pair[1] and pair[0].turns]
    return advised


def score(
    model: PreTrainedModel, advised: Sequence[tuple[Trajectory, float]], logprobs: Score
) -> tuple[list[Tensor], Tensor]:
    """Log-probs per trajectory, and the flat policy gradient."""
    model.zero_grad()
    found = []
    for trajectory, advantage in advised:
        logprobs_M = logprobs(model, trajectory)
        (advantage * logprobs_M.sum()).backward()
        found.append(logprobs_M.detach())
    return found, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def compare(
    advised: Sequence[tuple[Trajectory, float]],
    exact: tuple[list[Tensor], Tensor],
    other: tuple[list[Tensor], Tensor],
) -> list[str]:
    """The numbers of one row."""
    later = [len(t.turns[0].completion_ids) for t, _ in advised]
    off = torch.cat([(b - a)[n:] for a, b, n in zip(exact[0], other[0], later, strict=True)])
    sign = torch.cat([torch.full((len(a) - n,), g) for a, n, (_, g) in zip(exact[0], later, advised, strict=True)])
    outside = (off.exp() - 1).abs() > CLIP
    clipped = outside & (off * sign > 0)
    cosine = torch.cosine_similarity(exact[1], other[1], dim=0)
    return [
        f"{float(off.abs().mean()):.3f}",
        f"{float(off.abs().max()):.1f}",
        f"{float(outside.float().mean()):.1%}",
        f"{float(clipped.float().mean()):.1%}",
        f"{float(cosine):.3f}",
        f"{float(other[1].norm() / exact[1].norm()):.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--attempts", type=int, default=4, help="attempts at each task")
    parser.add_argument("--model", default="shipped", help="folder of a policy")
    given = parser.parse_args()
    started = time.perf_counter()
    policy = load_policy(given.model)
    rows: list[list[str]] = []
    for objectives in given.objectives:
        advised = sample(policy, objectives, given.tasks, given.attempts)
        if not advised:
            sys.exit(f"no group of {objectives} objectives has attempts of different reward: raise --tasks")
        exact = score(policy.model, advised, exact_logprobs)
        turns = sum(len(t.turns) for t, _ in advised) / len(advised)
        tokens = sum(t.num_completion_tokens for t, _ in advised)
        for name, logprobs in SCORES.items():
            numbers = compare(advised, exact, score(policy.model, advised, logprobs))
            rows.append([str(objectives), f"{turns:.1f}", f"{tokens:,}", name, *numbers])
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}")
    print(f"{time.perf_counter() - started:.0f} seconds\n")
    titles = ("N", "turns", "sampled tokens", "stitched", "off, mean", "off, max", "outside the clip")
    print("| " + " | ".join((*titles, "wrongly clipped", "cosine", "norm")) + " |")
    print("|--:|--:|--:|---|" + "--:|" * 6)
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
