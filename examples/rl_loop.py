"""The whole of reinforcement learning in one file, without recipes: GRPO on a small invented world, on a CPU.

    python examples/rl_loop.py            # 20 steps from the shipped policy, a few seconds each
    python examples/rl_loop.py 2          # 2 steps

Each paragraph names the module that does the same for real runs: on several GPUs, from a checkpoint, for any domain.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import torch

import mem1

CLIP, LEARNING_RATE = 0.2, 1e-5
TASKS_PER_STEP, GROUP_SIZE, OBJECTIVES = 4, 4, 2


def advantages(rewards_G: Sequence[float]) -> list[float]:
    """How much better each attempt was than the others at its task.   1 0 0 1  ->  1 -1 -1 1

    mem1.algorithms: GRPO and its relatives, PPO with a critic, and yours.
    """
    mean, std = statistics.fmean(rewards_G), statistics.pstdev(rewards_G)
    return [(reward - mean) / (std + 1e-4) for reward in rewards_G]


def clipped_loss(logprobs: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """PPO's clipped objective, summed over tokens.

    mem1.algorithms: the losses, KL penalties, and corrections for a sampler that computes differently.
    """
    ratio = (logprobs - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).sum()


def main(steps: int = 20) -> list[float]:
    # A policy is weights and a tokenizer. mem1.policy: loading, saving, new tiny models.
    policy = mem1.load_policy("shipped")
    model = policy.model

    # Tasks and the environment that answers them. mem1.envs: files of questions, your documents, the web, a shop.
    worlds = mem1.AtlasTasks(worlds=2, entities=60, questions_per_world=100)
    source = worlds.source("train", mem1.PAPER)

    # The loop of context, completion, action, result. mem1.engines: several processes, servers, vLLM.
    rollout = mem1.Rollout(
        engine=mem1.LocalEngine(model, policy.codec, mem1.PAPER.stop_strings),
        dialogue=mem1.TagDialogue(policy.codec),
        environment=source.environment,
        context=mem1.memory_policy("constant"),  # mem1.memory: eight other memories, and yours
        budget=mem1.Budget(context=2048),
    )

    # mem1.training.ranks: optimisers of sharded weights, learning-rate schedules.
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rewards: list[float] = []
    for step in range(steps):
        # A group is several attempts at one task. mem1.training: curricula, dynamic sampling, asynchronous rollouts.
        tasks = source.tasks(objectives=OBJECTIVES, count=TASKS_PER_STEP, seed=step)
        attempts = rollout(
            [task for task in tasks for _ in range(GROUP_SIZE)], sampling=mem1.Sampling(temperature=1.0, seed=step)
        )
        groups = [attempts[i : i + GROUP_SIZE] for i in range(0, len(attempts), GROUP_SIZE)]

        # What each attempt is worth. Groups without a difference teach nothing.
        samples: list[tuple[mem1.Trajectory, float]] = []
        for group in groups:
            gains = advantages([attempt.reward or 0.0 for attempt in group])
            samples += [(attempt, gain) for attempt, gain in zip(group, gains, strict=True) if gain and attempt.turns]
        reward = statistics.fmean(attempt.reward or 0.0 for attempt in attempts)
        rewards.append(reward)
        print(f"step {step}: reward {reward:.2f}, {len(samples)} of {len(attempts)} attempts to learn from")
        if not samples:
            continue

        # One pass over a token tree that shares every common prefix, each sampled token trained once.
        # mem1.packing: packs of bounded size, FlexAttention; mem1.training: several ranks, minibatches, epochs.
        optimizer.zero_grad()
        logprobs = mem1.completion_logprobs(model, [attempt for attempt, _ in samples])
        tokens = sum(attempt.num_completion_tokens for attempt, _ in samples)
        losses = [
            clipped_loss(turn_logprobs, torch.tensor(turn.logprobs), gain)
            for (attempt, gain), by_turn in zip(samples, logprobs, strict=True)
            for turn, turn_logprobs in zip(attempt.turns, by_turn, strict=True)
        ]
        (sum(losses, torch.zeros(())) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    # mem1.evaluate and mem1.evaluation: intervals, FLOPs, judges, resumable runs, reports.
    for row in mem1.evaluate(worlds, policy, name="trained", objectives=(OBJECTIVES,), tasks=8):
        print(f"{row.policy}: exact match {row.em:.2f}, peak {row.peak_tokens:.0f} tokens over {row.tasks} tasks")
    # mem1.training.runs: runs that survive a kill. policy.save(Path("policy")) keeps the weights.
    return rewards


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
