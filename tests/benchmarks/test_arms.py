"""benchmarks/arms.py: results of several folders in one table."""

from __future__ import annotations

from pathlib import Path

import pytest
from arms import main
from result_files import saved


def written(folder: Path, policy: str, seed: int, em: list[float], *, flops: float = 3e9) -> None:
    costs = {"peak_without_prompt": 120.0, "tokens": 1000.0, "written": 20.0, "turns": 4.0, "flops_with_cache": 1e9}
    result = {"tokens": {"2": {"em": em, "flops": flops, **costs}}}
    saved(folder / "runs" / f"{policy}-seed{seed}.json", result)


def test_arms_are_held_against_the_first_on_the_seeds_that_all_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for seed in (0, 1, 2):
        written(tmp_path / "one", "constant", seed, [0.5, 0.5])
    written(tmp_path / "two", "belief", 0, [1.0, 0.5], flops=6e9)
    written(tmp_path / "two", "belief", 2, [1.0, 0.5], flops=6e9)
    main([str(tmp_path / "one"), str(tmp_path / "two")])
    printed = capsys.readouterr().out
    assert printed.startswith("seeds [0, 2]")
    assert "| one | 0.50 [" in printed
    assert "| two less one | +0.25 [" in printed
    solved = printed.split("| GFLOPs a solved question |")[1].split("\n\n")[0]
    assert "| one | 3.00 |" in solved
    assert "| two | 4.00 |" in solved  # 6 GFLOPs a task of two questions, of which 1.5 are solved


def test_nothing_solved_has_no_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    written(tmp_path / "one", "constant", 0, [0.0, 0.0])
    main([str(tmp_path / "one")])
    assert "| one | none solved |" in capsys.readouterr().out


def test_of_a_folder_of_several_policies_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for policy, em in (("full", 0.0), ("notebook(4)", 1.0)):
        written(tmp_path / "all", policy, 0, [em, em])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "all")])
    assert "full, notebook(4)" in capsys.readouterr().err
    main([f"{tmp_path / 'all'}:full", f"{tmp_path / 'all'}:notebook(4)"])
    assert "| all:notebook(4) less all:full | +1.00 [" in capsys.readouterr().out


def test_arms_that_end_alike_keep_their_whole_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for folder, em in (("one", 0.0), ("two", 1.0)):
        written(tmp_path / folder / "grpo", "notes", 0, [em, em])
    main([str(tmp_path / "one" / "grpo"), str(tmp_path / "two" / "grpo")])
    assert f"| {tmp_path}/two/grpo less {tmp_path}/one/grpo | +1.00 [" in capsys.readouterr().out


def test_without_a_common_seed_it_says_which_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    written(tmp_path / "one", "constant", 0, [0.5])
    written(tmp_path / "two", "constant", 1, [0.5])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "one"), str(tmp_path / "two")])
    assert "one [0], two [1]" in capsys.readouterr().err
