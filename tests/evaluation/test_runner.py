"""Evaluation in sizes and chunks: one row a size, kept on disk as it is made, and never mixed with other settings."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import pytest
from local_models import MODEL
from tag_sets import EVERY, PAPER_BELIEF
from timings import without_timings
from worlds import CODEC, SMALL, rollout, shelf, task

from mem1.engines.base import Engine, Script
from mem1.engines.local import LocalEngine
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.evaluation.metrics import OF_TIME, Row
from mem1.evaluation.runner import Chunking, Progress, evaluate
from mem1.evaluation.runner import asked as asked_tasks
from mem1.interrupts import Interrupted
from mem1.protocol import PAPER, Tags, told_by_name
from mem1.recipe.evaluation import Evaluation
from mem1.records import Task
from mem1.tasks.atlas import Expert
from mem1.trajectory_files import read_trajectories

pytestmark = pytest.mark.usefixtures("default_handlers")

SOURCE = SMALL.source("evaluation", PAPER)
ENVIRONMENT = SOURCE.environment
TWO_SIZES = Evaluation(objectives=(1, 3), tasks=6)
SEVEN = Evaluation(objectives=(1, 2), tasks=7)
PAIRS = Chunking(tasks=2)
EXPERT = Expert(tags=PAPER)
OWN = replace(PAPER, name="own", turns_left="[{turns}]")
PROMPTS = [t.prompt for n in SEVEN.objectives for t in SOURCE.tasks(objectives=n, count=SEVEN.tasks, seed=0)]
"""Of the 14 tasks of `SEVEN` in their order."""


def timeless(rows: Sequence[Row]) -> list[Row]:
    return [replace(row, **dict.fromkeys(OF_TIME, 0.0)) for row in rows]


def run(
    folder: Path | None,
    script: Script | Engine = EXPERT,
    config: Evaluation = SEVEN,
    *,
    chunking: Chunking = PAIRS,
    context: str = "constant",
    tags: Tags = PAPER,
    model: str = "expert",
    overwrite: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Row]:
    rows, trajectories = evaluate(
        rollout(script, ENVIRONMENT, context=context, tags=tags),
        SOURCE,
        config,
        policy="p",
        folder=folder,
        settings={"model": model},
        overwrite=overwrite,
        chunking=chunking,
        on_progress=on_progress,
    )
    assert list(trajectories) == [row.objectives for row in rows]
    return rows


def asked(context: str) -> int:
    """Which of the 14 tasks a context belongs to."""
    return max(range(14), key=lambda i: len(PROMPTS[i]) if context.startswith(PROMPTS[i]) else 0)


class Watched:
    """The expert; counts its calls by task, and does something else before some of them."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.calls: Counter[int] = Counter()
        self.before = before

    def __call__(self, context: str) -> str:
        self.calls[asked(context)] += 1
        self.before(self.calls.total())
        return EXPERT(context)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("unbroken")
    run(folder)
    return without_timings(folder)


def test_every_size_is_one_row():
    rows = run(None, config=TWO_SIZES)
    assert [(row.objectives, row.tasks, row.em, row.policy) for row in rows] == [(1, 6, 1.0, "p"), (3, 6, 1.0, "p")]


@pytest.mark.parametrize(
    ("chunking", "together"),
    [(PAIRS, [0, 7, 1, 8]), (Chunking(tasks=3), [0, 7, 1, 8, 2, 9]), (Chunking(tasks=1, at_a_time=2), [])],
)
def test_chunks_of_all_sizes_are_sampled_together_mixed_evenly_unless_several_are_at_a_time(
    chunking: Chunking, together: list[int]
):
    order: list[int] = []

    def noted(context: str) -> str:
        order.append(asked(context))
        return EXPERT(context)

    run(None, noted, chunking=chunking)
    assert order[: len(together)] == together and set(order) == set(range(14))


