"""Search APIs, each spoken to as it wants, also when it fails; keys stay secret; answers are cached."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from servers import FakeTime
from sites import Answer, Site, as_json, content, cut, one_after_the_other, redirect, silent_after, status

from mem1.errors import UserError
from mem1.net.failover import Clock, HostLimit, Retry
from mem1.net.spending import Spending, WebBudget
from mem1.records import Passage
from mem1.retrieval import RetrievalFailed
from mem1.retrieval.web.cache import CacheMiss, WebCache
from mem1.retrieval.web.search import APIS, WebSearch, search_api

KEY = "sk-very-SECRET-0123456789"
OSLO = ("Oslo", "https://en.wikipedia.org/wiki/Oslo", "Oslo is the capital of Norway.")
BERGEN = ("Bergen", "https://example.org/bergen", "Bergen is a rainy city.")
FOUND = [(Passage(a, t, s), 1 / rank) for rank, (t, a, s) in enumerate([OSLO, BERGEN], start=1)]
PATHS = {"serper": "/search", "brave": "/res/v1/web/search", "tavily": "/search", "searxng": "/search"}


def answer(api: str, *results: tuple[str, str, str]) -> dict[str, Any]:
    """What the API called `api` answers with these (title, address, snippet)."""
    if api == "serper":
        return {"organic": [{"title": t, "link": a, "snippet": s, "position": 1} for t, a, s in results], "credits": 1}
    if api == "brave":
        return {"type": "search", "web": {"results": [{"title": t, "url": a, "description": s} for t, a, s in results]}}
    return {"query": "x", "results": [{"title": t, "url": a, "content": s, "score": 0.5} for t, a, s in results]}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for api in APIS.values():
        if api.key_variable:
            monkeypatch.setenv(api.key_variable, KEY)


def search(local: Site, folder: Path, api: str = "serper", *, mode: Any = "live", **given: Any) -> WebSearch:
    waits: list[float] = given.pop("waits", [])
    cache = WebCache(folder / "web.sqlite", mode=mode)
    return WebSearch(
        search_api(api, local.url), cache, retry=Retry(clock=Clock(sleep=waits.append, random=lambda: 0.5)), **given
    )


@pytest.mark.parametrize("api", APIS)
def test_every_api_gets_requests_of_its_own_form_and_gives_passages(local: Site, tmp_path: Path, api: str):
    local.pages[PATHS[api]] = as_json(answer(api, OSLO, BERGEN, OSLO))
    assert search(local, tmp_path, api).search(["capital & of Norway"], 10) == [FOUND]
    ((method, path, headers, body),) = local.asked
    query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
    asked = json.loads(body) if body else query
    expected = {
        "serper": ("POST", {"q": "capital & of Norway", "num": 10}, {"X-API-KEY": KEY}),
        "brave": (
            "GET",
            {"q": "capital & of Norway", "count": "10", "text_decorations": "false"},
            {"X-Subscription-Token": KEY},
        ),
        "tavily": ("POST", {"query": "capital & of Norway", "max_results": 10}, {"Authorization": f"Bearer {KEY}"}),
        "searxng": ("GET", {"q": "capital & of Norway", "format": "json"}, {}),
    }[api]
    assert (method, asked) == expected[:2]
    assert expected[2].items() <= headers.items()
    assert (KEY in str(headers)) == (api != "searxng")
    assert KEY not in path


@pytest.mark.parametrize("api", APIS)
def test_an_api_that_finds_nothing_gives_no_passage(local: Site, tmp_path: Path, api: str):
    none: dict[str, Any] = {"results": [], "unresponsive_engines": []} if api == "searxng" else {}
    local.pages[PATHS[api]] = one_after_the_other(as_json(answer(api)), as_json(none))
    assert search(local, tmp_path, api).search(["a", "b"], 10) == [[], []]


def test_results_without_address_or_text_are_left_out_and_long_ones_cut(local: Site, tmp_path: Path):
    local.pages["/search"] = as_json(
        {
            "organic": [
                {"title": "no address", "snippet": "x"},
                {"title": "script", "link": "javascript:alert(1)", "snippet": "x"},
                {"title": "odd", "link": ["https://example.org"], "snippet": "x"},
                {"link": "https://example.org/empty"},
                {"title": "forged\n (Title:", "link": "https://example.org/a b", "snippet": "x"},
                {"title": " two\nlines ", "link": "https://example.org/1"},
                {"title": "long", "link": "https://example.org/2", "snippet": "x" * 1_000_000},
            ]
        }
    )
    ((first, second),) = search(local, tmp_path).search(["a"], 10)
    assert first[0] == Passage("https://example.org/1", "two lines", "two lines")
    assert second[0] == Passage("https://example.org/2", "long", "x" * 2000)


def test_a_query_is_sent_once_and_cut_to_the_length_that_every_api_accepts(local: Site, tmp_path: Path):
    local.pages["/search"] = as_json(answer("serper", OSLO))
    results = search(local, tmp_path).search(["a  b", "a b", "", " \n", "w " * 60, "\ud800x"], 3)
    assert [len(r) for r in results] == [1, 1, 0, 0, 1, 1]
    assert sorted(json.loads(body)["q"] for *_, body in local.asked) == sorted(["a b", " ".join(["w"] * 50), "\ud800x"])


@pytest.mark.parametrize("letter", ["a", "\u0436", "\u5965", "\U0001f600"])
@pytest.mark.parametrize("name", ["searxng", "brave", "serper"])
def test_a_query_in_any_script_fits_into_the_address_of_a_request(local: Site, tmp_path: Path, name: str, letter: str):
    made = search(local, tmp_path)
    asking = replace(made, api=search_api(name, "http://127.0.0.1:18080"))
    sent, whole = asking._sent(f"{letter * 20} " * 20), letter == "a" or name == "serper"
    assert asking.api.call(sent, 10, "key").address
    assert 100 < len(sent) <= 400 and sent.startswith(letter) and (len(sent) == 400) == whole


# --- servers that fail


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (status(429), "serper answered with status 429; tried 4 times"),
        (status(500), "serper answered with status 500; tried 4 times"),
        (status(503), "serper answered with status 503; tried 4 times"),
        (content("<html>", "text/html"), "serper answered with something that is not its format; tried 4 times"),
        (content('{"organic": [{"title"'), "something that is not its format"),
        (content("[" * 100_000), "something that is not its format"),
        (as_json(["organic"]), "something that is not its format"),
        (as_json({"organic": {"title": "x"}}), "something that is not its format"),
        (as_json({"organic": ["x"]}), "something that is not its format"),
        (content(b"\xff\xfe{}"), "something that is not its format"),
        (content("x", Content_Encoding="gzip"), "something that is not its format"),
        (cut(b""), "the connection to 127.0.0.1 failed"),
        (cut(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "the connection to 127.0.0.1 failed"),
    ],
)
def test_a_passing_failure_is_retried_three_times(local: Site, tmp_path: Path, trouble: Answer, said: str):
    waits: list[float] = []
    local.pages["/search"] = trouble
    with pytest.raises(RetrievalFailed, match=said):
        search(local, tmp_path, waits=waits).search(["a"], 3)
    assert len(local.asked) == 4
    assert waits == [1, 2, 4]
    local.pages["/search"] = one_after_the_other(trouble, trouble, as_json(answer("serper", OSLO, BERGEN)))
    assert search(local, tmp_path).search(["a"], 3) == [FOUND]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"results": [], "unresponsive_engines": [["google", "Suspended"]]}, "found nothing, and some of its engines"),
        ({"query": "a"}, "searxng answered with something that is not its format"),
    ],
)
def test_an_outage_of_searxngs_engines_is_a_failure_and_not_kept(
    local: Site, tmp_path: Path, trouble: dict[str, Any], said: str
):
    local.pages["/search"] = as_json(trouble)
    with pytest.raises(RetrievalFailed, match=said):
        search(local, tmp_path, "searxng").search(["a"], 3)
    whole = {**answer("searxng", OSLO, BERGEN), "unresponsive_engines": [["google", "Suspended"]]}
    local.pages["/search"] = as_json(whole)
    assert search(local, tmp_path, "searxng").search(["a"], 3) == [FOUND]


@pytest.mark.parametrize(
    ("code", "said"),
    [(400, "check its address"), (401, "check the key in SERPER_API_KEY"), (403, "SERPER_API_KEY"), (404, "address")],
)
def test_a_permanent_failure_is_not_retried(local: Site, tmp_path: Path, code: int, said: str):
    local.pages["/search"] = status(code)
    with pytest.raises(RetrievalFailed, match=f"status {code}.*{said}"):
        search(local, tmp_path).search(["a"], 3)
    assert len(local.asked) == 1


def test_a_redirect_is_not_followed_as_it_would_carry_the_key_elsewhere(local: Site, tmp_path: Path):
    local.pages |= {"/search": redirect("/elsewhere"), "/elsewhere": as_json(answer("serper", OSLO))}
    with pytest.raises(RetrievalFailed, match="status 302"):
        search(local, tmp_path).search(["a"], 3)
    assert local.paths == ["/search"]


def test_the_wait_that_the_server_asks_for_is_kept(local: Site, tmp_path: Path):
    waits: list[float] = []
    local.pages["/search"] = one_after_the_other(
        status(429, Retry_After="7"), status(503, Retry_After="0"), as_json(answer("serper", OSLO, BERGEN))
    )
    assert search(local, tmp_path, waits=waits).search(["a"], 3) == [FOUND]
    assert waits == [7 + 1, 0 + 2]


def test_a_server_that_falls_silent_is_out_of_time(local: Site, tmp_path: Path):
    over = threading.Event()
    local.pages["/search"] = silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", over)
    try:
        with pytest.raises(RetrievalFailed, match=r"did not answer within 0\.05 seconds; tried 4 times"):
            search(local, tmp_path, seconds=0.05).search(["a"], 3)
    finally:
        over.set()


def test_an_answer_of_any_size_is_bounded(local: Site, tmp_path: Path):
    local.pages["/search"] = cut(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n{")
    with pytest.raises(RetrievalFailed, match="larger than 4 MB"):
        search(local, tmp_path).search(["a"], 3)


# --- keys


@pytest.mark.parametrize("api", [name for name, api in APIS.items() if api.key_variable])
def test_the_key_is_in_no_error_no_repr_and_not_in_the_cache(local: Site, tmp_path: Path, api: str):
    web = search(local, tmp_path, api)
    path = PATHS[api]
    messages = [repr(web), repr(web.api.call("query", 3, KEY))]
    for trouble in (status(401), status(429), content(f"bad key {KEY}"), cut(b"x"), redirect(f"/?{KEY}")):
        local.pages[path] = trouble
        with pytest.raises(RetrievalFailed) as caught:
            web.search(["a"], 3)
        error: BaseException | None = caught.value
        while error is not None:  # what a stack trace would show
            messages += [str(error), repr(error)]
            error = None if error.__suppress_context__ else error.__cause__ or error.__context__
    local.pages[path] = as_json(answer(api, (f"your key {KEY}", f"https://example.org/?key={KEY}", KEY)))
    messages.append(repr(web.search([f"echo {api}"], 3)))
    assert not [message for message in messages if KEY in message]
    assert KEY.encode() not in (tmp_path / "web.sqlite").read_bytes()
    assert any(KEY in str(headers) for _, _, headers, _ in local.asked)


def test_a_missing_key_is_an_error_before_any_request(local: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BRAVE_API_KEY")
    with pytest.raises(UserError, match="brave needs a key: set the environment variable BRAVE_API_KEY"):
        search(local, tmp_path, "brave")
    search(local, tmp_path, "searxng")
    search(local, tmp_path, "brave", mode="replay")


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "kéy", "a\tb"])
def test_a_malformed_key_is_refused_and_not_shown(
    local: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv("SERPER_API_KEY", key)
    with pytest.raises(UserError, match="SERPER_API_KEY") as caught:
        search(local, tmp_path)
    assert key not in str(caught.value)
    monkeypatch.setenv("SERPER_API_KEY", f" {KEY}\n")  # as `export KEY="$(cat file)"` may leave it
    search(local, tmp_path)


@pytest.mark.parametrize("base", ["serper.dev", "ftp://x.org", "http://", "https://user:pw@example.org"])
def test_a_wrong_base_address_is_found_at_once(base: str):
    with pytest.raises(UserError, match="is not the base address of a search API") as caught:
        search_api("searxng", base)
    assert "searxng" in APIS and caught.value


def test_an_unknown_api_names_the_known_ones():
    with pytest.raises(UserError, match="unknown search_api 'gogle'; known: serper, brave, tavily, searxng"):
        search_api("gogle")


# --- cache and limits


def test_an_answer_is_kept_and_a_run_is_repeated_without_a_network(local: Site, tmp_path: Path):
    local.pages["/search"] = as_json(answer("serper", OSLO, BERGEN))
    live = search(local, tmp_path)
    assert live.search(["a", "b"], 3) == live.search(["a", "b"], 3) == [FOUND, FOUND]
    assert len(local.asked) == 2
    for mode in ("replay", "offline"):
        again = search(local, tmp_path, mode=mode)
        assert again.search(["b", "a"], 3) == [FOUND, FOUND]
        with pytest.raises(CacheMiss, match=f"{mode} mode: the cache .*web.sqlite has no search .*query 'c'"):
            again.search(["a", "c"], 3)
        with pytest.raises(CacheMiss):
            again.search(["a"], 4)
    assert len(local.asked) == 2


@pytest.mark.parametrize("other", [{"fixed": {"format": "json", "language": "de"}}, {"path": "/suche"}])
def test_requests_that_differ_in_a_parameter_or_their_path_share_no_answer(local: Site, tmp_path: Path, other: Any):
    local.pages["/search"] = one_after_the_other(as_json(answer("searxng", OSLO)), as_json(answer("searxng", BERGEN)))
    local.pages["/suche"] = as_json(answer("searxng", BERGEN))
    cache = WebCache(tmp_path / "web.sqlite")
    api = search_api("searxng", local.url)
    for _ in range(2):
        (first,), (second,) = (WebSearch(one, cache).search(["a"], 1) for one in (api, replace(api, **other)))
        assert (first, second) == (FOUND[:1], [(FOUND[1][0], 1.0)])
    assert len(local.asked) == 2


def test_the_budget_counts_every_request_and_stops_before_one_too_many(local: Site, tmp_path: Path):
    local.pages["/search"] = one_after_the_other(status(500), as_json(answer("serper", OSLO, BERGEN)))
    spending = Spending(WebBudget(searches=3, dollars_per_search=0.001))
    web = search(local, tmp_path, spending=spending, threads=1)
    assert web.search(["a", "b"], 3) == [FOUND, FOUND]
    assert (spending.used.searches, spending.dollars) == (3, 0.003)
    with pytest.raises(RetrievalFailed, match=r"budget of 3 searches is spent \(budget.searches\)"):
        web.search(["c"], 3)
    assert web.search(["a"], 3) == [FOUND]
    assert len(local.asked) == spending.used.searches == 3


def test_requests_to_the_api_keep_their_distance(local: Site, tmp_path: Path):
    local.pages["/search"] = as_json(answer("serper", OSLO))
    waits: list[float] = []
    limit = HostLimit(2.0, clock=Clock(now=lambda: 100.0, sleep=waits.append))
    search(local, tmp_path, limit=limit).search(["a", "b", "c"], 3)
    assert sorted(waits) == [2.0, 4.0]


def test_a_stored_answer_is_loaded_only_by_its_kind_and_key(tmp_path: Path):
    cache = WebCache(tmp_path / "new" / "folder" / "web.sqlite")
    assert cache.load("search", {"query": "a", "k": 3}) is None
    cache.store("search", {"query": "a", "k": 3}, [["id", "Ö\ud800", "text"]])
    cache.store("search", {"query": "b", "k": 3}, [])
    assert cache.load("search", {"k": 3, "query": "a"}) == [["id", "Ö\ud800", "text"]]
    assert cache.load("search", {"query": "b", "k": 3}) == []
    assert cache.load("search", {"query": "a", "k": 4}) is None
    assert cache.load("page", {"query": "a", "k": 3}) is None


def test_an_answer_expires_except_in_replay(tmp_path: Path):
    clock, path, key = FakeTime(1000.0), tmp_path / "web.sqlite", {"query": "a"}
    live = WebCache(path, max_age_s=60, clock=clock.clock.now)
    live.store("search", key, "old")
    offline, replay = (WebCache(path, mode=mode, max_age_s=60, clock=clock.clock.now) for mode in ("offline", "replay"))
    clock.seconds += 60
    assert [cache.load("search", key) for cache in (live, offline, replay)] == ["old"] * 3
    clock.seconds += 1
    assert live.load("search", key) is None
    with pytest.raises(CacheMiss, match=r"offline mode: the cache .* has no search query 'a'"):
        offline.load("search", key)
    assert replay.load("search", key) == "old"
    live.store("search", key, "new")
    assert live.load("search", key) == replay.load("search", key) == "new"


@pytest.mark.parametrize("mode", ["replay", "offline"])
def test_without_a_network_there_must_be_a_cache(tmp_path: Path, mode):
    with pytest.raises(UserError, match=rf"no web cache .*: {mode} mode needs one that a live run has filled"):
        WebCache(tmp_path / "web.sqlite", mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_cache_is_refused_and_stays_unchanged(tmp_path: Path):
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.sqlite"
    text.write_text("my notes, more than a hundred bytes of them " * 9)
    file = sqlite3.connect(foreign)
    file.execute("CREATE TABLE mine (x)")
    file.close()
    before = foreign.read_bytes()
    with pytest.raises(UserError, match=r"notes\.txt cannot be used: file is not a database; give another file"):
        WebCache(text)
    with pytest.raises(UserError, match=r"foreign\.sqlite is not a web cache of mem1"):
        WebCache(foreign)
    assert foreign.read_bytes() == before
    with pytest.raises(UserError, match="cannot be used"):
        WebCache(text / "below" / "web.sqlite")


def test_many_threads_and_processes_write_at_the_same_time(tmp_path: Path):
    path = tmp_path / "web.sqlite"
    code = (
        "import sys; from mem1.retrieval.web.cache import WebCache; cache = WebCache(sys.argv[1]);"
        "[cache.store('page', {'n': n, 'who': 'other'}, n) for n in range(30)]"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: WebCache(path).store("page", {"n": n, "who": "me"}, n), range(30)))
    assert other.wait(60) == 0
    cache = WebCache(path, mode="offline")
    assert [cache.load("page", {"n": n, "who": who}) for who in ("me", "other") for n in range(30)] == [*range(30)] * 2
