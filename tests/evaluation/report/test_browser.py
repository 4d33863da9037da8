"""The page in a real Chromium: quick with 1,000 trajectories, by keyboard, hostile texts as text, light and dark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import POLICIES
from reports import CODEC, HOSTILE, LAZY, atlas, attempts, decode_words, hostile_attempt, random_run, run_of

from mem1.evaluation.report.page import report
from mem1.pages.page import write_page

pytestmark = pytest.mark.browser
DARK, LIGHT = "rgb(20, 23, 26)", "rgb(253, 253, 251)"


@pytest.fixture
def opened(watched: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Writes and opens a page."""

    def open_(runs: list[Any], hash: str = "", **options: Any) -> Any:
        write_page(tmp_path / "report.html", report(runs, title="t"))
        return watched(tmp_path / "report.html", until="data-figures-ms", hash=hash, **options)

    return open_


def two_policies() -> list[Any]:
    source = atlas()
    parts = [("base", attempts(source, 4, laziness=LAZY)), ("trained", attempts(source, 4))]
    return [run_of(*parts)]


def text_of(page: Any, part: str) -> str:
    return page.evaluate(f"[...document.querySelectorAll('{part} .piece pre')].map(e => e.textContent).join('')")


def test_a_page_opens_at_its_top_with_its_warnings_and_a_colour_for_each_role(opened: Any):
    run = dataclasses.replace(two_policies()[0], warnings=["step 9: since step 5: <b>entropy</b> has fallen"])
    page = opened([run], viewport={"width": 1200, "height": 700})
    assert page.evaluate("scrollY") == 0
    assert page.locator("section.warnings li").all_inner_texts() == ["step 9: since step 5: <b>entropy</b> has fallen"]
    roles = ("prompt", "state", "query", "action", "result", "forced", "thought", "text", "rest")
    script = """names => names.map(name => {
        const part = document.body.appendChild(document.createElement('i'));
        part.className = name;
        const { color } = getComputedStyle(part);
        part.remove();
        return color;
    })"""
    colours = page.evaluate(script, ["nothing", *roles])
    assert colours[0] not in colours[1:]


def test_a_page_with_1000_trajectories_opens_in_under_two_seconds(opened: Any):
    page = opened([random_run(1000)])
    assert page.locator("#rows li").count() == 1000
    seen = []
    for _ in range(3):  # the best of three: other work on the machine is not the page's fault
        page.reload()
        page.wait_for_selector("html[data-figures-ms]", state="attached")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        times = page.evaluate("({...document.documentElement.dataset})")
        seen.append((painted, float(times["viewerMs"]), float(times["figuresMs"])))
    print("painted, viewer, figures after ms:", seen)
    assert min(painted for painted, _, _ in seen) < 500
    assert min(viewer for _, viewer, _ in seen) < 2000


@pytest.mark.parametrize("policy", POLICIES)
def test_each_turn_shows_exactly_the_tokens_that_the_model_was_given(opened: Any, policy: str):
    trajectory = max(attempts(atlas(), 4, context=policy), key=lambda t: len(t.turns))
    page = opened([run_of(("trained", [trajectory]))])
    assert len(trajectory.turns) > 4
    for number, turn in enumerate(trajectory.turns, start=1):
        page.evaluate(f"location.hash = '#t=1&turn={number}'")
        page.locator(".sizes b", has_text=f"Turn {number}").wait_for()
        assert text_of(page, ".given .block:first-child") == CODEC.decode(turn.context_ids)
        assert text_of(page, ".written .block:first-child") == CODEC.decode(turn.completion_ids)


def test_hostile_texts_are_shown_as_they_are(opened: Any):
    run = dataclasses.replace(run_of(("x", [hostile_attempt()]), decode=decode_words), facts={"note": HOSTILE})
    page = opened([run], "#t=1&turn=2")
    assert page.locator(".given .result pre").inner_text().strip() == f"found-it {HOSTILE}"
    assert page.locator("header dd").inner_text() == HOSTILE
    assert page.locator("img").count() == 0 and page.locator("body script").count() == 4
    page.fill("#search", "<img SRC=x onerror=")
    page.locator("mark").first.wait_for()
    assert page.locator("mark").first.inner_text() == "<img src=x onerror="
    page.fill("#search", "(.*[")
    page.get_by_text("0 of 1 attempts").wait_for()