@pytest.mark.parametrize(("questions", "tasks"), [(None, [6, 6]), (7, [6, 2]), (2, [2, 1])])
def test_of_large_tasks_there_are_fewer(questions: int | None, tasks: list[int]):
    rows = run(None, config=TWO_SIZES.model_copy(update={"questions": questions}))
    assert [row.tasks for row in rows] == tasks


def test_what_was_done_is_read_and_not_run_again(tmp_path: Path, unbroken: dict[str, str]):
    rows = run(tmp_path / "evaluation")
    assert list(unbroken) == [f"p-{n}{end}" for n in (1, 2) for end in (".json", ".jsonl", ".row.json")]
    assert without_timings(tmp_path / "evaluation") == unbroken
    script = Watched()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "evaluation").iterdir()}
    assert timeless(run(tmp_path / "evaluation", script)) == timeless(rows)
    assert script.calls.total() == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "evaluation").iterdir()} == before
    (tmp_path / "evaluation" / "p-2.jsonl").unlink()
    assert timeless(run(tmp_path / "evaluation", script)) == timeless(rows)
    assert set(script.calls) == set(range(7, 14))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"config": SEVEN.model_copy(update={"tasks": 6})}, "tasks.count: 7 in the folder, 6 now"),
        ({"config": SEVEN.model_copy(update={"seed": 1})}, "seed: 0 in the folder, 1 now"),
        ({"config": SEVEN.model_copy(update={"temperature": 0.5})}, "temperature: 0.0 in the folder, 0.5 now"),
        ({"context": "full"}, 'context: "constant" in the folder, "full" now'),
        ({"model": "another"}, 'model: "expert" in the folder, "another" now'),
        ({"tags": OWN}, 'vocabulary: "paper" in the folder, "own" now'),
    ],
)
def test_results_of_other_settings_are_never_mixed_in(
    tmp_path: Path, unbroken: dict[str, str], changed: dict, named: str
):
    run(tmp_path)
    with pytest.raises(UserError, match=r"p-1\.jsonl was made with other settings") as refused:
        run(tmp_path, **changed)
    assert named in str(refused.value)
    assert "another --out" in str(refused.value)
    assert without_timings(tmp_path) == unbroken
    run(tmp_path, **changed, overwrite=True)
    overwritten = without_timings(tmp_path)
    run(tmp_path / "fresh", **changed)
    assert without_timings(tmp_path / "fresh") == overwritten != unbroken


def test_tags_of_ones_own_are_told_apart_by_more_than_their_name(tmp_path: Path):
    run(tmp_path, tags=OWN)
    run(tmp_path, Watched(), tags=OWN)
    with pytest.raises(UserError, match=r'tags\.turns_left: "\[\{turns\}\]" in the folder, "\{turns\} left" now'):
        run(tmp_path, tags=replace(OWN, turns_left="{turns} left"))
    assert all(told_by_name(tags) == (tags != PAPER_BELIEF) for tags in EVERY.values()) and not told_by_name(OWN)


def test_more_tasks_keep_those_that_were_done_and_are_chunks_of_their_own(tmp_path: Path, unbroken: dict[str, str]):
    run(tmp_path, chunking=Chunking(tasks=3))
    script, ten = Watched(), SEVEN.model_copy(update={"tasks": 10})
    companies: list[int] = []
    rows = run(tmp_path, script, ten, chunking=Chunking(tasks=3), on_progress=lambda now: companies.append(now.done))
    assert [row.tasks for row in rows] == [10, 10]
    kept = {name: text for name, text in unbroken.items() if name.endswith(".jsonl")}
    assert all(without_timings(tmp_path)[name].startswith(text) for name, text in kept.items())
    assert script.calls.keys() <= set(range(14)) and companies[0] == 7, "nothing that was done is asked again"
    assert json.loads((tmp_path / "p-1.json").read_text())["added_at"] == [7]
    again = Watched()
    assert timeless(run(tmp_path, again, ten, chunking=Chunking(tasks=3))) == timeless(rows)
    assert again.calls.total() == 0
    with pytest.raises(UserError, match=r"tasks\.count: 10 in the folder, 7 now"):
        run(tmp_path)


