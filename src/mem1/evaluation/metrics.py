"""The results of a set of trajectories, summarised in one row; docs/metrics.md has the formulas.

    summarize(trajectories, policy="trained", context="constant", objectives=2)   ->  Row(em=0.62, peak_tokens=118, ...)

Every trajectory counts, however it ended: a failure without scores scores 0, and its tokens are counted.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from mem1.errors import UserError
from mem1.evaluation.fact_retention import fidelity
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.tokens import (
    ModelShape,
    appended_peak_tokens,
    cached_by_turn,
    dependency,
    forward_flops,
    peak_tokens,
    state_tokens,
    total_tokens,
)
from mem1.protocol import ACT, MALFORMED, SEARCH
from mem1.records import Ended, Task, Trajectory
from mem1.scoring import SQUAD, answers_given, check_metrics, contains, normalize
from mem1.tasks.compose import question_keys

OF_TIME = frozenset({"seconds", "seconds_p95"})
"""Fields that differ from run to run; all others follow from the tokens and texts of the trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A language model's verdict on the answers, and its agreement with exact match."""

    model: str
    version: str
    """Version of the judge's prompt."""
    correct: float | None
    """Share of the judged answers that it accepts, in [0, 1]; None: no verdict."""
    judged: float
    """Share of all answers that have a verdict, in [0, 1]; the others count neither as right nor as wrong."""
    agreement: float | None
    """Share of the verdicts equal to exact match, in [0, 1]; None: no verdict, or no exact match of each answer."""
    kappa: float | None
    """Cohen's kappa of verdicts and exact match; None: `agreement` is, or chance agreement is 1."""
    failures: dict[str, int]
    """Reason for a missing verdict -> number of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one policy under one memory on tasks of N objectives.

    Means are over tasks, with one attempt per task; every attempt counts, however it ended.
    """

    policy: str
    """Name of the weights, such as "base" or "trained"."""
    context: str
    """Name of the memory, such as "constant"."""
    objectives: int
    """N, the number of questions in a task."""
    tasks: int
    """Number of trajectories in this row."""
    questions: int
    """Number of distinct questions; less than tasks times N if questions occur in several tasks."""
    scorer: str | None = None
    """Name of the scorer of `em`; several: joined by commas; None: answers are not texts, or `em` is not measured."""
    em: float | None
    """Exact match per objective, in [0, 1]: mean over tasks of the mean over the N objectives; None: not measured in
    this domain."""
    em_low: float | None
    """Lower end of the 95 % interval of `em` over tasks, and over questions if some occur in several tasks."""
    em_high: float | None
    """Upper end of the same interval."""
    f1: float | None
    """Token F1 per objective, in [0, 1], averaged like `em`; None: a domain without it."""
    metrics: dict[str, float]
    """The domain's other metrics, averaged like `em`, with `<name>_low` and `<name>_high` where it is measured per
    objective."""
    contains: float | None
    """Share of answers that contain a gold alias, in [0, 1], averaged like `em`; None: answers are not texts."""
    judge: Judged | None = None
    """None: the answers were not judged."""
    em_by_depth: dict[str, float] | None
    """Exact match, in [0, 1], by depth ("0": depends on no other question); None: no question depends on another."""
    reward: float
    """Mean reward in the environment's unit; for questions the number of exact matches, in [0, N]."""
    turns: float
    """Mean calls of the policy per task."""
    peak_tokens: float
    """Mean of the largest context + completion of a task's turns, in tokens, prompt included."""
    peak_tokens_without_prompt: float
    """`peak_tokens` without each turn's prompt tokens."""
    appended_peak_tokens: float
    """Mean peak, in tokens, of the same turns if nothing had been dropped."""
    appended_peak_tokens_without_prompt: float
    """`appended_peak_tokens` without the prompt."""
    total_tokens: float
    """Mean tokens processed per task: context + completion summed over turns."""
    fresh_tokens: float
    """Mean context tokens per task that the previous call has not processed."""
    cached_tokens: float
    """Mean context tokens per task that the previous call has processed; fresh + cached + output = total."""
    output_tokens: float
    """Mean sampled tokens per task."""
    dependency: float
    """Mean (generated token, visible token) pairs per task."""
    flops: float | None
    """Mean forward FLOPs per task without a prefix cache; None, as in the next three: unknown model shape."""
    flops_cached: float | None
    """Mean forward FLOPs per task if each call finds the tokens of the previous one in a cache."""
    flops_per_solved: float | None
    """`flops` per exact match, over all tasks; None also if nothing was solved."""
    flops_cached_per_solved: float | None
    """`flops_cached` per exact match."""
    seconds: float
    """Mean wall time of an attempt, at the concurrency of the rollout."""
    seconds_p95: float
    """95th percentile of the wall time."""
    searches: float
    """Mean searches per task."""
    duplicate_searches: float
    """Mean searches per task whose normalised query repeats an earlier one of the same task."""
    malformed: float
    """Share of all turns whose output could not be parsed, in [0, 1]."""
    state_tokens: float | None
    """Mean length of a written state, tags included; None: no turn wrote one."""
    state_tokens_by_turn: tuple[float | None, ...]
    """Entry t - 1: mean length of the states written in turn t."""
    fidelity: float | None
    """Share of the gold facts shown so far that the last state holds, in [0, 1]; None: no state after a shown fact."""
    fidelity_by_turn: tuple[float | None, ...]
    """Entry t - 1: the share held by the states of turn t."""
    facts_lost: float
    """Mean number of gold facts per task that an earlier state held and the last one does not."""
    endings: dict[str, int]
    """Number of tasks by ending; every value of `Ended` is a key."""

    def as_dict(self) -> dict[str, Any]:
        """A plain dict for JSON, with the domain's metrics first, then the fields in order."""
        record = dataclasses.asdict(self)
        return {**record.pop("metrics"), **record}


