"""Turns that are sampled anew from their stored contexts, to compare what was written with what might have been.

    attempt 3 of 8      turn 0, 1, 2, 3, answer     reward 1
    its turn 1 again    ..... 1', 2, answer         reward 2        kept: turn 1' alone, with this reward
                        ..... 1'', 2, 3, answer     reward 0        kept: turn 1'' alone

A context policy is a function of the turns so far, so an attempt can go on from any of them, and the new turn has the
very context of the old one. The turns after it only find out what it was worth: they are sampled and not kept, so the
one kept turn has nothing in its loss but its own tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from mem1.contexts import memory_spans
from mem1.engines.base import Sampling
from mem1.protocol import ANSWER, MALFORMED, SUMMARY
from mem1.records import Group, Trajectory, Turn
from mem1.rollout import Rollout


def rerolled(
    groups: Sequence[Group],
    times: int,
    rollout: Rollout,
    sampling: Sampling,
    *,
    version: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Group]:
    """The groups, each with one turn of one attempt sampled anew this many times.

    Attempt and turn follow from the seed and the task. A group in which no turn wrote a memory stays as it is. A new
    turn that the engine failed to sample is left out.
    """
    chosen = [_place(group, sampling.seed) for group in groups]
    again = [
        (number, attempt, turn, len(groups[number].trajectories) + time)
        for number, (attempt, turn) in enumerate(chosen)
        if attempt is not None
        for time in range(times)
    ]
    made = rollout(
        [attempt.task for _, attempt, _, _ in again if attempt.task is not None],
        sampling=sampling,
        numbers=[count for *_, count in again],
        earlier=[attempt.turns[:turn] for _, attempt, turn, _ in again],
        weights_version=version,
        progress=progress,
    )
    more: list[list[Trajectory]] = [[] for _ in groups]
    for (number, attempt, turn, _), found in zip(again, made, strict=True):
        if len(found.turns) > turn:
            more[number].append(replace(found, turns=(found.turns[turn],), rerolled=(attempt.attempt, turn)))
    return [replace(group, trajectories=(*group.trajectories, *new)) for group, new in zip(groups, more, strict=True)]


def _place(group: Group, seed: int) -> tuple[Trajectory | None, int]:
    """An attempt and one of its turns that wrote a memory and did not end it; (None, 0): there is none."""
    written = [
        (attempt, [number for number, turn in enumerate(attempt.turns) if _writes(turn)])
        for attempt in group.attempts
        if attempt.task is not None and attempt.ended.scorable
    ]
    written = [(attempt, turns) for attempt, turns in written if turns]
    if not written:
        return None, 0
    task = written[0][0].task
    assert task is not None
    rng = random.Random(f"{seed}/reroll/{task.id}")
    attempt, turns = rng.choice(written)  # first the attempt, so that long ones are not drawn more often
    return attempt, rng.choice(turns)


def _writes(turn: Turn) -> bool:
    return turn.action == SUMMARY or (turn.action not in (ANSWER, MALFORMED) and bool(memory_spans(turn)))
