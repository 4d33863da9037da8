"""Simple ways to shorten a transcript to a number of tokens, without a language model.

    Recency().compress(Kept(), pieces, 2_000)   ->   Kept(text="...", behind="")

A compressor is given what it kept before and what has come since, and keeps at most the tokens that it is allowed. So
one cycle is the whole transcript at once, and twenty are a long run in which it was shortened twenty times.

recency         the newest text
without-results the newest text, results left out
head-tail       the beginning and the end of every message, all equally long
index           what the user said, and of everything else the exact words: identifiers, numbers, paths, dates, names
textrank        the sentences that share most words with others (Mihalcea and Tarau, "TextRank", EMNLP 2004)
archive         one line for each message, behind which it stands; and the newest text
full            everything, whatever it costs
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mem1.extras.probe.pieces import Piece, newest
from mem1.messages.bounds import estimated
from mem1.messages.wholes import is_exact, words

_SENTENCES = 1_500
"""Most sentences that are ranked together: their similarities take the square."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a compressor has kept."""

    text: str = ""
    behind: str = ""
    """What the text can open by handles."""


class Compressor(Protocol):
    """Something that shortens a transcript."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        """What is left of what was kept and of the pieces that came since, in at most so many tokens."""
        ...


class Recency:
    """The newest text."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        return Kept(newest(_joined([kept.text, *(piece.text for piece in pieces)]), tokens))


