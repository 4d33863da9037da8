"""Rows as tables: on the terminal, for papers, of one run and of several seeds."""

from __future__ import annotations

import csv as csv_module
import io
import re
from dataclasses import replace

import pytest
from report_pages import JUDGED, render, row, seeds
from reports import LAZY, atlas, attempts, run_of
from rich.console import Console

from mem1.evaluation.compare import paired_difference
from mem1.evaluation.report.page import headlines
from mem1.evaluation.report.rows import EM, MAIN, PEAK, Column, ReportRow, series, shown
from mem1.evaluation.report.tables import (
    by_depth,
    csv,
    differences,
    markdown,
    note,
    print_table,
    results,
    warnings,
)


def rows() -> list[ReportRow]:
    return [
        row(p, n, em) for p, n, em in (("base", 1, 0.4), ("base", 2, 0.0), ("trained", 1, 1.0), ("trained", 2, 1.0))
    ]


def printed(results: list[ReportRow]) -> str:
    file = io.StringIO()
    print_table(results, Console(file=file, width=80))
    return file.getvalue()


def test_the_cells_of_a_row_by_hand():
    # `hostile_attempt` has its peak at turn 2: 1 + 3 + 3 + 2 + 1 + 1 = 11 tokens with the prompt, 10 without
    cells = results(rows())
    assert cells.rows[2] == ["trained", "1", "3", "1.00 [0.00, 1.00]", "1.00", "2.0", "11", "10", "11"]
    assert cells.headings[:4] == ["policy", "N", "tasks", "EM per objective"] and cells.names == 1


def test_a_new_number_needs_a_column_and_nothing_else():
    lost = Column("lost", "facts", lambda row: row.facts_lost or None, ".1f")
    with_facts = [row(facts_lost=0.25), row(n=2)]
    cells = results(with_facts, (*MAIN, lost))
    assert (cells.headings[-1], [line[-1] for line in cells.rows]) == ("lost", ["0.2", ""])
    assert lost not in shown((*MAIN, lost), rows())


def test_a_domain_without_exact_match_shows_its_own_metrics_in_its_place():
    own = row(em=None, em_low=None, em_high=None, f1=None, metrics={"steps": 3.5, "steps_low": 3.0, "steps_high": 4.0})
    cells = results([own])
    assert cells.headings[:4] == ["policy", "N", "tasks", "steps"] and cells.rows[0][3] == "3.50 [3.00, 4.00]"
    assert headlines([own])[0].label.startswith("steps at") and note([own]).count("steps: mean over tasks [95 % ") == 1
    assert "EM" not in note([own])
    risky = replace(own, metrics={**own.metrics, "risk_high": 0.9})
    assert results([risky]).headings[3:5] == ["steps", "risk_high"]
    assert headlines([replace(own, metrics={})])[0].label.startswith("mean reward at")
    (mean,) = series([replace(own, run=run, family="a") for run in "xy"])[0].mean
    assert (mean.em_low, mean.metrics) == (None, {"steps": 3.5, "steps_low": 3.5, "steps_high": 3.5})


def test_the_table_prints_every_row_within_80_columns():
    text = printed(rows())
    assert len(re.findall(r"^ ?(?:base|trained) ", text, flags=re.MULTILINE)) == 4
    assert "1.00 [0.00, 1.00]" in text and "Memory: constant." in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_table_that_is_too_wide_is_cut_between_columns_and_each_part_names_its_rows():
    metrics = {"score": 0.5, "score_low": 0.25, "score_high": 0.75}
    text = printed([replace(one, policy="shipped-shop", metrics=metrics) for one in rows()])
    assert len(re.findall(r"^ ?shipped-shop +[12] ", text, flags=re.MULTILINE)) >= 8
    assert text.count("0.50 [0.25, 0.75]") == 4 and "\u2026" not in text and max(map(len, text.splitlines())) <= 80


def test_a_policy_name_with_square_brackets_is_printed_as_it_is():
    assert "[red]x" in printed([replace(one, policy="[red]x") for one in rows()])


def test_a_second_table_has_exact_match_by_depth_where_questions_depend_on_one_another():
    deep = replace(rows()[1], em_by_depth={"0": 0.75, "1": 0.5, "2": 0.25})
    mixed = [rows()[0], deep, replace(deep, policy="trained", em_by_depth={"0": 1.0, "1": 0.5})]
    cells = by_depth(mixed)
    assert cells is not None
    assert cells.headings == ["policy", "N", "EM at depth 0", "1", "2"]
    assert cells.rows == [["base", "2", "0.75", "0.50", "0.25"], ["trained", "2", "1.00", "0.50", ""]]
    assert "EM at depth 0" in printed(mixed) and "EM at depth 0" in markdown(mixed)
    assert by_depth(rows()) is None and "depth" not in printed(rows())


