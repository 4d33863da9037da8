"""What a set of trajectories scored and cost: one row.

    summarize(trajectories, policy="trained", context="constant", objectives=2)   ->  Row(em=0.62, peak_tokens=118, ...)

Every trajectory counts, whatever its ending: a failure without scores is scored 0 and its tokens are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from mem1.evaluation.fidelity import fidelity
from mem1.evaluation.flops import ModelShape, forward_flops
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.row import Row
from mem1.evaluation.tokens import (
    appended_peak_tokens,
    appended_tokens,
    cached_by_turn,
    dependency,
    peak_tokens,
    state_tokens,
    total_tokens,
)
from mem1.protocol import ACT, MALFORMED, SEARCH
from mem1.records import Ended, Trajectory
from mem1.scoring import contains, exact_match, f1, normalize, score_answers, split_answers
from mem1.tasks.compose import question_keys

__all__ = [
    "Row",
    "appended_peak_tokens",
    "appended_tokens",
    "asked",
    "contained",
    "dependency",
    "duplicate_searches",
    "em_by_depth",
    "em_by_question",
    "exact_match",
    "f1",
    "peak_tokens",
    "score_answers",
    "solved",
    "summarize",
    "total_tokens",
]


def solved(trajectory: Trajectory) -> float:
    """Exact match per objective, in [0, 1]; 0 for an attempt that was never scored."""
    return _mean(trajectory.em)


def em_by_question(trajectory: Trajectory) -> tuple[float, ...]:
    """Exact match of each objective; zeros for an attempt that was never scored."""
    return trajectory.em or (0.0,) * (1 if trajectory.task is None else trajectory.task.objectives)


def asked(trajectory: Trajectory) -> tuple[str, ...]:
    """What tells each question of the task from others (`question_keys`). Raises ValueError without a task."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    return question_keys(trajectory.task)


def contained(trajectory: Trajectory) -> float | None:
    """Share of the objectives whose answer contains a gold alias; None in a shop, where no text is the answer.

    Raises ValueError without a task.
    """
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    if any(turn.action == ACT for turn in trajectory.turns):
        return None
    answers = split_answers(trajectory.answer, trajectory.task.objectives)
    return _mean([contains(a, q.answers) for a, q in zip(answers, trajectory.task.questions, strict=True)])


def duplicate_searches(trajectory: Trajectory) -> int:
    """Searches whose query, normalised as answers are, was sent before in this trajectory."""
    queries = [normalize(turn.content) for turn in trajectory.turns if turn.action == SEARCH]
    return len(queries) - len(set(queries))


