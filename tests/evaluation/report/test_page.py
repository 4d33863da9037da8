"""The page: complete, self-contained, small, and nothing in it is trusted."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import re

import pytest
from report_pages import JUDGED, STATIC, Page, render, unpacked, write_page
from report_pages import html as html
from report_pages import page as page
from reports import HOSTILE, atlas, attempts, decode_words, hostile_attempt, random_run, run_of

from mem1.errors import UserError
from mem1.evaluation.report.viewer_data import fit
from mem1.pages.page import LARGEST, SCRIPTS
from mem1.records import Ended


def test_markup_in_a_trajectory_is_no_markup_of_the_page(html, page):
    assert "alert(1)</script>" not in html and "<img" not in html and "\u2028" not in page.scripts["data"]
    assert page.shown.count(HOSTILE) == 3, "the title twice and the fact"
    assert "img" not in page.tags and set(page.scripts) == {"specs", "plotly", "data", "page"}
    assert page.tags.count("script") == 4
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_the_hostile_text_reaches_the_viewer_as_it_was(page):
    data = unpacked(page.scripts["data"])
    assert f" found-it {HOSTILE}" in data["strings"]
    assert [t["metrics"]["em"] for t in data["trajectories"]] == [[0.0], [1.0]]


def test_titles_and_policies_are_escaped(page):
    assert "a <run>" in page.shown and "base <x>" in page.shown


def test_the_content_policy_allows_the_two_scripts_of_the_page_and_no_network(page):
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    plotly = gzip.decompress(base64.b64decode(page.scripts["plotly"]))
    digests = [hashlib.sha256(text).digest() for text in (page.scripts["page"].encode(), plotly)]
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    assert policy == f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def test_the_page_asks_nothing_of_anybody(page):
    links = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "poster")]
    assert all(value.startswith("#") or value == "data:," for value in links), links
    own = page.scripts["page"] + (STATIC / "page.css").read_text()
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(", own)


def test_explaining_text_has_no_colour_of_a_part_of_a_turn(page):
    css = (STATIC / "page.css").read_text()
    coloured = set(re.findall(r"\.([a-z]+)(?=[^{}]*\{ color: var\(--(?:state|query|result|thought|good|bad)\))", css))
    used = {word for name, value in page.attributes if name == "class" for word in value.split()}
    assert {"state", "note", "good"} <= coloured
    assert "remark" in used and not used & (coloured - {"state", "query", "result", "thought"})


def test_the_scripts_never_read_text_as_markup(page):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert not re.search(forbidden, page.scripts["page"])
    assert "</script" not in page.scripts["page"]
    for name in SCRIPTS:
        assert (STATIC / name).read_text() in page.scripts["page"]


def test_plotly_is_the_published_bundle():
    text = gzip.decompress((STATIC / "plotly-basic.min.js.gz").read_bytes())
    assert text.startswith(b"/**\n* plotly.js (basic - minified) v4.1.1\n")
    assert hashlib.sha256(text).hexdigest() == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"


def test_the_page_has_a_place_for_every_figure(page):
    titles = [figure["title"] for figure in unpacked(page.scripts["specs"])]
    assert titles == [
        "exact match per objective", "peak tokens", "reward per task", "exact match per objective", "turns per task",
        "peak tokens per task", "how tasks ended",
    ]  # fmt: skip
    assert (
        page.tags.count("figure") == 7
        and [v for n, v in page.attributes if (n, v) == ("class", "plot")] == ["plot"] * 7
    )


def test_ids_are_unique(page):
    ids = [value for name, value in page.attributes if name == "id"]
    assert ids and len(ids) == len(set(ids))


def test_the_page_works_on_a_phone(html):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in html


def test_flops_and_the_judges_verdict_are_on_the_page():
    (run,) = [run_of(("trained", [hostile_attempt()]), decode=decode_words)]
    (attempts,) = run.attempts
    judged = dataclasses.replace(attempts, row=dataclasses.replace(attempts.row, judge=JUDGED))
    shown = Page(render([dataclasses.replace(run, attempts=[judged])], title="t")).shown
    assert f"{attempts.row.flops:.3g}" in shown and "forward FLOPs per task" in shown
    assert "the judge m accepts 0.50 of the answers; it judged 98% of them and agrees with EM on 0.88." in shown


def test_runs_side_by_side_name_what_they_share_once_and_what_differs_each():
    one = run_of(("trained", [hostile_attempt()]), name="s0", decode=decode_words)
    other = dataclasses.replace(one, name="s1", facts={"seed": "1", "hardware": "x"})
    shown = Page(render([dataclasses.replace(one, facts={"seed": "0", "hardware": "x"}), other], title="both")).shown
    assert re.sub(r"\s+", " ", shown).count("s0 0") == 1 and shown.count("mean of 2 runs") == 2
    assert shown.count("hardwarex") == 1


def test_a_run_with_a_curve_alone_and_one_with_trajectories_alone_have_their_pages():
    curve = Page(render([run_of(decode=decode_words)], title="t"))
    assert "data" not in curve.scripts and len(unpacked(curve.scripts["specs"])) == 4
    tried = dataclasses.replace(run_of(("trained", attempts(atlas(), 1))), curve=[])
    assert len(unpacked(Page(render([tried], title="t")).scripts["specs"])) == 3


def test_a_failed_and_unscored_trajectory_is_there():
    failed = dataclasses.replace(
        hostile_attempt(), turns=hostile_attempt().turns[:1], ended=Ended.BAD_TAGS, detail="<IS> is open",
        answer="", reward=None, metrics={},
    )  # fmt: skip
    data = unpacked(Page(render([run_of(("x", [failed]), decode=decode_words)], title="t")).scripts["data"])
    (shown,) = data["trajectories"]
    assert (shown["ended"], shown["detail"], shown["solved"]) == ("bad_tags", "<IS> is open", False)
    assert shown["about"] == "after 1 turn of at most 2, memory constant, never scored"


def test_what_does_not_fit_is_left_out_task_by_task_and_named():
    run = random_run(40, turns=2)
    (trained,) = run.attempts
    base = dataclasses.replace(trained, row=dataclasses.replace(trained.row, policy="base"))
    both = dataclasses.replace(run, attempts=[trained, base])
    whole = render([both], title="t")
    assert "Left out" not in whole
    largest = len(whole) - 8_000
    page = Page(cut := render([both], title="t", largest=largest))
    assert len(cut.encode()) <= largest
    data = unpacked(page.scripts["data"])
    tasks = len(data["trajectories"]) // 2
    assert 20 < tasks < 40
    assert [t["group"] for t in data["trajectories"]] == [0] * tasks + [1] * tasks
    assert f"The turns of {2 * tasks} of 80 attempts are on this page" in page.shown
    assert f"trained, N = 2: tasks {tasks + 1} to 40" in page.shown
    assert f"base, N = 2: tasks {tasks + 1} to 40" in page.shown


def test_where_no_trajectory_fits_none_is_shown():
    fitted = fit([random_run(3)], 700)
    assert (fitted.shown, fitted.of, list(fitted.omissions)) == (0, 3, ["trained, N = 2: tasks 1 to 3"])
    assert unpacked(fitted.text)["trajectories"] == []


@pytest.mark.slow
def test_a_page_with_1000_trajectories_stays_under_five_megabytes_and_leaves_none_out():
    page = render([random_run(1000)], title="t")
    assert len(page.encode()) < LARGEST == 5_000_000
    assert len(unpacked(Page(page).scripts["data"])["trajectories"]) == 1000


def test_the_page_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "report.html"
    for title in ("old", "new"):
        write_page(path, [run_of(("x", [hostile_attempt()]), decode=decode_words)], title=title)
    assert "<h1>new</h1>" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("mine", ["", "<!doctype html>\n<html><title>Thesis</title></html>", "\x80"])
def test_a_file_that_is_no_report_is_never_replaced(tmp_path, mine: str):
    path = tmp_path / "thesis.html"
    path.write_text(mine, encoding="latin-1")
    with pytest.raises(UserError, match=r"thesis\.html exists and is not a page of mem1; choose another file"):
        write_page(path, [run_of(decode=decode_words)], title="t")
    assert path.read_text(encoding="latin-1") == mine


def test_a_report_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        write_page(tmp_path / "nowhere" / "report.html", [run_of(decode=decode_words)], title="t")


def test_lone_surrogates_do_not_break_the_page():
    odd = run_of(("x\ud800", [hostile_attempt()]), decode=lambda ids: "\ud800" * len(ids))
    assert "\ud800" in unpacked(Page(render([odd], title="t")).scripts["data"])["strings"][0]
