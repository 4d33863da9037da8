"""Attempts in chunks: each chunk is kept as soon as it is done, and the next process makes those that are missing.

    tasks 0 1 2 3 4 5 6    ->    chunks (0 1 2) (3 4 5) (6)    ->    killed in the second: it is repeated as a whole

The chunks depend only on the number of tasks. So work that was killed and restarted gives every task to the engine in
the same batch, and ends with the same bytes as uninterrupted work, except for timings. Tasks added later form chunks of
their own:

    7 tasks, then 10       ->    chunks (0 1 2) (3 4 5) (6) (7 8 9)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Protocol, TypeVar

from mem1.errors import UserError
from mem1.interrupts import GRACE_S, Interrupted, Stop, interruptible
from mem1.net.threads import run_jobs
from mem1.records import Ended


class Attempted(Protocol):
    """An attempt, as far as it matters here."""

    @property
    def ended(self) -> str:
        """A value of `mem1.records.Ended`."""
        ...


Found = TypeVar("Found", bound=Attempted)
Job = TypeVar("Job")


def chunks(tasks: int, size: int, added_at: Sequence[int] = ()) -> list[range]:
    """The places of the tasks of each chunk; `added_at`: numbers of tasks that there were before more were added."""
    return [
        range(first, min(first + size, stop))
        for start, stop in pairwise([0, *added_at, tasks])
        for first in range(start, stop, size)
    ]


def missing(found: dict[int, Found], chunks: Sequence[range]) -> list[list[int]]:
    """Places to attempt of each chunk: those not in `found`, and those that ended with a failed tool or server.

    A chunk that is there in part, because a process was killed while writing it, is dropped from `found`.
    """
    for members in chunks:
        if not all(i in found for i in members):
            for i in members:
                found.pop(i, None)
    return [[i for i in members if i not in found or not Ended(found[i].ended).scorable] for members in chunks]


def attempt_all(
    jobs: Sequence[Job],
    attempt: Callable[[Job, Callable[[], bool]], list[Found]],
    keep: Callable[[Job, list[Found]], None],
    *,
    at_a_time: int,
    doing: str,
    saved: Callable[[], str] | None,
    again: str,
) -> None:
    """Attempt the jobs, and keep what each yields as it is done.

    attempt    gets a job, and a function that says whether to stop
    keep       puts attempts on the disk; only a second Ctrl-C breaks it off
    at_a_time  jobs that run concurrently, each in its own thread
    doing      what Ctrl-C interrupts, such as "evaluating"
    saved      what is saved so far; None: nothing is, and Ctrl-C is not handled here
    again      how to continue

    Raises Interrupted after Ctrl-C: running jobs have `GRACE_S` to finish, or until the second one. An error of a job
    is raised once running jobs are finished; a UserError says what is saved, too.
    """
    with nullcontext(Stop()) if saved is None else _saying(doing, saved, again) as stop:
        work = run_jobs(
            jobs,
            lambda job: attempt(job, lambda: stop.requested),
            at_a_time=at_a_time,
            stopped=lambda: stop.requested,
        )
        for job, found in work:
            with stop.unbroken():
                keep(job, found)


@contextmanager
def _saying(doing: str, saved: Callable[[], str], again: str) -> Iterator[Stop]:
    """`interruptible`, but Ctrl-C ends with `Interrupted`; that and a UserError say what is saved."""
    notice = f"Stopping: what is running has {GRACE_S:.0f} seconds to finish; press Ctrl-C again to stop at once."
    try:
        with interruptible(notice) as stop:
            yield stop
            if stop.requested:
                raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"while {doing}; {saved()}", again) from interrupt
    except UserError as error:
        raise UserError(f"{error}\n{saved()}; {again}") from error
