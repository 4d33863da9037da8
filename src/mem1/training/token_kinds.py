"""What the tokens of a vocabulary look like, and which of them are marks: what copying heads are written down with."""

from __future__ import annotations

from dataclasses import dataclass

from mem1.engines.codec import Codec
from mem1.tasks.cloze.expert import FOUND
from mem1.tasks.cloze.record import BLANK


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKinds:
    """Of one vocabulary."""

    kind: tuple[int, ...] = ()
    """Of each token, from 0: how it begins. Empty: all are alike."""
    found: int | None = None
    """After this token stands what a passage has after the words before it; None: there is no such token."""
    blank: tuple[int, ...] = ()
    """Tokens that never stand there."""


ALIKE = TokenKinds()
"""Nothing is known of the tokens."""


def token_kinds(codec: Codec) -> TokenKinds:
    """Of the marks, those that the vocabulary has as one token."""
    found, *blank = (codec.single_tokens([mark]) for mark in (f" {FOUND}", BLANK, f" {BLANK}"))
    return TokenKinds(
        kind=tuple(_kind(codec.decode([token])) for token in range(codec.vocab_size)),
        found=found[0] if found else None,
        blank=tuple(token for tokens in blank for token in tokens or ()),
    )


def _kind(text: str) -> int:
    """By the first letter and by whether a space stands before it: "Oslo", " Oslo", "oslo", "1901" and "," differ."""
    first = text.strip()[:1]
    if not first:
        looks = 0
    elif first.isalpha():
        looks = 1 if first.isupper() else 2
    else:
        looks = 3 if first.isdigit() else 4
    return 2 * looks + text.startswith(" ")
