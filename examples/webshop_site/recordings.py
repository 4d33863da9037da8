"""Recorded trajectories, to be viewed page by page.

    recordings = read_recordings("trajectories.jsonl", goals)
    recordings[0].sessions(shop)  ->  (session before turn 1, before turn 2, ..., after the last turn)

The goals of a task are its questions, by their ids: "human-7", "synthetic-12". Pages are not recorded but recreated
from the actions, so shop, prices and goals must be those of the recording (--catalogue and --seed).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mem1.envs.webshop.catalogue import Goal
from mem1.envs.webshop.env import meant
from mem1.envs.webshop.pages import Session
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.protocol import ACT
from mem1.records import Ended, Trajectory, trajectory_from_json

Goals = Callable[[str], Mapping[str, Goal]]
"""Kind (the beginning of an id, such as "human") -> its goals by id; empty for an unknown kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn without its tokens."""

    before: str
    """The recorded observation before the turn; in the first turn the prompt."""
    state: str
    action: str
    """The action, or why the turn is malformed."""
    acts: bool
    """Whether the action was for the shop; False: the turn was malformed or contained another action."""
    written: str
    context_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One trajectory."""

    task: str
    wanted: tuple[str, ...]
    """The goals' instructions."""
    goals: tuple[Goal, ...]
    """Empty if the shop does not have them: see `trouble`."""
    trouble: str
    """Why pages cannot be shown; empty: they can."""
    steps: tuple[Step, ...]
    ended: Ended
    detail: str
    reward: float | None
    """The recorded reward. None: never scored."""
    context: str
    """Name of the memory."""

    def sessions(self, shop: Shop) -> tuple[Session, ...]:
        """The sessions before each turn and after the last one; none in case of `trouble`."""
        if self.trouble:
            return ()
        sessions = [shop.start(self.goals)]
        for step in self.steps:
            session = sessions[-1]
            sessions.append(shop.step(session, meant(shop, session, step.action)) if step.acts else session)
        return tuple(sessions)


def read_recordings(path: str | os.PathLike[str], goals: Goals) -> list[Recording]:
    """Read one trajectory per line. Raises UserError, with file and line, for anything else and for an empty file."""
    recordings = []
    for number, record in read_objects(path):
        try:
            recordings.append(recording(trajectory_from_json(record), goals))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}:{number}: not a trajectory of this version of mem1 ({error!r})") from error
    if not recordings:
        raise UserError(f"{path}: no trajectories; give the trajectories.jsonl of a run")
    return recordings


def recording(trajectory: Trajectory, goals: Goals) -> Recording:
    task = trajectory.task
    questions = task.questions if task else ()
    found: dict[str, Goal] = {}
    trouble = "" if task else "It was recorded without its task, so its goals are unknown."
    for question in questions:
        goal = goals(question.id.partition("-")[0]).get(question.id)
        if goal is None:
            trouble = f"This shop has no goal {question.id!r}."
        elif goal.instruction not in question.text:
            trouble = f"The goal {question.id!r} of this shop asks for something else: {goal.instruction}"
        else:
            found[question.id] = goal
    seen = [task.prompt if task else "", *(turn.observation for turn in trajectory.turns)]
    return Recording(
        task=task.id if task else "",
        wanted=tuple(question.text for question in questions),
        goals=() if trouble else tuple(found[question.id] for question in questions),
        trouble=trouble,
        steps=tuple(
            Step(
                before=before,
                state=turn.state,
                action=turn.content,
                acts=turn.action == ACT,
                written=turn.text,
                context_tokens=len(turn.context_ids),
                completion_tokens=len(turn.completion_ids),
            )
            for before, turn in zip(seen, trajectory.turns, strict=False)
        ),
        ended=trajectory.ended,
        detail=trajectory.detail,
        reward=trajectory.reward,
        context=trajectory.context,
    )
