"""The data behind the viewer of a page, as JSON: attempts turn by turn, each text stored once.

{"strings": ["Q1 ...", " <IS> ...", ...], "roles": ["prompt", "state", ...],
 "filters": [{"name": "ended", "label": "ending", "values": ["answered", "out of turns"]}, ...],
 "groups": [{"name": "trained, constant", "objectives": 2}],
 "tasks": [{"id": "atlas-0", "questions": [["Q1", "text", "gold / alias"], ...],
            "facts": [["Q1", "gold / alias", false], ["Q1", "Bergen", true], ...]}],
 "trajectories": [{"group": 0, "task": 0, "labels": [1, ...], "ended": "answered", "turns": [...], ...}]}

Texts of turns are indices into `strings`. Pieces follow one another, four numbers each: role (an index into "roles"),
text, tokens, turn of origin (0: none). The viewer computes nothing from them.

A fact is (its question, its text, whether it only leads to the answer), and each turn has one letter per fact:

    result of turn 1 has "Oslo" (gold of Q1)    state of turn 2 has it    state of turn 3 does not
    ->  status  "."  "h"  "l"       gained at turn 2: fact 0        lost at turn 3: fact 0

An attempt whose tokens are not at hand when the page is written is kept as a `Told`: its turns as above, with tables of
its own, which are joined into those of the page. If a page would grow too large, only the first k tasks of every policy
and size are kept, with one k for all, so that what can be compared stays together; the page names what was left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mem1.evaluation.fact_retention import Fact, Step, facts_of, follow
from mem1.evaluation.report.rows import Attempts, Run
from mem1.evaluation.report.token_attribution import Decode, Piece, TurnPieces, cut, dropped
from mem1.evaluation.tokens import appended_tokens
from mem1.pages.page import Viewer, compressed
from mem1.records import Metric, Task, Trajectory, Turn
from mem1.scoring import answers_given

FILTERS = {"run": "run", "policy": "policy", "objectives": "N", "ended": "ending", "solved": "solved"}
"""Name of a filter of a report's list -> its label."""
Told = Mapping[str, Any]
"""An attempt as it is kept for a page: "task", "answers" and "turns" with their "strings" and "roles"."""


