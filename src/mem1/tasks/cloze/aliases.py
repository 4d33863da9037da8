"""Spellings that count as the same answer, beside what the scorer folds anyway (case, punctuation, articles).

aliases("Jean-Luc Müller")  ->  ("Jean-Luc Müller", "Jean Luc Müller", "Jean-Luc Muller", "Jean Luc Muller")
aliases("1,200")            ->  ("1,200",)      the scorer drops the comma
"""

from __future__ import annotations

import unicodedata

from mem1.scoring import normalize

_HYPHENS = dict.fromkeys(map(ord, "-\u2010\u2011\u2013"), " ")


def aliases(answer: str) -> tuple[str, ...]:
    """The answer first, then its other spellings, none twice after normalisation."""
    spellings = [answer, answer.translate(_HYPHENS)]
    spellings += [_without_accents(spelling) for spelling in spellings]
    kept: dict[str, str] = {}
    for spelling in spellings:
        kept.setdefault(normalize(spelling), spelling)
    return tuple(kept.values())


def _without_accents(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(c for c in letters if not unicodedata.combining(c)))
