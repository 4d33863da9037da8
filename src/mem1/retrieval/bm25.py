"""BM25 over titles and texts: the search engine of the training loop and of local corpora.

    bm25 = BM25.build([Passage("p0", "Oslo", "Oslo is the capital of Norway."), ...])
    bm25.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", ...), 1.93), ...]]

    Numbers(stem=True).of_text("The cats, a cat")   ->  [0, 0]      "the" and "a" are stop words

Robertson & Zaragoza (2009) in Lucene's variant, as computed by bm25s (arXiv 2407.03618): the weights are computed when
the index is built, and a search adds up the stored weights of the query's words (`mem1.words`). English stop words are
left out, but for those in capitals, such as the department IT and the vitamin A; words are stemmed (Snowball).
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import Stemmer

from mem1.errors import Damaged, UserError
from mem1.lexical import bm25s
from mem1.records import Passage
from mem1.retrieval.base import Result, check_search, searched_text
from mem1.retrieval.corpus import OFFSETS, PASSAGES, StoredPassages, store_passages
from mem1.retrieval.index_files import read_folder, save_folder, understood
from mem1.words import VERSION, words_in, words_of

STOP_WORDS = frozenset(bm25s.stopwords.STOPWORDS_EN)
"""Lucene's English stop words."""
_LANGUAGE = "english"
_CAPITALS = frozenset(word.upper() for word in STOP_WORDS if len(word) > 1)
"""Stop words as names: IT, OR."""
_LETTER = re.compile(r"A(?<=\w A)(?![\w'\u2019-])")
"""A letter behind a word, which no article at the beginning of a sentence is."""


def stemmer() -> Callable[[str], str]:
    """A new stemmer, because threads must not share one; creating it takes a microsecond."""
    return Stemmer.Stemmer(_LANGUAGE).stemWord


class _Stems(dict[str, int]):
    """Word -> number of its stem in `terms`, in the order of their first appearance; -1 for a stop word."""

    def __init__(self, stem: Callable[[str], str]) -> None:
        super().__init__(dict.fromkeys(STOP_WORDS, -1))
        self.terms: dict[str, int] = {}
        self._stem = stem

    def __missing__(self, word: str) -> int:
        number = self[word] = self.terms.setdefault(self._stem(word), len(self.terms))
        return number


class Numbers(dict[str, bytes]):
    """Text without white space -> numbers of the stems of its words, without stop words. Filled on access.

    They are kept as bytes, which unlike tuples are no work for the collector of garbage.
    """

    def __init__(self, *, stem: bool) -> None:
        self._stems = _Stems(stemmer() if stem else str)
        self.terms = self._stems.terms

    def __missing__(self, piece: str) -> bytes:
        # most of what stands around a word without a meaning
        bare = piece.rstrip('.,;:)"').lstrip('("').removesuffix("'s")
        if bare != piece:
            numbers = self[bare]
        elif piece in _CAPITALS:
            numbers = array("i", [self.terms.setdefault(piece, len(self.terms))]).tobytes()
        else:
            numbers = array("i", [n for n in map(self._stems.__getitem__, words_in(piece)) if n >= 0]).tobytes()
        if len(piece) <= _LONGEST_KEPT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[piece] = numbers
        return numbers

    def of_text(self, text: str) -> list[int]:
        """The numbers of a text's words in order, without stop words."""
        numbers = array("i", b"".join(map(self.__getitem__, text.split()))).tolist()
        if " A" in text and (letters := _LETTER.findall(text)):
            numbers += [self.terms.setdefault("A", len(self.terms))] * len(letters)
        return numbers


