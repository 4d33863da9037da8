"""`benchmarks/gpu.py` on a CPU: every part as typed at tiny size, and what becomes of parts that fail or hang."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu
import gpu_parts
import pytest

ROOT = Path(__file__).parents[2]


def tiny(out: Path, *parts: str) -> dict[str, Any]:
    """The summary of these parts, all of which must end well."""
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *parts, "--out", str(out), "--tiny", "--minutes", "60"],
        env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert sorted(file.name for file in out.iterdir()) == ["log.txt", "rows.jsonl", "summary.json"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["gpu"] == "cpu" and summary["ceiling_tflops"] > 0 and summary["versions"]["torch"]
    assert {(part["outcome"], part["exit_code"]) for part in summary["parts"]} == {("ok", 0)}
    return summary


@pytest.mark.slow
def test_a_part_runs_as_typed_at_tiny_size(tmp_path: Path):
    ceiling, step, sampling = tiny(tmp_path / "out", "step-SmolLM2", "sampling")["parts"]
    assert (ceiling["part"], step["part"], sampling["part"]) == ("ceiling", "step-SmolLM2", "sampling")
    assert all(row["tokens_per_second"] > 0 for row in (*sampling["rows"], *step["rows"]))
    assert sampling["rows"] and [row["recompute"] for row in step["rows"]] == [False]


def test_targets_stand_beside_what_was_measured_and_what_was_not():
    rows = {
        "step-0.5B": [{"name": "step", "share": 0.42, "counted_gb": 9.0}],
        "flex-0.5B": [{"name": "flex", "tokens_per_second": 80.0}, {"name": "turns", "tokens_per_second": 10.0}],
        "step-7B": [{"name": "step", "out_of_memory": "...", "counted_gb": 150.5}],
    }
    found = gpu.table({name: gpu.Result(part=name, rows=rows) for name, rows in rows.items()}).splitlines()
    assert len(found) == 3 + len(gpu.TARGETS)
    assert found[2] == "| share of the bf16 ceiling, training 0.5B | 0.4 | 0.42 |"
    assert "| the tree over one turn at a time, 0.5B | 7 | 8 |" in found
    assert "| sampling 0.5B, 64 attempts, tokens/s | 10,000 | not measured |" in found
    assert found[-1] == "| 7B, a whole step on one GPU | fits | no, 150.5 GB |"
    assert {target.part for target in gpu.TARGETS} <= set(gpu.PARTS)


@pytest.mark.slow  # a minute of two cores: before each loan of a GPU
def test_every_part_runs_as_typed_at_tiny_size(tmp_path: Path):
    summary = tiny(tmp_path / "out", "all")
    parts = {part["part"]: part for part in summary["parts"]}
    assert list(parts) == list(gpu.PARTS)
    rows = {name: {row["name"]: row for row in part["rows"]} for name, part in parts.items()}
    for shape in gpu_parts.SHAPES:
        found = rows[f"flex-{shape}"]
        assert list(found) == ["flex", "blocks", "turns"]
        assert len({row["tokens"] for row in found.values()}) == 1, "all variants count the same work"
        assert found["blocks"]["computed"] < found["turns"]["computed"], "the tree shares contexts"
    planned = rows["rl"]["plan of step 0"]
    timed = [*rows["flex-7B"].values(), *rows["sampling"].values(), planned, rows["evaluation"]["cpu"]]
    for row in timed:
        assert row["tokens_per_second"] > 0
        assert row["share"] == pytest.approx(row["tflops"] / summary["ceiling_tflops"])
    assert all(not row["not_passed"] for name in ("flex", "blocks") for row in rows[f"verify-{name}"].values())
    assert list(rows["verify-flex"]) == ["constant", "full"]
    assert rows["rl"]["step 0"]["grad_norm"] > 0 and rows["rl"]["step 0"]["turns"] > 16, "several turns per attempt"
    assert planned["planned_gb"] > 0
    assert rows["resume"]["resumed on cpu"]["differences_by_step"] == [0.0, 0.0]
    assert rows["evaluation"]["attempts as on the CPU"]["cpu"] == 1.0
    assert rows["tests"]["all"]["skipped"] >= 11
    assert {"base_em_1", "trained_em_1"} <= set(rows["quickstart"]["quickstart"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the script with these parts in place of its own; each is a function of `Here`."""

    def run_(parts: dict[str, Callable[[gpu_parts.Here], None]], **limits: gpu.Limits) -> dict[str, Any]:
        (tmp_path / "scratch").mkdir()
        monkeypatch.setattr(gpu, "PARTS", {name: limits.get(name, gpu.Limits(seconds=60)) for name in parts})
        monkeypatch.setattr(gpu_parts, "part", parts.__getitem__)
        given = argparse.Namespace(parts=["all"], out=tmp_path, minutes=60.0, tiny=False, device="cpu")
        well = gpu.Runner(given, tmp_path / "scratch").run()
        summary = json.loads((tmp_path / "summary.json").read_text())
        return {"well": well, **{part["part"]: part for part in summary["parts"]}}

    return run_


