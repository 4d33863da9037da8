"""The data behind a page's viewer, as JSON: every trajectory turn by turn, each text stored once.

{"strings": ["Q1 ...", " <IS> ...", ...],
 "groups": [{"run": "a", "policy": "trained", "context": "constant", "objectives": 2, "name": "trained, constant"}],
 "tasks": [{"id": "atlas-0", "limit": 9, "questions": [["Q1 text", "gold / alias"], ...],
            "facts": [[1, "gold / alias", false], [1, "Bergen", true], ...]}],
 "trajectories": [{"group": 0, "task": 0, "ended": "answered", "metrics": {"em": [1.0, 0.0]}, "turns": [...], ...}]}

Texts of turns are indices into `strings`. Pieces follow one another, four numbers each: role (an index into "roles"),
text, tokens, turn of origin (0: none). The viewer computes nothing from them.

A fact is (its question, its text, whether it only leads to the answer), and each turn has one letter per fact:

    result of turn 1 has "Oslo" (gold of Q1)    state of turn 2 has it    state of turn 3 does not
    ->  status  "."  "h"  "l"       gained at turn 2: fact 0        lost at turn 3: fact 0

If a page would grow too large, only the first k tasks of every policy and size are kept, with one k for all, so that
what can be compared stays together; the page names what was left out.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mem1.evaluation.fact_retention import Fact, Step, facts_of, follow
from mem1.evaluation.metrics import appended_tokens
from mem1.evaluation.report.rows import Attempts, Run
from mem1.evaluation.report.token_attribution import Decode, Piece, cut, dropped
from mem1.records import Task, Trajectory, Turn
from mem1.scoring import split_answers


class Table:
    """Distinct values, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    @property
    def values(self) -> list[Any]:
        return list(self.numbers)


class PageData:
    """Collects trajectories into one JSON object."""

    def __init__(self) -> None:
        self.strings, self.roles, self.tasks = Table(), Table(), Table()
        self.groups: list[dict[str, Any]] = []
        self.trajectories: list[dict[str, Any]] = []

    def add_group(self, **names: Any) -> None:
        """Start a group, a policy of a run at one size; the trajectories added next belong to it."""
        self.groups.append(names)

    def add(self, trajectory: Trajectory, decode: Decode) -> None:
        """Add a trajectory. Raises ValueError if a turn did not record its prompt tokens."""
        task = trajectory.task
        facts = [] if task is None else facts_of(task)
        self.trajectories.append(
            {
                "group": len(self.groups) - 1,
                "task": self.tasks.number(_task(task, facts)),
                "ended": trajectory.ended.value,
                "detail": trajectory.detail,
                "reward": trajectory.reward,
                "answers": split_answers(trajectory.answer, () if task is None else task.numbers),
                "metrics": dict(trajectory.metrics),
                "turns": self._turns(trajectory, facts, decode),
            }
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "strings": self.strings.values,
            "roles": self.roles.values,
            "groups": self.groups,
            "tasks": [dict(zip(("id", "limit", "questions", "facts"), of, strict=True)) for of in self.tasks.values],
            "trajectories": self.trajectories,
        }

    def _turns(self, trajectory: Trajectory, facts: Sequence[Fact], decode: Decode) -> list[dict[str, Any]]:
        turns, pieces = trajectory.turns, cut(trajectory.turns, decode)
        state = ""
        written: list[dict[str, Any]] = []
        for i, (turn, appended, known) in enumerate(
            zip(turns, appended_tokens(trajectory), facts_by_turn(facts, turns), strict=True)
        ):
            written.append(
                {
                    "action": turn.action,
                    "sizes": [len(turn.context_ids), len(turn.completion_ids), appended],
                    "context": self._pieces(pieces[i].context),
                    "completion": self._pieces(pieces[i].completion),
                    "result": self._pieces(pieces[i].result),
                    "dropped": self._pieces(dropped(pieces[i - 1], pieces[i].context) if i else []),
                    "changes": self._changes(state, turn.state) if turn.state else [],
                    "facts": known.status,
                    "gained": known.gained,
                    "lost": known.lost,
                }
            )
            state = turn.state or state
        return written

    def _pieces(self, pieces: Iterable[Piece]) -> list[int]:
        return [
            value
            for piece in pieces
            for value in (self.roles.number(piece.role), self.strings.number(piece.text), piece.tokens, piece.turn or 0)
        ]

    def _changes(self, last: str, state: str) -> list[Any]:
        return [value for kind, text in changes(last, state) for value in (kind, self.strings.number(text))]


def _task(task: Task | None, facts: Sequence[Fact]) -> tuple[Any, ...]:
    """What identifies a task: its id, turn limit, questions and facts."""
    if task is None:
        return "", None, (), ()
    labels = [f"Q{number}" for number in task.numbers]
    questions = tuple((label, q.text, " / ".join(q.answers)) for label, q in zip(labels, task.questions, strict=True))
    named = tuple((labels[fact.question - 1], fact.text, fact.until is not None) for fact in facts)
    return task.id, task.turn_limit, questions, named