def test_an_evaluation_that_is_killed_in_the_tasks_that_were_added_goes_on_with_the_same_chunks(tmp_path: Path):
    ten = SEVEN.model_copy(update={"tasks": 10})
    for folder in ("unbroken", "killed"):
        run(tmp_path / folder, chunking=PAIRS)
    run(tmp_path / "unbroken", config=ten, chunking=PAIRS)
    stopping = Watched(lambda total: signal.raise_signal(signal.SIGINT) if total == 1 else None)
    with pytest.raises(Interrupted):  # after the first of the new chunks, (7 8) and (9) of both sizes
        run(tmp_path / "killed", stopping, ten, chunking=PAIRS)
    assert sorted(len(read_trajectories(p)) for p in (tmp_path / "killed").glob("*.jsonl")) == [9, 9]
    run(tmp_path / "killed", config=ten, chunking=PAIRS)
    assert without_timings(tmp_path / "killed") == without_timings(tmp_path / "unbroken")


def test_a_row_goes_with_the_first_attempt_beyond_it(tmp_path: Path):
    run(tmp_path, config=Evaluation(objectives=(1,), tasks=2))
    row = tmp_path / "p-1.row.json"
    assert row.is_file()

    def stop(number: int) -> None:
        assert number < 8

    with pytest.raises(AssertionError):
        run(tmp_path, Watched(stop), config=Evaluation(objectives=(1,), tasks=6))
    assert len(read_trajectories(tmp_path / "p-1.jsonl")) > 2
    assert not row.exists(), "a report would show it beside these"
    run(tmp_path, config=Evaluation(objectives=(1,), tasks=6))
    assert row.is_file()


def test_tasks_that_do_not_begin_with_those_of_the_folder_are_refused(tmp_path: Path):
    class Others:
        environment = ENVIRONMENT

        def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
            return SOURCE.tasks(objectives=objectives, count=count, seed=seed)[::-1]

    run(tmp_path)
    with pytest.raises(UserError, match=r"tasks\.fingerprint"):
        evaluate(
            rollout(EXPERT, ENVIRONMENT),
            cast(TaskSource, Others()),
            SEVEN.model_copy(update={"tasks": 10}),
            policy="p",
            folder=tmp_path,
            settings={"model": "expert"},
        )


def test_two_evaluations_are_not_at_work_in_one_folder(tmp_path: Path):
    def meanwhile(total: int) -> None:
        if total == 1:
            with pytest.raises(UserError, match="another command is writing into"):
                run(tmp_path, model="another", overwrite=True)

    run(tmp_path, Watched(meanwhile))
    killed(tmp_path / "a", PAIRS, report=4)
    run(tmp_path / "a")  # a lock of a process that was killed is none


@pytest.mark.parametrize(
    "manifest", [None, "", "[]", '{"model": ', "[" * 100_000, '{"added_at": 7}', '{"added_at": ["7"]}']
)
def test_trajectories_of_unknown_origin_are_neither_taken_over_nor_removed(tmp_path: Path, manifest: str | None):
    run(tmp_path)
    path = tmp_path / "p-2.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    before = (tmp_path / "p-2.jsonl").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"its manifest p-2\.json, .*is missing or damaged"):
            run(tmp_path, overwrite=overwrite)
    assert (tmp_path / "p-2.jsonl").read_bytes() == before


def test_a_line_of_another_task_is_not_taken_for_one_of_its_own(tmp_path: Path):
    run(tmp_path)
    (tmp_path / "p-1.jsonl").write_text((tmp_path / "p-2.jsonl").read_text())
    with pytest.raises(UserError, match=r"p-1\.jsonl holds an attempt at a task '.*-n2-seed0-0', which is not one of"):
        run(tmp_path)


