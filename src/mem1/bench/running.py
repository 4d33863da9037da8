"""One run of the benchmark in a folder: killed at any moment, the same command goes on and has the same result.

    run(lambda journal: player, suite, ["full", "notes"], seed=0, folder=Path("runs/bench/qwen"))  ->  Result

    run.json         who was asked what: another player, suite or seed needs another folder
    journal.jsonl    each reply of a server, before it is used
    attempts.jsonl   each attempt, when it is over; one whose server or tool failed is repeated by the next run
    result.json      all attempts of the memories and families that are complete

Cells come one after the other, each under every memory, so that what is there can be compared at any time.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mem1.bench.journal import Journal
from mem1.bench.players import Player
from mem1.bench.results import RESULT, TASKS, Attempt, Result, Spent, save_result
from mem1.bench.suites import Cell, Drawing, Suite
from mem1.durable import write_file
from mem1.errors import UserError
from mem1.interrupts import GRACE_S, saying_what_is_saved
from mem1.jsonl import append_objects, drop_cut_line, read_objects
from mem1.lock import alone_in
from mem1.net.spending import LimitReached
from mem1.net.threads import run_jobs
from mem1.prices import PriceClass
from mem1.records import Ended
from mem1.version import __version__

RUN, JOURNAL, ATTEMPTS = "run.json", "journal.jsonl", "attempts.jsonl"
"""Files of a folder, beside the result."""
_MOST_FAILURES = 8
"""Attempts in a row whose server failed, after which a run ends: it is not the model that fails."""
_MAY_CHANGE = ("urls",)
"""What another process of the same run may be told differently about the player."""


class Job(NamedTuple):
    """Tasks of a cell that are attempted in one call, by their places in the cell."""

    cell: Cell
    memory: str
    places: tuple[int, ...]


OnProgress = Callable[[Sequence[Attempt], int], None]
"""(attempts that are new, attempts of the whole run); the first call has those of earlier processes."""


@dataclass(kw_only=True)
class _Records:
    """The attempts of a folder."""

    path: Path
    found: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    """(memory, task) -> latest attempt."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Process -> wall time from its start to its last attempt."""
    process: str = field(default_factory=lambda: secrets.token_hex(4))
    began: float = field(default_factory=time.monotonic)

    def read(self) -> None:
        if not self.path.exists():
            return
        drop_cut_line(self.path)
        for _, line in read_objects(self.path):
            attempt = line["attempt"]
            self._take(Attempt(**{**attempt, "right": tuple(attempt["right"]), "tokens": Spent(**attempt["tokens"])}))
            self.seconds[line["process"]] = line["elapsed"]

    def add(self, attempts: Sequence[Attempt]) -> None:
        """They are on disk when this returns."""
        elapsed = time.monotonic() - self.began
        lines = [{"process": self.process, "elapsed": elapsed, "attempt": asdict(attempt)} for attempt in attempts]
        append_objects(self.path, lines)
        for attempt in attempts:
            self._take(attempt)
        self.seconds[self.process] = elapsed

    def _take(self, attempt: Attempt) -> None:
        self.found[attempt.memory, attempt.task] = attempt

    def of(self, cell: Cell, memory: str, seed: int, asked: int | None = None) -> list[Attempt]:
        """Those at tasks of a cell, or at the first ones that are asked, in order."""
        return [found for id in cell.ids(seed)[:asked] if (found := self.found.get((memory, id))) is not None]


