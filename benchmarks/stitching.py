"""MEM1's stitched sequence: what its training approximates. For comparison only; mem1 trains on the token tree.

The paper trains on one sequence a trajectory, every token once, with a two-dimensional mask and with positions that
run on to the end:

    turn 1: p q | s a       turn 2: p q s a i | t b       turn 3: p q t b j | e      (p q prompt; s, t states; a, b
                                                                                      queries; i, j results)
    sequence   p  q  s  a  i  t  b  j  e
    position   0  1  2  3  4  5  6  7  8      in turn 3 the sampler's positions were p 0, q 1, t 2, b 3, j 4, e 5
    e sees     x  x              x  x  x      and t, the previous state, only with `previous_state`
    i sees                 x                  a result sees itself alone

So a sampled token differs from what the sampler computed in four ways: it does not see the previous state, although
the sampler did; the keys that it sees come from the context in which they were generated; positions run on; and the
first token of a turn is predicted by a result that has seen nothing else. `previous_state` mends the first.

Source: MEM1 (arXiv 2506.15841), section 3 on masked trajectories. Its code hands the mask to attention as 0 and 1,
which are *added* to the scores and hide nothing; here it is boolean, as was meant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mem1.records import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stitched:
    """T tokens of one trajectory in the order in which they came about, M of them sampled."""

    input_ids: Tensor
    """(T,) the tokens."""
    position_ids: Tensor
    """(T,) 0 … T - 1."""
    visible: Tensor
    """Bool (T, T): may query q (row) see key k (column)? Boolean, never to be added."""
    target_node: Tensor
    """(M,) place of each sampled token, in order; the logit one place before predicts it."""


def stitch(trajectory: Trajectory, *, previous_state: bool = False) -> Stitched:
    """The stitched sequence of a trajectory with constant memory.

    Where a turn's spans name its state, the rest of the completion (the query) is what the mask keeps for the next
    turn; without spans the whole completion is state. Raises ValueError if there are no turns, or if a context is not
    prompt, last completion, result: only constant memory can be stitched.
    """
    turns = trajectory.turns
    if not turns:
        raise ValueError("nothing to stitch: the trajectory has no turns")
    ids = list(turns[0].context_ids)
    prompt, kept = slice(0, len(ids)), slice(0, 0)
    seen: list[tuple[slice, slice]] = [(prompt, prompt)]
    targets: list[Tensor] = []
    for number, turn in enumerate(turns):
        start, stop = len(ids), len(ids) + len(turn.completion_ids)
        ids += turn.completion_ids
        if number + 1 < len(turns):
            ids += _result(turns[0].context_ids, turn, turns[number + 1])
        own, result = slice(start, stop), slice(stop, len(ids))
        seen += [(own, prompt), (own, kept), (own, own), (result, result)]
        targets.append(torch.arange(start, stop))
        kept = slice(start if previous_state else start + _state_tokens(turn), len(ids))
    visible = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    for queries, keys in seen:
        visible[queries, keys] = True
    return Stitched(
        input_ids=torch.tensor(ids),
        position_ids=torch.arange(len(ids)),
        visible=visible.tril(),
        target_node=torch.cat(targets),
    )


def _result(prompt: tuple[int, ...], before: Turn, turn: Turn) -> tuple[int, ...]:
    """The environment's tokens between the completions of two successive turns."""
    start = prompt + before.completion_ids
    if turn.context_ids[: len(start)] != start:
        raise ValueError("only constant memory can be stitched: contexts of prompt, last completion, result")
    return turn.context_ids[len(start) :]


def _state_tokens(turn: Turn) -> int:
    return turn.completion_spans["state"][1] if "state" in turn.completion_spans else len(turn.completion_ids)
