"""Which side of a split a text belongs to: a hash of it decides, so every file and every order gives the same answer.

split_of("Who founded Alvex?")                                    ->  "train"
split_of("who founded the alvex")                                 ->  "train"       the same text after normalisation
part_of("Alvex was founded in 1901.", development=0.1, test=0.1)  ->  "development"
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from mem1.scoring import normalize

Split = Literal["train", "evaluation"]
"""The half that a policy is trained on, and the half that it is evaluated on."""
Part = Literal["train", "development", "test"]
"""Three parts, where one of them is for choosing between policies and another for the final number."""
PARTS: tuple[Part, ...] = get_args(Part)
EVALUATION_SHARE = 0.1


def split_of(text: str, *, evaluation_share: float = EVALUATION_SHARE) -> Split:
    """The half of a question with this text. A larger share only moves questions from training to evaluation."""
    return "evaluation" if _fraction(text) < evaluation_share else "train"


def part_of(text: str, *, development: float, test: float) -> Part:
    """The part of a passage with this text. Larger shares only move passages out of training."""
    fraction = _fraction(text)
    if fraction < test:
        return "test"
    return "development" if fraction >= 1 - development else "train"


def _fraction(text: str) -> float:
    """A number in [0, 1) drawn by the normalised text."""
    key = (normalize(text) or text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
