"""Readers, which fill the blank of a cloze from what was retained.

    extract("The staging host is ____.", "- the staging host is now eu-7.internal")   ->   "eu-7.internal"

The extractive one takes the line that shares most words with the cloze, rare words above all, and from it the exact
words or names that the cloze does not have, those that stand where the blank is.
"""

from __future__ import annotations

import math
from collections import Counter

from mem1.extras.probe.compressors import phrases
from mem1.extras.probe.transcripts import Fact
from mem1.extras.probe.writers import Write
from mem1.messages.wholes import normal, words
from mem1.tasks.cloze.questions import BLANK

_WORDS = 12
"""Most words of an answer that counts: a text that holds everything is none."""
_BEFORE = 60
"""Characters before an answer in which the words before the blank are looked for."""
_ASK = (
    "Below are notes about a long piece of work. Fill the blank ____ in the sentence from the notes. Reply with the "
    "missing words alone, or with: unknown\n\nNotes:\n{text}\n\nSentence: {cloze}"
)


class Extractive:
    """Reads one text many times."""

    def __init__(self, text: str) -> None:
        self._lines = [line for line in text.splitlines() if line.strip()]
        self._bags = [frozenset(words(normal(line))) for line in self._lines]
        self._in = Counter(word for bag in self._bags for word in bag)

    def __call__(self, cloze: str) -> str:
        """What fills the blank; empty: nothing is found."""
        asked = frozenset(words(normal(cloze.replace(BLANK, " "))))
        weights = {word: math.log(1 + len(self._bags) / self._in[word]) for word in asked if word in self._in}
        scores = [sum(weights[word] for word in weights if word in bag) for bag in self._bags]
        if not weights or not scores or not max(scores):
            return ""
        line = self._lines[max(range(len(scores)), key=lambda at: (scores[at], at))]  # of equal ones the newest
        return self._filled(cloze, line, asked)

    def _filled(self, cloze: str, line: str, asked: frozenset[str]) -> str:
        start, _, end = cloze.partition(BLANK)
        before, after = list(words(normal(start)))[-3:], list(words(normal(end)))[:1]
        flat = line.split()
        options = [phrase for phrase in phrases(flat) if not asked.issuperset(words(normal(phrase)))]
        if not options:
            return ""
        text = normal(line)

        def fits(option: str) -> tuple[int, int]:
            """How many of the words around the blank stand around the option, and how early it stands."""
            place = max(text.find(normal(option)), 0)
            near = text[max(0, place - _BEFORE) : place]
            follows = text[place + len(normal(option)) :].split()[:1]
            left_behind = near.endswith(("from ", "not "))  # "from A to B"
            return sum(word in near for word in before) + (bool(after) and follows == after) - 2 * left_behind, -place

        return max(options, key=fits)


def served_answer(write: Write, text: str, cloze: str) -> str:
    """What a model fills in."""
    return write([{"role": "user", "content": _ASK.format(text=text, cloze=cloze)}])


def is_right(fact: Fact, answer: str) -> bool:
    """Whether an answer is one of the forms, or a few words with one of them and without a stale value."""
    flat = list(words(normal(answer)))
    if not flat or len(flat) > _WORDS:
        return False
    return any(_has(flat, form) for form in fact.forms) and not any(_has(flat, form) for form in fact.stale)


def _has(flat: list[str], form: str) -> bool:
    wanted = list(words(normal(form)))
    return any(flat[at : at + len(wanted)] == wanted for at in range(len(flat) - len(wanted) + 1))