def run(
    opened: Callable[[Journal], Player],
    suite: Suite,
    memories: Sequence[str],
    *,
    seed: int,
    folder: Path,
    families: Sequence[str] = (),
    prices: PriceClass | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """The result, which is in the folder too; `opened` makes the player, once no other command uses the folder.

    Raises UserError for a folder of another run, where a limit is reached and where the server fails again and again;
    Interrupted after Ctrl-C: requests under way have `GRACE_S` to end, or until the second one. The messages say what
    is saved.
    """
    cells = suite.only(families).cells
    with alone_in(folder):
        player = opened(Journal(folder / JOURNAL))
        known = _opened(folder, player, suite, memories, seed, prices)
        records = _Records(path=folder / ATTEMPTS)
        records.read()
        rows = [(cell, memory) for cell in cells for memory in memories]
        of = sum(suite.asked(cell) for cell, _ in rows)

        def done() -> list[Attempt]:
            return [found for cell, memory in rows for found in records.of(cell, memory, seed, suite.asked(cell))]

        tell = on_progress or (lambda attempts, of: None)
        tell(done(), of)
        jobs = [job for row in rows for job in _missing(player, suite, records, *row, seed)]
        with _saying_what_is_saved(folder, lambda: len(done()), of) as stopped:
            for attempts in _work(player, Drawing(suite, seed=seed, native=player.native), jobs, stopped):
                records.add(attempts)
                tell(attempts, of)
        result = _result(known, suite, records, seed, prices)
        save_result(folder / RESULT, result)
        return result


def _opened(
    folder: Path, player: Player, suite: Suite, memories: Sequence[str], seed: int, prices: PriceClass | None
) -> dict[str, Any]:
    """What run.json says, with these memories. Raises UserError where the folder belongs to another run."""
    path = folder / RUN
    mine: dict[str, Any] = {
        "suite": suite.name,
        "seed": seed,
        "tasks": TASKS,
        "version": __version__,
        "model": player.name,
        "about": dict(player.about),
        "prices": None if prices is None else asdict(prices),
        "memories": list(memories),
    }
    mine = json.loads(json.dumps(mine))
    if path.exists():
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in mine if name != "memories" and _told(earlier[name]) != _told(mine[name])]
            before = list(earlier["memories"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read ({error}); give another --out") from error
        if changed:
            raise UserError(
                f"{folder} holds a run with another {changed[0]}, {_short(earlier[changed[0]])} and not "
                f"{_short(mine[changed[0]])}; give another --out"
            )
        mine["memories"] = list(dict.fromkeys([*before, *memories]))
        mine["about"] = earlier["about"]
    elif any(path.exists() for path in (folder / ATTEMPTS, folder / RESULT)):
        raise UserError(f"{folder} holds a result and no {RUN}, so it cannot be gone on with; give another --out")
    write_file(path, (json.dumps(mine, indent=1) + "\n").encode())
    return mine


def _told(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in _MAY_CHANGE} if isinstance(value, dict) else value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}…"


def _missing(player: Player, suite: Suite, records: _Records, cell: Cell, memory: str, seed: int) -> Iterator[Job]:
    """What is to be attempted, again too where the server or the tool failed; always the same tasks together."""
    asked = suite.asked(cell)
    for first in range(0, asked, player.together):
        places = tuple(range(first, min(first + player.together, asked)))
        found = [records.found.get((memory, cell.ids(seed)[place])) for place in places]
        if not all(attempt is not None and Ended(attempt.ended).scorable for attempt in found):
            yield Job(cell, memory, places)


def _work(
    player: Player, drawing: Drawing, jobs: Sequence[Job], stopped: Callable[[], bool]
) -> Iterator[list[Attempt]]:
    """The attempts of the jobs as they are done. Raises UserError where attempt after attempt ends with the server."""

    def attempt(job: Job) -> list[Attempt]:
        drawn = drawing.of(job.cell)
        return player.attempts(drawn, [drawn.tasks[place] for place in job.places], job.memory, stopped)

    failures = 0
    for _, attempts in run_jobs(jobs, attempt, at_a_time=player.at_a_time, stopped=stopped):
        yield attempts
        for found in attempts:
            failures = 0 if Ended(found.ended).scorable else failures + 1
            if failures >= max(_MOST_FAILURES, player.at_a_time):
                raise UserError(f"{failures} attempts in a row failed: {found.detail}")


def _result(known: Mapping[str, Any], suite: Suite, records: _Records, seed: int, prices: PriceClass | None) -> Result:
    complete = [
        records.of(cell, memory, seed)
        for memory in known["memories"]
        for cell in suite.cells
        if len(records.of(cell, memory, seed)) >= suite.asked(cell)
    ]
    return Result(
        model=known["model"],
        about=known["about"],
        suite=suite.name,
        seed=seed,
        version=__version__,
        tasks=TASKS,
        attempts=tuple(attempt for attempts in complete for attempt in attempts),
        prices=None if prices is None else prices.name,
        unit=None if prices is None else prices.unit,
        seconds=sum(records.seconds.values()),
    )


@contextmanager
def _saying_what_is_saved(folder: Path, done: Callable[[], int], of: int) -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C into `Interrupted`, and adds to a limit and to a UserError what is saved."""

    def saved() -> str:
        return f"{done()} of {of} attempts are done and saved in {folder}"

    again = "repeat the command to go on"
    notice = f"Stopping: requests under way have {GRACE_S:.0f} seconds to finish; press Ctrl-C again to stop at once."
    try:
        with saying_what_is_saved("attempting tasks", saved, again, notice) as stop:
            yield lambda: stop.requested
    except LimitReached as reached:
        raise UserError(f"{reached}\n{saved()}; {again} with a higher --max-cost") from reached
