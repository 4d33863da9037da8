"""Scripted experts for Atlas: a clean one, and lazy ones for warm starts with mostly bad habits.

An expert reads only the text of the current context, so it has exactly a policy's memory. Its state begins with the
result of the last search, lists the answers found and the rest of the current question, so that every step copies text
in sight, and ends with the next label, so that it knows where to stop ("Q2 then done" under the prompt `ordered`):

    <IS> now Q1 Velan Toris 's birthplace ? Q1 then Q2 </IS> <query> Velan Toris 's birthplace </query>
    <IS> Velan Toris 's birthplace is Moru Kest . Q1 Moru Kest now Q2 Dora Lint 's seat ? Q2 last </IS> ...
    <IS> Dora Lint 's seat is Ana Brul . done </IS> <answer> Q1 Moru Kest ; Q2 Ana Brul </answer>

When a summary is requested, it writes its next state, with the answers, and continues from there:

    <summary> Velan Toris 's birthplace is Moru Kest . Q1 Moru Kest now Q2 Dora Lint 's seat ? Q2 last </summary>
    <IS> Q1 Moru Kest now Q2 Dora Lint 's seat ? Q2 last </IS> <query> Dora Lint 's seat </query>

With tags for notes, an answer is written once, into a note, and the final answer is the notes:

    <IS> Velan Toris 's birthplace is Moru Kest . now Q2 Dora Lint 's seat ? Q2 last </IS> <note> Q1 Moru Kest </note>
    <IS> Dora Lint 's seat is Ana Brul . done </IS> <note> Q2 Ana Brul </note> <answer> notes </answer>

With a tag for a thought, the result of the last search is written there, apart from the memory. Where it
has a summary as well (`belief`), nothing is written beside a query that follows from what is in sight, in the first
turn and after a summary:

    <query> Velan Toris 's birthplace </query>                 without a summary: <IS> now Q1 ... </IS> <query> ...
    <think> Velan Toris 's birthplace is Moru Kest . </think> <IS> Q1 Moru Kest now Q2 ... </IS> <query> ... </query>

A question whose search finds nothing is noted as unknown and not repeated, and so is a question that refers to its
answer; but one with a name that was copied wrongly is begun again, once, and marked as unknown so far:

    <IS> Dora Kest 's seat is unknown . Q1 Moru Kest now Q2 unknown Dora Lint 's seat ? Q2 last </IS> ...

A question with references is written as it was asked, then with the names behind them, so that every word is copied
from beside the one before it, and no two things are looked up at once:

    Q2 answer Q1 's mayor ?
    ->  now Q2 answer Q1 's mayor ? answer Q1 Moru Kest 's mayor ? ...
    Q3 answer Q1 ; answer Q2 's mayor is Sela Prand ?
    ->  now Q3 answer Q1 ; answer Q2 's mayor is Sela Prand ? answer Q1 Moru Kest ; answer Q2 Ana Brul 's mayor is ...

With tags for notes and `<recall>`, a name whose note is not in sight is written as unknown, where it is
looked for, and then recalled, once. Of two that are not in sight, or if the other one is not any more when it comes,
the question is noted as unknown:

    <IS> ... now Q9 answer Q3 's mayor ? answer Q3 unknown 's mayor ? Q9 then done </IS> ... <recall> Q3 </recall>
    <IS> now Q9 answer Q3 's mayor ? answer Q3 Moru Kest 's mayor ? Q9 then done </IS> <query> ... </query>
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mem1.configuration import Config
from mem1.configuration.model import Probability
from mem1.memory.notes import NOTES
from mem1.protocol import ANSWER, RECALL, SEARCH, SUMMARY, Tags, blocks
from mem1.records import Task, Trajectory, Turn
from mem1.tasks.atlas.world import split_of_name
from mem1.tasks.prompts import DONE, ORDER

_ASKED = r"Q(\d+) {}(\w+ \w+)(?: ; {}(\w+ \w+))?((?: 's \w+)+)(?: is (\w+ \w+))? \?"
_QUESTION = re.compile(_ASKED.format("", ""))
_AS_ASKED = r"(?:[^?]*answer [^?]*\? )?"
_BEHIND = r"(?:answer Q\d+ )?"
_WORKING = re.compile("now " + _ASKED.format(rf"(?:unknown )?{_AS_ASKED}{_BEHIND}", _BEHIND))
_AGAIN = re.compile(r"now Q\d+ unknown ")
_KNOWN = re.compile(r"Q(\d+) (unknown|[A-Z]\w+ \w+)")
_REFERENCE = re.compile(r"answer Q(\d+)")
_FACT = re.compile(r"(\w+ \w+) 's (\w+) is (\w+ \w+) \.")
_NAME = re.compile(r"([A-Z][a-z]+ [A-Z][a-z]+)")
UNKNOWN = "unknown"
"""Written for a fact that a search did not show, and as the answer to that question."""
_LAST_TURN = re.compile(r"You have 1 turn left")


class Laziness(Config):
    """Probabilities of lazy habits, each per decision; all 0: the clean expert."""

    diligent: Probability = 0.0
    """Share of tasks done without the habits below."""
    slip: Probability = 0.0
    """Takes the shortcut even in those tasks, to show how to continue after a search that found nothing."""

    stop: Probability = 0.0
    """Answers although questions are open; drawn after each finished question."""
    shortcut: Probability = 0.0
    """Skips the first hop of a two-hop question, finds nothing, and leaves the question unanswered."""
    forget: Probability = 0.0
    """Drops a remembered answer from the state; drawn when an answer is added to others."""
    misread: Probability = 0.0
    """Copies a name wrongly, finds nothing, and begins the question again, once; drawn when a later question is begun
    and between its hops, in diligent tasks, too, and more often the second time, to show when to give up. What is
    copied wrongly is left out of `shown`."""

    def of(self, prompt: str, seed: int) -> Laziness:
        """The habits in the task of this prompt: none in those that are done diligently."""
        return CLEAN if random.Random(f"{seed}/{prompt}").random() < self.diligent else self


CLEAN = Laziness()
_TWICE = 0.4
"""Probability that a name is copied wrongly in a question that was begun again."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A question, or the rest of it; names may be references, such as "answer Q1"."""

    start: str
    relations: tuple[str, ...]
    """In the order of the searches: ("birthplace", "mayor")."""
    rival: str = ""
    """In a comparison: the answer if `start` is not."""
    value: str = ""
    """In a comparison: the value that the answer leads to."""
    references: tuple[str, str] = ("", "")
    """What stands before the names: "answer Q1 ", where the name is that answer."""
    asked: str = ""
    """The question as it was asked, where it has references: "answer Q1 's mayor ? "."""

    def __str__(self) -> str:
        first, second = self.references
        names = f"{first}{self.start} ; {second}{self.rival}" if self.rival else f"{first}{self.start}"
        return self.asked + " 's ".join((names, *self.relations)) + (f" is {self.value}" if self.value else "") + " ?"

    @property
    def needs(self) -> list[int]:
        """The labels of the questions that it refers to."""
        return [int(label) for label in _REFERENCE.findall(f"{self.start} ; {self.rival}")]

    def named(self, known: Mapping[int, str]) -> _Chain:
        """The chain with names behind its references, as far as they are known."""
        parts = [(name, _REFERENCE.fullmatch(name)) for name in (self.start, self.rival)]
        names = [known.get(int(found[1]), UNKNOWN) if found else name for name, found in parts]
        first, second = (f"{name} " if found else "" for name, found in parts)
        asked = f"{self} " if first or second else ""
        return replace(self, start=names[0], rival=names[1], references=(first, second), asked=asked)

    def resolved(self, known: Mapping[int, str]) -> _Chain | None:
        """The same; None if a name is unknown."""
        named = self.named(known)
        return None if UNKNOWN in (named.start, named.rival) else named

    def from_query(self, query: str) -> _Chain | None:
        """The chain that was begun with this search, with or without its first hop; None: it was not."""
        start, _, relation = query.rpartition(" 's ")
        if start != self.start or relation not in self.relations:
            return None
        return replace(self, relations=self.relations[self.relations.index(relation) :])

    def concluded(self, found: str | None) -> str | None:
        """The answer, given the name that the last relation leads to; None: not found."""
        if not self.value or found is None:
            return found
        return self.start if found == self.value else self.rival


