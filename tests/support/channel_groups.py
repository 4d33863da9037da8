"""A group of attempts whose rewards are known."""

from __future__ import annotations

from mem1.algorithms.base import Attempt
from mem1.records import Question, Task, Trajectory, Turn

QUESTIONS = (
    Question(id="1", text="Who founded Alvex?", answers=("Mira Toll",), titles=("Alvex",)),
    Question(id="2", text="Where was the seat of Berl?", answers=("Oslo",), titles=("Berl", "Dora Lint")),
)
TASK = Task(id="t", questions=QUESTIONS, prompt="Q1 Q2", turn_limit=9)


def turn(action: str, content: str) -> Turn:
    """Six tokens: two of the state, two of the note, two of the action."""
    return Turn(
        context_ids=(1,),
        completion_ids=(1, 2, 3, 4, 5, 6),
        action=action,
        content=content,
        completion_spans={"state": (0, 2), "note": (2, 4), "action": (4, 6)},
    )


def attempt(reward: float, em: tuple[float, ...], *turns: Turn) -> Attempt:
    made = turns or (turn("search", "Alvex"), turn("answer", "Q1 x"))
    trajectory = Trajectory(turns=made, task=TASK, reward=reward, metrics={"em": em} if em else {})
    return Attempt(trajectory=trajectory, shaped_reward=reward)


GROUP = [attempt(2.0, (1.0, 1.0)), attempt(1.0, (1.0, 0.0)), attempt(1.0, (0.0, 1.0)), attempt(0.0, (0.0, 0.0))]
