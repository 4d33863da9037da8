"""The page of a benchmark: complete, self-contained, and nothing in a result is trusted."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_results import FAMILIES, invented
from report_pages import Page, unpacked
from reports import HOSTILE

from mem1.bench.page import bench_page
from mem1.bench.results import Result
from mem1.bench.scores import Side, sides_of
from mem1.bench.tables import spent_table
from mem1.errors import UserError
from mem1.evaluation.compare import Estimate
from mem1.pages import page as pages

NAME = f"--line-0 {HOSTILE[:40]}"
DARK, LIGHT = "rgb(20, 23, 26)", "rgb(253, 253, 251)"


def render(sides: Sequence[Side], *, title: str) -> str:
    return pages.render(bench_page(sides, title=title))


def hostile() -> Result:
    """Every text of a result holds markup."""
    plain = invented(98, ("full", "notes"), model=NAME, detail=HOSTILE)
    attempts = tuple(
        replace(
            one,
            task=f"{HOSTILE}{one.task}",
            family=f"{one.family}{HOSTILE[:20]}",
            memory=f"{one.memory}<b>%{{x}}",
            ended=one.ended if one.ended == "answered" else f"<i>{one.ended}",
        )
        for one in plain.attempts
    )
    about = {HOSTILE: HOSTILE, "deep": {"<b>": [1]}}
    return replace(plain, attempts=attempts, about=about, suite=HOSTILE, version=HOSTILE, prices=HOSTILE, unit="<u>")


@pytest.fixture(scope="module")
def html() -> str:
    return render(sides_of(hostile()), title=HOSTILE)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_markup_in_a_result_is_no_markup_of_the_page(html: str, page: Page):
    assert "alert(1)</script>" not in html and "<img" not in html and "<b>" not in html and "<u>" not in html
    assert page.tags.count("script") == 4 and set(page.scripts) == {"specs", "plotly", "data", "page"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "full<b>%{x}" in page.shown and "alert(1)" in page.shown


def test_the_page_allows_its_own_scripts_and_asks_nothing_of_anybody(page: Page):
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    plotly = gzip.decompress(base64.b64decode(page.scripts["plotly"]))
    digests = [hashlib.sha256(text).digest() for text in (page.scripts["page"].encode(), plotly)]
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    assert policy == f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    links = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "poster")]
    assert links and all(value.startswith("#") or value == "data:," for value in links)
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|fetch\("
    assert not re.search(forbidden, page.scripts["page"])


def test_names_in_figures_are_neither_markup_nor_colours(page: Page):
    names = {trace["name"] for figure in unpacked(page.scripts["specs"]) for trace in figure["data"]}
    assert names == {"full&lt;b&gt;%{x}", "notes&lt;b&gt;%{x}"}
    two = [*sides_of(replace(hostile(), model="--good")), Side(result=invented(7, ("m",)), memory="m")]
    with pytest.raises(UserError, match="suite"):
        render(two, title="x")
    figures = unpacked(Page(render(sides_of(replace(invented(7, ("--good", "b")))), title="x")).scripts["specs"])
    assert {trace["name"] for figure in figures for trace in figure["data"]} == {" --good", "b"}


def test_there_is_a_figure_per_family_and_level_and_two_of_what_it_takes():
    plain = invented(98)
    titles = [figure["title"] for figure in unpacked(Page(render(sides_of(plain), title="x")).scripts["specs"])]
    rest = ["score and tokens per right answer, all families", "mean peak, all families"]
    assert titles == [*FAMILIES, *rest]
    chains = tuple(replace(one, level=1 + i % 2) for i, one in enumerate(plain.attempts) if one.family == "chain")
    wrong = tuple(replace(one, right=(0.0,) * one.objectives) for one in chains)
    figures = unpacked(Page(render(sides_of(replace(plain, attempts=wrong)), title="x")).scripts["specs"])
    assert [figure["title"] for figure in figures] == ["chain, level 1", "chain, level 2", rest[1]]


def test_facts_that_differ_are_told_for_each_result():
    one = invented(7, ("full",), model="a")
    other = replace(one, model="b", about={"kind": "server", "state": 50})
    html = render([*sides_of(one), *sides_of(other)], title="x").replace("<", " <")
    shown = " ".join(Page(html).shown.split())
    assert "model a a b b" in shown and "state a none b 50" in shown and shown.count("server") == 1


def test_the_page_says_what_failed_and_what_is_left_out():
    mine = invented(70, ("full",), model="a")
    failed = tuple(replace(one, ended="engine_failed") if i < 3 else one for i, one in enumerate(mine.attempts[:60]))
    other = replace(mine, model="b", attempts=failed)
    shown = Page(render([*sides_of(mine), *sides_of(other)], title="x")).shown
    assert "b: 3 of 60 attempts ended as engine failed; they count as wrong." in shown
    assert "b and a share 60 tasks; 0 of b and 10 of a are left out" in shown


def test_costs_are_shown_where_somebody_has_prices():
    priced = invented(7, ("full",))
    unpriced = replace(priced, attempts=tuple(replace(one, cost=None) for one in priced.attempts))
    headings = [spent_table(sides_of(result)).headings for result in (priced, unpriced)]
    assert [name for name in headings[0] if name not in headings[1]] == ["cost per right"]
    assert spent_table(sides_of(unpriced)).rows[0][-2:] == spent_table(sides_of(priced)).rows[0][-2:]


def test_a_number_that_rounds_to_zero_has_no_minus():
    assert Estimate(value=-0.001, low=-0.004, high=0.3).text(signed=True) == "+0.00 [0.00, 0.30]"
    assert Estimate(value=-0.1, low=-0.206, high=-0.004).text() == "-0.10 [-0.21, 0.00]"


def test_a_page_of_one_side_has_no_differences_and_of_none_is_a_mistake(tmp_path: Path):
    pages.write_page(tmp_path / "one.html", bench_page(sides_of(invented(7, ("full",))), title="one"))
    assert "Differences" not in (tmp_path / "one.html").read_text("utf-8")
    with pytest.raises(ValueError, match="at least one"):
        render([], title="x")
    with pytest.raises(UserError, match="cannot write the page"):
        pages.write_page(tmp_path / "none" / "one.html", bench_page(sides_of(invented(7, ("full",))), title="one"))


@pytest.fixture
def opened(watched: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Writes and opens a page."""

    def open_(sides: list[Side], **options: Any) -> Any:
        pages.write_page(tmp_path / "bench.html", bench_page(sides, title="t"))
        return watched(tmp_path / "bench.html", until="data-figures-ms", **options)

    return open_