_LONGEST_KEPT, _MOST_KEPT = 40, 1 << 20
"""Bounds of `Numbers`: characters of a text that it keeps, such as no sentence of Chinese, and their number."""
KIND = "bm25"
_ARRAYS = ("data", "indices", "indptr")
FILES = (PASSAGES, OFFSETS, *(f"{name}.csc.index.npy" for name in _ARRAYS), "vocab.index.json", "params.index.json")
"""Files of a saved index, besides its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BM25:
    """A finished index; immutable, so any number of threads may search it."""

    passages: Sequence[Passage]
    index: bm25s.BM25
    """Its vocabulary holds stems; document i is `passages[i]`."""
    stem: bool
    """Whether words are stemmed (Snowball, English)."""

    @classmethod
    def build(cls, passages: Sequence[Passage], *, stem: bool = True, k1: float = 0.9, b: float = 0.4) -> BM25:
        """Index title and text of every passage.

        `k1` >= 0: how slowly repetitions of a word saturate; 0 <= `b` <= 1: how much long passages are discounted.
        Raises UserError where these are out of range or no passage contains a searchable word.
        """
        if k1 < 0 or not 0 <= b <= 1:
            raise UserError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, not k1={k1}, b={b}")
        numbers = Numbers(stem=stem)
        words = [numbers.of_text(searched_text(passage)) for passage in passages]
        if not numbers.terms:
            raise UserError(
                f"none of the {len(passages)} passages contains a searchable word "
                "(one that is no stop word); check the corpus"
            )
        index = bm25s.BM25(k1=k1, b=b)
        index.index((words, numbers.terms), create_empty_token=False, show_progress=False)
        return cls(passages=tuple(passages), index=index, stem=stem)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index, including its passages, to a folder, completely or not at all.

        Replaces an existing index. Raises UserError where writing fails or the folder holds something else.
        """

        def write(folder: Path) -> None:
            store_passages(folder, self.passages)
            self.index.save(folder, show_progress=False)

        save_folder(
            path, kind=KIND, facts={"stem": self.stem, "words": VERSION, "passages": len(self.passages)}, write=write
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BM25:
        """Open a saved index; arrays and passages are memory-mapped and read from disk on access.

        Raises UserError where the folder is missing, damaged (sizes and checksums are compared) or not ours.
        """
        facts = read_folder(path, kind=KIND)
        folder = Path(path)
        if facts.get("words") != VERSION:
            raise Damaged(f"{folder} was made by a mem1 that cuts texts into other words", "build the index again")
        with understood(folder, kind=KIND):
            index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            for name in _ARRAYS:
                # plain arrays over the same mapped memory: slicing them costs a tenth of slicing a memmap
                index.scores[name] = np.asarray(index.scores[name])
            loaded = cls(passages=StoredPassages(folder), index=index, stem=bool(facts["stem"]))
            loaded._check()
        return loaded

    def _check(self) -> None:
        """Raises ValueError where the arrays contradict each other, as those of a tampered index may."""
        data, positions, starts = (self.index.scores[name] for name in _ARRAYS)
        terms = self.index.vocab_dict.values()
        if (
            len(data) != len(positions)
            or starts[0] != 0
            or starts[-1] != len(data)
            or (np.diff(starts) < 0).any()
            or not all(isinstance(number, int) and 0 <= number < len(starts) - 1 for number in terms)
            or self.index.scores["num_docs"] != len(self.passages)
            or (len(positions) and not 0 <= positions.min() <= positions.max() < len(self.passages))
        ):
            raise ValueError("its arrays do not fit together")

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, score) that share a word with it; equal scores in the passages' order."""
        check_search(queries, k)
        return [self._best(terms, k) for terms in self._query_terms(queries)]

    def _query_terms(self, queries: Sequence[str]) -> list[list[int]]:
        """Per query the numbers of its known terms, repeated as in the query."""
        stem_of, number = stemmer() if self.stem else str, self.index.vocab_dict.get
        found = list[list[int]]()
        for query in queries:
            words = [stem_of(word) for word in words_of(query, asked=True) if word not in STOP_WORDS]
            if not query.isupper():
                words += [bare for piece in query.split() if (bare := piece.strip(".,;:?!()\"'")) in _CAPITALS]
                words += _LETTER.findall(query)
            found.append([t for t in map(number, words) if t is not None])
        return found

    def _best(self, terms: list[int], k: int) -> Result:
        if not terms:
            return []
        scores = self.index.get_scores_from_ids(terms)
        found = scores.nonzero()[0]
        found_scores = scores[found]
        if len(found) > k:
            kth_best = np.partition(found_scores, -k)[-k]
            found = found[found_scores >= kth_best]
            found_scores = scores[found]
        order = np.argsort(-found_scores, kind="stable")[:k]
        best = zip(found[order].tolist(), found_scores[order].tolist(), strict=True)
        return [(self.passages[i], score) for i, score in best]
