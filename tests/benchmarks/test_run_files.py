"""benchmarks/run_files.py: runs as files and as lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from result_files import saved
from run_files import main, read_run, result_at, run_names

NOTES = {"rewards": [1.0, 0.25], "tokens": {"4": {"em": [0.5, 1.0], "peak": 127.84}, "32": {"em": [0.0312, 0.0]}}}
SHOP = {"tokens": {"2": {"reward": [0.3333, 1.0], "em_by_depth": {"1": 0.5}, "stages": {"em": 1.0}}}}


def test_a_packed_run_reads_as_its_file_did(tmp_path: Path):
    runs = tmp_path / "runs"
    for name, result in (("notes-seed0", NOTES), ("shop-seed0", SHOP)):
        saved(runs / f"{name}.json", result)
    before = read_run(runs / "notes-seed0.json")
    assert before is not None and before["result"] == NOTES
    main([str(runs)])
    assert not runs.exists()
    assert run_names(runs) == ["notes-seed0", "shop-seed0"]
    assert read_run(runs / "notes-seed0.json") == before
    assert result_at(runs / "shop-seed0.json") == SHOP
    first, _ = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert first == (
        '{"run":"notes-seed0","commit":"x","hardware":"y","result":{"rewards":[1,0.25],'
        '"tokens":{"4":{"solved":[2,4],"peak":127.84},"32":{"solved":[1,0]}}}}'
    )


def test_a_file_counts_more_than_a_line_and_is_added_when_packed_again(tmp_path: Path):
    runs = tmp_path / "runs"
    saved(runs / "a-seed0.json", {"seconds": 1.5})
    main([str(runs)])
    saved(runs / "a-seed0.json", {"seconds": 2.5})
    saved(runs / "b-seed0.json", {"seconds": 3.5})
    seconds = {"a-seed0": {"seconds": 2.5}, "b-seed0": {"seconds": 3.5}}
    assert {name: result_at(runs / f"{name}.json") for name in run_names(runs)} == seconds
    main([str(runs)])
    assert not runs.exists()
    assert {name: result_at(runs / f"{name}.json") for name in run_names(runs)} == seconds


def test_exact_match_that_is_no_count_of_objectives_stays_as_it_is(tmp_path: Path):
    saved(tmp_path / "runs" / "a-seed0.json", {"tokens": {"3": {"em": [0.4]}}})
    main([str(tmp_path / "runs")])
    assert result_at(tmp_path / "runs" / "a-seed0.json") == {"tokens": {"3": {"em": [0.4]}}}


def test_a_run_that_is_not_finished_is_none_and_an_empty_folder_a_mistake(tmp_path: Path, capsys):
    assert read_run(tmp_path / "runs" / "a-seed0.json") is None
    with pytest.raises(SystemExit):
        main([str(tmp_path / "runs")])
    assert "has no files of runs" in capsys.readouterr().err