def compressed(data: Any) -> str:
    """JSON, gzipped, in base64: harmless letters in HTML whatever the data hold, and the same for the same data."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0)).decode("ascii")


UNSEEN, HELD, LOST, UNWRITTEN, PAST = ".", "h", "l", "-", "p"
"""Status of a fact in a turn: not needed yet; needed and written; needed and not written; needed, but nothing was
written; no longer needed, because the answer it leads to has been shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts in one turn, by their index."""

    status: str
    """One of UNSEEN, HELD, LOST, UNWRITTEN, PAST for each fact."""
    gained: tuple[int, ...]
    """Facts in this turn's text that were not in the previous one."""
    lost: tuple[int, ...]
    """Facts in the previous text that are still needed and missing from this one."""


def facts_by_turn(facts: Sequence[Fact], turns: Sequence[Turn]) -> list[Facts]:
    """One entry per turn. A turn without state and answer neither gains nor loses facts."""
    past: set[Fact] = set()
    held: frozenset[Fact] = frozenset()
    found: list[Facts] = []
    for step in follow(facts, turns):
        past |= set(step.needed)
        now = held if step.kept is None else step.kept
        found.append(
            Facts(
                status="".join(_status(fact, step, past) for fact in facts),
                gained=tuple(i for i, fact in enumerate(facts) if fact in now - held),
                lost=tuple(i for i, fact in enumerate(facts) if fact in held - now and fact in step.needed),
            )
        )
        held = now
    return found


def _status(fact: Fact, step: Step, past: set[Fact]) -> str:
    if fact not in step.needed:
        return PAST if fact in past else UNSEEN
    if step.kept is None:
        return UNWRITTEN
    return HELD if fact in step.kept else LOST


Change = tuple[str, str]
"""("=", words in both states), ("-", words only in the old one) or ("+", words only in the new one)."""


def changes(last: str, state: str) -> list[Change]:
    """The difference from `last` to `state` by words; "=" and "+" joined are `state`."""
    old, new = (re.findall(r"\s*\S+|\s+$", text) for text in (last, state))
    matcher = SequenceMatcher(None, [w.strip() for w in old], [w.strip() for w in new], autojunk=False)
    found: list[Change] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            found.append(("=", "".join(new[c:d])))
            continue
        found += [("-", "".join(old[a:b]))] if b > a else []
        found += [("+", "".join(new[c:d]))] if d > c else []
    return found


FIRST = 64
"""Tasks tried first; doubled while they fit, so that not much more than is shown of a huge run is laid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The viewer's data."""

    text: str
    """The data as written by `compressed`."""
    shown: int
    """Trajectories in the text."""
    of: int
    """Trajectories in the runs."""
    omissions: Sequence[str]
    """Descriptions of the tasks left out, one per policy and size."""


def fit(runs: Sequence[Run], largest: int) -> Fitted:
    """As many tasks as fit into `largest` characters of compressed text, within about one per cent."""
    parts = [(run, attempts) for run in runs for attempts in (*run.attempts, *run.kept)]
    most = max((len(attempts.trajectories) for _, attempts in parts), default=0)
    tasks = min(most, FIRST)
    text = _text(runs, tasks)
    while len(text) <= largest and tasks < most:
        tasks = min(most, 2 * tasks)
        text = _text(runs, tasks)
    while len(text) > largest and tasks > 0:
        tasks = int(0.99 * tasks * largest / len(text))
        text = _text(runs, tasks)
    return Fitted(
        text=text,
        shown=sum(min(tasks, len(attempts.trajectories)) for _, attempts in parts),
        of=sum(len(attempts.trajectories) for _, attempts in parts),
        omissions=[
            f"{group_name(run, attempts, runs)}, N = {attempts.row.objectives}: "
            f"tasks {tasks + 1:,} to {len(attempts.trajectories):,}"
            for run, attempts in parts
            if len(attempts.trajectories) > tasks
        ],
    )


def group_name(run: Run, attempts: Attempts, runs: Sequence[Run]) -> str:
    """Name of a policy on the page, with its memory and run if there are several."""
    contexts = {attempts.row.context for run in runs for attempts in run.attempts}
    parts = (attempts.row.policy, attempts.row.context if len(contexts) > 1 else "", run.name if len(runs) > 1 else "")
    return ", ".join(filter(None, parts))


def _text(runs: Sequence[Run], tasks: int) -> str:
    data = PageData()
    for run in runs:
        for attempts in (*run.attempts, *run.kept):
            data.add_group(
                run=run.name,
                policy=attempts.row.policy,
                context=attempts.row.context,
                objectives=attempts.row.objectives,
                name=group_name(run, attempts, runs),
            )
            for trajectory in attempts.trajectories[:tasks]:
                data.add(trajectory, run.decode)
    return compressed(data.as_json())
