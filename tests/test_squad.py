"""Our scorer against SQuAD's rules written a second time, by other means, on 5,000 random cases.

The rules are those of evaluate-v1.1.py (Rajpurkar et al. 2016), read again and written without regular expressions or
translation tables: letters are filtered one by one, articles are whole runs of word characters, common tokens are
counted off one by one, and F1 is an exact fraction. Whoever shares a mistake with it must have made it twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

from mem1.scoring import exact_match, f1

CASES = 5_000
ASCII_PUNCTUATION = {chr(i) for i in (*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127))}
ARTICLES = ("a", "an", "the")
WORDS = ("the", "The", "THE", "a", "A", "an", "An", "theatre", "Ana", "a1", "Paris", "paris", "U.S.", "us", "1901")
ODD = (
    *("the-a", "a.n", "t'he", "_the_", "the—a", "«an»", "a\u0301", "e\u0301", "\u00e9", "ÀÉ", "ß", "ẞ", "İ", "\u0131"),
    *("\u017f", "Ⅷ", "²", "½", "٣", "三", "東京", "the東京", "ﬁ", "\u0345", "👍", "👩\u200d🚀", "…", "!!!", "—", "$5"),
)
BLANKS = (" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x1c", "\x85", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "")


def tokens(text: str) -> list[str]:
    """Lower case, then no ASCII punctuation, then articles to blanks, then cut at white space: in this order."""
    kept = "".join(c for c in text.lower() if c not in ASCII_PUNCTUATION)
    runs = ("".join(run) for _, run in groupby(kept, key=str.isalnum))  # an article stands between word borders
    return "".join(" " if run in ARTICLES else run for run in runs).split()


def overlap(one: Sequence[str], other: Sequence[str]) -> int:
    left, common = Counter(other), 0
    for token in one:
        if left[token]:
            left[token] -= 1
            common += 1
    return common


def squad_f1(prediction: str, golds: Sequence[str]) -> Fraction:
    predicted, best = tokens(prediction), Fraction(0)
    for gold in golds:
        wanted = tokens(gold)
        if common := overlap(predicted, wanted):
            # 2 P R / (P + R) with P = common / predicted and R = common / wanted
            best = max(best, Fraction(2 * common, len(predicted) + len(wanted)))
    return best


def squad_em(prediction: str, golds: Sequence[str]) -> bool:
    return " ".join(tokens(prediction)) in {" ".join(tokens(gold)) for gold in golds}


def random_text(rng: random.Random) -> str:
    """Repeated words, articles and punctuation, odd characters, or whatever Unicode has (no half surrogates)."""
    if rng.random() < 0.15:
        return "".join(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(6))
    pool = WORDS if rng.random() < 0.6 else WORDS + ODD
    parts: list[str] = []
    for _ in range(rng.randint(0, 5)):
        parts += [rng.choice(pool), rng.choice(BLANKS) if rng.random() < 0.3 else " "]
    return "".join(parts)


def case(rng: random.Random) -> tuple[str, list[str]]:
    """A prediction and up to three golds, of which one is often made of the prediction's words."""
    prediction = random_text(rng)
    golds = [random_text(rng) for _ in range(rng.randint(0, 3))]
    if golds and rng.random() < 0.7:
        words = prediction.split(" ")
        if rng.random() < 0.6:
            rng.shuffle(words)
            words = [*words[: rng.randint(1, len(words))], rng.choice(WORDS)]
        golds[rng.randrange(len(golds))] = (
            f"{rng.choice(('the ', '', 'A '))}{' '.join(words).upper()}{rng.choice('.!- ')}"
        )
    return prediction, golds


def test_both_scorers_agree_on_every_case():
    rng = random.Random(2016)
    matches = partial = empty = 0
    for _ in range(CASES):
        prediction, golds = case(rng)
        expected = squad_f1(prediction, golds)
        assert exact_match(prediction, golds) == squad_em(prediction, golds), ascii((prediction, golds))
        assert abs(f1(prediction, golds) - expected) < 1e-12, ascii((prediction, golds))
        matches += squad_em(prediction, golds)
        partial += 0 < expected < 1
        empty += not tokens(prediction)
    # the cases are of every kind, so that agreement says something
    assert min(matches, partial, CASES - matches - partial) > CASES // 10 and empty > CASES // 40