@dataclass(frozen=True, slots=True)
class _Step:
    note: str
    """Result of the last search."""
    known: Mapping[int, str]
    """Number of a question -> its answer."""
    label: int = 0
    """Number of the current question."""
    work: _Chain | None = None
    """The rest of the current question; None: no question is left."""
    again: bool = False
    """The current question was begun again."""
    recall: int | None = None
    """The label of a note that the current question needs and that is out of sight."""


def _chains(pattern: re.Pattern[str], text: str) -> dict[int, _Chain]:
    """Q1 Velan Toris 's birthplace 's mayor ?  ->  {1: a chain of two}"""
    found = pattern.findall(text)
    return {int(q): _Chain(start, tuple(r.split(" 's ")[1:]), rival, value) for q, start, rival, r, value in found}


def _names(text: str) -> dict[int, str]:
    """Q1 Moru Kest ; Q2 unknown  ->  {1: "Moru Kest", 2: "unknown"}"""
    return {int(q): name for q, name in _KNOWN.findall(text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    laziness: Laziness = CLEAN
    seed: int = 0
    excerpt: int | None = None
    """Begins anywhere in a task of more questions and answers after this many; None: does all of every task."""

    def __call__(self, context: str) -> str:
        """The completion for this context; a pure function of the context and the seed."""
        tags = self._state, self.tags.thought, self.tags.note, self._summary, self._search
        prompt = re.split(rf"<(?:{'|'.join(filter(None, tags))})>", context)[0]
        asked = _chains(_QUESTION, prompt)
        rng, lazy = random.Random(f"{self.seed}/{context}"), self._laziness(prompt)
        labels = sorted(asked)
        first, last = self._range(prompt, len(labels), asked)
        done = {label: asked[label] for label in labels[first - 1 : last]}
        step = self._step(context, done, rng, lazy)
        follows = {label: f"then Q{other}" for label, other in itertools.pairwise(labels)}
        follows[labels[-1]] = f"then {DONE}" if ORDER.search(prompt) else "last"
        return self._written(step, self._notes(context), context.rstrip(), follows)

    def range_of(self, prompt: str, objectives: int) -> tuple[int, int]:
        """The positions, from 1, of the first and the last question that it does of a task with this prompt.

        A third of the excerpts each is the beginning of the list, any part of it, and a part that ends with it: few
        would reach the end of a long list otherwise, and where a list ends has to be read, too. It begins earlier where
        one of its questions refers to an earlier one.
        """
        return self._range(prompt, objectives, _chains(_QUESTION, prompt))

    def _range(self, prompt: str, objectives: int, asked: Mapping[int, _Chain]) -> tuple[int, int]:
        if self.excerpt is None or objectives <= self.excerpt:
            return 1, objectives
        rng = random.Random(f"{self.seed}/first/{prompt.split('?')[0]}")
        parts = 1, rng.randint(1, objectives), objectives + 1 - rng.randint(1, self.excerpt)
        first = rng.choice(parts)
        labels = sorted(asked)
        needed = [min(asked[label].needs, default=label) for label in labels]  # the earliest that each refers to
        while min(needed[first - 1 :][: self.excerpt]) < labels[first - 1]:
            first -= 1
        return first, min(first + self.excerpt - 1, objectives)

    def placed(self, task: Task) -> Task:
        """The task with the turns that are left where its excerpt begins, after a turn and a half for each question."""
        first, _ = self.range_of(task.prompt, task.objectives)
        return replace(task, turn_limit=task.turn_limit - 3 * (first - 1) // 2)

    def shown(self, attempt: Trajectory) -> Trajectory:
        """The turns of an excerpt that a policy should learn from.

        A first turn that begins in the middle of a list is none, as it has no reason to; nor is an answer to the whole
        list by somebody who stops in its middle because the excerpt ends there, or the summary in which he decides so;
        nor is a name that was copied wrongly.
        """
        assert attempt.task is not None
        first, last = self.range_of(attempt.task.prompt, attempt.task.objectives)
        turns = self._copied_rightly(attempt)[first > 1 :]
        if turns and last < attempt.task.objectives and turns[-1].action == ANSWER and not turns[-1].prefilled:
            memories = [turn.content if turn.action == SUMMARY else turn.state for turn in attempt.turns]
            done = max((label for memory in memories for label in _chains(_WORKING, memory)), default=0)
            if done == attempt.task.numbers[last - 1]:
                turns = turns[:-1]
                if turns and turns[-1].action == SUMMARY and turns[-1].content.split()[-1:] == [DONE]:
                    turns = turns[:-1]
        return replace(attempt, turns=turns)

    def _copied_rightly(self, attempt: Trajectory) -> tuple[Turn, ...]:
        """The turns whose question begins with a name that the prompt or a result shows."""
        assert attempt.task is not None
        shown = "\n".join([attempt.task.prompt, *(turn.observation for turn in attempt.turns)])
        begun = [(turn, _chains(_WORKING, turn.text).values()) for turn in attempt.turns]
        return tuple(turn for turn, chains in begun if all(chain.start in shown for chain in chains))

    def _step(self, context: str, asked: Mapping[int, _Chain], rng: random.Random, lazy: Laziness) -> _Step:
        memory, query = self._memory(context)
        if memory is None:
            first = min(asked)
            writes_none = self.tags.thought is not None or context.rstrip().endswith(f"<{self._summary}>")
            begun = asked[first].from_query(query) if writes_none else None
            if begun is None:
                return _Step("", {}, first, self._begin(asked[first], rng, lazy))
            memory = _Step("", {}, first, begun)
        last = _LAST_TURN.search(self._result(context)) is not None
        if memory.work is not None and memory.work.needs:
            recalled = dict.fromkeys(memory.work.needs, UNKNOWN) | _names(self._result(context))
            shown = {**recalled, **memory.known}
            left = [other for other in asked if other >= memory.label and not last]
            return self._onward("", memory.known, shown, left, asked, context, rng, lazy)
        if not query:  # the memory is a summary, whose result is only a hint
            return replace(memory, work=None) if last else memory
        assert memory.work is not None
        known, label, work = memory.known, memory.label, memory.work
        found = self._found(context, work)
        note = f"{work.start} 's {work.relations[0]} is {found or UNKNOWN} . "
        if found is not None and len(work.relations) > 1 and not last:
            onward = replace(work, start=found, relations=work.relations[1:], references=("", ""), asked="")
            read = self._misread(onward, context, rng, lazy, twice=memory.again)
            return _Step(note, known, label, read, memory.again)
        again = asked[label].resolved(known) if found is None and label in asked and not last else None
        if again is not None and work.start != again.start and not memory.again:
            return _Step(note, known, label, self._misread(again, context, rng, lazy, twice=True), True)
        answer = work.concluded(found) if len(work.relations) == 1 else None
        known = self._remember(known, label, answer or UNKNOWN, rng, lazy)
        stops = len(asked) > 1 and rng.random() < lazy.stop
        left = [other for other in asked if other > label and not (stops or last)]
        return self._onward(note, known, known, left, asked, context, rng, lazy)

    def _onward(
        self,
        note: str,
        known: Mapping[int, str],
        in_sight: Mapping[int, str],
        left: Sequence[int],
        asked: Mapping[int, _Chain],
        context: str,
        rng: random.Random,
        lazy: Laziness,
    ) -> _Step:
        """The step that begins the first of these questions whose references it has, or recalls one; or the last.

        `in_sight` has what is known and what has been recalled, which is not to be noted again.
        """
        known, in_sight = dict(known), dict(in_sight)
        for label in left:
            hidden = [other for other in asked[label].needs if other not in in_sight]
            if self._recall is not None and len(hidden) == 1:
                return _Step(note, known, label, asked[label].named(in_sight), recall=hidden[0])
            begun = asked[label].resolved(in_sight)
            if begun is not None:
                return _Step(note, known, label, self._misread(self._begin(begun, rng, lazy), context, rng, lazy))
            known[label] = in_sight[label] = UNKNOWN
        return _Step(note, known)

    def _memory(self, context: str) -> tuple[_Step | None, str]:
        """The last memory, a state or a summary, None before the first; and the query after it, or an empty text."""
        tags = (self._state, self._summary)
        memories = [(block.stop, tag, block.inside) for tag in tags for block in blocks(context, tag)]
        end, tag, text = max(memories, default=(0, "", ""))
        query = ["", *(block.content for block in blocks(context[end:], self._search))][-1]
        if not memories:
            return None, query
        before, now, _ = text.rpartition("now ")
        known = _names(before if now else text) | self._notes(context)
        if not now:
            if tag == self._summary:
                return _Step("", known), query
            raise ValueError(f"no Atlas expert writes this state: {text!r}")
        ((label, work),) = _chains(_WORKING, text).items()
        return _Step("", known, label, work, _AGAIN.search(text) is not None), query

    def _notes(self, context: str) -> dict[int, str]:
        """The answers in the notes, the rewritten ones included."""
        if self.tags.note is None:
            return {}
        noted = [*blocks(context, self.tags.note), *blocks(context, self._summary)]
        return {q: name for block in sorted(noted, key=lambda b: b.start) for q, name in _names(block.inside).items()}

    def _result(self, context: str) -> str:
        return context.rsplit(f"<{self.tags.result}>", 1)[-1]

    def _found(self, context: str, work: _Chain) -> str | None:
        stated = _FACT.findall(self._result(context))
        return next((o for s, r, o in stated if (s, r) == (work.start, work.relations[0])), None)

    def _laziness(self, prompt: str) -> Laziness:
        drawn = random.Random(f"{self.seed}/{prompt.split('?')[0]}").random()
        diligent = Laziness(shortcut=self.laziness.slip, misread=self.laziness.misread)
        return diligent if drawn < self.laziness.diligent else self.laziness

    def _remember(
        self, known: Mapping[int, str], label: int, found: str, rng: random.Random, lazy: Laziness
    ) -> dict[int, str]:
        kept = dict(known)
        if kept and rng.random() < lazy.forget:
            if self.tags.note is not None:  # what has been noted stays, but it may be forgotten to note something
                return kept
            del kept[rng.choice(sorted(kept))]
        return {**kept, label: found}

    def _begin(self, asked: _Chain, rng: random.Random, lazy: Laziness) -> _Chain:
        """The question as noted in the state: complete, or without its first hop."""
        skips = len(asked.relations) > 1 and rng.random() < lazy.shortcut
        return replace(asked, relations=asked.relations[1:]) if skips else asked

    def _misread(
        self, work: _Chain, context: str, rng: random.Random, lazy: Laziness, *, twice: bool = False
    ) -> _Chain:
        """The chain, or with one word of its name from another in sight: a name that nothing has in this context."""
        if not lazy.misread or rng.random() >= (_TWICE if twice else lazy.misread):
            return work
        first, last = work.start.split()
        others = [name.split() for name in sorted(set(_NAME.findall(context)))]
        mixed = [pair for one, two in others for pair in (f"{first} {two}", f"{one} {last}") if pair not in context]
        same_half = [pair for pair in mixed if split_of_name(*pair.split()) == split_of_name(first, last)]
        return replace(work, start=rng.choice(same_half)) if same_half else work

    def _written(self, step: _Step, before: Mapping[int, str], context: str, follows: Mapping[int, str]) -> str:
        """The completion of the context, whose notes hold `before`: or the rest of it after an opened tag.

        `follows` says what comes after the label of each question.
        """
        new = {q: name for q, name in step.known.items() if before.get(q) != name}
        answers = " ; ".join(f"Q{q} {name}" for q, name in sorted(step.known.items()))
        memory = "".join(f"Q{q} {name} " for q, name in sorted(step.known.items()))
        notes = ""
        if self.tags.note is not None:
            if context.endswith(f"<{self._summary}>"):
                return " ; ".join(f"Q{q} {name}" for q, name in sorted(before.items())) + f" </{self._summary}>"
            notes = "".join(f" <{self.tags.note}> Q{q} {name} </{self.tags.note}>" for q, name in sorted(new.items()))
            opened = context.endswith(f"<{self.tags.action_tags[ANSWER]}>")  # then it is too late for a note
            late = "".join(f" ; Q{q} {name}" for q, name in sorted(new.items())) if opened else ""
            answers, memory = f"{NOTES}{late}", ""
        answer = self.tags.action_tags[ANSWER]
        if context.endswith(f"<{answer}>"):
            return f"{answers} </{answer}>"
        if step.work is None:
            if context.endswith(f"<{self._summary}>"):
                return f"{step.note}{memory}done </{self._summary}>"
            return f"{self._reasoned(step.note, 'done')}{notes} <{answer}> {answers} </{answer}>".lstrip()
        so_far = f"{UNKNOWN} " if step.again else ""
        state = f"{memory}now Q{step.label} {so_far}{step.work} Q{step.label} {follows[step.label]}"
        if context.endswith(f"<{self._summary}>"):
            return f"{step.note}{state} </{self._summary}>"
        if step.recall is not None:
            return f"{self._reasoned(step.note, state)}{notes} <{self._recall}> Q{step.recall} </{self._recall}>"
        query = f"{step.work.start} 's {step.work.relations[0]}"
        return f"{self._reasoned(step.note, state)}{notes} <{self._search}> {query} </{self._search}>".lstrip()

    def _reasoned(self, note: str, state: str) -> str:
        """What stands before the action: the state, and the result of the last search in it, or in a thought."""
        thought = self.tags.thought
        if thought is None:
            return f"<{self._state}> {note}{state} </{self._state}>"
        if not note and SUMMARY in self.tags.action_tags:
            return ""
        thoughts = f"<{thought}> {note}</{thought}> " if note else ""
        return f"{thoughts}<{self._state}> {state} </{self._state}>"

    @property
    def _search(self) -> str:
        return self.tags.action_tags[SEARCH]

    @property
    def _state(self) -> str:
        return self.tags.state

    @property
    def _summary(self) -> str:
        """The tag of a summary; where there is none, a name that no context has."""
        return self.tags.action_tags.get(SUMMARY, "no-summary")

    @property
    def _recall(self) -> str | None:
        """The tag by which it recalls notes; None: it does not."""
        has_notes = self.tags.note is not None and self.tags.thought is None
        return self.tags.action_tags.get(RECALL) if has_notes else None
