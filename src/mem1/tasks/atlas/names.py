"""Names of two words, so that copying them is learnt and not memorised.

Every name is a first word and a last word ("Velan Toris"). A name belongs for ever to the training or to the
evaluation half, by a hash of the pair: single words are shared, whole names never are.
"""

from __future__ import annotations

import zlib
from itertools import product
from typing import Literal

Split = Literal["train", "evaluation"]

WORDS = 160
"""First words, and as many last words."""
_EVALUATION_SHARE = 4
"""One name in so many is kept for evaluation worlds."""


def _words(onsets: str, vowels: str, middles: str, codas: tuple[str, ...]) -> tuple[str, ...]:
    everything = [
        (o + v + m + c).capitalize() for o, v, m, c in product(onsets.split(), vowels, middles.split(), codas)
    ]
    step = len(everything) // WORDS
    return tuple(everything[::step][:WORDS])


FIRST_WORDS = _words("b d f g h j k l m n p r s t v z", "aeiou", "l r n v", ("a", "en", "is", "o"))
"""Such as Balen, Dorvis, Keno."""
LAST_WORDS = _words("br ch dr fl gr kl pr sk st tr th wh", "aeiou", "nd st rk ll", ("", "er", "ov", "um"))
"""Such as Brandov, Kleller, Storkum."""


def names(split: Split) -> list[str]:
    """All names of one half, in a fixed order: 19,200 or so for training, 6,400 or so for evaluation."""
    return [f"{first} {last}" for first in FIRST_WORDS for last in LAST_WORDS if split_of(first, last) == split]


def split_of(first: str, last: str) -> Split:
    """The half to which a name belongs."""
    code = zlib.crc32(f"{first} {last}".encode())
    return "evaluation" if code % _EVALUATION_SHARE == 0 else "train"
