"""The page for people in a real Chromium: by mouse, by keyboard alone, on a small screen, with hostile titles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from servers import app_in_a_thread
from shop_sites import HOSTILE, SCRIPT, recorded, recording_of, site
from shops import RUG
from webshop_site.app import make_app

from mem1.net.web_server import FORM

pytestmark = pytest.mark.browser
EXPLAINED = "1 \u00d7 (1 + 1 + 1) / (2 + 2 + 1) = 0.6"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with app_in_a_thread(make_app(site(recordings=[recording_of(recorded("human-0"))])), accepts=FORM) as address:
        yield address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page in which no script fails and nothing is asked for elsewhere."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
    yield page
    context.close()
    # a test that fills a field before the page has put the focus there is quicker than any person
    harmless = ("data:,", "Autofocus processing was blocked")
    assert [said for said in complaints if not said.startswith(harmless)] == []


def test_search_open_choose_buy_and_see_the_reward_explained(page: Any):
    page.goto("/")
    page.get_by_label("Goal number").fill("0")
    page.get_by_role("button", name="Go shopping").click()
    page.get_by_label("Words to search for").fill("woven rug")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("button", name=RUG.title).click()
    page.get_by_role("group", name="color").get_by_label("dark blue").check()
    page.get_by_role("button", name="Reviews").click()
    page.get_by_text("“Nice”").wait_for()
    page.get_by_role("button", name="Product").click()
    page.get_by_role("button", name="Buy Now").click()
    page.get_by_text(EXPLAINED).wait_for()
    assert "price lower than 30.00 dollars" in page.get_by_label("What is wanted").inner_text()
    page.go_back()
    page.get_by_role("group", name="color").get_by_label("grey").check()
    page.get_by_role("button", name="Buy Now").click()
    page.get_by_text("1 \u00d7 (1 + 0 + 1) / (2 + 2 + 1) = 0.4").wait_for()


def tab_to(page: Any, name: str) -> None:
    """Press Tab until the element with this text, value or label has the focus, which must be seen."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(e => ({name: e.innerText || (e.labels && e.labels[0] || {}).innerText || '',"
            " seen: parseFloat(getComputedStyle(e).outlineWidth) > 0}))(document.activeElement)"
        )
        assert focused["seen"], f"the focus on {focused['name']!r} cannot be seen"
        if focused["name"].strip() == name:
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_the_keyboard_alone_is_enough(page: Any):
    page.goto("/")
    tab_to(page, "Goal number, 0 to 2")
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    page.get_by_label("Words to search for").and_(page.locator(":focus")).wait_for()  # put there by the page
    page.keyboard.type("rug")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Results").wait_for()
    tab_to(page, RUG.title)
    page.keyboard.press("Enter")
    page.get_by_role("group", name="color").wait_for()
    tab_to(page, "blue")
    page.keyboard.press("ArrowDown")  # to the next radio button: dark blue
    tab_to(page, "Buy Now")
    page.keyboard.press("Enter")
    page.get_by_text(EXPLAINED).wait_for()


def test_a_recording_by_the_arrow_keys(page: Any):
    page.goto("/replay")
    page.get_by_role("link", name="human-0").click()
    page.wait_for_url("**/replay/1/1")  # keys are heard once the page has its script
    for step in (2, 3, 4, 5):
        page.keyboard.press("ArrowRight")
        page.wait_for_url(f"**/replay/1/{step}")
    page.get_by_text(EXPLAINED).wait_for()
    page.keyboard.press("ArrowRight")  # there is nothing more
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/replay/1/4")


def test_it_works_without_javascript(browser: Any, address: str):
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/replay/1/1")
    page.get_by_role("link", name="Next").click()
    page.get_by_role("heading", name="Step 2 of 4").wait_for()
    page.goto("/")
    page.get_by_role("button", name="A random goal").click()
    page.get_by_label("Words to search for").fill("desk")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Desk Lamp").click()
    page.get_by_role("button", name="Buy Now").click()
    page.get_by_role("heading", name="Thank you").wait_for()
    context.close()


def test_a_script_in_a_title_is_text(page: Any):
    page.goto("/")
    page.get_by_role("button", name="human-1").click()
    page.get_by_label("Words to search for").fill("trap")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=HOSTILE.title).click()
    page.get_by_role("heading", name=HOSTILE.title).wait_for()
    assert page.locator("h1").inner_text() == HOSTILE.title
    assert SCRIPT in page.get_by_label("What is wanted").inner_text()
    page.get_by_label("onerror").check()
    page.get_by_role("button", name="Buy Now").click()
    page.get_by_text("onerror").wait_for()


@pytest.mark.parametrize("width", [320, 1200])
def test_no_page_is_wider_than_the_screen(page: Any, width: int):
    page.set_viewport_size({"width": width, "height": 600})

    def fits() -> None:
        page.wait_for_load_state()  # a page whose style is still to come is as wide as its longest word
        page.locator("main h1").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width, page.url

    for path in ("/", "/replay", "/replay/1/1", "/replay/1/2", "/replay/1/3", "/replay/1/5"):
        page.goto(path)
        fits()
    page.goto("/")
    page.get_by_role("button", name="human-0").click()
    page.get_by_label("Words to search for").fill("rug trap " + "x" * 200)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Results").wait_for()
    fits()
    page.get_by_role("button", name=RUG.title).click()
    page.get_by_role("group", name="color").wait_for()
    fits()
    # what is wanted stays in sight
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.get_by_label("What is wanted").bounding_box()["y"] >= 0
    page.get_by_role("button", name="Features").click()
    page.get_by_role("heading", name="Features").wait_for()
    fits()
    page.get_by_role("button", name="Product").click()
    page.get_by_role("button", name="Buy Now").click()
    page.get_by_role("heading", name="Thank you").wait_for()
    fits()
