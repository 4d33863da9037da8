"""Clozes of different passages joined into tasks, mixed with real questions or depending on one another.

    compose_clozes(clozes, [], template, share=0.0, objectives=2, count=3, seed=0)
    -> "own-n2-seed0-0", "own-n2-seed0-1", "own-n2-seed0-2", each of two clozes

The passages are shuffled and used one after the other, one question of each; after the last one they are shuffled
again. So a task never has two questions of one passage, and every passage is used equally often. Dependent clozes are
linked where the answer of one is a name in the window of the next:

    Q1 Alvex was founded by ____ in the year       Mira Toll
    Q2 In ____ Mira Toll was born as the           Bergen       ->  Q2 In ____ the answer to Q1 was born as the

Only names link clozes: a year that occurs in two texts means nothing. Comparisons are alphabetical, as with real
questions (`mem1.tasks.bridge_questions`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.scoring import normalize
from mem1.tasks.bridge_questions import compared
from mem1.tasks.cloze.making import spans, words_apart
from mem1.tasks.cloze.questions import Ranked
from mem1.tasks.compose import Draft, Group, Material, same_text
from mem1.tasks.prompts import TaskTemplate

_Unit = tuple[str, Sequence[Question]]
"""What a task uses at most once, with its questions: a passage with its clozes, or one real question."""


def compose_clozes(
    clozes: Sequence[Ranked],
    real: Sequence[Question],
    form: TaskTemplate,
    *,
    share: float,
    objectives: int,
    count: int,
    seed: int,
) -> list[Task]:
    """The first `count` tasks of the sequence that `seed` determines; each question is real with probability `share`.

    Raises UserError if there are fewer passages, or fewer different real questions, than objectives.
    """
    passages, others = _by_passage(clozes), _by_text(real)
    if (share < 1 and len(passages) < objectives) or (share > 0 and len(others) < objectives):
        raise UserError(
            f"{objectives} objectives need {objectives} passages with clozes and as many real questions if mixed, but "
            f"there are {len(passages)} and {len(others)}; lower the number of objectives or add text"
        )
    streams = _endless(passages, f"passages {seed}"), _endless(others, f"real {seed}")
    tasks: list[Task] = []
    for index in range(count):
        rng = random.Random(f"task {seed} {index}")
        chosen: dict[str, Question] = {}
        while len(chosen) < objectives:
            key, questions = next(streams[rng.random() < share])
            if key not in chosen:  # possible where one shuffle ends and the next begins
                chosen[key] = rng.choice(questions)
        tasks.append(form.task(f"n{objectives}-seed{seed}-{index}", tuple(chosen.values()), rng))
    return tasks


def _by_passage(clozes: Sequence[Ranked]) -> list[_Unit]:
    by_passage: defaultdict[str, list[Question]] = defaultdict(list)
    for cloze in clozes:
        by_passage[f"passage {cloze.passage}"].append(cloze.question)
    return list(by_passage.items())


def _by_text(real: Sequence[Question]) -> list[_Unit]:
    return list({f"text {same_text(q.text)}": [q] for q in real}.items())


def _endless(units: Sequence[_Unit], seed: str) -> Iterator[_Unit]:
    rng = random.Random(seed)
    while units:
        yield from rng.sample(units, len(units))


@dataclass(frozen=True)
class ClozeMaterial(Material):
    """Clozes of one part of a corpus."""

    clozes: Sequence[Ranked]

    @cached_property
    def windows(self) -> Mapping[str, list[int]]:
        """Normalised name -> the clozes whose windows contain it once."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for index, cloze in enumerate(self.clozes):
            for name in names_around(cloze.question.text):
                found[normalize(name)].append(index)
        return dict(found)

    @cached_property
    def _starts(self) -> list[int]:
        return [i for i, cloze in enumerate(self.clozes) if normalize(cloze.question.answers[0]) in self.windows]

    def shortage(self, size: int) -> str:
        return (
            f"these {len(self.clozes)} clozes, {len(self._starts)} of whose answers occur in other windows, contain no "
            f"{size} that depend on one another in this way; lower the depth, or make more clozes"
        )

    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        """As in `Material`; all clozes of a task are of different passages."""
        followed = {position for references in group for position in references if len(references) == 1}
        used = {name.rpartition(":")[0] for name in taken}
        drafts: list[Draft] = []
        for position, references in enumerate(group):
            if len(references) == 2:
                made = compared(*(drafts[i].question for i in references))
            elif references:
                made = self._follower(drafts[references[0]].question, used, rng)
            else:
                made = self._first(position in followed, used, rng)
            if made is None:
                return drafts
            drafts.append(made)
        return drafts

    def _first(self, followed: bool, used: set[str], rng: random.Random) -> Draft | None:
        if followed and not self._starts:
            return None
        cloze = self.clozes[rng.choice(self._starts) if followed else rng.randrange(len(self.clozes))]
        return self._drafted(cloze, (cloze.question.text,), used)

    def _follower(self, before: Question, used: set[str], rng: random.Random) -> Draft | None:
        named = self.windows.get(normalize(before.answers[0]), ())
        cloze = self.clozes[rng.choice(named)] if named else None
        if cloze is None or normalize(cloze.question.answers[0]) == normalize(before.answers[0]):
            return None
        parts = next(
            parts
            for name, parts in names_around(cloze.question.text).items()
            if normalize(name) == normalize(before.answers[0])
        )
        return self._drafted(cloze, parts, used)

    def _drafted(self, cloze: Ranked, parts: tuple[str, ...], used: set[str]) -> Draft | None:
        if cloze.passage in used:
            return None
        used.add(cloze.passage)
        return Draft(cloze.question, parts)


def names_around(text: str) -> dict[str, tuple[str, str]]:
    """The names that occur once in a window -> the text before and after each."""
    words = words_apart(text)
    written = text.split()
    found: dict[str, tuple[str, str]] = {}
    again: set[str] = set()
    for span in spans(words):
        if span.answer[0].isdigit():
            continue
        if span.answer in found:
            again.add(span.answer)
        first, last = words[span.start], words[span.stop - 1]
        before = " ".join((*written[: span.start], first.before))
        after = " ".join((last.after, *written[span.stop :]))
        found[span.answer] = (before, after)
    return {name: parts for name, parts in found.items() if name not in again}
