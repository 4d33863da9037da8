"""One run of the benchmark in a folder: killed at any moment, the same command resumes it and has the same result.

    run(lambda journal: player, suite, ["full", "notes"], seed=0, folder=Path("runs/bench/qwen"))  ->  Result

    run.json         who was asked what: another player, suite or seed needs another folder
    journal.jsonl    each reply of a server, before it is used: no request is repeated
    attempts.jsonl   each attempt, turn by turn, when it is over; one whose server or tool failed is repeated
    result.json      attempts without their turns: of each memory and family as many as every size has

Cells come one after the other, each under every memory, so that what is there can be compared at any time.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mem1.bench.results import RESULT, TASKS, Attempt, Result, Spent, digest_of, save_result
from mem1.bench.suites import Cell, Drawing, Drawn, Suite
from mem1.durable import write_file
from mem1.errors import UserError
from mem1.evaluation.report.viewer_data import Told
from mem1.evaluation.store import attempt_all, chunks, missing, other_settings
from mem1.jsonl import append_objects, read_objects
from mem1.lock import alone_in
from mem1.net.spending import LimitReached
from mem1.pages.page import compressed
from mem1.prices import PriceClass
from mem1.records import Ended, Task
from mem1.run_folder import differences
from mem1.version import __version__

RUN, JOURNAL, ATTEMPTS = "run.json", "journal.jsonl", "attempts.jsonl"
"""Files of a folder, beside the result."""
_MOST_FAILURES = 8
"""Attempts in a row whose server failed, after which a run ends: it is not the model that fails."""
_MAY_CHANGE = ("memories", "about.urls", "prices.about", "prices.source", "prices.date")
"""Keys of run.json that another process of the same run may be told differently."""


class Played(NamedTuple):
    """An attempt, and how it went."""

    attempt: Attempt
    told: Callable[[], Told]
    """Its turns, for pages."""

    @property
    def ended(self) -> str:
        return self.attempt.ended


class Player(Protocol):
    """A model, or a script, with everything that is needed to let it work under any memory.

    `mem1.bench.chat` has players that speak in chat messages, `mem1.bench.policies` those that speak in tags.
    """

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """Identity of the player, as JSON: what is recorded of one player is never continued by another."""
        ...

    @property
    def native(self) -> bool:
        """Whether it calls tools in its own protocol, rather than in tags."""
        ...

    @property
    def together(self) -> int:
        """Tasks that are attempted in one call."""
        ...

    @property
    def at_a_time(self) -> int:
        """Calls at the same time, each in its own thread."""
        ...

    def check(self, memory: str) -> None:
        """Raises UserError for a memory that it cannot have. Quick."""
        ...

    def attempts(self, drawn: Drawn, tasks: Sequence[Task], memory: str, stopped: Callable[[], bool]) -> list[Played]:
        """Attempts at these tasks of a cell, without those that were cut off because a stop was requested.

        Raises LimitReached where the next request could exceed a limit.
        """
        ...


def outline(cell: Cell, task: Task, memory: str) -> dict[str, Any]:
    """The fields of an attempt that say what was attempted."""
    return {
        "task": task.id,
        "family": cell.family,
        "level": cell.level,
        "objectives": task.objectives,
        "memory": memory,
    }


OnProgress = Callable[[Sequence[Attempt], int], None]
"""(attempts that are new, attempts of the whole run); the first call has those of earlier processes."""


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
    Interrupted after Ctrl-C, as `attempt_all`. The messages say what is saved.
    """
    wanted = suite.only(families).cells
    with alone_in(folder):
        player = opened(Journal(folder / JOURNAL))
        known = _opened(folder, player, suite, memories, seed, prices)
        kept = _Kept(folder / ATTEMPTS)
        rows = {
            (cell, memory): kept.of(cell, memory, seed)
            for cell in suite.cells
            for memory in (memories if cell in wanted else ())
        }
        jobs = [
            (cell, memory, places)
            for (cell, memory), found in rows.items()
            for places in missing(found, chunks(suite.asked(cell), player.together))
            if places
        ]
        of = sum(suite.asked(cell) for cell, _ in rows)
        tell = on_progress or (lambda attempts, of: None)
        tell(
            [one for (cell, _), found in rows.items() for place, one in found.items() if place < suite.asked(cell)], of
        )
        drawing, failures = Drawing(suite, seed=seed, native=player.native), 0

        def attempt(job: tuple[Cell, str, list[int]], stopped: Callable[[], bool]) -> list[Played]:
            cell, memory, places = job
            drawn = drawing.of(cell)
            try:
                return player.attempts(drawn, [drawn.tasks[place] for place in places], memory, stopped)
            except LimitReached as reached:
                raise UserError(f"{reached}; continue with a higher --max-cost") from reached

        def keep(job: tuple[Cell, str, list[int]], played: list[Played]) -> None:
            nonlocal failures
            cell, memory, _ = job
            kept.add(played)
            rows[cell, memory] = kept.of(cell, memory, seed)
            tell([one.attempt for one in played], of)
            for one in played:
                failures = 0 if Ended(one.ended).scorable else failures + 1
                if failures >= max(_MOST_FAILURES, player.at_a_time):
                    raise UserError(f"{failures} attempts in a row failed: {one.attempt.detail}")

        def saved() -> str:
            done = sum(place < suite.asked(cell) for (cell, _), found in rows.items() for place in found)
            return f"{done} of {of} attempts are done and saved in {folder}"

        attempt_all(
            jobs,
            attempt,
            keep,
            at_a_time=player.at_a_time,
            doing="attempting tasks",
            saved=saved,
            again="repeat the command to continue",
        )
        result = Result(
            **{name: known[name] for name in ("model", "about", "suite", "seed", "version", "tasks")},
            attempts=tuple(
                one
                for memory in known["memories"]
                for family in suite.families
                for one in kept.even(suite.only([family]).cells, memory, seed)
            ),
            prices=None if prices is None else prices.name,
            unit=None if prices is None else prices.unit,
            seconds=sum(kept.seconds.values()),
        )
        save_result(folder / RESULT, result)
        return result


