"""Guesses at the next tokens of a row: what followed the same tokens before.

    ... <note> Q1 Velan </note> ... <note> Q1          guessed: Velan </note>

A memory is mostly copied from what it was, and what it adds from the result beside it. A pass over a network costs
little more for some tokens than for one, as long as it waits for its weights. So guesses are computed with the last
token of their row; from each place a token is drawn just as it would have been, and where it is the one that was
guessed, the next is drawn in the same pass. What is sampled stays the same, guesses right or wrong.

Source: prompt lookup decoding (Saxena, 2023), the case of speculative decoding (Leviathan et al., arXiv 2211.17192)
without a second model. As every place has its random number, nothing needs to be accepted by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

_LENGTHS = (3, 2, 1)
"""How many last tokens must have come before; the longest that have are followed."""
_EACH = 6
"""Most guesses for a row."""
_TOGETHER = {"cpu": 24}
"""Tokens of decoding rows, with guesses, for which a pass takes hardly longer than for fewer; by kind of device."""
_TOGETHER_ELSEWHERE = 256


def guesses_each(rows: int, kind: str) -> int:
    """How many tokens to guess for each of so many rows on this kind of device."""
    return min(_EACH, max(0, _TOGETHER.get(kind, _TOGETHER_ELSEWHERE) // max(rows, 1) - 1))


class Lookahead:
    """What followed what, in one sequence that only grows."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        """Some tokens -> the place after the last time they came."""
        self._known = 0
        """Number of tokens that are looked up."""

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """So many tokens that may follow; none where the last token is new."""
        if most < 1:
            return []
        for place in range(self._known, len(ids)):
            for length in _LENGTHS:
                if length <= place:
                    self._next[tuple(ids[place - length : place])] = place
        self._known = len(ids)
        for length in _LENGTHS:
            place = self._next.get(tuple(ids[-length:]))
            if place is not None:
                period = len(ids) - place  # what reaches the end goes on as it would, were it repeated
                return [ids[place + number % period] for number in range(most)]
        return []
