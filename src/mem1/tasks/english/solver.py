"""A scripted solver with a memory of any size, for calibration: it reads perfectly and forgets on purpose.

    Solver(tasks, worlds)                   remembers everything
    Solver(tasks, worlds, memory=200)       keeps its newest notes, as far as 200 tokens go (four characters each)
    Solver(tasks, worlds, memory=0)         knows only which question it is at, and what is in view

It sees only the text in view, as a policy does: the prompt, results, and what it wrote itself and is still there. Where
a passage that it needs is in view it knows what the passage says, from the world; so difficulty is a matter of memory
and not of reading. Its notes:

    now Q2 at Elmwick; rules = small letters, with tarnflax; Q1 = Corin Ashmont; Q3 ! Morvin 2021-05-03; Q4 > Dunford;

A note with "!" comes from a correction and its day, one with ">" names the passage that a question leads to. With any
number of notes it also keeps what it has read: "saw = Elmwick, Dunford;". It goes through the questions once, in their
order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mem1.records import Question, Task
from mem1.tasks.english.families import rules_of, section_of
from mem1.tasks.english.questions import Asker, key_of
from mem1.tasks.english.world import EnglishWorld
from mem1.tasks.prompts import ByPrompt

_TITLE = re.compile(r"Doc \d+ \(Title: ([^()]+)\)")
_NOW = re.compile(r"now (rules|Q\d+)(?: at ([^;]+))?;")
_NOTE = re.compile(r"\b(rules|saw|Q\d+) ([=!>]) ([^;]*);")
_DAY = re.compile(r" (\d{4}-\d\d-\d\d)$")
_LAST_TURN = re.compile(r"You have 1 turn left|No searches are left")
_CHARACTERS = 4
"""Per token."""
_RULES, SAW = "rules", "saw"


@dataclass(frozen=True, slots=True)
class Line:
    """One of the solver's notes."""

    key: str
    """rules, saw, or the label of a question."""
    mark: str
    value: str

    @property
    def answers(self) -> bool:
        """Whether it holds the answer to a question."""
        return self.key not in (_RULES, SAW) and self.mark != ">"

    def __str__(self) -> str:
        return f"{self.key} {self.mark} {self.value};"


@dataclass(frozen=True, slots=True)
class Move:
    """What the solver does next: a search or the answer."""

    now: str
    """The place: "now Q2 at Elmwick;"; empty: there is nothing left to look for."""
    lines: tuple[Line, ...]
    """What it keeps."""
    search: str = ""
    answer: str = ""

    @property
    def notes(self) -> str:
        """All that it writes down."""
        return " ".join(filter(None, (self.now, *map(str, self.lines)))) or "nothing"


