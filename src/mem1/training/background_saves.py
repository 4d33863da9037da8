"""Checkpoints that are written while the training goes on.

    with BackgroundSaves(run.checkpoints, ranks) as saves:
        saves.save(snapshot)            copied already; returns at once, unless the one before is still being written

One is written at a time. What went wrong with one is raised by the next `save`, or at the end of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from mem1.training.checkpoint import write_snapshot
from mem1.training.distributed import Ranks, TorchRanks
from mem1.training.snapshot import Snapshot


class BackgroundSaves:
    """A thread that writes to one folder; every rank has one."""

    def __init__(self, folder: Path, ranks: Ranks, *, on_saved: Callable[[Path], None] | None = None) -> None:
        """`on_saved` is called on rank 0, in the thread, with the path of each checkpoint that is in place."""
        self.folder = folder
        self.ranks = ranks.apart() if isinstance(ranks, TorchRanks) else ranks
        self.on_saved = on_saved
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Write what `take` copies; called when the one before is written, so that there is one copy at a time."""
        self.wait()
        self._writing = self._pool.submit(self._write, take())

    def wait(self) -> None:
        """Until all is written. Raises what writing raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, snapshot: Snapshot) -> None:
        path = write_snapshot(self.folder, snapshot, ranks=self.ranks)
        if self.on_saved is not None and self.ranks.rank == 0:
            self.on_saved(path)

    def __enter__(self) -> BackgroundSaves:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            # The training's own error is the one to be told; on several ranks the others may be gone by now.
            if kind is None or self.ranks.size == 1:
                self.wait()
        finally:
            self._pool.shutdown(wait=kind is None or self.ranks.size == 1)
