"""Jobs one after the other, or several at a time in threads; each result comes as soon as it is there.

list(run_jobs([3, 1, 2], slow_square, at_a_time=3))  ->  [(1, 1), (2, 4), (3, 9)]      the slow ones last
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from mem1.training.interrupt import Stop

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """How the tasks of an evaluation are cut up.

    The engine gets a whole chunk as one batch, so chunks of many tasks suit a model in this process. A server forms
    batches itself: give it chunks of one task, and many at a time, so that a slow task holds nothing up.
    """

    tasks: int = 64
    """In a chunk."""
    at_a_time: int = 1
    """Chunks in work, each in a thread of its own where there are several; engine and environment must bear it."""


def run_jobs(
    jobs: Sequence[Job], work: Callable[[Job], Result], *, at_a_time: int, stop: Stop
) -> Iterator[tuple[Job, Result]]:
    """(job, what it gave) as the jobs are done, in any order.

    Once `stop.requested`, or after a job that raised, no other job begins; those in work are finished and given, then
    the error is raised.
    """
    if at_a_time == 1:
        for job in jobs:
            if stop.requested:
                return
            yield job, work(job)
        return
    waiting = deque(jobs)
    done: SimpleQueue[tuple[Job, Result] | Exception | None] = SimpleQueue()

    def serve() -> None:
        while waiting and not stop.requested:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            try:
                done.put((job, work(job)))
            except Exception as error:
                waiting.clear()
                done.put(error)
        done.put(None)

    working = min(at_a_time, len(jobs))
    for number in range(working):
        # daemons: a second Ctrl-C does not wait for a server's answers
        threading.Thread(target=serve, name=f"mem1-evaluation-{number}", daemon=True).start()
    errors: list[Exception] = []
    try:
        while working:
            outcome = done.get()
            if outcome is None:
                working -= 1
            elif isinstance(outcome, Exception):
                errors.append(outcome)
            else:
                yield outcome
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
