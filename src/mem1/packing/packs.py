"""One optimiser step cut into packs, each small enough for one forward pass.

    three turns: p q | a b     p q a b i | c d     p q c d j | e        (the tree drawn in `packing/tree.py`)
    split_into_packs([trajectory], max_tokens=8)  ->  [[turns 0 and 1: 7 tokens], [turn 2: 5 tokens]]

A pack is a list of pieces, a piece some turns of one trajectory. Its size is that of its token tree: what its
contexts share counts once, so attempts at one task should stand side by side in the list. A trajectory is cut only
before a turn whose context does not continue the turn before it; what two packs both need is computed in both.
Every turn is in exactly one pack, so a loss that is a sum over sampled tokens, divided by a number fixed for the
step, has the same gradient however the step is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from torch import Tensor

from mem1.packing.trie import Segment, insert
from mem1.records import Span, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Turns of one trajectory that a pack holds. `tree.target_node` of a pack follows the order of its pieces."""

    trajectory: int
    """Place of the trajectory in the list that was split."""
    turns: Span
    tokens: Span
    """Its sampled tokens among those of the trajectory."""

    def cut(self, values_K: Tensor) -> Tensor:
        """Its part of one value per sampled token of the trajectory."""
        return values_K[slice(*self.tokens)]

    def of(self, trajectories: Sequence[Trajectory]) -> Trajectory:
        """The piece as a trajectory of its own, for `pack`."""
        whole = trajectories[self.trajectory]
        return replace(whole, turns=whole.turns[slice(*self.turns)])


Pack = list[Piece]


def split_into_packs(
    trajectories: Sequence[Trajectory],
    *,
    max_tokens: int,
    balanced: bool = False,
    whole: bool = False,
    multiple_of: int = 1,
) -> list[Pack]:
    """Cut trajectories, in order, into packs whose trees have at most `max_tokens` tokens.

    Filling one pack after the other takes the fewest packs that keep the order. `balanced` then lowers the cap as
    far as that number allows, so that the largest pack is as small as it can be: for packs that run side by side, on
    several ranks; the number may then be rounded up to a multiple, of the ranks. `whole` cuts between trajectories
    only: for a loss that is no sum over tokens. Turns that continue one another (a trajectory, if `whole`) and alone
    pass the cap get a pack for themselves. No turns, no packs. Raises ValueError if `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    pieces = [
        piece
        for number, t in enumerate(trajectories)
        for piece in _cut(number, t.turns, [0] if whole else _branches(t.turns))
    ]
    packs = _fill(pieces, trajectories, max_tokens)
    if not balanced:
        return packs

    number = -(-len(packs) // multiple_of) * multiple_of

    def suffices(cap: int) -> bool:
        return len(_fill(pieces, trajectories, cap)) <= number

    return _fill(pieces, trajectories, bisect_left(range(max_tokens), True, key=suffices))


def _fill(pieces: Sequence[Piece], trajectories: Sequence[Trajectory], cap: int) -> list[Pack]:
    """One pack after the other, each as full as `cap` allows; at least one piece each."""
    packs: list[Pack] = []
    root, size = _root(), 0
    for piece in pieces:
        turns = trajectories[piece.trajectory].turns[slice(*piece.turns)]
        size += _add(root, turns)
        if size > cap or not packs:
            packs.append([])
            root = _root()
            size = _add(root, turns)
        _append(packs[-1], piece)
    return packs


def _root() -> Segment:
    return Segment(path=(), start=0, stop=0, parent=None)


def _add(root: Segment, turns: Sequence[Turn]) -> int:
    """Tokens by which these turns make the tree larger."""
    return sum(insert(root, turn.context_ids + turn.completion_ids)[1] for turn in turns)


def _append(pack: Pack, piece: Piece) -> None:
    """Add a piece to a pack, to its last piece where it follows that one in its trajectory."""
    if pack and pack[-1].trajectory == piece.trajectory:
        last = pack.pop()
        turns, tokens = (last.turns[0], piece.turns[1]), (last.tokens[0], piece.tokens[1])
        piece = replace(piece, turns=turns, tokens=tokens)
    pack.append(piece)


def _cut(trajectory: int, turns: Sequence[Turn], starts: Sequence[int]) -> Iterator[Piece]:
    """The turns of a trajectory, cut before each turn in `starts`, of which the first is 0."""
    lengths = [0, *accumulate(len(turn.completion_ids) for turn in turns)]
    for start, stop in pairwise([*starts, len(turns)]):
        if start < stop:
            yield Piece(trajectory=trajectory, turns=(start, stop), tokens=(lengths[start], lengths[stop]))


def _branches(turns: Sequence[Turn]) -> list[int]:
    """The first turn, and each whose context does not continue the turn before it."""
    return [n for n in range(max(1, len(turns))) if n == 0 or not _continues(turns[n - 1], turns[n])]


def _continues(before: Turn, turn: Turn) -> bool:
    path = before.context_ids + before.completion_ids
    return turn.context_ids[: len(path)] == path
