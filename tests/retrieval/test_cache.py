"""Folders of the cache are made by one process at a time, whole or not at all, and a killed one holds nobody up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from hashlib import sha256
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest
from cloze_documents import corpus

from mem1.cache import CACHE_VARIABLE
from mem1.envs.cloze import open_cloze_folder
from mem1.errors import UserError
from mem1.retrieval import bm25
from mem1.retrieval.index_folder import open_bm25
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.datasets import write_passages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no flock")
SPAWN = multiprocessing.get_context("spawn")
PROCESSES, ROUNDS = 3, 20
LIMIT_S = 120.0
"""Only for processes that hang."""


def index(path: Path) -> str:
    return repr(open_bm25(path).search(["Alvex", "Berlov"], 3))


def clozes(path: Path) -> str:
    folder = open_cloze_folder(path, ClozeOptions(development=0.2, test=0.2))
    questions = repr([folder.questions(part) for part in ("train", "development", "test")])
    return questions + repr(folder.index().search(["Berlov"], 3))


def opens_in_rounds(path: Path, cache: Path, together: Barrier, answers: Queue[list[str]]) -> None:
    """Tell what a process finds in the empty caches of all rounds."""
    found = []
    for number in range(ROUNDS):
        os.environ[CACHE_VARIABLE] = str(cache / str(number))
        for opened in (index, clozes):
            together.wait(LIMIT_S)
            try:
                found.append(f"{opened.__name__}: {sha256(opened(path).encode()).hexdigest()}")
            except Exception as error:
                found.append(repr(error))
    answers.put(found)


@pytest.mark.slow
def test_processes_that_open_an_empty_cache_at_once_all_find_the_same(tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", corpus(30))
    together, answers = SPAWN.Barrier(PROCESSES), SPAWN.Queue()
    work = (tmp_path / "c.jsonl", tmp_path / "cache", together, answers)
    processes = [SPAWN.Process(target=opens_in_rounds, args=work, daemon=True) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = Counter(answer for _ in processes for answer in answers.get(timeout=LIMIT_S))
    for process in processes:
        process.join(LIMIT_S)
    assert list(found.values()) == [PROCESSES * ROUNDS] * 2, found
    for of_round in (tmp_path / "cache").iterdir():
        kept = sorted(path.name.partition("-")[0] for path in of_round.iterdir())
        assert kept == ["bm25", "cloze"], "no lock and nothing half-written stays"


def _builds_half(path: Path, half: Event) -> None:
    def store(folder: Path, passages: object) -> None:
        (folder / "passages.jsonl").write_text('{"id": ')
        half.set()
        signal.pause()

    bm25.store_passages = store  # type: ignore[assignment]
    open_bm25(path)


def test_a_builder_that_is_killed_half_way_leaves_nothing_that_is_believed_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    write_passages(tmp_path / "c.jsonl", corpus(30))
    half = SPAWN.Event()
    builder = SPAWN.Process(target=_builds_half, args=(tmp_path / "c.jsonl", half), daemon=True)
    builder.start()
    assert half.wait(LIMIT_S)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(index(tmp_path / "c.jsonl")))
    waiting.start()
    builder.kill()
    waiting.join(LIMIT_S)
    builder.join(LIMIT_S)
    assert builder.exitcode == -signal.SIGKILL
    assert found == [index(tmp_path / "c.jsonl")] != [repr([[], []])]
    kept = sorted(path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir())
    assert kept == [".bm25", "bm25"], "the index, and the half of one that is swept a day later"


def test_a_damaged_folder_of_clozes_in_the_cache_is_made_anew(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    write_passages(tmp_path / "c.jsonl", corpus(30))
    before = clozes(tmp_path / "c.jsonl")
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "train.jsonl.gz").write_bytes(b"")
    assert clozes(tmp_path / "c.jsonl") == before
    assert "train.jsonl.gz is damaged" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_now_is_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import resource

    write_passages(tmp_path / "c.jsonl", corpus(30))
    open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    made, limits = folder.stat().st_ino, resource.getrlimit(resource.RLIMIT_NOFILE)
    capsys.readouterr()
    refused = 0
    for free in range(1, 6):  # a server near its limit of open files
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # no hole is left below
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + free, limits[1]))
        try:
            open_bm25(tmp_path / "c.jsonl", tmp_path / "cache")
        except (UserError, OSError) as error:
            refused += "Too many open files" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for file in held:
                os.close(file)
        assert folder.stat().st_ino == made and "rebuilding" not in capsys.readouterr().err
    assert refused
