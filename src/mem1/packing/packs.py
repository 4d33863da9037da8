"""One optimiser step cut into packs, each small enough for one forward pass.

    three turns: p q | a b     p q a b i | c d     p q c d j | e        (the tree drawn in `packing/tree.py`)
    split_into_packs([trajectory], max_tokens=8)  ->  [pack of turns 0 and 1: 7 tokens, pack of turn 2: 5 tokens]

A pack holds pieces, turns of one trajectory each, and their token tree. Its size is that of the tree: what its contexts
share counts once, so attempts at one task should be neighbours in the list. A trajectory is cut only before a turn
whose context does not continue the turn before it; what two packs both need is computed in both. Every turn is in
exactly one pack, so a loss that is a sum over sampled tokens, divided by a number fixed for the step, has the same
gradient however the step is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

from torch import Tensor

from mem1.packing.tree import TokenTree, Trie
from mem1.records import Span, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some turns of one trajectory. `tree.target_node` of a pack follows the order of its pieces."""

    trajectory: int
    """Index of the trajectory in the list that was split."""
    turns: Span
    tokens: Span
    """Its sampled tokens among those of the trajectory."""

    def cut(self, values_K: Tensor) -> Tensor:
        """Its part of one value per sampled token of the trajectory."""
        return values_K[slice(*self.tokens)]

    def of(self, trajectories: Sequence[Trajectory]) -> Trajectory:
        """The piece as a trajectory of its own."""
        whole = trajectories[self.trajectory]
        return replace(whole, turns=whole.turns[slice(*self.turns)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """The work of one forward pass."""

    trajectories: tuple[Trajectory, ...]
    """The pieces as trajectories."""
    pieces: tuple[Piece, ...]
    _trie: Trie = field(repr=False)

    @classmethod
    def whole(cls, trajectories: Sequence[Trajectory]) -> Pack:
        """All of these in one pack, whatever its size."""
        pieces = [piece for number, t in enumerate(trajectories) for piece in _cut(number, t.turns, [0])]
        return cls.of(pieces, trajectories)

    @classmethod
    def of(cls, pieces: Sequence[Piece], trajectories: Sequence[Trajectory], trie: Trie | None = None) -> Pack:
        """These pieces of the trajectories; `trie`, if given, holds their turns already."""
        cut = tuple(piece.of(trajectories) for piece in pieces)
        if trie is None:
            trie = Trie()
            trie.add(turn for t in cut for turn in t.turns)
        return cls(trajectories=cut, pieces=tuple(pieces), _trie=trie)

    @cached_property
    def tree(self) -> TokenTree:
        """Their token tree, laid out once."""
        return self._trie.lay_out(self.trajectories)


def split_into_packs(
    trajectories: Sequence[Trajectory],
    *,
    max_tokens: int,
    whole: bool = False,
    ranks: int = 1,
    wanted: Callable[[Piece], bool] = lambda piece: True,
) -> list[Pack]:
    """Cut trajectories, in order, into packs whose trees have at most `max_tokens` tokens.

    whole       cut between trajectories only: for a loss that is no sum over tokens
    ranks       number of ranks that share the packs. On one, each pack is filled before the next is begun, which
                takes the fewest packs that keep the order. On several, their number is rounded up to a multiple of
                the ranks, and the cap lowered as far as that number allows: the largest pack is as small as it can be.
    wanted      whether a piece, which is cut no further, is in any pack

    Turns that continue one another (a trajectory, if `whole`) and alone pass the cap get a pack for themselves. No
    turns, no packs. Raises ValueError if `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    pieces = [
        piece
        for number, t in enumerate(trajectories)
        for piece in _cut(number, t.turns, [0] if whole else _branches(t.turns))
        if wanted(piece)
    ]
    filled = _fill(pieces, trajectories, max_tokens)
    if ranks > 1:
        number = -(-len(filled) // ranks) * ranks

        def suffices(cap: int) -> bool:
            return len(_fill(pieces, trajectories, cap)) <= number

        filled = _fill(pieces, trajectories, bisect_left(range(max_tokens), True, key=suffices))
    return [Pack.of(_joined(some), trajectories, trie) for some, trie in filled]


def _fill(pieces: Sequence[Piece], trajectories: Sequence[Trajectory], cap: int) -> list[tuple[list[Piece], Trie]]:
    """One pack after the other, each as full as `cap` allows; at least one piece each."""
    packs: list[tuple[list[Piece], Trie]] = []
    for piece in pieces:
        turns = trajectories[piece.trajectory].turns[slice(*piece.turns)]
        if packs:
            some, trie = packs[-1]
            trie.add(turns)
            if trie.size <= cap:
                some.append(piece)
                continue
            trie.take_back()
        trie = Trie()
        trie.add(turns)
        packs.append(([piece], trie))
    return packs


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a pack, those that follow one another in a trajectory as one."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and (joined[-1].trajectory, joined[-1].turns[1]) == (piece.trajectory, piece.turns[0]):
            last = joined.pop()
            piece = replace(last, turns=(last.turns[0], piece.turns[1]), tokens=(last.tokens[0], piece.tokens[1]))
        joined.append(piece)
    return joined


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