def test_progress_counts_tasks_and_tokens_those_of_earlier_runs_included(tmp_path: Path):
    def seen(script: Script = EXPERT) -> list[Progress]:
        told: list[Progress] = []
        run(tmp_path, script, on_progress=told.append)
        return [now for now in told if now.objectives == 2]

    with pytest.raises(Interrupted):
        run(tmp_path, Watched(lambda total: os.kill(os.getpid(), signal.SIGINT) if total == 30 else None))
    stored = len(read_trajectories(tmp_path / "p-2.jsonl"))
    assert 0 < stored < 7
    first, *_, last = seen()
    assert (first.done, last.done, last.of) == (stored, 7, 7)
    turns = [turn for t in read_trajectories(tmp_path / "p-2.jsonl") for turn in t.turns]
    assert last.tokens_in == sum(len(turn.context_ids) for turn in turns) > first.tokens_in > 0
    assert last.tokens_out == sum(len(turn.completion_ids) for turn in turns) > first.tokens_out > 0


def killed(folder: Path, chunking: Chunking, *, report: int) -> None:
    """Evaluate in a process that is killed when it tells its progress for the n-th time, at work on other chunks."""

    def evaluation() -> None:
        told: list[Progress] = []

        def tell(now: Progress) -> None:
            told.append(now)
            if len(told) == report:
                os.kill(os.getpid(), signal.SIGKILL)

        run(folder, chunking=chunking, on_progress=tell)

    process = get_context("fork").Process(target=evaluation)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("chunking", [PAIRS, Chunking(tasks=1, at_a_time=3)], ids=["batches", "threads"])
def test_killed_again_and_again_it_ends_as_if_it_had_never_been_killed(
    tmp_path: Path, unbroken: dict[str, str], chunking: Chunking
):
    saved: list[int] = []
    for report in (3, 8, 4, 7):
        killed(tmp_path, chunking, report=report)
        files = list(tmp_path.glob("*.jsonl"))
        saved.append(sum(path.read_bytes().count(b"\n") for path in files))
        if report == 8:  # as if the power had gone in the middle of a line
            os.truncate(files[-1], files[-1].stat().st_size - 1000)
    assert saved[1] > 0 and len(set(saved)) > 2 and saved[-1] < 14, "it must have been killed at different places"
    run(tmp_path, chunking=chunking)
    assert without_timings(tmp_path) == unbroken


def test_an_engine_that_samples_gives_the_same_to_the_last_bit_after_a_kill(tmp_path: Path):
    sampled = SEVEN.model_copy(update={"temperature": 1.0})

    class Dying(LocalEngine):
        tokens = 0

        def stops(self, token, sampled):
            self.tokens += 1
            if self.tokens == 350:
                raise KeyboardInterrupt
            return super().stops(token, sampled)

    run(tmp_path / "unbroken", LocalEngine(MODEL, CODEC, PAPER.stop_strings), sampled, chunking=Chunking(tasks=3))
    with pytest.raises(Interrupted, match=r"(6|12) of 14 attempts are done and saved"):
        run(tmp_path / "killed", Dying(MODEL, CODEC, PAPER.stop_strings), sampled, chunking=Chunking(tasks=3))
    run(tmp_path / "killed", LocalEngine(MODEL, CODEC, PAPER.stop_strings), sampled, chunking=Chunking(tasks=3))
    texts = without_timings(tmp_path / "killed")
    assert texts == without_timings(tmp_path / "unbroken")
    assert '"logprobs":[-' in texts["p-1.jsonl"]


def test_a_chunk_of_which_a_part_is_on_the_disk_is_run_again_as_a_whole(tmp_path: Path, unbroken: dict[str, str]):
    run(tmp_path, chunking=Chunking(tasks=3))
    lines = (tmp_path / "p-1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "p-1.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:40])
    script = Watched()
    run(tmp_path, script, chunking=Chunking(tasks=3))
    assert set(script.calls) == {3, 4, 5, 6}
    assert without_timings(tmp_path) == unbroken


