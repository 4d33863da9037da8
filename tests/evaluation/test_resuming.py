"""Chunks of tasks: which are repeated after an end of any kind, and what is said of what is saved."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from servers import wait_for

from mem1.errors import UserError
from mem1.evaluation.store import attempt_all, chunks, missing
from mem1.interrupts import Interrupted


@dataclass
class Attempt:
    ended: str = "answered"


def test_tasks_added_later_form_chunks_of_their_own():
    assert chunks(7, 3) == [range(0, 3), range(3, 6), range(6, 7)]
    assert chunks(10, 3, [7]) == [range(0, 3), range(3, 6), range(6, 7), range(7, 10)]
    assert chunks(0, 3) == []


def test_a_chunk_that_is_there_in_part_is_repeated_as_a_whole_and_a_failed_attempt_by_itself():
    found = {i: Attempt() for i in (0, 1, 2, 3, 5, 6)} | {1: Attempt("engine_failed"), 6: Attempt("bad_tags")}
    assert missing(found, chunks(9, 3)) == [[1], [3, 4, 5], [6, 7, 8]]
    assert sorted(found) == [0, 1, 2]
    assert missing({i: Attempt() for i in range(3)}, chunks(3, 2)) == [[], []]


def work(attempt: Callable[[int, Callable[[], bool]], list[Attempt]], kept: list[int], at_a_time: int = 1) -> None:
    attempt_all(
        [1, 2, 3],
        attempt,
        lambda job, _: kept.append(job),
        at_a_time=at_a_time,
        doing="counting",
        saved=lambda: f"{len(kept)} of 3",
        again="go on",
    )


def test_ctrl_c_lets_the_running_job_finish_and_says_what_is_saved():
    kept = list[int]()

    def attempt(job: int, stopped: Callable[[], bool]) -> list[Attempt]:
        if job == 2:
            signal.raise_signal(signal.SIGINT)
            wait_for(stopped)
        return [Attempt()]

    with pytest.raises(Interrupted, match=r"^while counting; 2 of 3; go on$"):
        work(attempt, kept)
    assert kept == [1, 2]


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_a_mistake_says_what_is_saved(at_a_time: int):
    kept = list[int]()

    def attempt(job: int, stopped: Callable[[], bool]) -> list[Attempt]:
        if job == 3:
            wait_for(lambda: kept == [1, 2] or kept == [2, 1])
            raise UserError("full")
        return [Attempt()]

    with pytest.raises(UserError, match=r"^full\n2 of 3; go on$"):
        work(attempt, kept, at_a_time)


def test_without_anything_to_save_ctrl_c_is_not_caught():
    with pytest.raises(KeyboardInterrupt) as stopped:
        attempt_all(
            [1],
            lambda job, stopped: signal.raise_signal(signal.SIGINT) or [Attempt()],
            lambda job, found: None,
            at_a_time=1,
            doing="counting",
            saved=None,
            again="",
        )
    assert not isinstance(stopped.value, Interrupted)