class WithoutResults:
    """The newest text, results left out."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        said = [piece.text for piece in pieces if piece.role != "result"]
        return Kept(newest(_joined([kept.text, *said]), tokens))


class HeadTail:
    """The beginning and the end of every message; the newest messages where even these are too many."""

    _GAP = " ... "
    _SHORTEST = 160
    """Characters of a message; fewer tell nothing."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        lines = [*kept.text.splitlines(), *(" ".join(piece.text.split()) for piece in pieces)]
        longest = max([self._SHORTEST, *map(len, lines)])

        def cut(less: int) -> str:
            """Every line so many characters shorter than the longest may be."""
            return _joined(self._cut(line, longest - less) for line in lines)

        least = bisect_left(range(longest - self._SHORTEST), True, key=lambda less: estimated(cut(less)) <= tokens)
        return Kept(newest(cut(least), tokens))

    def _cut(self, line: str, most: int) -> str:
        if len(line) <= most:
            return line
        half = max(1, (most - len(self._GAP)) // 2)
        return f"{line[:half]}{self._GAP}{line[-half:]}"


class Index:
    """What the user said, and the exact words of everything else behind how it begins; the newest where that is too
    much."""

    _HEAD = 6

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        lines = [*kept.text.splitlines(), *filter(None, (self._line(piece) for piece in pieces))]
        once = list(dict.fromkeys(reversed(lines)))
        return Kept(newest(_joined(reversed(once)), tokens))

    def _line(self, piece: Piece) -> str:
        flat = piece.text.split()
        if piece.role == "user":
            return " ".join(flat)
        exact = "; ".join(dict.fromkeys(phrases(flat[self._HEAD :])))
        return f"{' '.join(flat[: self._HEAD])}: {exact}" if exact else ""


def phrases(flat: Sequence[str]) -> Iterator[str]:
    """Runs of words that are exact or written large, but for a first word of a sentence that is no more than that."""
    run: list[str] = []
    begins = True
    for word, following in itertools.zip_longest(flat, flat[1:], fillvalue=""):
        bare = next(words(word), "")
        if word.startswith("[") and bare.isdigit():  # a number in a list
            continue
        large = bare[:1].isupper() and (not begins or (following[:1].isupper() and word[-1:] not in ".,;:"))
        if is_exact(bare) or bare.isdigit() or large:
            run.append(word)
        elif run:
            yield " ".join(run).strip(".,;:")
            run = []
        if run and word[-1:] in ".,;:" and not large:
            yield " ".join(run).strip(".,;:")
            run = []
        begins = word[-1:] in ".!?:" or word.startswith(("-", "["))
    if run:
        yield " ".join(run).strip(".,;:")


class TextRank:
    """The sentences that share most words with others, in their order."""

    _DAMPING = 0.85
    _ROUNDS = 30

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        sentences = [one for text in (kept.text, *(piece.text for piece in pieces)) for one in _sentences(text)]
        sentences = list(dict.fromkeys(sentences))
        chosen, wished = "", float(tokens)
        for _ in range(2):  # together they have fewer tokens than one by one
            share = wished / max(1, sum(map(estimated, sentences)))
            found: list[str] = []
            for start in range(0, len(sentences), _SENTENCES):
                part = sentences[start : start + _SENTENCES]
                found += self._best(part, int(share * sum(map(estimated, part))))
            chosen = "\n".join(found)
            wished *= tokens / max(1, estimated(chosen))
        return Kept(newest(chosen, tokens))

    def _best(self, sentences: list[str], tokens: int) -> list[str]:
        left = tokens
        taken: list[int] = []
        for at in np.argsort(-self._ranks(sentences), kind="stable").tolist():
            size = estimated(sentences[at])
            if size <= left:
                left -= size
                taken.append(at)
        return [sentences[at] for at in sorted(taken)]

    def _ranks(self, sentences: Sequence[str]) -> np.ndarray:
        """(S,), by the words that two sentences share over the logarithms of their lengths (equation of section 4)."""
        numbers: dict[str, int] = {}
        bags = [{numbers.setdefault(word, len(numbers)) for word in words(one.casefold())} for one in sentences]
        has_SW = np.zeros((len(bags), len(numbers)), dtype=np.float32)
        for row, bag in zip(has_SW, bags, strict=True):
            row[list(bag)] = 1
        lengths_S = np.log(1 + has_SW.sum(1))
        alike_SS = has_SW @ has_SW.T / np.maximum(lengths_S[:, None] + lengths_S, 1e-6)
        np.fill_diagonal(alike_SS, 0)
        alike_SS /= np.maximum(alike_SS.sum(0), 1e-6)
        ranks_S = np.full(len(bags), 1 / max(1, len(bags)))
        for _ in range(self._ROUNDS):
            ranks_S = (1 - self._DAMPING) / max(1, len(bags)) + self._DAMPING * (alike_SS @ ranks_S)
        return ranks_S


class Archive:
    """A line for each message, behind which it can be opened, on a third of the tokens; and the newest text."""

    _LINES, _LINE = 1 / 3, 60
    _BETWEEN = "\n\n"

    def __init__(self) -> None:
        self._behind: dict[str, str] = {}
        """Line -> what it stands for."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        before, _, text = kept.text.partition(self._BETWEEN)
        self._behind |= {self._line(piece): piece.text for piece in pieces}
        lines = [before, *(self._line(piece) for piece in pieces)]
        listed = newest(_joined(lines), int(tokens * self._LINES))
        recent = newest(_joined([text, *(piece.text.replace(self._BETWEEN, "\n") for piece in pieces)]), tokens - 1)
        recent = newest(recent, tokens - estimated(listed) - 1)
        behind = _joined(self._behind.get(line, "") for line in listed.splitlines())
        return Kept(f"{listed}{self._BETWEEN}{recent}" if listed or recent else "", behind)

    def _line(self, piece: Piece) -> str:
        number, handle = piece.message, ""
        while number:  # in letters, so that no handle is taken for a number of the work
            number, last = divmod(number, 26)
            handle = chr(ord("a") + last) + handle
        return f"[{handle}] {' '.join(piece.text.split())[: self._LINE].rpartition(' ')[0]}"


class Full:
    """Everything."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        return Kept(_joined([kept.text, *(piece.text for piece in pieces)]))


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def _sentences(text: str) -> Iterator[str]:
    for line in text.splitlines():
        start = 0
        for at, sign in enumerate(line):
            if sign in ".!?" and line[at + 1 : at + 2] == " " and line[at + 2 : at + 3].isupper():
                yield line[start : at + 1].strip()
                start = at + 1
        if rest := line[start:].strip():
            yield rest


SIMPLE: Mapping[str, Callable[[], Compressor]] = {
    "recency": Recency,
    "without-results": WithoutResults,
    "head-tail": HeadTail,
    "index": Index,
    "textrank": TextRank,
    "archive": Archive,
    "full": Full,
}
"""By the names that `mem1 probe` takes."""
