"""Builds the arrays of a BM25 index, block by block: what is held at a time grows with the index, not with the texts.

counts = count_words(["Cats sleep", "the cat"], stem=True)     counts.terms  ->  {"cat": 0, "sleep": 1}
weigh(counts, k1=0.9, b=0.4)
    ->  starts [0, 2, 3], postings [0, 1, 0], weights [...]     "cat" is in passages 0 and 1, "sleep" in 0
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mem1.retrieval.words import Numbers, words_of

_BLOCK = 1 << 14
"""Passages that are counted at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """How often which term stands in which passage: parallel int32 arrays, by term, then by passage."""

    term: np.ndarray
    passage: np.ndarray
    """Ascending from block to block as well."""
    frequency: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """The words of a corpus, counted."""

    terms: dict[str, int]
    """Stemmed word -> its number."""
    lengths: np.ndarray
    """int64, words of each passage, without stop words."""
    blocks: list[Block]


def count_words(texts: Iterable[str], *, stem: bool, block: int = _BLOCK) -> Counts:
    """Read each text once. `block` bounds the memory and changes nothing else."""
    numbers = Numbers(stem=stem)
    lengths: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    blocks: list[Block] = []
    first = 0
    for some in _in_blocks(texts, block):
        owner, words, length = _count_block(some, numbers)
        blocks.append(_pairs(owner, words, len(some), first))
        lengths.append(length)
        first += len(some)
    return Counts(terms=numbers.terms, lengths=np.concatenate(lengths), blocks=blocks)


def _in_blocks(texts: Iterable[str], block: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while some := list(itertools.islice(remaining, block)):
        yield some


def _count_block(texts: list[str], numbers: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(owner, word) for each word that is no stop word, one after the other, and the number of them a text."""
    flat = array("i")
    stops = [0]
    for text in texts:
        flat.extend(map(numbers.__getitem__, words_of(text)))
        stops.append(len(flat))
    words = np.array(flat, dtype=np.int64)
    known = words >= 0
    lengths = np.diff(np.concatenate([[0], np.cumsum(known)])[stops])
    return np.repeat(np.arange(len(texts)), lengths), words[known], lengths


def _pairs(owner: np.ndarray, words: np.ndarray, size: int, first: int) -> Block:
    # one sorted key per (term, passage) pair: its count is the term frequency
    pairs, frequency = np.unique(words * size + owner, return_counts=True)
    term, passage = np.divmod(pairs, size)
    return Block(
        term=term.astype(np.int32), passage=(first + passage).astype(np.int32), frequency=frequency.astype(np.int32)
    )


def weigh(counts: Counts, *, k1: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(starts, postings, weights) of `BM25`: idf * tf / (tf + k1 * (1 - b + b * length / mean length)).

    idf = ln(1 + (passages - df + 0.5) / (df + 0.5)) is above 0 even for a word of every passage.
    """
    passages, num_terms = len(counts.lengths), len(counts.terms)
    document_frequency = np.zeros(num_terms, dtype=np.int64)
    for block in counts.blocks:
        document_frequency += np.bincount(block.term, minlength=num_terms)
    idf = np.log1p((passages - document_frequency + 0.5) / (document_frequency + 0.5))
    discount = k1 * (1 - b + b * counts.lengths / counts.lengths.mean())
    starts = np.concatenate([[0], np.cumsum(document_frequency)]).astype(np.int64)
    postings = np.empty(starts[-1], dtype=np.int32)
    weights = np.empty(starts[-1], dtype=np.float32)
    free = starts[:-1].copy()  # where the next passage of each term goes
    for block in counts.blocks:
        begins = np.flatnonzero(np.diff(block.term, prepend=-1))
        held = np.diff(begins, append=len(block.term))
        place = np.repeat(free[block.term[begins]] - begins, held) + np.arange(len(block.term))
        postings[place] = block.passage
        weights[place] = idf[block.term] * block.frequency / (block.frequency + discount[block.passage])
        free[block.term[begins]] += held
    return starts, postings, weights