def test_what_a_training_added_is_compared_over_the_same_tasks_and_marked_where_it_is_clear():
    source = atlas()
    lazy, clean = (attempts(source, 2, laziness=one, count=40) for one in (LAZY, None))
    other_tasks = attempts(source, 4, count=2)
    table = differences([run_of(("start", lazy), ("start", other_tasks), ("trained", clean))])
    assert table is not None
    gained = paired_difference([clean], [lazy])
    assert gained.apart and gained.value > 0.3
    assert (table.headings, table.rows) == (
        ("exact match", "N = 2"),
        [("trained minus start", gained.text(signed=True))],
    )
    assert table.marked == {(0, 1)}
    assert differences([run_of(("start", lazy[:20]), ("trained", clean[20:]))]) is None  # no task in common
    assert differences([run_of(("trained", clean))]) is None
    per_cent = [[replace(t, metrics={"em": (value, value)}) for t in clean] for value in (50.0, 75.0)]
    table = differences([run_of(("start", per_cent[0]), ("trained", per_cent[1]))])
    assert table is not None and table.rows == [("trained minus start", "+25.00 [25.00, 25.00]")]


def test_what_a_training_added_is_compared_over_the_seeds_of_a_family_and_within_a_memory():
    source = atlas()
    lazy, clean = (attempts(source, 2, laziness=one, count=10) for one in (LAZY, None))
    full = attempts(source, 2, context="full", count=10)
    seeds = [run_of(("start", lazy), ("trained", clean), ("trained", full), name=name) for name in ("a", "b")]
    table = differences(seeds)
    assert table is not None
    assert table.rows == [("trained minus start", paired_difference([clean] * 2, [lazy] * 2).text(signed=True))]
    runs = [*seeds, run_of(("start", lazy), ("trained", lazy), name="c", family="g")]
    rows = [name for name, _ in differences(runs).rows]  # type: ignore[union-attr]
    assert rows == ["trained minus start, f", "trained minus start, g"]
    assert "trained minus start, g" in render(runs, title="t")


def test_lines_are_told_apart_by_memory_and_family_where_there_are_several():
    both = rows()[:2] + [replace(one, context="full") for one in rows()[:2]]
    assert [line.name for line in series(both)] == ["base, constant", "base, full"]
    assert [line.name for line in series(rows())] == ["base", "trained"]
    assert [line.name for line in series(seeds())] == ["trained, a", "trained, b"]


def test_seeds_of_one_family_are_shown_each_and_as_their_mean_with_the_lowest_and_the_highest():
    one, other = series(seeds())
    assert list(one.runs) == ["s0", "s1"] and list(other.runs) == ["other"] and other.mean == []
    (mean,) = one.mean
    assert (mean.em, mean.em_low, mean.em_high) == (0.75, 0.5, 1.0)
    assert (mean.tasks, mean.endings["answered"], mean.run) == (6, 6, "mean of 2 runs")
    assert [line[:2] for line in results(seeds()).rows] == [
        ["trained, a", "s0"], ["trained, a", "s1"], ["trained, a", "mean of 2 runs"], ["trained, b", "other"],
    ]  # fmt: skip
    assert "[lowest run, highest run]" in note(seeds()) and "lowest run" not in note(rows())
    assert "[lowest run, highest run]" in " ".join(printed(seeds()).split())


