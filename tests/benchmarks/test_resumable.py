"""Benchmarks that can be interrupted: their tables, and that a repeated command makes only what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import agents_elsewhere
import pytest
from resumable import read_records
from rl_against_sft import ROWS, main, table

SMALL = "--seeds 0 --variants sft_all sft_then_rl --recorded 2 --sizes 1 2 --tasks 1 1 --minutes 0.00001".split()  # noqa: SIM905
SMALL += ["rl.tasks_per_step=1", "rl.group_size=2", "tasks.worlds=1", "budget.completion_extra=20", "--out"]


ROOT = Path(__file__).parents[2]


def write_record(folder: Path, name: str, em: list[tuple[float, float]], **changed: Any) -> None:
    record = {"steps": 4, "em": {"2": em}, "questions": {"2": [[0, 1], [2, 3]]}, "tasks": "same", **changed}
    (folder / f"{name}.json").write_text(json.dumps(record))


class TestTable:
    def test_a_row_has_the_mean_of_its_seeds_and_what_it_differs_from_rl_by(self, tmp_path):
        write_record(tmp_path, "expert-seed0", [(1, 1), (1, 1)], steps=0)
        for seed, (rl, sft) in enumerate([(1, 0), (1, 1)]):
            write_record(tmp_path, f"rl-seed{seed}", [(1, rl), (1, rl)], steps=3 + 2 * seed)
            write_record(tmp_path, f"sft-seed{seed}", [(1, 0), (sft, 0)])
        lines = [line.split("|")[1:-1] for line in table(read_records(tmp_path, ROWS)).splitlines()]
        assert [cell.strip() for cell in lines[0]] == ["", "seeds", "steps", "EM, N = 2", "minus `rl`, N = 2"]
        assert [[cell.split("[")[0].strip() for cell in line] for line in lines[2:]] == [
            ["rl", "2", "4", "1.000", ""],
            ["sft", "2", "4", "0.375", "-0.625"],
            ["expert", "1", "0", "1.000", ""],
        ]

    @pytest.mark.parametrize(
        "name", sorted(path.stem for path in (ROOT / "benchmarks" / "results" / "rl-against-sft").iterdir())
    )
    def test_the_page_shows_the_table_of_the_recorded_runs_and_names_their_commits(self, name):
        page = (ROOT / "research" / "measurements.md").read_text(encoding="utf-8")
        records = read_records(ROOT / "benchmarks" / "results" / "rl-against-sft" / name, ROWS)
        section = page.split("## RL against SFT")[1].split("\n## ")[0]
        assert table(records) in section
        assert {run["commit"] for runs in records.values() for run in runs if run["commit"] not in section} == set()

    def test_so_it_does_for_agents_written_elsewhere(self):
        page = (ROOT / "research" / "measurements.md").read_text(encoding="utf-8")
        records = read_records(ROOT / "benchmarks" / "results" / "agents-elsewhere", agents_elsewhere.ARMS)
        assert agents_elsewhere.table(records) in page.split("## Agents written elsewhere")[1].split("\n## ")[0]

    def test_runs_on_different_tasks_are_not_compared(self, tmp_path):
        write_record(tmp_path, "rl-seed0", [(1, 1), (1, 1)])
        write_record(tmp_path, "sft-seed0", [(1, 1), (1, 1)], tasks="others")
        with pytest.raises(SystemExit, match="attempted different tasks"):
            read_records(tmp_path, ROWS)
        with pytest.raises(SystemExit, match="has no finished run"):
            read_records(tmp_path / "nowhere", ROWS)


def test_a_repeated_command_makes_only_what_is_missing(tmp_path, capsys):
    main([*SMALL, str(tmp_path)])
    first = capsys.readouterr()
    made = read_records(tmp_path, ROWS)
    steps = {"start": [0], "sft_all": [1], "sft_then_rl": [2], "expert": [0]}
    assert {name: [run["steps"] for run in runs] for name, runs in made.items()} == steps
    assert made["expert"][0]["em"] == {"1": [[1.0]], "2": [[1.0, 1.0]]}
    assert first.err.count(" step ") == 3
    # killed after its training, and before it
    path = tmp_path / "sft_then_rl-seed0.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: record[name] for name in record if name not in ("em", "questions", "tasks")}))
    (tmp_path / "sft_all-seed0.json").unlink()
    main([*SMALL, str(tmp_path)])
    again = capsys.readouterr()
    assert json.loads(path.read_text()) == record
    assert again.err.count(" step ") == again.err.count("sft_all-seed0: sft step 1,") == 1
    assert again.out.split("\n\n")[1] == first.out.split("\n\n")[1]
    with pytest.raises(SystemExit, match=r"start-seed0.json was made with other settings.*give another --out"):
        main([*SMALL, str(tmp_path), "--minutes", "1"])
