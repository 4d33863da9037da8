"""One line of the results; docs/metrics.md has the formulas."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

OF_TIME = frozenset({"seconds", "seconds_p95"})
"""Columns that differ from run to run; all others follow from the trajectories' tokens and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a language model says of the answers, and how far it agrees with exact match."""

    model: str
    version: str
    """Of the judge's prompt."""
    correct: float | None
    """Share of the answers with a verdict that it takes for right, in [0, 1]; None: no verdict."""
    judged: float
    """Share of all answers that have a verdict, in [0, 1]; the others failed and count neither as right nor wrong."""
    agreement: float | None
    """Share of the verdicts that exact match shares, in [0, 1]; None: no verdict."""
    kappa: float | None
    """Cohen's kappa of the same; None: no verdict, or both always say the same, so that chance explains it all."""
    failures: dict[str, int]
    """Why there is no verdict -> answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy under one context policy on tasks of N objectives.

    Means are over tasks, one attempt a task; every attempt counts, whatever its ending.
    """

    policy: str
    """Name of the weights, such as "base" or "trained"."""
    context: str
    """Name of the context policy, such as "constant"."""
    objectives: int
    """N, the questions in one task."""
    tasks: int
    """Number of trajectories behind this row."""
    questions: int
    """Different questions that they ask; fewer than tasks times N where questions stand in several tasks."""
    em: float
    """Exact match per objective, in [0, 1]: mean over tasks of the mean over the N objectives."""
    em_low: float
    """Lower end of the 95 % interval of `em` over tasks, and over questions where some stand in several tasks."""
    em_high: float
    """Upper end of the same interval."""
    f1: float
    """Token F1 per objective, in [0, 1], averaged like `em`."""
    contains: float | None
    """Objectives whose answer contains a gold alias, in [0, 1], averaged like `em`; None: what counts is not a text."""
    judge: Judged | None = None
    """None: no judge was asked."""
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
    fresh_tokens: float
    """Mean context tokens per task that the call before has not processed."""
    cached_tokens: float
    """Mean context tokens per task that it has; fresh + cached + output = total."""
    output_tokens: float
    """Mean sampled tokens per task."""
    dependency: float
    """Mean (generated token, visible token) pairs per task."""
    flops: float | None
    """Mean forward FLOPs per task without a prefix cache; None, as the next three: the model's shape is not known."""
    flops_cached: float | None
    """The same where each call finds in a cache what the call before has processed."""
    flops_per_solved: float | None
    """`flops` per exact match, over all tasks; None also where nothing was solved."""
    flops_cached_per_solved: float | None
    """`flops_cached` per exact match."""
    seconds: float
    """Mean wall time of an attempt, at the concurrency of the rollout."""
    seconds_p95: float
    """95th percentile of the same."""
    searches: float
    """Mean searches per task."""
    duplicate_searches: float
    """Mean searches per task whose query, normalised, was sent before in the same task."""
    malformed: float
    """Share of all turns whose output could not be parsed, in [0, 1]."""
    state_tokens: float | None
    """Mean length of the written state over all turns that wrote one, tags included; None: no turn did."""
    state_tokens_by_turn: tuple[float | None, ...]
    """Entry t - 1: the same over the states of turn t; as long as the longest attempt has turns."""
    fidelity: float | None
    """Gold facts, once shown, that are still in the last state, in [0, 1]; None: no state followed a shown fact."""
    fidelity_by_turn: tuple[float | None, ...]
    """Entry t - 1: the same in the states of turn t."""
    facts_lost: float
    """Mean gold facts per task that a state held and the last one does not."""
    endings: dict[str, int]
    """Tasks by how they ended; every value of `Ended` is a key."""

    def as_dict(self) -> dict[str, Any]:
        """A plain dict for JSON, keys in the order of the fields."""
        return dataclasses.asdict(self)