@dataclass
class _Kept:
    """The attempts of a folder."""

    path: Path
    found: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    """(memory, task) -> latest attempt."""
    told: dict[str, dict[str, str]] = field(default_factory=dict)
    """Memory -> task -> the turns of that attempt, compressed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Process -> wall time from its start to its last attempt."""
    process: str = field(default_factory=lambda: secrets.token_hex(4))
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        for number, line in read_objects(self.path, drop_cut_line=True):
            try:
                self._take(line)
            except (LookupError, TypeError, ValueError) as error:
                raise UserError(f"{self.path}:{number}: no attempt ({error!r}); remove the line") from error

    def add(self, played: Sequence[Played]) -> None:
        """They are on disk when this returns."""
        about = {"process": self.process, "elapsed": time.monotonic() - self.began}
        lines = [{**about, "attempt": asdict(one.attempt), "told": compressed(one.told())} for one in played]
        append_objects(self.path, lines, drop_cut_line=True)
        for line in lines:
            self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        record = line["attempt"]
        attempt = Attempt(**{**record, "right": tuple(record["right"]), "tokens": Spent(**record["tokens"])})
        self.found[attempt.memory, attempt.task] = attempt
        if "told" in line:
            self.told.setdefault(attempt.memory, {})[attempt.task] = line["told"]
        self.seconds[line["process"]] = line["elapsed"]

    def of(self, cell: Cell, memory: str, seed: int) -> dict[int, Attempt]:
        """Place of a task in the cell -> the attempt at it."""
        found = {place: self.found.get((memory, id)) for place, id in enumerate(cell.ids(seed))}
        return {place: one for place, one in found.items() if one is not None}

    def even(self, cells: Sequence[Cell], memory: str, seed: int) -> list[Attempt]:
        """Those at the first tasks of each cell, as many as all cells have or the cell holds.

        of a limit of 2, and of a run without one that was killed    3 of 8, 2 of 8, 3 of 3    ->    2, 2, 2
        """
        found = [self.of(cell, memory, seed) for cell in cells]
        firsts = [
            next(place for place in range(cell.tasks + 1) if place not in of)
            for cell, of in zip(cells, found, strict=True)
        ]
        fewest = min((first for cell, first in zip(cells, firsts, strict=True) if first < cell.tasks), default=None)
        return [of[place] for of, first in zip(found, firsts, strict=True) for place in range(first)[:fewest]]


def told_in(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Memory -> task -> the turns of the latest attempt, as of `Side.told`; empty: the folder has none.

    Raises UserError for a damaged file.
    """
    return _Kept(folder / ATTEMPTS).told


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
            changed = differences(earlier, mine, _MAY_CHANGE)
            mine |= {"memories": list(dict.fromkeys([*earlier["memories"], *memories])), "about": earlier["about"]}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read ({error}); give another --out") from error
        if changed:
            raise other_settings(folder, changed)
    elif any(path.exists() for path in (folder / ATTEMPTS, folder / RESULT)):
        raise UserError(f"{folder} holds a result and no {RUN}, so it cannot be resumed; give another --out")
    write_file(path, (json.dumps(mine, indent=1) + "\n").encode())
    return mine


class Call(NamedTuple):
    """One call of a model on a server."""

    task: str
    memory: str
    number: int
    """Of the attempt's calls, states included, from 1."""
    request: str
    """Digest of everything that the request holds: what a changed memory or prompt asks is asked anew."""


class Journal:
    """The replies of one run, each on the disk before it is used. Thread-safe.

    call = Call(task="independent-1-n4-seed0-2", memory="full", number=3, request=digest_of(request))
    journal.find(call)          the reply that an earlier process got, or None
    journal.add(call, reply)    one line of JSON, forced to the disk
    """

    def __init__(self, path: Path | None) -> None:
        """Reads what is there, without a last line that was cut off. None: nothing is kept.

        Raises UserError for a damaged file.
        """
        self._path, self._lock = path, threading.Lock()
        self._replies: dict[Call, Mapping[str, Any]] = {}
        self.money = 0.0
        """Cost of all its replies."""
        if path is not None and path.exists():
            for number, line in read_objects(path, drop_cut_line=True):
                if line.pop("digest", None) != digest_of(line):
                    raise UserError(
                        f"{path}:{number}: this reply is not as it was recorded; remove the line, and it is asked again"
                    )
                self._take(line)

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, call: Call) -> Mapping[str, Any] | None:
        """The reply to this call; None: there is none."""
        return self._replies.get(call)

    def add(self, call: Call, reply: Mapping[str, Any], *, money: float = 0.0) -> None:
        """Keeps a reply. Raises UserError where it cannot be written."""
        if self._path is not None:
            with self._lock:
                line = {**call._asdict(), "money": money, "reply": reply}
                append_objects(self._path, [{**line, "digest": digest_of(line)}], drop_cut_line=True)
                self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        self._replies[Call(line["task"], line["memory"], line["number"], line["request"])] = line["reply"]
        self.money += line["money"]