@pytest.mark.browser
def test_a_page_with_5000_tasks_shows_its_first_figure_in_under_two_seconds(opened: Any):
    page = opened(sides_of(invented(5000, ("full", "notes"))))
    seen = []
    for _ in range(3):  # the best of three: other work on the machine is not the page's fault
        page.reload()
        page.wait_for_selector("html[data-figures-ms]", state="attached")
        seen.append({name: float(page.evaluate(f"document.documentElement.dataset.{name}")) for name in TIMES})
    print("ms:", seen)
    assert min(times["firstFigureMs"] for times in seen) < 2000
    assert page.locator(".plot svg.main-svg").count() >= len(FAMILIES)


TIMES = ("firstFigureMs", "figuresMs", "viewerMs")


@pytest.mark.browser
def test_the_list_is_filtered_searched_and_grows(opened: Any):
    result = invented(700, ("full", "notes"))
    page = opened(sides_of(result))
    status, rows = page.locator("#count"), page.locator("#rows a")
    assert status.inner_text() == "1,400 of 1,400 attempts" and rows.count() == 1000
    page.get_by_role("button", name="400 more").click()
    assert rows.count() == 1400 and page.locator("#rows button").count() == 0
    page.select_option("select[name=family]", "chain")
    page.select_option("select[name=objectives]", "64")
    many = sum(one.family == "chain" and one.objectives == 64 for one in result.attempts)
    assert 10 < many == rows.count() and status.inner_text() == f"{many} of 1,400 attempts"
    page.select_option("select[name=outcome]", "right under all")
    assert status.inner_text() == "0 of 1,400 attempts"
    for name in ("family", "objectives", "outcome"):
        page.select_option(f"select[name={name}]", "")
    page.select_option("select[name=ended]", "out of turns")
    failed = {one.task for one in result.attempts if one.ended == "out_of_turns"}
    assert len(failed) > 3 and status.inner_text() == f"{2 * len(failed)} of 1,400 attempts"
    one = min(failed)
    page.fill("#search", one.upper())
    page.get_by_text("2 of 1,400 attempts", exact=True).wait_for()
    rows.last.click()
    page.locator("#detail h3", has_text="notes, ").wait_for()
    said = page.locator("#detail").inner_text()
    assert f"task {one}: out of turns after" in said and "the limit of 14 turns" in said and "USD" in said
    assert "Its turns are not on this page" in said
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("c")
    page.locator("article").nth(1).wait_for()
    assert page.locator("#detail h3").all_inner_texts()[1].startswith("full, ")


@pytest.mark.browser
def test_hostile_texts_are_shown_as_they_are_in_a_browser(opened: Any):
    page = opened(sides_of(hostile()))
    page.locator("#rows a").first.click()
    assert HOSTILE.replace("\u2028", "\\u2028") in page.locator("#detail").inner_text()
    assert page.locator("img, main .remark b, #rows b, .plot a").count() == 0
    assert page.locator(".plot .legendtext").first.text_content() == "full<b>%{x}"


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "colour"), [("light", LIGHT), ("dark", DARK)])
def test_the_page_follows_the_theme_and_fits_a_narrow_window(opened: Any, scheme: str, colour: str):
    page = opened(sides_of(invented(98)), color_scheme=scheme, viewport={"width": 360, "height": 700})
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="theme: auto").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == LIGHT