def test_a_slow_task_holds_nothing_up(tmp_path: Path, unbroken: dict[str, str]):
    finished: set[int] = set()
    rest = threading.Event()

    def server(context: str) -> str:
        number = asked(context)
        if number == 2:
            assert rest.wait(timeout=60), "the other tasks wait for the slow one"
        text = EXPERT(context)
        if "<answer>" in text:
            finished.add(number)
            if finished == set(range(14)) - {2}:
                rest.set()
        return text

    run(tmp_path, server, chunking=Chunking(tasks=1, at_a_time=2))
    assert without_timings(tmp_path) == unbroken, "in the order of the tasks, whichever was done first"


@pytest.mark.parametrize("chunking", [PAIRS, Chunking(tasks=1, at_a_time=4)], ids=["batches", "threads"])
def test_when_the_engine_gives_up_what_is_done_is_kept_and_said(
    tmp_path: Path, unbroken: dict[str, str], chunking: Chunking
):
    def broken(context: str) -> str:
        if asked(context) == 11:
            raise UserError("the server does not answer; start it again")
        return EXPERT(context)

    with pytest.raises(UserError, match="the server does not answer") as stopped:
        run(tmp_path, broken, chunking=chunking)
    found = re.search(r"(\d+) of 14 attempts are done and saved in", str(stopped.value))
    stored = {p.name: len(read_trajectories(p)) for p in tmp_path.glob("*.jsonl")}
    assert found is not None and int(found[1]) == sum(stored.values()) >= 8
    script = Watched()
    run(tmp_path, script, chunking=chunking)
    assert len(script.calls) == 14 - sum(stored.values())
    assert without_timings(tmp_path) == unbroken


def test_the_first_interrupt_finishes_the_chunk_in_work_and_the_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mem1.interrupts._SAME_S", 0.0)

    def interrupt(total: int) -> None:
        if total == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"4 of 14 attempts are done and saved in .*; repeat the command"):
        run(tmp_path, Watched(interrupt))
    with pytest.raises(Interrupted, match="4 of 14 attempts"):
        run(tmp_path, Watched(lambda total: signal.raise_signal(signal.SIGINT)))


def test_repetitions_are_made_up_for_as_long_as_there_are_others():
    class Drawn:
        environment = shelf("a book .")

        def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
            if count > 30:
                raise UserError("there are no more")
            made = [task("city") for _ in range(count)]
            return [
                replace(one, id=str(n), questions=(replace(one.questions[0], text=f"about {min(n // 3, 4)}"),))
                for n, one in enumerate(made)
            ]

    def found(count: int) -> list[str]:
        source = cast(TaskSource, Drawn())
        return [one.id for one in asked_tasks(source, Evaluation(objectives=(1,), tasks=count), 1)]

    assert found(1) == ["0"] and found(3) == ["0", "3", "6"], "the first of the endless sequence"
    assert found(6) == ["0", "3", "6", "9", "12"]
    with pytest.raises(UserError, match="no more"):
        found(31)
    Drawn.tasks = lambda self, **asked: []  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"Drawn\.tasks returned no task of 1 objectives; 3 were asked for"):
        found(3)


def test_a_task_that_comes_up_twice_is_attempted_once(tmp_path: Path):
    drawn = [task("city"), replace(task("book"), id="other"), task("city")]
    drawn[1] = replace(drawn[1], questions=tuple(replace(q, text="another") for q in drawn[1].questions))

    class Repeating:
        environment = shelf("a book .")

        def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
            return drawn

    def answers(script: Script) -> list[tuple[str, int]]:
        _, found = evaluate(
            rollout(script, Repeating.environment),
            cast(TaskSource, Repeating()),
            Evaluation(objectives=(1,), tasks=3),
            policy="p",
            folder=tmp_path,
            chunking=Chunking(tasks=1),
        )
        return [(t.answer, t.attempt) for t in found[1]]

    numbers = iter("12")
    assert answers(lambda _: f"<answer> {next(numbers)} </answer>") == [("1", 0), ("2", 0)]
    assert answers(lambda _: "never asked") == [("1", 0), ("2", 0)]
    drawn[1] = replace(drawn[1], id=drawn[0].id)
    with pytest.raises(UserError, match="2 different tasks have the id"):
        answers(lambda _: "never asked")
