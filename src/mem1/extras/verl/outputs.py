"""A trajectory as what verl's agent loops return: one output a turn.

    turn 1: context [p q]        completion [a b]   ->  prompt_ids [p q]        response_ids [a b]  response_mask [1 1]
    turn 2: context [p q a b i]  completion [c d]   ->  prompt_ids [p q a b i]  response_ids [c d]  response_mask [1 1]

Every output has the reward of the whole trajectory. What was read (prompt, state, result) is prompt of each and trained
in none; each sampled token is trained exactly once.
"""

from __future__ import annotations

from typing import Any

from mem1.extras.verl.engine import ServerEngine
from mem1.records import Ended, Trajectory


def turn_outputs(trajectory: Trajectory, engine: ServerEngine) -> list[dict[str, Any]]:
    """Fields of verl's AgentLoopOutput, one a turn, in order; none for an attempt that says nothing of the policy."""
    if not trajectory.ended.judged:
        return []
    assert trajectory.reward is not None
    shared = {
        "reward_score": trajectory.reward,
        "num_turns": len(trajectory.turns),
        "metrics": {
            "generate_sequences": engine.seconds,
            "tool_calls": max(0.0, trajectory.seconds - engine.seconds),
        },
    }
    return [
        {
            "prompt_ids": list(turn.context_ids),
            "response_ids": list(turn.completion_ids),
            "response_mask": [1] * len(turn.completion_ids),
            "response_logprobs": list(turn.logprobs),
            **shared,
            "extra_fields": {
                "min_global_steps": engine.oldest,
                "max_global_steps": engine.newest,
                "reward_extra_info": _measured(trajectory),
            },
        }
        for turn in trajectory.turns
    ]


def _measured(trajectory: Trajectory) -> dict[str, float]:
    """What verl logs of a validation, by name. It counts attempts without rows, which failed, as 0 in "acc" alone."""
    objectives = len(trajectory.em) or 1
    return {
        "acc": sum(trajectory.em) / objectives,
        "f1": sum(trajectory.f1) / objectives,
        "answered": float(trajectory.ended is Ended.ANSWERED),
        "turns": float(len(trajectory.turns)),
        "peak_tokens": float(max((turn.num_tokens for turn in trajectory.turns), default=0)),
    }
