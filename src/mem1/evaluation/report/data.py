"""What the viewer of a page shows, as JSON: every trajectory turn by turn, each text once.

{"strings": ["Q1 ...", " <IS> ...", ...],
 "groups": [{"run": "a", "policy": "trained", "context": "constant", "objectives": 2, "name": "trained, constant"}],
 "tasks": [{"id": "atlas-0", "limit": 9, "questions": [["Q1 text", "gold / alias"], ...],
            "facts": [[1, "gold / alias", false], [1, "Bergen", true], ...]}],
 "trajectories": [{"group": 0, "task": 0, "ended": "answered", "reward": 1.0, "em": [1.0, 0.0], "turns": [...], ...}]}

A fact is (its question, its text, whether it only leads to the answer); a turn has one letter a fact (memory.py).
Texts of turns are numbers of `strings`. Pieces are written one behind the other, four numbers each: role (its number
in `ROLES`, made on the way), text, tokens, turn of origin (0: of none). The viewer computes nothing from them.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mem1.contexts import ContextPolicy, context_policy
from mem1.errors import UserError
from mem1.evaluation.fidelity import Fact, facts_of
from mem1.evaluation.metrics import appended_tokens
from mem1.evaluation.report.memory import changes, facts_by_turn
from mem1.evaluation.report.pieces import Decode, Piece, cut, dropped
from mem1.records import Task, Trajectory
from mem1.scoring import split_answers


class Table:
    """Values by number, each once, in the order in which they came."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    @property
    def values(self) -> list[Any]:
        return list(self.numbers)


class PageData:
    """Collects trajectories and writes them as one object for JSON."""

    def __init__(self) -> None:
        self.strings, self.roles, self.tasks = Table(), Table(), Table()
        self.groups: list[dict[str, Any]] = []
        self.trajectories: list[dict[str, Any]] = []

    def add_group(self, **names: Any) -> None:
        """Begin a group: a policy of a run at one size; trajectories added from now on belong to it."""
        self.groups.append(names)

    def add(self, trajectory: Trajectory, decode: Decode) -> None:
        """Raises ValueError if a turn did not record which of its context tokens are the prompt."""
        task = trajectory.task
        facts = [] if task is None else facts_of(task)
        self.trajectories.append(
            {
                "group": len(self.groups) - 1,
                "task": self.tasks.number(_task(task, facts)),
                "ended": trajectory.ended.value,
                "detail": trajectory.detail,
                "reward": trajectory.reward,
                "answers": split_answers(trajectory.answer, 0 if task is None else task.objectives),
                "em": trajectory.em,
                "f1": trajectory.f1,
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
        turns, pieces = trajectory.turns, cut(trajectory.turns, decode, _policy(trajectory))
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
            for value in (
                self.roles.number(piece.role),
                self.strings.number(piece.text),
                piece.tokens,
                piece.turn or 0,
            )
        ]

    def _changes(self, last: str, state: str) -> list[Any]:
        return [value for kind, text in changes(last, state) for value in (kind, self.strings.number(text))]


def _policy(trajectory: Trajectory) -> ContextPolicy | None:
    try:
        return context_policy(trajectory.context)
    except UserError:  # of another program, or made by hand
        return None


def _task(task: Task | None, facts: Sequence[Fact]) -> tuple[Any, ...]:
    """Two attempts are at the same task if it has the same name, limit of turns, questions and facts."""
    if task is None:
        return "", None, (), ()
    questions = tuple((q.text, " / ".join(q.answers)) for q in task.questions)
    named = tuple((fact.question, fact.text, fact.until is not None) for fact in facts)
    return task.id, task.turn_limit, questions, named


def compressed(data: Any) -> str:
    """JSON, gzip, base64: letters that mean nothing in HTML, whatever the data hold. The same data, the same text."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0)).decode("ascii")
