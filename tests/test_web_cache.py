"""The cache of searches and pages, and the limits of a run."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mem1.errors import UserError
from mem1.retrieval.web.cache import CacheMiss, WebCache


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_what_is_stored_comes_back_under_its_kind_and_key_alone(tmp_path: Path):
    cache = WebCache(tmp_path / "new" / "folder" / "web.sqlite")
    assert cache.load("search", {"query": "a", "k": 3}) is None
    cache.store("search", {"query": "a", "k": 3}, [["id", "Ö\ud800", "text"]])
    cache.store("search", {"query": "b", "k": 3}, [])
    assert cache.load("search", {"k": 3, "query": "a"}) == [["id", "Ö\ud800", "text"]]
    assert cache.load("search", {"query": "b", "k": 3}) == []
    assert cache.load("search", {"query": "a", "k": 4}) is None
    assert cache.load("page", {"query": "a", "k": 3}) is None


def test_an_answer_expires_except_in_replay(tmp_path: Path):
    clock, path, key = Clock(), tmp_path / "web.sqlite", {"query": "a"}
    live = WebCache(path, max_age_s=60, clock=clock)
    live.store("search", key, "old")
    offline, replay = (WebCache(path, mode=mode, max_age_s=60, clock=clock) for mode in ("offline", "replay"))
    clock.now += 60
    assert [cache.load("search", key) for cache in (live, offline, replay)] == ["old"] * 3
    clock.now += 1
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


def test_a_file_that_is_no_cache_is_refused_and_left_as_it_is(tmp_path: Path):
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
    assert other.wait(30) == 0
    cache = WebCache(path, mode="offline")
    assert [cache.load("page", {"n": n, "who": who}) for who in ("me", "other") for n in range(30)] == [*range(30)] * 2
