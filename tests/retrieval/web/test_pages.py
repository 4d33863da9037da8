"""Opening pages: readable text, pieces, robots.txt, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import Answer, Site, content, cut, one_after_the_other, redirect, site, status

from mem1.errors import UserError
from mem1.net.failover import Clock, HostLimit
from mem1.net.spending import Spending, WebBudget
from mem1.retrieval import RetrievalFailed
from mem1.retrieval.web.cache import CacheMiss, WebCache
from mem1.retrieval.web.pages import Fetched, Fetcher, FetchLimits, OpenedPage, PageReader, Robots, pieces, read_page
from mem1.retrieval.web.urls import FetchFailed, Why, parse_address

try:
    import trafilatura  # noqa: F401
except ImportError:
    HAS_WEB = False
else:
    HAS_WEB = True
needs_web = pytest.mark.skipif(not HAS_WEB, reason="needs the extra mem1-agents[web]")

ARTICLE = """<!doctype html><html><head><title>Oslo</title><script>alert("menu")</script></head><body>
<nav><a href="/">Home</a> <a href="/login">Log in</a></nav>
<article><h1>Oslo</h1><p>Oslo is the capital of Norway, and the largest town of the country by far.</p>
<p>It was founded by Mira Toll in 1048, who was also its first mayor, for all of eleven years.</p></article>
<footer>Copyright, cookies, imprint</footer></body></html>"""
ANYBODY = FetchLimits(seconds=5.0)


def reader(folder: Path, *, mode: Any = "live", **given: Any) -> PageReader:
    given = {"limit": HostLimit(0.0), "fetcher": Fetcher(limits=ANYBODY, allow_loopback=True), **given}
    return PageReader(WebCache(folder / "web.sqlite", mode=mode), **given)


# --- text and pieces


@needs_web
def test_the_text_of_an_article_is_read_without_menus():
    title, text = read_page(Fetched(address="", content_type="text/html", text=ARTICLE))
    assert title == "Oslo"
    assert "Oslo is the capital of Norway" in text and "first mayor, for all of eleven years." in text
    assert not [word for word in ("menu", "Log in", "Copyright", "<", "\n") if word in text]


@needs_web
@pytest.mark.parametrize(
    "html",
    [
        "", "<", "<" * 5000, "<div>" * 20_000, "\x00" * 100, "<p>\x00</p>", "<svg/onload=x>", "&lt;" * 9999, "<!--",
        "<?xml",
    ],
)  # fmt: skip
def test_a_page_without_text_is_unreadable_and_raises_nothing_else(html: str):
    with pytest.raises(FetchFailed) as caught:
        read_page(Fetched(address="", content_type="text/html", text=html))
    assert caught.value.why is Why.UNREADABLE


@pytest.mark.skipif(HAS_WEB, reason="the extra is installed")
def test_without_the_package_the_command_that_installs_it_is_named():
    with pytest.raises(UserError, match=r"pip install 'mem1-agents\[web\]'"):
        read_page(Fetched(address="", content_type="text/html", text=ARTICLE))


def test_plain_text_is_read_as_it_is_in_one_line():
    plain = Fetched(address="", content_type="text/plain", text="a <b>\n\n c\u2028d ")
    assert read_page(plain) == ("", "a <b> c d")


@pytest.mark.parametrize(
    ("text", "characters", "cut"),
    [
        ("", 10, []),
        ("short", 10, ["short"]),
        ("exactly 10", 10, ["exactly 10"]),
        ("One two. Three four. Five.", 20, ["One two. Three four.", "Five."]),
        ("Is it? Yes. No words end here at all", 20, ["Is it? Yes.", "No words end here at", "all"]),
        ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
        ("東京は都。京都は市。大阪も", 10, ["東京は都。京都は市。", "大阪も"]),
    ],
)
def test_a_text_is_cut_after_sentences_else_between_words_else_anywhere(text: str, characters: int, cut: list[str]):
    assert pieces(text, characters) == cut


@given(st.text(st.sampled_from("ab. ?。"), max_size=200), st.integers(2, 30))
def test_pieces_are_short_many_at_most_twice_as_needed_and_lose_nothing_but_blanks(text: str, characters: int):
    text = " ".join(text.split())
    cut = pieces(text, characters)
    assert "".join(cut).replace(" ", "") == text.replace(" ", "")
    assert all(1 <= len(piece) <= characters for piece in cut)
    assert len(cut) <= 1 + len(text) // (characters // 2)


# --- robots.txt


def robots_say(local: Site, answer: Answer, path: str = "/page") -> str | None:
    """Why robots.txt keeps us away; None: it does not."""
    local.pages["/robots.txt"] = answer
    try:
        Robots(Fetcher(limits=ANYBODY, allow_loopback=True)).check(parse_address(local.url + path))
    except FetchFailed as failure:
        assert failure.why is Why.ROBOTS
        return str(failure)
    return None


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        (content("User-agent: *\nDisallow: /private/"), True),
        (content("User-agent: *\nDisallow: /"), False),
        (content("User-agent: mem1\nDisallow: /page\n\nUser-agent: *\nDisallow:"), False),
        (content("User-agent: mem1\nDisallow:\n\nUser-agent: *\nDisallow: /"), True),
        (content("User-agent: googlebot\nDisallow: /"), True),
        (content("\ufeffUser-agent: *\r\nDisallow: /page\r\n"), False),
        (content(b"\xff\xfe\x00" * 1000), True),
        (content("User-agent: *\nDisallow: /", ""), False),
        (content("User-agent: *\nDisallow: /", "application/octet-stream"), False),
        (content("<html>no such page</html>", "text/html"), True),
        (status(404), True),
        (status(401), True),
        (status(429), False),
        (status(500), False),
        (cut(b""), False),
        (redirect("http://10.0.0.1/robots.txt"), False),
        (content("User-agent: *\nDisallow: /", Content_Encoding="br"), False),
    ],
)
def test_robots_txt_is_obeyed_and_a_site_that_cannot_say_is_left_alone(local: Site, answer: Answer, allowed: bool):
    said = robots_say(local, answer)
    assert said == (None if allowed else "robots.txt of 127.0.0.1 asks programs to stay away")


def test_robots_txt_is_asked_once_a_day(local: Site):
    local.pages["/robots.txt"] = content("User-agent: *\nDisallow: /private/")
    now = [0.0]
    robots = Robots(Fetcher(allow_loopback=True), clock=lambda: now[0])
    for path in ("/a", "/b", "/private"):
        robots.check(parse_address(local.url + path))
    with pytest.raises(FetchFailed):
        robots.check(parse_address(f"{local.url}/private/x"))
    assert local.paths == ["/robots.txt"]
    now[0] = 24 * 3600 + 1.0
    robots.check(parse_address(f"{local.url}/a"))
    assert local.paths == ["/robots.txt"] * 2


def test_a_robots_txt_that_could_not_be_read_is_asked_for_again_after_minutes(local: Site):
    local.pages["/robots.txt"] = one_after_the_other(status(503), content("User-agent: *\nDisallow: /private/"))
    now = [0.0]
    robots, page = Robots(Fetcher(allow_loopback=True), clock=lambda: now[0]), parse_address(f"{local.url}/a")
    for now[0] in (0.0, 299.0):
        with pytest.raises(FetchFailed):
            robots.check(page)
    assert local.paths == ["/robots.txt"]
    now[0] = 301.0
    robots.check(page)
    assert local.paths == ["/robots.txt"] * 2


# --- the reader


def test_a_page_is_opened_once_and_kept(local: Site, tmp_path: Path):
    local.pages["/oslo"] = content("Oslo is a town. " * 20)
    opened = reader(tmp_path, piece_characters=100).open(f"{local.url}/oslo#mayor")
    assert (opened.address, opened.failed, len(opened.pieces)) == (f"{local.url}/oslo", None, 4)
    assert " ".join(opened.pieces) == ("Oslo is a town. " * 20).strip()
    assert reader(tmp_path, piece_characters=100).open(f"{local.url}/oslo") == opened
    assert local.paths == ["/robots.txt", "/oslo"]
    local.asked.clear()
    for mode in ("replay", "offline"):
        again = reader(tmp_path, mode=mode, piece_characters=100)
        assert again.open(f"{local.url}/oslo") == opened
        with pytest.raises(CacheMiss, match=f"{mode} mode: the cache .* has no page address '{local.url}/other'"):
            again.open(f"{local.url}/other")
    assert local.asked == []


def test_a_page_that_failed_is_tried_again_live_and_failed_in_replay(local: Site, tmp_path: Path):
    failed = OpenedPage(address=f"{local.url}/a", failed="the server answered with status 404")
    assert reader(tmp_path).open(f"{local.url}/a") == failed
    assert reader(tmp_path, mode="replay").open(f"{local.url}/a") == failed
    local.pages["/a"] = content("now")
    assert reader(tmp_path).open(f"{local.url}/a").pieces == ("now",)
    assert reader(tmp_path, mode="replay").open(f"{local.url}/a").pieces == ("now",)


@pytest.mark.parametrize("mode", ["live", "replay"])
def test_an_address_that_may_not_be_fetched_is_an_answer_and_costs_nothing(tmp_path: Path, mode: str):
    WebCache(tmp_path / "web.sqlite")
    spending = Spending(WebBudget(pages=0))
    opened = reader(tmp_path, mode=mode, spending=spending).open("http://169.254.169.254/latest")
    assert opened == OpenedPage(
        address="http://169.254.169.254/latest", failed="169.254.169.254 is not an address of the public internet"
    )


def test_robots_txt_is_asked_for_every_host_on_the_way_unless_it_is_turned_off(local: Site, tmp_path: Path):
    with site() as other:
        local.pages["/a"] = redirect(f"{other.url}/b")
        other.pages |= {"/robots.txt": content("User-agent: *\nDisallow: /"), "/b": content("there")}
        opened = reader(tmp_path).open(f"{local.url}/a")
        assert opened.failed == "robots.txt of 127.0.0.1 asks programs to stay away"
        assert (local.paths, other.paths) == (["/robots.txt", "/a"], ["/robots.txt"])
        assert reader(tmp_path, respect_robots=False).open(f"{local.url}/a").pieces == ("there",)


def test_every_request_keeps_its_distance_and_pages_are_counted(local: Site, tmp_path: Path):
    local.pages |= {"/a": redirect("/b"), "/b": content("b")}
    waits: list[float] = []
    opening = reader(
        tmp_path,
        limit=HostLimit(1.0, clock=Clock(now=lambda: 0.0, sleep=waits.append)),
        spending=Spending(WebBudget(pages=1)),
    )
    assert opening.open(f"{local.url}/a").pieces == ("b",)
    assert waits == [1.0, 2.0]  # robots.txt at 0, /a at 1, /b at 2
    assert opening.open(f"{local.url}/a").pieces == ("b",)
    with pytest.raises(RetrievalFailed):
        opening.open(f"{local.url}/c")


def test_a_failure_does_not_take_the_place_of_a_page_that_was_read(tmp_path: Path):
    def down(host: str) -> list[str]:
        raise FetchFailed(Why.NETWORK, f"the host {host} was not found")

    path, address, seconds = tmp_path / "web.sqlite", "http://example.org/oslo", [0.0]
    cache = WebCache(path, clock=lambda: seconds[0])
    cache.store("page", {"address": address}, {"title": "Oslo", "text": "Oslo is a town.", "failed": None})
    seconds[0] = cache.max_age_s + 1
    live = PageReader(cache, fetcher=Fetcher(resolve=down), respect_robots=False)
    assert live.open("http://example.org/other").failed
    for read in (live, PageReader(WebCache(path, mode="replay"))):
        assert read.open(address).pieces == ("Oslo is a town.",)