def em_by_depth(trajectories: Sequence[Trajectory]) -> dict[str, float] | None:
    """Depth of a question -> mean exact match over all such questions; None where no question depends on another.

    With one chain Q1, Q2, Q3 and em (1, 1, 0): {"0": 1.0, "1": 1.0, "2": 0.0}. A question of an attempt that was
    never scored counts as wrong.
    """
    scores: defaultdict[int, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        depths = trajectory.task.depths if trajectory.task is not None else ()
        for depth, em in zip(depths, trajectory.em or (0.0,) * len(depths), strict=True):
            scores[depth].append(em)
    return {str(depth): _mean(scores[depth]) for depth in sorted(scores)} if max(scores, default=0) > 0 else None


def summarize(
    trajectories: Sequence[Trajectory], *, policy: str, context: str, objectives: int, shape: ModelShape | None = None
) -> Row:
    """The row of these attempts at tasks of `objectives` questions; with the model's `shape`, also its FLOPs.

    Raises ValueError where there is nothing to count: no trajectories, a trajectory without its task, with another
    number of objectives, or answered but never scored.
    """
    if not trajectories:
        raise ValueError("summarize needs at least one trajectory")
    for trajectory in trajectories:
        _check(trajectory, objectives)
    em = [solved(t) for t in trajectories]
    low, high = mean_interval([em_by_question(t) for t in trajectories], asked=[asked(t) for t in trajectories])
    turns = [turn for t in trajectories for turn in t.turns]
    facts = fidelity(trajectories)

    def mean(measure: Callable[[Trajectory], float]) -> float:
        return _mean([measure(t) for t in trajectories])

    cached = [cached_by_turn(t) for t in trajectories]
    cached_tokens = _mean([sum(by_turn) for by_turn in cached])
    flops = flops_cached = None
    if shape is not None:
        flops = mean(lambda t: forward_flops(t, shape))
        pairs = zip(trajectories, cached, strict=True)
        flops_cached = _mean([forward_flops(t, shape, cached=by_turn) for t, by_turn in pairs])
    return Row(
        policy=policy,
        context=context,
        objectives=objectives,
        tasks=len(trajectories),
        questions=len({key for t in trajectories for key in asked(t)}),
        em=_mean(em),
        em_low=low,
        em_high=high,
        f1=mean(lambda t: _mean(t.f1)),
        contains=_mean_of_some([contained(t) for t in trajectories]),
        em_by_depth=em_by_depth(trajectories),
        reward=mean(lambda t: t.reward or 0.0),
        turns=mean(lambda t: len(t.turns)),
        peak_tokens=mean(peak_tokens),
        peak_tokens_without_prompt=mean(lambda t: peak_tokens(t, prompt=False)),
        appended_peak_tokens=mean(appended_peak_tokens),
        appended_peak_tokens_without_prompt=mean(lambda t: appended_peak_tokens(t, prompt=False)),
        total_tokens=mean(total_tokens),
        fresh_tokens=mean(lambda t: sum(len(turn.context_ids) for turn in t.turns)) - cached_tokens,
        cached_tokens=cached_tokens,
        output_tokens=mean(lambda t: t.num_completion_tokens),
        dependency=mean(dependency),
        flops=flops,
        flops_cached=flops_cached,
        flops_per_solved=_per_solved(flops, em, objectives),
        flops_cached_per_solved=_per_solved(flops_cached, em, objectives),
        seconds=mean(lambda t: t.seconds),
        seconds_p95=float(np.percentile([t.seconds for t in trajectories], 95)),
        searches=mean(lambda t: sum(turn.action == SEARCH for turn in t.turns)),
        duplicate_searches=mean(duplicate_searches),
        malformed=_mean([float(turn.action == MALFORMED) for turn in turns]),
        state_tokens=_mean_of_some([state_tokens(turn) for turn in turns]),
        state_tokens_by_turn=tuple(
            _mean_of_some([None if turn is None else state_tokens(turn) for turn in turns_t])
            for turns_t in zip_longest(*(t.turns for t in trajectories))
        ),
        fidelity=facts.last,
        fidelity_by_turn=facts.by_turn,
        facts_lost=facts.lost,
        endings={ended.value: sum(t.ended is ended for t in trajectories) for ended in Ended},
    )


def _check(trajectory: Trajectory, objectives: int) -> None:
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    where = f"trajectory of task {trajectory.task.id!r}"
    if trajectory.task.objectives != objectives:
        raise ValueError(f"{where} has {trajectory.task.objectives} objectives, not {objectives}")
    for name, scores in (("em", trajectory.em), ("f1", trajectory.f1)):
        unscored_failure = not scores and trajectory.ended is not Ended.ANSWERED
        if len(scores) != objectives and not unscored_failure:
            raise ValueError(f"{where} has {len(scores)} {name} scores for {objectives} objectives; score it first")
    if trajectory.reward is None and trajectory.ended is Ended.ANSWERED:
        raise ValueError(f"{where} has no reward; score it first")


def _per_solved(flops: float | None, em: Sequence[float], objectives: int) -> float | None:
    solved_per_task = objectives * _mean(em)
    return flops / solved_per_task if flops is not None and solved_per_task > 0 else None


def _mean(values: Sequence[float]) -> float:
    """0 without values: a failure that was never scored, or tasks that never had a turn."""
    return float(sum(values) / len(values)) if values else 0.0


def _mean_of_some(values: Sequence[float | None]) -> float | None:
    """Over those that are not None; None where all are."""
    some = [value for value in values if value is not None]
    return _mean(some) if some else None