def measured(here: gpu_parts.Here) -> None:
    here.row("all", tflops=2.0, peak_gb=1.5)


def failing(here: gpu_parts.Here) -> None:
    here.row("first half", tflops=1.0)
    raise ValueError("no second half")


def hanging(here: gpu_parts.Here) -> None:
    here.row("first half", tflops=1.0)
    while True:
        time.sleep(60)


def test_a_part_that_fails_or_hangs_keeps_its_rows_and_stops_no_other(run: Callable[..., dict[str, Any]]):
    parts = {"ceiling": measured, "a": failing, "b": hanging, "c": measured}
    found = run(parts, b=gpu.Limits(seconds=0.5))
    assert not found["well"]
    assert {name: (found[name]["outcome"], found[name]["exit_code"]) for name in parts} == {
        "ceiling": ("ok", 0),
        "a": ("failed", 1),
        "b": ("timed out", None),
        "c": ("ok", 0),
    }
    assert [row["name"] for row in found["a"]["rows"]] == ["first half"]
    assert found["a"]["last_lines"][-1] == "ValueError: no second half"
    assert found["c"]["peak_gb"] == 1.5


def test_parts_that_time_nothing_run_beside_one_another(run: Callable[..., dict[str, Any]], tmp_path: Path):
    def meets(other: str) -> Callable[[gpu_parts.Here], None]:
        """Ends only once the other part has begun."""

        def part(here: gpu_parts.Here) -> None:
            (tmp_path / here.part).touch()
            while not (tmp_path / other).exists():
                time.sleep(0.01)

        return part

    beside = gpu.Limits(seconds=60, beside=True)
    found = run({"ceiling": measured, "a": meets("b"), "b": meets("a")}, a=beside, b=beside)
    assert found["well"]


def test_what_there_is_no_time_for_is_recorded_as_not_run(tmp_path: Path):
    given = argparse.Namespace(parts=["sampling"], out=tmp_path, minutes=0.0, tiny=True, device="cpu")
    assert not gpu.Runner(given, tmp_path).run()
    parts = json.loads((tmp_path / "summary.json").read_text())["parts"]
    assert [(part["part"], part["outcome"]) for part in parts] == [("ceiling", "not run"), ("sampling", "not run")]


def test_parts_are_chosen_by_name_or_kind_and_the_ceiling_comes_first():
    assert gpu.chosen(["sampling", "verify"]) == ["ceiling", "verify-flex", "verify-blocks", "sampling"]
    assert gpu.chosen(["flex-7B"]) == ["ceiling", "flex-7B"]
    assert gpu.chosen(["all"]) == list(gpu.PARTS)
    with pytest.raises(SystemExit, match="unknown part warm-strat; known: all, ceiling, verify-flex"):
        gpu.chosen(["warm-strat"])


def test_dependencies_that_are_missing_or_of_another_version_are_named(monkeypatch: pytest.MonkeyPatch):
    known = {"bm25s": None, "fastapi": None, "torch": "2.9.0"}

    def version(name: str) -> str:
        found = known[name] if name in known else real(name)
        if found is None:
            raise gpu.metadata.PackageNotFoundError(name)
        return found

    real = gpu.metadata.version
    assert gpu.lacking() == []
    monkeypatch.setattr(gpu.metadata, "version", version)
    missing, old = gpu.lacking()
    assert missing.startswith("bm25s>=")
    assert old.startswith("torch") and old.endswith("(not 2.9.0)")
