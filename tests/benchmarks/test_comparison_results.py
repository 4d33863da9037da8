"""The documentation names the commits that the files of the comparison were made with."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import read_run, run_names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "research" / "comparison.md").read_text(encoding="utf-8")
FEWER = {
    "beyond-2-4": 3,
    "beyond-2-4-objectives": 1,
    "beyond-600000": 18,
    "beyond-chains": 8,
    "beyond-chains-first-start": 4,
    "beyond-recall": 16,
    "beyond-recall-90": 10,
    "beyond-chains-2-4": 2,
    "beyond-channels/memory-gain": 4,
    "beyond-channels/memory-length": 4,
    "beyond-channels/reroll": 4,
    "beyond-channels/word-gain": 4,
    "beyond-credit/channels": 6,
    "beyond-credit/grpo": 6,
    "beyond-curriculum": 4,
    "beyond-frontier": 30,
    "beyond-again": 5,
    "beyond-belief/constant": 4,
    "beyond-belief/one-call": 4,
    "beyond-belief/one-call-begun": 4,
    "beyond-belief/two-calls": 4,
    "beyond-caps/cut": 8,
    "beyond-caps/limit": 8,
    "beyond-caps/rewrite": 16,
    "beyond-frontier-chosen": 10,
    "beyond-frontier-development": 12,
    "beyond-clozes-shared-start": 6,
    "beyond-shop": 12,
}
"""Fewest results, of experiments that are not finished or were stopped."""
RESULTS = {
    "compare-atlas": PAGE.split("## Questions that depend")[0],
    "compare-atlas-chain": PAGE.split("## Questions that depend")[1].split("### Trained on two")[0],
    "compare-atlas-chain-2-4": PAGE.split("### Trained on two")[1],
    **dict.fromkeys(("beyond", "beyond-clozes", *FEWER), (ROOT / "research" / "beyond.md").read_text(encoding="utf-8")),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_commit_of_a_result_file_is_named_beside_its_table(name: str):
    folder = ROOT / "benchmarks" / "results" / name
    runs = [folder / kind / f"{run}.json" for kind in ("runs", "search", "sizes") for run in run_names(folder / kind)]
    commits = {(read_run(run) or {})["commit"] for run in runs}
    assert len(runs) >= FEWER.get(name, 8) and commits
    assert {commit for commit in commits if commit not in RESULTS[name]} == set()
