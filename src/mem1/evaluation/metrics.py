"""What a trajectory cost and what a set of trajectories scored.

    turn 1: context p q           completion a b      result i          2 + 2 tokens
    turn 2: context p q a b i     completion c d                        5 + 2 tokens
    peak_tokens = 7, without prompt 5; total_tokens = 11; dependency = 2 * (2 + 1) + 2 * (5 + 1) = 18

Every trajectory counts, whatever its ending: a failure without scores is scored 0 and its tokens are counted.
Source of the definitions: MEM1 (arXiv 2506.15841), section 4; its evaluator leaves the prompt out of the peak,
so both are given here.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.evaluation.intervals import bootstrap_interval
from mem1.protocol import MALFORMED, SEARCH
from mem1.records import Ended, Trajectory, Turn
from mem1.scoring import exact_match, f1, normalize, score_answers

__all__ = [
    "Row",
    "appended_peak_tokens",
    "appended_tokens",
    "dependency",
    "duplicate_searches",
    "em_by_depth",
    "exact_match",
    "f1",
    "peak_tokens",
    "score_answers",
    "summarize",
    "total_tokens",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the results: one policy under one context policy on tasks of N objectives.

    Means are over tasks, one attempt a task.
    """

    policy: str
    """Name of the weights, such as "base" or "trained"."""
    context: str
    """Name of the context policy, such as "constant"."""
    objectives: int
    """N, the questions in one task."""
    tasks: int
    """Number of trajectories behind this row."""
    em: float
    """Exact match per objective, in [0, 1]: mean over tasks of the mean over the N objectives."""
    em_low: float
    """Lower end of the 95 % percentile bootstrap interval of `em` over tasks."""
    em_high: float
    """Upper end of the same interval."""
    f1: float
    """Token F1 per objective, in [0, 1], averaged like `em`."""
    em_by_depth: dict[str, float] | None
    """Exact match, in [0, 1], over all questions of a depth ("0": they depend on no other); None: none depends."""
    reward: float
    """Mean reward in the environment's unit; for questions the number of exact matches, in [0, N]."""
    turns: float
    """Mean calls of the policy per task."""
    peak_tokens: float
    """Mean of the largest context + completion of a task's turns, in tokens, prompt included."""
    peak_tokens_without_prompt: float
    """The same with each turn's prompt tokens left out."""
    appended_peak_tokens: float
    """Mean peak, in tokens, that the same turns would have had if nothing had been dropped."""
    appended_peak_tokens_without_prompt: float
    """The same without the prompt."""
    total_tokens: float
    """Mean tokens processed per task: context + completion summed over turns."""
    dependency: float
    """Mean (generated token, visible token) pairs per task."""
    searches: float
    """Mean searches per task."""
    duplicate_searches: float
    """Mean searches per task whose query, normalised, was sent before in the same task."""
    malformed: float
    """Share of all turns whose output could not be parsed, in [0, 1]."""
    state_tokens: float | None
    """Mean length of the written state over all turns that wrote one, tags included; None: no turn did."""
    endings: dict[str, int]
    """Tasks by how they ended; every value of `Ended` is a key."""

    def as_dict(self) -> dict[str, Any]:
        """A plain dict for JSON, keys in the order of the fields."""
        return dataclasses.asdict(self)


def peak_tokens(trajectory: Trajectory, *, prompt: bool = True) -> int:
    """Largest context + completion of any turn, in tokens; 0 where the policy was never called.

    With `prompt=False` each turn's prompt tokens are subtracted; raises ValueError if a turn did not record them.
    """
    return max((t.num_tokens - (0 if prompt else _prompt_tokens(t)) for t in trajectory.turns), default=0)


def dependency(trajectory: Trajectory) -> float:
    """Sum over turns of n_o * (n_p + n_o / 2) for n_o generated after n_p given tokens: attention's cost."""
    return sum(len(t.completion_ids) * (len(t.context_ids) + len(t.completion_ids) / 2) for t in trajectory.turns)


def total_tokens(trajectory: Trajectory) -> int:
    """Context and completion tokens summed over turns, without any cache of prefixes."""
    return sum(turn.num_tokens for turn in trajectory.turns)


def appended_tokens(trajectory: Trajectory, *, prompt: bool = True) -> list[int]:
    """Per turn, context + completion if every earlier completion and result were still there, in tokens.

    For the context policy `full` these are the sizes that the turns did have. Raises ValueError if a turn did not
    record its prompt.
    """
    sizes: list[int] = []
    history = 0
    for turn in trajectory.turns:
        head = _prompt_tokens(turn) if prompt else 0
        sizes.append(head + history + _forced_tokens(turn) + len(turn.completion_ids))
        history += len(turn.completion_ids) + len(turn.observation_ids)
    return sizes


def appended_peak_tokens(trajectory: Trajectory, *, prompt: bool = True) -> int:
    """The peak that the same turns would have had if everything had been appended; 0 without turns."""
    return max(appended_tokens(trajectory, prompt=prompt), default=0)


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


def summarize(trajectories: Sequence[Trajectory], *, policy: str, context: str, objectives: int) -> Row:
    """The row of these attempts at tasks of `objectives` questions.

    Raises ValueError where there is nothing to count: no trajectories, a trajectory without its task, with another
    number of objectives, or answered but never scored.
    """
    if not trajectories:
        raise ValueError("summarize needs at least one trajectory")
    for trajectory in trajectories:
        _check(trajectory, objectives)
    em = [_mean(t.em) for t in trajectories]
    low, high = bootstrap_interval(em)
    turns = [turn for t in trajectories for turn in t.turns]

    def mean(measure: Callable[[Trajectory], float]) -> float:
        return _mean([measure(t) for t in trajectories])

    return Row(
        policy=policy,
        context=context,
        objectives=objectives,
        tasks=len(trajectories),
        em=_mean(em),
        em_low=low,
        em_high=high,
        f1=mean(lambda t: _mean(t.f1)),
        em_by_depth=em_by_depth(trajectories),
        reward=mean(lambda t: t.reward or 0.0),
        turns=mean(lambda t: len(t.turns)),
        peak_tokens=mean(peak_tokens),
        peak_tokens_without_prompt=mean(lambda t: peak_tokens(t, prompt=False)),
        appended_peak_tokens=mean(appended_peak_tokens),
        appended_peak_tokens_without_prompt=mean(lambda t: appended_peak_tokens(t, prompt=False)),
        total_tokens=mean(total_tokens),
        dependency=mean(dependency),
        searches=mean(lambda t: sum(turn.action == SEARCH for turn in t.turns)),
        duplicate_searches=mean(duplicate_searches),
        malformed=_mean([float(turn.action == MALFORMED) for turn in turns]),
        state_tokens=_state_tokens(turns),
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


def _prompt_tokens(turn: Turn) -> int:
    if "prompt" not in turn.context_spans:
        raise ValueError('a turn did not record which context tokens are its prompt: context_spans has no "prompt"')
    return turn.prompt_tokens


def _forced_tokens(turn: Turn) -> int:
    """Tokens of the answer tag that was opened at the end of a forced turn's context."""
    if not turn.forced:
        return 0
    return len(turn.context_ids) - max(stop for _, stop in turn.context_spans.values())


def _state_tokens(turns: Sequence[Turn]) -> float | None:
    spans = [turn.completion_spans["state"] for turn in turns if "state" in turn.completion_spans]
    return _mean([stop - start for start, stop in spans]) if spans else None


def _mean(values: Sequence[float]) -> float:
    """0 without values: a failure that was never scored, or tasks that never had a turn."""
    return float(sum(values) / len(values)) if values else 0.0
