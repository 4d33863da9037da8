"""Metrics of the attempts of a training step or a validation: means over those whose tool and engine did not fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mem1.memory import memory_spans
from mem1.protocol import ACT, ANSWER, MALFORMED, SEARCH
from mem1.records import Ended, Trajectory, Turn
from mem1.training.checks import reencoded_share
from mem1.training.gradients.samples import versions


def attempt_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """Metrics of behaviour and reward; None where no attempt could be scored."""
    scorable = [t for t in trajectories if t.ended.scorable]
    measured = dict.fromkeys(name for t in scorable for name in t.metrics)
    endings = Counter(str(t.ended) for t in trajectories)
    turns = [turn for t in scorable for turn in t.turns]
    searches = [float(sum(turn.action == SEARCH for turn in t.turns)) for t in scorable]
    memories = [spans for turn in turns if (spans := memory_spans(turn))]
    shops = any(turn.action == ACT for turn in turns)
    return {
        "reward": mean([t.reward or 0.0 for t in scorable]),
        **{name: mean([mean(t.per_objective(name)) or 0.0 for t in scorable]) for name in measured or ("em", "f1")},
        "turns": mean([len(t.turns) for t in scorable]),
        "peak_tokens": mean([max((turn.num_tokens for turn in t.turns), default=0) for t in scorable]),
        "completion_tokens": mean([t.num_completion_tokens for t in scorable]),
        **({} if shops else {"searches": mean(searches)}),
        "valid_actions": mean([float(valid) for t in scorable for valid in _valid(t)]),
        "malformed": mean([float(turn.action == MALFORMED) for turn in turns]),
        "answer_tokens": mean([_length(turn, "action") for turn in turns if turn.action == ANSWER]),
        "state_tokens": mean([float(sum(stop - start for start, stop in spans)) for spans in memories]),
        "endings": {ending: float(number) for ending, number in sorted(endings.items())},
    }


def _valid(trajectory: Trajectory) -> list[bool]:
    """Whether the action of each turn was carried out: not where it is malformed, or ended the attempt instead."""
    if not trajectory.turns:
        return []
    stopped = trajectory.ended is Ended.BAD_TAGS or (
        trajectory.ended is Ended.OUT_OF_TURNS and trajectory.turns[-1].action != ACT
    )
    valid = [turn.action != MALFORMED for turn in trajectory.turns]
    return [*valid[:-1], valid[-1] and not stopped]


def _length(turn: Turn, role: str) -> float:
    """Tokens of a part of the completion, tags included."""
    start, stop = turn.completion_spans.get(role, (0, 0))
    return float(stop - start)


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """`attempt_metrics`, with what matters to training on the attempts."""
    versions_by_attempt = [{v for turn in t.turns for v, _ in versions(turn)} for t in trajectories if t.ended.scorable]
    return {
        **attempt_metrics(trajectories),
        "reencoded_share": reencoded_share(trajectories),
        "mixed_weights_share": mean([float(len(some) > 1) for some in versions_by_attempt]),
    }


def mean(numbers: Sequence[float]) -> float | None:
    """None for no numbers."""
    return sum(numbers) / len(numbers) if numbers else None
