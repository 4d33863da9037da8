"""Which half a question belongs to: a hash of its text, so it is the same in every file and every order.

split_of("Who founded Alvex?")            ->  "train"
split_of("who founded the alvex")         ->  "train"       the same text after normalisation
"""

from __future__ import annotations

import hashlib
from typing import Literal

from mem1.scoring import normalize

Split = Literal["train", "evaluation"]
EVALUATION_SHARE = 0.1


def split_of(text: str, *, evaluation_share: float = EVALUATION_SHARE) -> Split:
    """The half of a question with this text. A larger share only moves questions from training to evaluation."""
    key = (normalize(text) or text).encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
    return "evaluation" if drawn < evaluation_share else "train"
