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
_RIGHT_AT_FIRST, _WEIGHT, _FORGIVEN, _SPARE = 2.0, 0.2, 0.005, 0.6
"""Guesses that are taken to be right at first, the weight of the last pass, what is forgiven for each pass without a
guess, and what is guessed beyond twice that. By runs of three recipes' demonstrations and of prose: guesses cost time
where they are wrong."""
_EACH = 6
"""Most guesses for a row."""
_TOGETHER = {"cpu": 48}
"""Tokens of decoding rows, with guesses, for which a pass takes hardly longer than for fewer; by kind of device."""
_TOGETHER_ELSEWHERE = 256


def guesses_each(rows: int, kind: str) -> int:
    """How many tokens to guess for each of so many rows on this kind of device."""
    return min(_EACH, max(0, _TOGETHER.get(kind, _TOGETHER_ELSEWHERE) // max(rows, 1) - 1))


class Lookahead:
    """What followed what, in one sequence that only grows, and how far it could be trusted."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        """Some tokens -> the place after the last time they came."""
        self._known = 0
        """Number of tokens that are looked up."""
        self._right: dict[int, float] = dict.fromkeys(_LENGTHS, _RIGHT_AT_FIRST)
        """How many guesses were right in a pass of late, by how many tokens had come before."""
        self._length = _LENGTHS[0]
        """How many tokens the last guesses followed."""

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Tokens that may follow, at most so many; fewer, or none, where guesses were wrong or the last token is
        new."""
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
                self._length = length
                number = min(most, int(2 * self._right[length] + _SPARE))
                if not number:
                    self._right[length] += _FORGIVEN
                period = len(ids) - place  # what reaches the end goes on as it would, were it repeated
                return [ids[place + after % period] for after in range(number)]
        return []

    def learn(self, right: int) -> None:
        """So many of the last guesses were right."""
        self._right[self._length] += _WEIGHT * (right - self._right[self._length])
