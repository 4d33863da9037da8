"""The parts of `benchmarks/gpu.sh` that train, at a tiny size on a CPU; and what the script makes of its arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_train
import pytest

ROOT = Path(__file__).parents[1]
TEXT = "\n\n".join(
    f"{name} was founded in {1900 + i} by {founder} Falk, who had come from {town} with nothing but a trunk of books. "
    f"Its first shop was closed in {1950 + i}, and the house in which it stood belongs to {heir} Lund today."
    for i, (name, founder, town, heir) in enumerate(
        (f"Alv{a}{b}", f"Mira{b}", f"Ber{a}en", f"Tor{b}{a}") for a in "abcdefgh" for b in "klmnopqr"
    )
)


def play(part: str, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    options = ["--out", str(out), "--corpus", str(out / "notes"), "--size", "tiny", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["gpu_train.py", part, *options])
    gpu_train.main()
    return capsys.readouterr().out


def test_a_reader_is_made_trained_and_evaluated_and_adapters_are_trained_on_random_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "shops.txt").write_text(TEXT)
    said = {part: play(part, tmp_path, capsys, monkeypatch) for part in gpu_train.PARTS}
    for part, steps in (("warm-start", 2), ("reader", 1), ("lora", 1)):
        (row,) = (line for line in said[part].splitlines() if line.startswith(f"| {part} |"))
        assert f"| {steps} of {steps} |" in row
        assert float(row.split("|")[7]) > 0, "gigabytes of the plan"
    assert sum(line.startswith(("| warm-start |", "| reader |")) for line in said["reader-eval"].splitlines()) == 4
    assert "grad_norm 0," not in said["lora"], "every second attempt is right, so there is something to train"


def test_the_script_runs_the_parts_that_are_named_and_says_which_failed(tmp_path: Path):
    done = subprocess.run(
        ["sh", "benchmarks/gpu.sh", str(tmp_path), "machine", "warm-strat"],
        env={"PATH": "/usr/bin:/bin"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    ran, unknown, failed = done.stdout.splitlines()
    assert ran == "machine: nvidia-smi"
    assert unknown.startswith("unknown part warm-strat; known: machine tests verify-flex")
    assert "warm-start reader reader-eval lora" in unknown
    assert failed.split()[-1] == "warm-strat"
    assert (tmp_path / "machine.txt").exists()
