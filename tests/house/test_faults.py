"""A search engine that fails in mid-run: rollouts wait, nothing is lost, and nobody is blamed for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from servers import FakeTime, ServerProcess
from worlds import SAMPLING, rollout

from mem1.engines.base import Script
from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import SearchEnvironment
from mem1.evaluation.metrics import summarize
from mem1.evaluation.report.rows import ReportRow
from mem1.evaluation.report.tables import note
from mem1.evaluation.runner import evaluate
from mem1.protocol import PAPER
from mem1.recipe.evaluation import Evaluation
from mem1.records import Ended, Passage, Task, Trajectory
from mem1.retrieval import BM25, RetrievalFailed, Retriever
from mem1.retrieval.client import HttpRetriever, RetrievalServer
from mem1.tasks.atlas import Expert
from mem1.tasks.datasets import write_passages
from mem1.trajectory_files import read_trajectories, write_trajectories

ATTEMPTS = 8
SOURCE = AtlasTasks(entities=60, worlds=1, questions_per_world=200).source("evaluation", PAPER)
ATLAS = cast(SearchEnvironment, SOURCE.environment)


def environment(retriever: Retriever) -> SearchEnvironment:
    """That of the source, with another search engine for its one world."""
    return replace(ATLAS, retrievers=dict.fromkeys(ATLAS.retrievers, retriever))


class Meeting:
    """The clean expert; from the second search on, it goes on only when the server has been killed."""

    def __init__(self, arrived: threading.Semaphore, killed: threading.Event) -> None:
        self.expert, self.arrived, self.killed, self.calls = Expert(tags=PAPER), arrived, killed, 0

    def __call__(self, context: str) -> str:
        self.calls += 1
        if self.calls == 2:
            self.arrived.release()
            assert self.killed.wait(60)
        return self.expert(context)


def test_rollouts_survive_a_server_that_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    (bm25,) = ATLAS.retrievers.values()
    assert isinstance(bm25, BM25)
    write_passages(tmp_path / "corpus.jsonl", bm25.passages)
    tasks = SOURCE.tasks(objectives=2, count=ATTEMPTS, seed=4)
    server = ServerProcess(tmp_path / "corpus.jsonl")
    retriever = HttpRetriever(RetrievalServer(urls=(server.address,), deadline_s=60))
    arrived, killed = threading.Semaphore(0), threading.Event()

    def attempt(task: Task) -> Trajectory:
        (trajectory,) = rollout(Meeting(arrived, killed), environment(retriever))([task], sampling=SAMPLING)
        return trajectory

    with ThreadPoolExecutor(ATTEMPTS) as pool:
        attempts = [pool.submit(attempt, task) for task in tasks]
        for _ in range(ATTEMPTS):  # all have searched once, and have more to do
            assert arrived.acquire(timeout=60)
        server.kill()
        killed.set()
        again = ServerProcess(tmp_path / "corpus.jsonl", port=server.port)
        trajectories = [a.result() for a in attempts]
    again.stop()

    messages = [record.getMessage() for record in caplog.records]
    assert "no answer from the retriever" in messages[0] and "answers again" in messages[-1], "it was really away"
    assert {(t.ended, t.reward) for t in trajectories} == {(Ended.ANSWERED, 2.0)}
    undisturbed = rollout(Expert(tags=PAPER), SOURCE.environment)(tasks, sampling=SAMPLING)
    assert [t.turns for t in trajectories] == [t.turns for t in undisturbed], "not one search was lost or mixed up"
    assert sum(len(t.turns) for t in trajectories) > 3 * ATTEMPTS


def test_a_server_that_stays_away_ends_the_attempts_with_tool_failed_and_no_score():
    time = FakeTime()
    server = RetrievalServer(urls=("http://127.0.0.1:9",), deadline_s=120)
    run = rollout(Expert(tags=PAPER), environment(HttpRetriever(server, clock=time.clock)))
    trajectories = run(SOURCE.tasks(objectives=2, count=8, seed=4), sampling=SAMPLING)
    assert {(t.ended, t.reward, t.per_objective("em"), len(t.turns)) for t in trajectories} == {
        (Ended.TOOL_FAILED, None, (), 1)
    }
    assert all("no answer within 120 s" in t.detail for t in trajectories)
    assert 110 < time.seconds <= 120


class Flaky:
    """Fails in the calls that `fails` names, counted from 0."""

    def __init__(self, *fails: int) -> None:
        (self.retriever,) = ATLAS.retrievers.values()
        self.fails, self.calls = set(fails), -1

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        self.calls += 1
        if self.calls in self.fails:
            raise RetrievalFailed("connection refused")
        return self.retriever.search(queries, k)


def test_an_evaluation_counts_and_names_the_tasks_in_which_the_search_failed():
    run = rollout(Expert(tags=PAPER), environment(Flaky(0)))
    tasks = SOURCE.tasks(objectives=1, count=4, seed=4)
    failed = run(tasks[:1], sampling=SAMPLING)
    row = summarize([*failed, *run(tasks[1:], sampling=SAMPLING)], policy="p", context="constant", objectives=1)
    assert (row.endings["tool_failed"], row.endings["answered"]) == (1, 3)
    assert (row.em, row.tasks) == (0.75, 4)
    said = "p, N = 1: the search failed in 1 of 4 tasks (tool_failed), which count as wrong."
    assert said in note([ReportRow.of(row)])
    sound = replace(row, endings={**row.endings, "tool_failed": 0})
    assert "tool_failed" not in note([ReportRow.of(sound)])


def test_an_evaluation_that_is_run_again_attempts_only_the_tasks_in_which_the_search_failed(tmp_path: Path):
    config = Evaluation(objectives=(1,), tasks=6)
    asked: list[str] = []

    def counting(script: Script) -> Script:
        return lambda context: (asked.append(context), script(context))[1]

    def run(flaky: Flaky) -> float:
        engine = counting(Expert(tags=PAPER))
        (row,), _ = evaluate(
            rollout(engine, environment(flaky)), SOURCE, config, policy="p", folder=tmp_path / "evaluation"
        )
        return row.em or 0.0

    assert run(Flaky(0)) == 0.0
    file = tmp_path / "evaluation" / "p-1.jsonl"
    stored = read_trajectories(file)
    assert [t.ended for t in stored] == [Ended.TOOL_FAILED] * 6
    assert run(Flaky()) == 1.0
    done = read_trajectories(file)
    asked.clear()
    assert run(Flaky()) == 1.0 and asked == []
    write_trajectories(file, [*done[:2], stored[2], *done[3:]])
    assert run(Flaky()) == 1.0 and len(asked) == len(done[2].turns)
    assert [t.turns for t in read_trajectories(file)] == [t.turns for t in done]