def test_the_keyboard_goes_through_turns_and_trajectories_compares_and_searches(opened: Any):
    page = opened(two_policies())
    turn = page.locator(".sizes b").first
    press = page.keyboard.press
    assert turn.inner_text() == "Turn 1"
    press("j")
    page.wait_for_url("**#t=2&turn=1")
    press("ArrowRight")
    page.wait_for_url("**#t=2&turn=2")
    press("ArrowLeft")
    press("ArrowLeft")  # there is nothing before
    page.wait_for_url("**#t=2&turn=1")
    press("k")
    page.wait_for_url("**#t=1&turn=1")
    press("c")
    page.wait_for_url("**#t=1&turn=1&with=4")
    assert page.locator("article").count() == 2
    press("c")
    page.wait_for_url("**#t=1&turn=1")
    press("/")
    page.keyboard.type("j nothing has this")  # letters in the field are no commands
    page.get_by_text("0 of 6 attempts").wait_for()
    page.fill("#search", "14 turns left")  # in the first result of every attempt, which two turns show
    page.get_by_text("6 of 6 attempts").wait_for()
    assert page.locator("mark").all_inner_texts() == ["14 turns left"]
    assert page.locator("#detail .hit").count() == 2
    press("Escape")
    press("n")
    page.wait_for_url("**#t=1&turn=2")
    press("n")
    page.wait_for_url("**#t=2&turn=1")
    press("p")
    page.wait_for_url("**#t=1&turn=2")
    assert page.locator("#rows [aria-current=true]").count() == 1


def test_tab_reaches_the_turns_and_the_focus_is_seen(opened: Any):
    page = opened(two_policies(), "#t=4&turn=1")
    for _ in range(60):
        page.keyboard.press("Tab")
        name, seen = page.evaluate(
            "(e => [e.getAttribute('aria-label') || '', parseFloat(getComputedStyle(e).outlineWidth) > 0])"
            "(document.activeElement)"
        )
        assert seen, f"the focus on {name!r} cannot be seen"
        if name.startswith("turn 2,"):
            break
    else:
        raise AssertionError("Tab does not reach the second turn")
    page.keyboard.press("Enter")
    page.wait_for_url("**#t=4&turn=2")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("turn 2,")


def test_a_link_opens_its_turn_and_a_wrong_one_the_nearest(opened: Any):
    page = opened(two_policies(), "#t=5&turn=3&with=2")
    assert [page.locator(".sizes b").first.inner_text(), page.locator("article").count()] == ["Turn 3", 2]
    page.evaluate("location.hash = '#t=99&turn=-4&with=x'")
    page.locator("article[aria-label='attempt 6']").wait_for()
    assert page.locator(".sizes b").first.inner_text() == "Turn 1"


def test_filters_narrow_the_list(opened: Any):
    page = opened(two_policies())
    page.select_option("select[name=policy]", "trained, constant")
    page.get_by_text("3 of 6 attempts").wait_for()
    page.select_option("select[name=solved]", "all right")
    page.get_by_text("3 of 6 attempts").wait_for()
    page.select_option("select[name=policy]", "base, constant")
    page.get_by_text("0 of 6 attempts").wait_for()


def test_what_was_dropped_gained_and_changed_is_shown(opened: Any):
    trajectory = max(attempts(atlas(), 4), key=lambda t: len(t.turns))
    page = opened([run_of(("trained", [trajectory]))], "#t=1&turn=4")
    assert page.locator(".dropped .role").all_inner_texts() == [
        f"{name} of turn 2{len(ids)}"
        for name, ids in zip(
            ("state", "action", "result"),
            _parts(trajectory.turns[1]),
            strict=True,
        )
    ]
    assert page.locator(".changes ins").count() > 0 and page.locator(".changes del").count() > 0
    assert page.locator(".fact.held").count() > 0


def _parts(turn: Any) -> list[tuple[int, ...]]:
    ids, spans = turn.completion_ids, turn.completion_spans
    return [ids[slice(*spans["state"])], ids[slice(*spans["action"])], turn.observation_ids]


@pytest.mark.parametrize(("scheme", "first", "chosen"), [("light", LIGHT, DARK), ("dark", DARK, DARK)])
def test_the_page_is_dark_as_the_system_is_and_as_the_button_says(opened: Any, scheme: str, first: str, chosen: str):
    page = opened(two_policies(), color_scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    line = "document.querySelector('.plot .scatter path').style.stroke"
    assert page.evaluate(background) == first
    before = page.evaluate(line)
    page.get_by_role("button", name="theme: auto").click()
    assert page.evaluate(background) == LIGHT
    page.get_by_role("button", name="theme: light").click()
    assert page.evaluate(background) == chosen
    page.wait_for_timeout(300)
    assert (page.evaluate(line) != before) == (scheme == "light"), "the figures follow"


@pytest.mark.parametrize("width", [340, 800, 1300])
def test_the_page_is_no_wider_than_the_window(opened: Any, width: int):
    page = opened(two_policies(), "#t=4&turn=3&with=1", viewport={"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_figures_answer_to_the_mouse(opened: Any):
    page = opened(two_policies())
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    assert page.locator(".plot svg.main-svg").count() >= 7
    plot.locator(".points path").first.hover(force=True)
    plot.locator(".hoverlayer .hovertext").first.wait_for()
    assert "3 tasks" in plot.locator(".hoverlayer").text_content()
