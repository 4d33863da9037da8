"""What one trajectory cost, in tokens.

    turn 1: context p q           completion a b      result i          2 + 2 tokens
    turn 2: context p q a b i     completion c d                        5 + 2 tokens
    peak_tokens = 7, without prompt 5; total_tokens = 11; dependency = 2 * (2 + 1) + 2 * (5 + 1) = 18
    cached_by_turn = [0, 4], as turn 1 has processed p q a b

Source of peak and dependency: MEM1 (arXiv 2506.15841), section 4; its evaluator leaves the prompt out of the peak,
so both are given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne

from mem1.protocol import SUMMARY
from mem1.records import Trajectory, Turn

_BLOCK = 64
"""Tokens compared at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSizes:
    """Tokens of one turn."""

    state: int
    """Of the memory that it writes when it has to."""
    action: int
    result: int
    """Of what the environment returns; of the last turn nobody reads it."""
    thought: int = 0
    """Written in every turn and kept in no later context, where the protocol has such a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of one attempt, whatever policy it is then priced under. Raises ValueError without turns."""

    prompt: int
    turns: tuple[TurnSizes, ...]

    def __post_init__(self) -> None:
        if not self.turns or self.prompt < 1:
            raise ValueError("an attempt has a prompt of at least one token, and at least one turn")
        if any(min(turn.state, turn.action, turn.result, turn.thought) < 0 for turn in self.turns):
            raise ValueError("sizes are numbers of tokens, so none is below 0")


def even_sizes(*, prompt: int, state: int, action: int, result: int, turns: int) -> Sizes:
    """An attempt whose turns are all alike."""
    return Sizes(prompt=prompt, turns=(TurnSizes(state=state, action=action, result=result),) * turns)


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


def cached_by_turn(trajectory: Trajectory) -> list[int]:
    """Per turn, how many tokens at the head of its context the call before has processed, as context or completion.

    0 at the first turn: another task's calls are not looked at. A server that keeps the keys and values of the call
    before need not process these tokens again; it may find fewer, as caches work in blocks of tokens.
    """
    before: tuple[int, ...] = ()
    cached: list[int] = []
    for turn in trajectory.turns:
        cached.append(_shared_prefix(before, turn.context_ids))
        before = turn.context_ids + turn.completion_ids
    return cached


def appended_tokens(trajectory: Trajectory, *, prompt: bool = True) -> list[int]:
    """Per turn, context + completion if every earlier completion and result were still there, in tokens.

    For the context policy `full` these are the sizes that the turns did have. A summary that a policy asked for adds
    nothing: an agent that appends writes none. Raises ValueError if a turn did not record its prompt.
    """
    sizes: list[int] = []
    history = 0
    for turn in trajectory.turns:
        head = _prompt_tokens(turn) if prompt else 0
        if turn.action == SUMMARY:
            sizes.append(head + history)
            continue
        sizes.append(head + history + len(turn.prefill_ids) + len(turn.completion_ids))
        history += len(turn.completion_ids) + len(turn.observation_ids)
    return sizes


def appended_peak_tokens(trajectory: Trajectory, *, prompt: bool = True) -> int:
    """The peak that the same turns would have had if everything had been appended; 0 without turns."""
    return max(appended_tokens(trajectory, prompt=prompt), default=0)


def state_tokens(turn: Turn) -> int | None:
    """Length of the state, or of the summary, that a turn wrote, tags included; None: it wrote none."""
    if turn.action == SUMMARY:
        return len(turn.prefill_ids) + len(turn.completion_ids)
    span = turn.completion_spans.get("state")
    return None if span is None else span[1] - span[0]


def _shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix; block by block, as slices are compared faster than single tokens."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    for start in range(0, shorter, _BLOCK):
        if one[start : start + _BLOCK] != other[start : start + _BLOCK]:
            return next(compress(count(start), map(ne, one[start:shorter], other[start:shorter])), shorter)
    return shorter


def _prompt_tokens(turn: Turn) -> int:
    if "prompt" not in turn.context_spans:
        raise ValueError('a turn did not record which context tokens are its prompt: context_spans has no "prompt"')
    return turn.prompt_tokens