@dataclass(frozen=True)
class Solver:
    """See the module; pure functions of the text in view."""

    tasks: Sequence[Task]
    worlds: Mapping[str, EnglishWorld]
    """By name."""
    rules: int = 0
    """Rules of each task."""
    memory: int | None = None
    """Tokens of notes; None: any number."""
    _by_prompt: ByPrompt[Task] = field(init=False, repr=False, compare=False)
    _askers: Mapping[str, Asker] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_prompt = ByPrompt(((task.prompt, task) for task in self.tasks), lambda text: " ".join(text.split()))
        object.__setattr__(self, "_by_prompt", by_prompt)
        object.__setattr__(self, "_askers", {name: Asker(world) for name, world in self.worlds.items()})

    def move(self, text: str) -> Move:
        """The next move for the text in view, which begins with a task's prompt. Raises StopIteration for another."""
        task, rest = self.task(text)
        notes = {line.key: (line.mark, line.value) for line in lines_of(rest)}
        now = (_NOW.findall(rest) or [("Q1", "")])[-1]
        seen = [*notes.pop(SAW, ("", ""))[1].split(", "), *_TITLE.findall(rest)]
        seen = [title for title in dict.fromkeys(seen) if title in self.worlds[task.corpus].entities or self.rules]
        self._read(task, notes, seen, now)
        if self.memory is None:
            notes[SAW] = ("=", ", ".join(seen))
        if _LAST_TURN.search(rest) is None:
            if self.rules and _RULES not in notes:
                return Move(*self._kept(notes, now), search=f"rules of section {section_of(task.seed)}")
            begun = self._next(task, notes, now)
            if begun is not None:
                return Move(*self._kept(notes, begun), search=self._query(task, *begun))
        place, kept = self._kept(notes, None)
        return Move(place, kept, answer=answer_of(Line(key, *said) for key, said in notes.items()))

    def task(self, text: str) -> tuple[Task, str]:
        """The task that a text begins with, and the rest of it. Raises StopIteration for an unknown one."""
        return self._by_prompt.find(text)

    def _read(self, task: Task, notes: dict[str, tuple[str, str]], seen: Sequence[str], now: tuple[str, str]) -> None:
        """Adds what the passages in view say."""
        world, asker = self.worlds[task.corpus], self._askers[task.corpus]
        if self.rules and f"Rules of section {section_of(task.seed)}" in seen:
            notes[_RULES] = ("=", ", ".join(rule.note for rule in rules_of(task.seed, self.rules)))
        for label, question in _labelled(task):
            if label not in notes and (label, question.titles[-1]) == now:
                notes[label] = (">", question.titles[-1])
            for title in question.titles if self._known(question, notes) else ():
                mark, value = notes.get(label, (">", question.titles[0]))
                if mark == ">" and value == title and title in seen:
                    notes.pop(label, None)  # to be the newest
                    notes[label] = _after(question, title, asker)
        for notice in (world.notices[title] for title in seen if title in world.notices):
            day = str(notice.day)
            for label, question in _labelled(task):
                if (question.titles[-1], *key_of(question)) == (notice.subject, notice.relation, ""):
                    mark, value = notes.get(label, (">", ""))
                    if mark != "!" or value[-len(day) :] < day:
                        notes.pop(label, None)
                        notes[label] = ("!", f"{notice.value} {day}")

    def _known(self, question: Question, notes: Mapping[str, tuple[str, str]]) -> bool:
        """Whether the answers that the question refers to are noted."""
        return all(_answered(f"Q{number}", notes) for number in question.depends_on)

    def _next(self, task: Task, notes: Mapping[str, tuple[str, str]], now: tuple[str, str]) -> tuple[str, str] | None:
        """(label, title of the passage to look for); None: nothing is left to do."""
        label, looked_for = now
        first = 1 if label == _RULES else int(label[1:])
        for number in range(first, task.objectives + 1):
            question = task.questions[number - 1]
            title = notes.get(f"Q{number}", (">", question.titles[0]))[1]
            failed = number == first and title == looked_for  # the search did not show it
            if not (failed or _answered(f"Q{number}", notes)) and self._known(question, notes):
                return f"Q{number}", title
        return None

    def _query(self, task: Task, label: str, title: str) -> str:
        question, world = task.questions[int(label[1:]) - 1], self.worlds[task.corpus]
        nickname = world.entities[title].nickname
        query = nickname if nickname and not question.depends_on and f"the {nickname}" in question.text else title
        for rule in rules_of(task.seed, self.rules) if self.rules else ():
            query = rule.follow(query)
        return query

    def _kept(self, notes: Mapping[str, tuple[str, str]], now: tuple[str, str] | None) -> tuple[str, tuple[Line, ...]]:
        """The place, and the newest notes that fit."""
        lines = [Line(key, mark, value) for key, (mark, value) in notes.items()]
        if self.memory is not None:
            left, kept = _CHARACTERS * self.memory, 0
            for line in reversed(lines):
                left -= len(str(line)) + 1
                if left < 0:
                    break
                kept += 1
            lines = lines[len(lines) - kept :]
        at = "" if now is None else f"now {now[0]}{' at ' + now[1] if now[1] else ''};"
        return at, tuple(lines)


def lines_of(text: str) -> list[Line]:
    """The notes in a text."""
    return [Line(*found) for found in _NOTE.findall(text)]


def answer_of(lines: Iterable[Line]) -> str:
    """The answers among the notes, in the order of their labels: "Q1 Corin Ashmont; Q2 1388"."""
    found = {line.key: _DAY.sub("", line.value) if line.mark == "!" else line.value for line in lines if line.answers}
    return "; ".join(f"{key} {found[key]}" for key in sorted(found, key=lambda key: int(key[1:])))


def _labelled(task: Task) -> list[tuple[str, Question]]:
    return [(f"Q{number}", question) for number, question in enumerate(task.questions, start=1)]


def _answered(label: str, notes: Mapping[str, tuple[str, str]]) -> bool:
    return label in notes and notes[label][0] != ">"


def _after(question: Question, title: str, asker: Asker) -> tuple[str, str]:
    """The note once the passage of this title has been read."""
    if title != question.titles[-1]:
        return ">", question.titles[-1]
    return "=", asker.stale(question) or question.answers[0]