_ENDS = ("low", "high")
_OF_ROWS = frozenset(field.name for field in dataclasses.fields(Row)) - {"em", "f1"}


def solved(trajectory: Trajectory) -> float:
    """Exact match per objective, in [0, 1]; 0 for an attempt that was never scored."""
    return _mean(trajectory.per_objective("em"))


def em_by_question(trajectory: Trajectory) -> tuple[float, ...]:
    """Exact match of each objective; zeros for an attempt that was never scored. Raises UserError where it was, but not
    by exact match."""
    if trajectory.metrics and "em" not in trajectory.metrics:
        measured = ", ".join(trajectory.metrics)
        raise UserError(f"exact match is not measured here; give another measure (the attempts have {measured})")
    return trajectory.per_objective("em") or (0.0,) * (1 if trajectory.task is None else trajectory.task.objectives)


def by_question(trajectories: Sequence[Trajectory], metric: str = "em") -> list[tuple[float, ...]] | None:
    """The metric of each question of each attempt, zeros for one that was never scored; None: it is not measured, or
    not for each question. Raises ValueError without a task."""
    objectives = [task_of(t).objectives for t in trajectories]
    found = [t.per_objective(metric) for t in trajectories]
    measured = any(found) or all(value == () for t in trajectories for value in t.metrics.values())
    if not measured or any(len(values) not in (0, n) for values, n in zip(found, objectives, strict=True)):
        return None
    return [values or (0.0,) * n for values, n in zip(found, objectives, strict=True)]


