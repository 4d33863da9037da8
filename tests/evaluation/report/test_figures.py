"""The figures as Plotly's data: right points, right intervals, one line a policy."""

from __future__ import annotations

import dataclasses
import re

import pytest
from report_pages import STATIC, row, seeds
from reports import CURVE, atlas, attempts, run_of

from mem1.evaluation.report.page import curves, endings, over_n
from mem1.evaluation.report.rows import EM, PEAK, ReportRow, rows_of
from mem1.pages.page import SHARE_AXIS


def appended_peak(row: ReportRow) -> float:
    return row.appended_peak_tokens


def test_exact_match_over_n_has_one_line_a_policy_with_its_intervals():
    measured = [row(n=n, em=em, em_low=em - 0.1, em_high=em + 0.2) for n, em in ((4, 0.5), (1, 0.75))]
    (trace,) = over_n(measured, EM, "t")["data"]
    assert (trace["name"], trace["x"], trace["y"]) == ("trained", [1, 4], [0.75, 0.5])
    assert trace["error_y"]["array"] == pytest.approx([0.2, 0.2])
    assert trace["error_y"]["arrayminus"] == pytest.approx([0.1, 0.1])
    assert over_n(measured, EM, "t")["layout"]["xaxis"]["tickvals"] == [1, 4]


def test_of_several_seeds_each_is_drawn_and_their_mean():
    figure = over_n(seeds(), EM, "t")
    assert [t["name"] for t in figure["data"]] == ["trained, a, s0", "trained, a, s1", "trained, a, mean", "trained, b"]
    assert [t.get("opacity", 1) for t in figure["data"]] == [0.45, 0.45, 1, 1]
    colors = [t["line"]["color"] for t in figure["data"]]
    assert colors == ["--line-0"] * 3 + ["--line-1"]


def test_the_peak_over_n_has_intervals_and_shows_what_appending_would_have_cost():
    found = attempts(atlas(), 2)
    measured = rows_of([run_of(("trained", found))])
    real, appended = over_n(measured, PEAK, "t", appended=appended_peak)["data"]
    (one,) = measured
    assert real["y"] == [one.peak_tokens] and appended["y"] == [one.appended_peak_tokens]
    low, high = one.peak_tokens_low, one.peak_tokens_high
    assert low is not None and high is not None and low <= one.peak_tokens <= high
    assert appended["name"] == "trained, if appended" and appended["visible"] is True
    full = [dataclasses.replace(one, context="full")]
    assert len(over_n(full, PEAK, "t", appended=appended_peak)["data"]) == 1, "it is appended already"


def test_learning_curves_have_one_line_a_run_and_of_many_steps_their_mean():
    run = run_of(("trained", attempts(atlas(), 1)))
    reward, *others = curves([run])
    assert [reward["title"], *(f["title"] for f in others)] == [
        "reward per task", "exact match per objective", "turns per task", "peak tokens per task",
    ]  # fmt: skip
    faint, mean = reward["data"]
    assert faint["y"] == [r["reward"] for r in CURVE] and faint["opacity"] < 1
    assert mean["y"][20] == pytest.approx(sum(i / 50 for i in range(11, 21)) / 10)


def test_steps_that_did_not_record_a_number_are_left_out_of_its_curve():
    run = run_of(("trained", attempts(atlas(), 1)))
    short = dataclasses.replace(run, curve=[{"step": 1, "reward": 0.5}, {"step": 2}, {"step": 3, "reward": None}])
    (figure,) = curves([short])
    assert [(t["x"], t["y"]) for t in figure["data"]] == [([1], [0.5])]


def test_endings_are_shares_of_tasks():
    mixed = row(endings={**dict.fromkeys(row().endings, 0), "answered": 1, "bad_tags": 2})
    traces = {t["name"]: t for t in endings([mixed])["data"]}
    assert {name: t["x"] for name, t in traces.items()} == {
        "answered": [pytest.approx(1 / 3)],
        "bad tags": [pytest.approx(2 / 3)],
    }
    assert traces["answered"]["y"] == ["trained, N = 1"]


def test_every_colour_of_a_figure_is_in_the_style_sheet():
    css = (STATIC / "page.css").read_text()
    every_ending = row(endings=dict.fromkeys(row().endings, 1), tasks=5)
    many = [row(f"p{i}", endings=every_ending.endings) for i in range(20)]
    text = str([over_n(many, EM, "t"), endings(many), endings([every_ending])])
    used = set(re.findall(r"'(--[\w-]+)'", text))
    assert len(used) == 8 + 8
    assert used <= set(re.findall(r"(--[\w-]+):", css))


def test_shares_have_the_whole_axis_from_0_to_1_and_other_numbers_begin_at_0():
    drawn = {
        figure["title"]: figure["layout"]["yaxis"] for figure in curves([run_of(("trained", attempts(atlas(), 1)))])
    }
    assert over_n([row(em=0.1)], EM, "t")["layout"]["yaxis"] == drawn["exact match per objective"] == SHARE_AXIS
    assert drawn["reward per task"]["rangemode"] == "tozero" and "range" not in drawn["reward per task"]


@pytest.mark.parametrize(("steps", "each"), [(3, True), (200, False)])
def test_steps_are_whole_numbers(steps: int, each: bool):
    run = dataclasses.replace(
        run_of(("trained", attempts(atlas(), 1))), curve=[{"step": i, "reward": 0.5} for i in range(1, steps + 1)]
    )
    axis = curves([run])[0]["layout"]["xaxis"]
    assert axis["tickformat"] == ",d" and ("dtick" in axis) == each


def test_what_tells_whether_training_can_learn_is_drawn():
    rows = [{"step": 1, "reward": 0.5, "groups_with_variance": 0.25, "sampler_trainer_max": 1e-5}]
    run = dataclasses.replace(run_of(("trained", attempts(atlas(), 1))), curve=rows)
    drawn = {figure["title"]: figure for figure in curves([run])}
    varied = drawn["groups whose attempts differ in reward"]
    assert varied["data"][0]["y"] == [0.25] and varied["layout"]["yaxis"] == SHARE_AXIS
    assert drawn["largest difference of log-probs, sampler and trainer"]["data"][0]["y"] == [1e-5]
