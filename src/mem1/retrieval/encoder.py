"""The port of every encoder: texts in, vectors of length 1 out; and one that needs no model.

    HashedWords(dimension=4).encode(["Oslo", "oslo oslo", ""])  ->  [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

A real one is `SentenceEncoder`, in sentence_encoder.py.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_WORD = re.compile(r"\w+")


class Encoder(Protocol):
    """Anything that turns a text into a direction; texts of one meaning should point one way."""

    @property
    def name(self) -> str:
        """Folder or id by which `load_encoder` finds it again."""
        ...

    @property
    def fingerprint(self) -> str:
        """The same for the same weights and settings, whatever they are called."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, dimension], each of length 1. May be called from several threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedWords:
    """Counts of words, each put at a place given by its checksum; for tests and demonstrations."""

    dimension: int = 256

    @property
    def name(self) -> str:
        return "hashed-words"

    @property
    def fingerprint(self) -> str:
        return f"hashed-words-{self.dimension}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in _WORD.findall(text.lower()):
                vector[zlib.crc32(word.encode("utf-8", "replace")) % self.dimension] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12)
