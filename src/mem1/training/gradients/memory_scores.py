"""What a memory is worth: log-probs of the gold answers given what the memory holds before and after each turn.

    prompt p q; turn 1 writes <IS> a </IS>, turn 2 <IS> a b </IS>; gold answer of Q1: Oslo

    before turn 1   p q <answer> Q1 | Oslo                          log-prob -2.0
    after turn 1    p q <IS> a </IS> <answer> Q1 | Oslo             log-prob -1.5
    after turn 2    p q <IS> a b </IS> <answer> Q1 | Oslo           log-prob -0.25       ->  (-2.0, -1.5, -0.25)

Only the tokens behind the bar are scored, and each sees what is to its left and nothing else:

- the prompt;
- the memory: all states, notes and summaries that the context after the turn would hold, the very tokens that were
  sampled, in its order and cut as it cuts them. Queries and results are left out, whatever the context policy keeps of
  them, so a difference between two turns comes from memory tokens alone. A state that the policy drops does not count;
- the opened tag of the answer and the label of one question. The other questions' answers are not in sight, so what one
  gold answer says about another adds nothing.

A question with several gold answers is scored by the first. A question's number is the mean over the tokens of its
answer, a memory's the mean over questions. The weights are those before the first update on the rollout, at its
temperature, without gradient; equal memories are scored once, and so have equal numbers to the digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mem1.contexts import context_policy, next_context
from mem1.dialogue import Dialogue
from mem1.protocol import ANSWER, NOTE
from mem1.records import Question, Trajectory, Turn

if TYPE_CHECKING:
    from torch import Tensor

MEMORY_ROLES = ("state", NOTE)
"""Roles of a context's tokens that are memory; a summary's is "state"."""


def memory_logprobs(
    attempts: Sequence[Trajectory], dialogue: Dialogue, logprobs: Callable[[Sequence[Turn]], Tensor]
) -> list[tuple[float, ...]]:
    """For each attempt of T turns, T + 1 numbers in nats: before the first turn, and after each.

    logprobs    of the completions of these turns, all of them in one dimension

    Raises ValueError for an attempt without its task.
    """
    texts = [scored_texts(attempt, dialogue) for attempt in attempts]
    distinct = {
        (turn.context_ids, turn.completion_ids): turn for memories in texts for memory in memories for turn in memory
    }
    lengths = [len(turn.completion_ids) for turn in distinct.values()]
    parts = logprobs(list(distinct.values())).tolist() if distinct else []
    values: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    start = 0
    for key, length in zip(distinct, lengths, strict=True):
        values[key] = _mean(parts[start : start + length])
        start += length
    return [
        tuple(_mean([values[turn.context_ids, turn.completion_ids] for turn in memory]) for memory in memories)
        for memories in texts
    ]


def scored_texts(attempt: Trajectory, dialogue: Dialogue) -> list[list[Turn]]:
    """For the memory before the first turn and after each, a turn per question: its completion is the gold answer.

    Raises ValueError for an attempt without its task.
    """
    task = attempt.task
    if task is None:
        raise ValueError("a trajectory has no task, so its answers are not known; keep the task when rolling out")
    codec, tags = dialogue.codec, dialogue.tags
    asked = [
        (codec.encode(f" Q{number}"), codec.encode_untrusted(f" {_gold(question)}", tags))
        for number, question in zip(task.numbers, task.questions, strict=True)
    ]
    prompt, opened = dialogue.prompt(task), dialogue.opening(ANSWER)
    return [
        [Turn(context_ids=prompt + memory + opened + label, completion_ids=answer) for label, answer in asked]
        for memory in memories(attempt)
    ]


def memories(attempt: Trajectory) -> list[tuple[int, ...]]:
    """The tokens of the memory before the first turn, which is empty, and after each."""
    policy = context_policy(attempt.context)
    found: list[tuple[int, ...]] = [()]
    for number in range(1, len(attempt.turns) + 1):
        context = next_context(policy, (), attempt.turns[:number])
        spans = [(start, stop) for _, role, start, stop in context.origins if role in MEMORY_ROLES]
        found.append(tuple(token for start, stop in spans for token in context.ids[start:stop]))
    return found


def _gold(question: Question) -> str:
    return next(alias.strip() for alias in question.answers if alias.strip())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