def test_markdown_is_a_table_whose_cells_cannot_leave_it():
    text = markdown([row("a|b <x>\n`c`"), row("d", em=0.0)])
    table = text.splitlines()[:4]
    assert table[0].startswith("| policy | N | tasks | EM per objective |")
    assert table[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert table[2].startswith(r"| a\|b \<x\> \`c\` | 1 | 3 | 1.00 [0.00, 1.00] |")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {10}


def test_csv_has_one_line_a_run_policy_and_n_with_every_number_unrounded():
    read = list(csv_module.DictReader(io.StringIO(csv([*seeds(), row('a "b",\nc', em=1 / 3, run="s0", family="a")]))))
    assert [(line["run"], line["policy"], line["em"]) for line in read] == [
        ("s0", "trained", "0.5"), ("s1", "trained", "1.0"), ("other", "trained", "0.25"),
        ("s0", 'a "b",\nc', str(1 / 3)),
    ]  # fmt: skip
    assert read[0]["endings.answered"] == "3" and read[0]["context"] == "constant"


@pytest.mark.parametrize("write", [markdown, csv])
def test_the_same_rows_give_the_same_text(write):
    assert write(rows()) == write(rows())


def test_headlines_compare_before_and_after_and_show_the_peaks():
    before, two = rows()[1], rows()[3]
    assert [h.value for h in headlines([before, two])] == ["0.00 → 1.00", "11"]
    four = replace(two, objectives=4, em=0.5, peak_tokens_without_prompt=25.0, appended_peak_tokens_without_prompt=50.0)
    found = headlines([before, two, four])
    assert [h.value for h in found] == ["0.00 → 1.00", "0.50", "11", "\u00d7 2.5"]
    assert found[3].label.endswith("appended: \u00d7 5.0")


def test_headlines_of_a_single_policy_have_no_before():
    assert headlines(rows()[:2])[0].value == "0.00"
    assert headlines([]) == []


def test_an_interval_is_shown_only_where_there_is_one():
    assert PEAK.cell(row()) == "11" and EM.cell(row(em=0.4)) == "0.40 [0.00, 1.00]"


def test_a_judge_is_named_below_the_table_with_its_coverage_and_its_agreement():
    mute = replace(JUDGED, correct=None, judged=0.0, agreement=None)
    known, silent, unasked = (replace(row, judge=of) for row, of in zip(rows(), (JUDGED, mute, None), strict=False))
    said = "the judge m accepts 0.50 of the answers; it judged 98% of them and agrees with EM on 0.88."
    assert note([known, unasked]).endswith(f" base, N = 1: {said}")
    assert "accepts - of the answers; it judged 0% of them and agrees with EM on -." in note([silent])
    assert "judge" not in note([unasked])


def test_flops_and_the_judges_verdict_are_in_every_format():
    measured = row(flops=1234567.0, flops_cached=345678.0, judge=JUDGED)
    text = markdown([measured])
    assert "1.23e+06" in text and "3.46e+05" in text and "accepts 0.50 of the answers" in text
    assert re.search(r"FLOPs", text) and re.search(r"judge", text)
    (line,) = csv_module.DictReader(io.StringIO(csv([measured])))
    assert (line["flops"], line["flops_cached"]) == ("1234567.0", "345678.0")
    assert (line["judge.model"], line["judge.correct"], line["judge.kappa"]) == ("m", "0.5", "0.7")
    two = [
        replace(measured, run=run, family="a", judge=replace(JUDGED, correct=c)) for run, c in (("x", 0.5), ("y", 0.7))
    ]
    (mean,) = series(two)[0].mean
    assert mean.judge is not None and (mean.judge.correct, mean.judge.failures, mean.flops) == (
        0.6,
        {"x": 4},
        1234567.0,
    )


def test_numbers_by_turn_are_averaged_over_the_turns_that_every_run_has():
    two = [
        row(run="s0", family="a", state_tokens_by_turn=(4.0, None, 8.0)),
        row(run="s1", family="a", state_tokens_by_turn=(6.0, 2.0)),
    ]
    assert series(two)[0].mean[0].state_tokens_by_turn == (5.0, 2.0)


def test_the_table_says_how_tasks_ended_and_warns_where_most_failed_alike():
    ended = {"answered": 1, "out_of_tokens": 2, "out_of_turns": 0, "bad_tags": 0, "tool_failed": 0, "engine_failed": 0}
    cut = row(endings=ended)
    assert " Endings without an answer: trained, N = 1: 2 out_of_tokens of 3." in note([cut])
    assert " All tasks answered." in note([row()]) and warnings([row()]) == []
    assert "[95 % interval], by the scorer exact. " in note([row(scorer="exact")])
    assert [line.partition(": raise")[0] for line in warnings([cut])] == [
        "Warning: trained: most tasks ended with out_of_tokens (2 of 3 at N = 1)"
    ]
    assert [line.partition(": raise")[0] for line in warnings([cut, row(endings=ended, objectives=4)])] == [
        "Warning: trained: most tasks ended with out_of_tokens (2 of 3 at N = 1, 2 of 3 at N = 4)"
    ]
    for text in (" ".join(printed([cut]).split()), markdown([cut]).replace("\\", "")):
        assert "most tasks ended with out_of_tokens (2 of 3 at N = 1)" in text and "budget.completion_extra" in text
    assert warnings([row(endings={**ended, "answered": 2, "out_of_tokens": 1})]) == []


def test_questions_that_are_asked_again_are_counted_below_the_table():
    said = " Questions that recur count once in the intervals (N = 1: 1 different of 3)."
    assert note([row()]).endswith(said) and note([row(), row(policy="other")]).endswith(said)
    assert "recur" not in note([row(questions=3)])
