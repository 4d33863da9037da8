"""Result files of benchmarks/compare.py: reading them, and cells of tables with exact match over seeds and tasks.

Scores are those of each seed on the same tasks; intervals (95 %) are over seeds and tasks.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mem1.evaluation.intervals import difference_interval, seeds_interval

Scores = Sequence[Sequence[float]]
"""By seed and task."""


def read_result(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def mean_of(scores: Scores) -> float:
    """Over seeds and tasks."""
    return statistics.mean(map(statistics.mean, scores))


def mean_cell(scores: Scores) -> str:
    """mean_cell([[1.0, 0.0], [1.0, 1.0]])  ->  "0.75 [0.00, 1.00]" """
    low, high = seeds_interval(scores)
    return f"{mean_of(scores):.2f} [{low:.2f}, {high:.2f}]"


def difference_cell(ours: Scores, theirs: Scores) -> str:
    """The mean of ours less that of theirs, with its sign."""
    low, high = difference_interval(ours, theirs)
    return f"{mean_of(ours) - mean_of(theirs):+.2f} [{low:+.2f}, {high:+.2f}]"