def task_of(trajectory: Trajectory) -> Task:
    """The task of a trajectory. Raises ValueError if it was not kept."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    return trajectory.task


def question_ids(trajectory: Trajectory) -> tuple[str, ...]:
    """Identity of each question of the task (`question_keys`). Raises ValueError without a task."""
    return question_keys(task_of(trajectory))


def contained(trajectory: Trajectory) -> float:
    """Share of the objectives whose answer, a text, contains a gold alias. Raises ValueError without a task."""
    task = task_of(trajectory)
    answers = answers_given(trajectory.answer, task)
    return _mean([contains(a, q.answers) for a, q in zip(answers, task.questions, strict=True)])


def scorer_names(trajectories: Sequence[Trajectory]) -> str:
    """The scorers of these attempts, in their order. Raises ValueError for one without its task."""
    return ", ".join(dict.fromkeys(task_of(trajectory).scorer or SQUAD for trajectory in trajectories))


def duplicate_searches(trajectory: Trajectory) -> int:
    """Number of searches whose query, normalised like answers, repeats an earlier one of this trajectory."""
    queries = [normalize(turn.content) for turn in trajectory.turns if turn.action == SEARCH]
    return len(queries) - len(set(queries))


def em_by_depth(trajectories: Sequence[Trajectory]) -> dict[str, float] | None:
    """Depth of a question -> mean exact match over all such questions; None if no question depends on another, or
    `by_question` has none.

    With one chain Q1, Q2, Q3 and em (1, 1, 0): {"0": 1.0, "1": 1.0, "2": 0.0}. A question of an attempt that was
    never scored counts as wrong.
    """
    scores: defaultdict[int, list[float]] = defaultdict(list)
    for trajectory, of_attempt in zip(trajectories, by_question(trajectories) or (), strict=False):
        for depth, em in zip(task_of(trajectory).depths, of_attempt, strict=True):
            scores[depth].append(em)
    return {str(depth): _mean(scores[depth]) for depth in sorted(scores)} if max(scores, default=0) > 0 else None


def summarize(
    trajectories: Sequence[Trajectory], *, policy: str, context: str, objectives: int, shape: ModelShape | None = None
) -> Row:
    """The row of these attempts at tasks of `objectives` questions; with the model's `shape`, including FLOPs.

    Raises ValueError without trajectories, and for a trajectory without its task, with another number of objectives, or
    answered but never scored.
    """
    if not trajectories:
        raise ValueError("summarize needs at least one trajectory")
    for trajectory in trajectories:
        _check(trajectory, objectives)
    em = [solved(t) for t in trajectories]
    measured = dict.fromkeys(name for t in trajectories for name in t.metrics) or ("em", "f1")
    low, high = _interval("em", trajectories) if "em" in measured else (None, None)
    others: dict[str, float] = {}
    for name in measured:
        if name not in ("em", "f1"):
            others[name] = _mean([_mean(t.per_objective(name)) for t in trajectories])
            if any(isinstance(t.metrics.get(name), tuple) for t in trajectories):
                others[f"{name}_low"], others[f"{name}_high"] = _interval(name, trajectories)
    turns = [turn for t in trajectories for turn in t.turns]
    # in a shop, where actions make up the answer, it is not a text
    held = None if any(turn.action == ACT for turn in turns) else _mean([contained(t) for t in trajectories])
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
        questions=len({key for t in trajectories for key in question_ids(t)}),
        scorer=None if "em" not in measured or held is None else scorer_names(trajectories),
        em=_mean(em) if "em" in measured else None,
        em_low=low,
        em_high=high,
        f1=mean(lambda t: _mean(t.per_objective("f1"))) if "f1" in measured else None,
        metrics=others,
        contains=held,
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


def _interval(metric: str, trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    within = bounds(trajectories, metric)
    values = by_question(trajectories, metric)
    if values is None:
        return mean_interval([_mean(t.per_objective(metric)) for t in trajectories], within=within)
    return mean_interval(values, questions=[question_ids(t) for t in trajectories], within=within)


def bounds(trajectories: Iterable[Trajectory], metric: str = "em") -> tuple[float, float] | None:
    """Between what the metric lies, for an interval of its mean: 0 and 1; None: some value is not."""
    return (0.0, 1.0) if all(0 <= value <= 1 for t in trajectories for value in t.per_objective(metric)) else None


def check_names(trajectory: Trajectory) -> None:
    """Raises UserError where a metric of the attempt has the name of one that a row has by itself."""
    check_metrics(trajectory.metrics, _OF_ROWS | {f"{name}_{end}" for name in trajectory.metrics for end in _ENDS})


def _check(trajectory: Trajectory, objectives: int) -> None:
    task = task_of(trajectory)
    where = f"trajectory of task {task.id!r}"
    check_names(trajectory)
    if task.objectives != objectives:
        raise ValueError(f"{where} has {task.objectives} objectives, not {objectives}")
    for name, scores in trajectory.metrics.items():
        unscored_failure = not scores and trajectory.ended is not Ended.ANSWERED
        if isinstance(scores, tuple) and len(scores) != objectives and not unscored_failure:
            raise ValueError(f"{where} has {len(scores)} {name} scores for {objectives} objectives; score it first")
    if trajectory.reward is None and trajectory.ended is Ended.ANSWERED:
        raise ValueError(f"{where} has no reward; score it first")


def _per_solved(flops: float | None, em: Sequence[float], objectives: int) -> float | None:
    solved_per_task = objectives * _mean(em)
    return flops / solved_per_task if flops is not None and solved_per_task > 0 else None


def _mean(values: Sequence[float]) -> float:
    """0 without values: an unscored failure, or tasks without any turn."""
    return float(sum(values) / len(values)) if values else 0.0


def _mean_of_some(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are not None; None if all are."""
    some = [value for value in values if value is not None]
    return _mean(some) if some else None
