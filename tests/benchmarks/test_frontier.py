"""benchmarks/frontier.py: exact match and the longest context of policies that differ by a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from frontier import Point, main, points_of, table
from result_files import saved


def written(folder: Path, policy: str, seed: int, em: list[float], peak: float) -> None:
    result = {"tokens": {"4": {"em": em, "peak_without_prompt": peak}}}
    saved(folder / "runs" / f"{policy}-seed{seed}.json", result)


def test_points_are_means_over_seeds_in_the_order_of_their_numbers(tmp_path: Path):
    for policy, peak in (("notebook(16)", 160.0), ("notebook(2)", 120.0)):
        written(tmp_path, policy, 0, [1.0, 0.5], peak)
        written(tmp_path, policy, 1, [0.5, 0.0], peak + 10)
    found = points_of(tmp_path, (0, 1))
    assert list(found) == ["notebook(2)", "notebook(16)"]
    assert found["notebook(2)"][4] == Point(scores=[[1.0, 0.5], [0.5, 0.0]], peak=125.0)
    assert table(found).splitlines()[2].startswith("| `notebook(2)` | 0.50 [")


def test_a_policy_without_all_seeds_is_left_out(tmp_path: Path):
    for seed in (0, 1):
        written(tmp_path, "capped(12)", seed, [1.0, 0.0], 90.0)
    written(tmp_path, "capped(24)", 0, [1.0, 0.0], 100.0)
    written(tmp_path, "capped(36)", 2, [1.0, 0.0], 100.0)
    assert list(points_of(tmp_path, (0, 1))) == ["capped(12)"]


def test_the_figure_has_a_curve_for_each_family_and_a_point_for_each_other(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for number in (2, 4):
        written(tmp_path / "a", f"notebook({number})", 0, [1.0, 0.0], 100.0 + number)
    for other in ("notebook(4)", "fold(3)"):
        written(tmp_path / "b", other, 0, [0.0, 0.0], 300.0)
    figure = tmp_path / "frontier.svg"
    main([str(tmp_path / "a"), "--others", str(tmp_path / "b"), "--seeds", "0", "--figure", str(figure)])
    drawn = figure.read_text(encoding="utf-8")
    assert "<!-- notebook(k) -->" in drawn
    assert "<!-- fold(3) -->" in drawn
    assert "<!-- notebook(4) -->" not in drawn


def test_without_results_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "make them by benchmarks/compare.py" in capsys.readouterr().err
