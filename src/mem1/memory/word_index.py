"""BM25 over the words of a few texts, for memories that look up what an attempt itself has seen or written."""

from __future__ import annotations

from collections.abc import Sequence

from mem1.words import words_of


class WordIndex:
    """Some texts, which can be compared with a query by their words (`mem1.words`)."""

    def __init__(self, texts: Sequence[str]) -> None:
        from mem1.lexical import bm25s

        # BM25 needs at least one word, so a text without any gets the empty one
        words = [words_of(text) or [""] for text in texts]
        self._known = {word for of_one in words for word in of_one}
        self._bm25 = bm25s.BM25()
        self._bm25.index(words, show_progress=False)
        self._size = len(words)

    def scores(self, query: str) -> list[float]:
        """The BM25 score of each text, in their order; 0 where it shares no word with the query."""
        known = [word for word in words_of(query, asked=True) if word in self._known]
        return self._bm25.get_scores(known).tolist() if known else [0.0] * self._size