class Numbered:
    """Distinct values, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    @property
    def values(self) -> list[Any]:
        return list(self.numbers)


class PageData:
    """Collects attempts into one JSON object."""

    def __init__(self, filters: Mapping[str, str] = FILTERS) -> None:
        """`filters`: those of the list, name -> label."""
        self.strings, self.roles, self.tasks = Numbered(), Numbered(), Numbered()
        self.filters = {name: (label, Numbered()) for name, label in filters.items()}
        self.groups: list[dict[str, Any]] = []
        self.trajectories: list[dict[str, Any]] = []

    def add_group(self, name: str, objectives: int) -> None:
        """Start a group, such as a policy of a run at one size; the attempts added next belong to it."""
        self.groups.append({"name": name, "objectives": objectives})

    def add(self, trajectory: Trajectory, decode: Decode, labels: Mapping[str, str] | None = None) -> None:
        """Add a trajectory; `labels`: filter -> its value, besides ending and score.

        Raises ValueError if a turn did not record its prompt tokens.
        """
        task, ended, em = trajectory.task, words(trajectory.ended), trajectory.metrics.get("em")
        right = trajectory.per_objective("em")
        solved = all(value == 1 for value in right) if right else (trajectory.reward or 0) > 0
        length = turns_in_words(len(trajectory.turns))
        limit = "" if task is None else f" of at most {task.turn_limit}"
        reward = "never scored" if trajectory.reward is None else f"reward {number(trajectory.reward)}"
        about = [f"after {length}{limit}", f"memory {trajectory.context}", reward]
        score = "\u2013" if trajectory.reward is None else number(trajectory.reward)
        self.add_attempt(
            task=_task(task, facts_of(task) if task else ()),
            labels={"ended": ended, "solved": "all right" if solved else "not all right", **(labels or {})},
            ended=trajectory.ended.value,
            detail=trajectory.detail,
            result=score if em is None else result_of(right),
            solved=solved,
            length=length,
            about=about,
            answers=[] if task is None else answers_given(trajectory.answer, task),
            metrics=trajectory.metrics,
            turns=self.turns_of(trajectory, decode),
        )

    def add_attempt(
        self,
        *,
        task: tuple[Any, ...],
        labels: Mapping[str, str],
        about: Sequence[str],
        metrics: Mapping[str, Metric],
        **shown: Any,
    ) -> None:
        """Add an attempt.

        task     its id, questions and facts, as in the module
        labels   filter -> its value
        about    what is said of it after its ending, before its metrics of the whole attempt
        shown    the other fields, as in the module: ended, detail, result, solved, length, answers, turns
        """
        said = [*about, *(f"{name} {number(value)}" for name, value in metrics.items() if not isinstance(value, tuple))]
        self.trajectories.append(
            {
                "group": len(self.groups) - 1,
                "task": self.tasks.number(task),
                "labels": [values.number(labels.get(name, "")) for name, (_, values) in self.filters.items()],
                "about": ", ".join(said),
                "metrics": {name: value for name, value in metrics.items() if isinstance(value, tuple)},
                **shown,
            }
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "strings": self.strings.values,
            "roles": self.roles.values,
            "filters": [
                {"name": name, "label": label, "values": values.values}
                for name, (label, values) in self.filters.items()
            ],
            "groups": self.groups,
            "tasks": [dict(zip(("id", "questions", "facts"), of, strict=True)) for of in self.tasks.values],
            "trajectories": self.trajectories,
        }

    def turns_of(self, trajectory: Trajectory, decode: Decode) -> list[dict[str, Any]]:
        """The turns of a trajectory. Raises ValueError if one did not record its prompt tokens."""
        turns = trajectory.turns
        sizes = [(len(turn.context_ids), len(turn.completion_ids)) for turn in turns]
        shown = zip(turns, cut(turns, decode), sizes, appended_tokens(trajectory), strict=True)
        return self.turns([(turn, pieces, (*of, appended)) for turn, pieces, of, appended in shown], trajectory.task)

    def turns(
        self, turns: Sequence[tuple[Turn, TurnPieces, tuple[int, int, int]]], task: Task | None
    ) -> list[dict[str, Any]]:
        """Turns, each with its pieces and its tokens: given, written, and both with everything appended."""
        facts = facts_by_turn([] if task is None else facts_of(task), [turn for turn, _, _ in turns])
        state, before = "", None
        written: list[dict[str, Any]] = []
        for (turn, pieces, sizes), known in zip(turns, facts, strict=True):
            written.append(
                {
                    "action": turn.action,
                    "sizes": list(sizes),
                    "context": self._pieces(pieces.context),
                    "completion": self._pieces(pieces.completion),
                    "result": self._pieces(pieces.result),
                    "dropped": self._pieces(dropped(before, pieces.context) if before else []),
                    "changes": self._changes(state, turn.state) if turn.state else [],
                    "facts": known.status,
                    "gained": known.gained,
                    "lost": known.lost,
                }
            )
            state, before = turn.state or state, pieces
        return written

    def joined(self, told: Told) -> list[dict[str, Any]]:
        """The turns of an attempt that was kept, with the numbers of this page."""
        strings, roles = ([of.number(value) for value in told[name]] for name, of in self._tables())

        def pieces(flat: Sequence[int]) -> list[int]:
            numbered = zip(*[iter(flat)] * 4, strict=True)
            return [n for role, text, *rest in numbered for n in (roles[role], strings[text], *rest)]

        return [
            {
                **turn,
                **{name: pieces(turn[name]) for name in ("context", "completion", "result", "dropped")},
                "changes": [strings[value] if place % 2 else value for place, value in enumerate(turn["changes"])],
            }
            for turn in told["turns"]
        ]

    def _tables(self) -> list[tuple[str, Numbered]]:
        return [("strings", self.strings), ("roles", self.roles)]

    def _pieces(self, pieces: Iterable[Piece]) -> list[int]:
        return [
            value
            for piece in pieces
            for value in (self.roles.number(piece.role), self.strings.number(piece.text), piece.tokens, piece.turn or 0)
        ]

    def _changes(self, last: str, state: str) -> list[Any]:
        return [value for kind, text in changes(last, state) for value in (kind, self.strings.number(text))]


def told_of(task: Task, answer: str, turns: Callable[[PageData], list[dict[str, Any]]]) -> Told:
    """An attempt as it is kept for pages to come."""
    data = PageData({})
    found = turns(data)
    _, questions, facts = _task(task, facts_of(task))
    tables = {name: of.values for name, of in data._tables()}
    return {
        "questions": questions,
        "facts": facts,
        "answers": answers_given(answer, task),
        "turns": found,
    } | tables


def _task(task: Task | None, facts: Sequence[Fact]) -> tuple[Any, ...]:
    """What identifies a task: its id, questions and facts."""
    if task is None:
        return "", (), ()
    labels = [f"Q{number}" for number in task.numbers]
    questions = tuple((label, q.text, " / ".join(q.answers)) for label, q in zip(labels, task.questions, strict=True))
    named = tuple((labels[fact.question - 1], fact.text, fact.until is not None) for fact in facts)
    return task.id, questions, named


def words(ended: str) -> str:
    """An ending in words."""
    return str(ended).replace("_", " ")


def turns_in_words(number: int) -> str:
    return f"{number} {'turn' if number == 1 else 'turns'}"


def result_of(right: Sequence[float]) -> str:
    """2/3 for two of three objectives right."""
    return f"{sum(value == 1 for value in right)}/{len(right)}"


def number(value: float) -> str:
    """With at most three decimals."""
    text = f"{value:,.3f}"
    return text.rstrip("0").rstrip(".")


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
    found: list[Change] = []
    for kind, a, b, c, d in _steps([w.strip() for w in old], [w.strip() for w in new]):
        if kind == "equal":
            found += [("=", "".join(new[c:d]))] if d > c else []
            continue
        found += [("-", "".join(old[a:b]))] if b > a else []
        found += [("+", "".join(new[c:d]))] if d > c else []
    return found


_PAIRS = 1 << 15
"""Pairs of equal words in two states that are compared word by word: it takes the square of them, where few differ."""


def _steps(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Steps from the old words to the new ones, as `SequenceMatcher.get_opcodes`; what repeats itself without end
    between an equal beginning and an equal end is replaced as a whole."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    yield "equal", 0, head, 0, head
    counted = Counter(b)
    if sum(number * counted[word] for word, number in Counter(a).items()) > _PAIRS:
        yield "replace", head, head + len(a), head, head + len(b)
    else:
        for kind, *places in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            start, stop, first, last = (head + place for place in places)
            yield kind, start, stop, first, last
    yield "equal", len(old) - tail, len(old), len(new) - tail, len(new)


FIRST = 64
"""Tasks tried first; doubled while they fit, so that not much more than is shown of a huge run is laid out."""


def first_tasks(text: Callable[[int], str], most: int, largest: int) -> tuple[int, str]:
    """The number of tasks whose text has at most `largest` characters, within about one per cent, and that text.

    text    the text of the first k tasks of every policy and size
    most    tasks that there are
    """
    tasks = min(most, FIRST)
    found = text(tasks)
    while len(found) <= largest and tasks < most:
        tasks = min(most, 2 * tasks)
        found = text(tasks)
    while len(found) > largest and tasks > 0:
        tasks = int(0.99 * tasks * largest / len(found))
        found = text(tasks)
    return tasks, found


def fit(runs: Sequence[Run], largest: int) -> Viewer:
    """As many tasks as fit into `largest` characters of compressed text."""
    parts = [(run, attempts) for run in runs for attempts in (*run.attempts, *run.kept)]
    most = max((len(attempts.trajectories) for _, attempts in parts), default=0)
    tasks, text = first_tasks(lambda tasks: _text(runs, tasks), most, largest)
    return Viewer(
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
            row = attempts.row
            data.add_group(group_name(run, attempts, runs), row.objectives)
            labels = {"run": run.name, "policy": f"{row.policy}, {row.context}", "objectives": str(row.objectives)}
            for trajectory in attempts.trajectories[:tasks]:
                data.add(trajectory, attempts.decode or run.decode, labels)
    return compressed(data.as_json())
