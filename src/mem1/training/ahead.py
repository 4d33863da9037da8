"""Rollouts made ahead of the trainer, by a thread of its own: asynchronous reinforcement learning.

    staleness 1     trainer   | train 0 | train 1 | train 2 |        thread   | 0 | 1   | 2   | 3
                              weights 0 | 1       | 2

    ahead = Ahead(sample, steps=28, staleness=1, closed=lambda: False)
    ahead.published(0)      the weights of step 0 are there: rollouts 0 and 1 may be begun
    ahead.take(0)           waits for rollout 0; the thread goes on with rollout 1 in the meantime

Rollout j is begun when the weights of step j - staleness are published, so no token is older than that. Attempts that
are under way when newer weights come go on with them (`engines/base.py`): each token is marked with its weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mem1.records import Group


class Abandoned(Exception):
    """Nobody waits for this rollout any more."""


class Ahead:
    """One thread that samples, in the order of the steps; taken from by one other."""

    def __init__(
        self, sample: Callable[[int], Sequence[Group]], *, steps: int, staleness: int, closed: Callable[[], bool]
    ) -> None:
        """`sample` makes the rollout of a step; it is left alone once `closed`, and may raise Abandoned then."""
        self._sample, self._steps, self._staleness, self._closed = sample, steps, staleness, closed
        self._changed = threading.Condition()
        """Guards what follows, and tells of it."""
        self._published = -1
        self._made: dict[int, Sequence[Group]] = {}
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def published(self, step: int) -> None:
        """The weights of this step can be sampled with; the first such step is that of the first rollout."""
        with self._changed:
            self._published = step
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(step,), name="mem1-rollouts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take(self, step: int) -> Sequence[Group]:
        """The rollout of this step, once it is made; or what its making has raised."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._made or self._error is not None)
            if step in self._made:
                return self._made.pop(step)
            assert self._error is not None
            raise self._error

    def _run(self, first: int) -> None:
        """The life of the thread."""
        try:
            for step in range(first, self._steps):
                if not self._may_begin(step):
                    return
                made = self._sample(step)
                with self._changed:
                    self._made[step] = made
                    self._changed.notify_all()
        except Abandoned:
            return
        except BaseException as error:  # whatever it is, it belongs to the thread that waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self, step: int) -> bool:
        """Waits for the weights that the rollout may begin with; False where nobody wants it any more."""
        with self._changed:
            while step > self._published + self._staleness and not self._closed():
                self._changed.wait(timeout=1.0)
        return not self._closed()
