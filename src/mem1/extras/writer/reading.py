"""Tasks in which a policy reads an agent's work, part by part, and notes what a later step may need.

    prompt       Note what may be needed later. Task: Go through what has come in, item by item ...
    completion   <query> next </query>
    result       [assistant] read_mail({"id": 1041}) [result of read_mail] ... invoice INV-482130 ... due on 3 May 2027
    completion   <note> Pellick Timber audit invoice: INV-482130 </note> <note> INV-482130 due: 3 May 2027 </note>
                 <query> next </query>
    ...
    result       The work ends here.
    completion   <answer> notes </answer>

Each part is one turn of a trajectory whose contexts are rewritten, so it sees the task, the newest notes and one part,
however long the work is. The objectives are facts of the work (`mem1.extras.probe`), which it is not told: a fact
counts if it stands in the notes that a budget of tokens leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import ClassVar, get_args

from pydantic import Field, field_validator

from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
from mem1.envs.tasks import TasksConfig, TextSizes
from mem1.errors import UserError
from mem1.extras.probe.kinds import FEWEST, KINDS, Settings, make_transcript
from mem1.extras.probe.kinds import Split as Part
from mem1.extras.probe.pieces import Piece
from mem1.extras.probe.retained import Text, Verdict, invented, verdict
from mem1.extras.probe.transcripts import Fact, Transcript
from mem1.extras.probe.writers import parts
from mem1.memory.notes import NOTES
from mem1.messages.bounds import oldest
from mem1.messages.exact import Source
from mem1.messages.writing import PART_TOKENS
from mem1.messages.written import WrittenNote, about, kept_of, within
from mem1.protocol import SEARCH, Tags, strip_markup
from mem1.records import Question, Task
from mem1.tasks.completions import completion
from mem1.tasks.compose import Split

NEXT, END = "next", "The work ends here."
"""What asks for the next part; what stands in the place of one more."""
BETWEEN = "; "
"""Between two notes of an answer."""
_TASK = 200
"""Most tokens of a task that are shown."""
_TRAINING = 1_000
"""Number of the first transcript that is trained on."""


class ReadingTasks(TasksConfig):
    """Parts of transcripts of agents, with the facts in them as objectives."""

    kind: str = "mem1.extras.writer.reading:ReadingTasks"
    kinds: tuple[str, ...] = Field(default=("atlas", "office"), min_length=1)
    """Kinds of transcripts; tasks take them in turn."""
    transcripts: int = Field(default=24, ge=1)
    """Transcripts of each kind and part."""
    exchanges: int = Field(default=100, ge=FEWEST)
    """Exchanges of a transcript; a task is as much of one as has its objectives."""
    corpus: Path | None = None
    """Passages for the kind search."""
    repository: Path = Path(".")
    """Git checkout for the kind software."""
    held_out: Part = "development"
    """Part that evaluations read."""
    share: float = Field(default=0.1, gt=0, le=1)
    """Tokens of notes that count, over those of what was read."""

    rewards: ClassVar[tuple[str, ...]] = ("recall",)

    @field_validator("kinds")
    @classmethod
    def _kinds_are_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"unknown kind of transcript {kind!r}; known: {', '.join(KINDS)}")
        return kinds

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """Transcripts for training; or those of the held-out part, which share no name with them if it is test."""
        return _Readings(self, split)

    def development(self) -> ReadingTasks:
        """Transcripts of the development part that are not trained on."""
        return self.model_copy(update={"held_out": "development"})

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        """Notes what is planted, and what results tell first."""
        return NoteExpert(tags, {note for task in tasks for note in self.excerpt(task).noted_parts(tags)})

    def excerpt(self, task: Task) -> Excerpt:
        """What this task reads."""
        kind, part, number, first, last = task.id.split("/")
        if part not in get_args(Part):
            raise UserError(f"task {task.id!r} is not one of these")
        return _excerpt(kind, part, int(number), int(first), int(last), self._settings)  # type: ignore[arg-type]

    def transcript(self, kind: str, part: Part, number: int) -> Transcript:
        """The transcript of this number. Raises UserError as `make_transcript` does."""
        return _transcript(kind, part, number, self._settings)

    @property
    def _settings(self) -> Settings:
        return Settings(exchanges=self.exchanges, corpus=self.corpus, repository=self.repository)

    def turns(self, objectives: int) -> int:
        return 3 * objectives + 3

    def text_sizes(self, objectives: int) -> TextSizes:
        return TextSizes(80, PART_TOKENS)


@lru_cache(maxsize=1_000)
def _transcript(kind: str, part: Part, number: int, settings: Settings) -> Transcript:
    return make_transcript(kind, part, number, settings)


@lru_cache(maxsize=10_000)
def _excerpt(kind: str, part: Part, number: int, first: int, last: int, settings: Settings) -> Excerpt:
    return Excerpt(_transcript(kind, part, number, settings), first, last)


@dataclass(frozen=True)
class Excerpt:
    """Exchanges of a transcript, from `first` to before `last`."""

    transcript: Transcript
    first: int
    last: int

    @cached_property
    def exchanges(self) -> list[list[Piece]]:
        return self.transcript.exchanges[self.first : self.last]

    @cached_property
    def parts(self) -> list[tuple[str, list[Piece]]]:
        """(text, pieces of its exchange) of what is read at a time."""
        return [(text, one) for one in self.exchanges for text in parts(one, PART_TOKENS)]

    @cached_property
    def sources(self) -> list[Source]:
        """What notes on each part are checked against."""
        return [about(text) for text, _ in self.parts]

    @cached_property
    def tokens(self) -> int:
        return sum(piece.tokens for one in self.exchanges for piece in one)

    def facts(self) -> list[Fact]:
        """Those that it states and that hold at its end."""
        found = self.exchanges
        start, end = found[0][0].message, found[-1][-1].message + 1
        return [fact for fact in self.transcript.facts if fact.message >= start and fact.holds(end)]

    def read_at(self, fact: Fact) -> int:
        """The turn that reads it, from 1; the first turn reads nothing."""
        of_it = [at for at, (_, one) in enumerate(self.parts) if any(piece.message == fact.message for piece in one)]
        return next((at for at in of_it if any(form in self.parts[at][0] for form in fact.forms)), of_it[0]) + 2

    def noted_parts(self, tags: Tags) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(a part as a policy sees it, what a careful reader notes of it)."""
        left: dict[int, list[tuple[str, str]]] = {}
        for noted in self.transcript.noted:
            left.setdefault(noted.message, []).append((noted.form, noted.note))
        for (text, pieces), source in zip(self.parts, self.sources, strict=True):
            taken: list[str] = []
            for message in (piece.message for piece in pieces):
                here = [one for one in left.get(message, ()) if one[0].split(", ")[0] in text]
                taken += [note for _, note in here if kept_of(note, source)]
                left[message] = [one for one in left.get(message, ()) if one not in here]
            yield _seen(text, tags), tuple(_seen(note, tags).replace(";", ",") for note in taken)


def _seen(text: str, tags: Tags) -> str:
    return " ".join(strip_markup(text, tags).split())


@dataclass(frozen=True)
class _Readings(TaskSource):
    config: ReadingTasks
    split: Split

    @property
    def environment(self) -> ReadingEnvironment:
        return ReadingEnvironment(self.config)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Raises UserError where a transcript has too few facts for so many objectives."""
        config = self.config
        part: Part = "development" if self.split == "train" else config.held_out
        first = _TRAINING if self.split == "train" else 0
        random = Random(f"reading/{self.split}/{objectives}/{seed}")
        found: list[Task] = []
        for at in range(count):
            kind = config.kinds[at % len(config.kinds)]
            found.append(self._task(kind, part, first + random.randrange(config.transcripts), objectives, random))
        return found

    def _task(self, kind: str, part: Part, number: int, objectives: int, random: Random) -> Task:
        transcript = self.config.transcript(kind, part, number)
        size = len(transcript.exchanges)
        for start in itertools.chain([random.randrange(size)], range(size)):
            for last in range(start + 1, size + 1):
                excerpt = Excerpt(transcript, start, last)
                if len(excerpt.facts()) == objectives:
                    return task_of(excerpt, f"{kind}/{part}/{number}/{start}/{last}")
        raise UserError(
            f"no part of a transcript of {self.config.exchanges} exchanges has {objectives} facts; raise "
            "tasks.exchanges to four times as many"
        )


def task_of(excerpt: Excerpt, name: str) -> Task:
    """The task to read this, with its facts as questions."""
    kind = excerpt.transcript.kind
    questions = tuple(
        Question(id=f"{name}/{at}", text=fact.cloze, answers=fact.forms, source=kind, read_at=excerpt.read_at(fact))
        for at, fact in enumerate(excerpt.facts())
    )
    prompt = prompt_of(excerpt.transcript.task)
    return Task(id=name, questions=questions, prompt=prompt, turn_limit=len(excerpt.parts) + 2)


def prompt_of(task: str) -> str:
    """The head of every context, about the task of the agent whose work is read."""
    return f"Note what may be needed later. Task: {oldest(' '.join(task.split()), _TASK)}"


class ReadingEnvironment:
    """Shows part after part, and looks for the facts in the notes."""

    def __init__(self, config: ReadingTasks) -> None:
        self.config = config

    def observe(self, actions: Sequence[Action], /) -> list[Observation]:
        """Raises UserError for an action that is not a search."""
        return [self._observed(action) for action in actions]

    def _observed(self, action: Action) -> Observation:
        if action.kind != SEARCH:
            raise UserError(f"these tasks know no action {action.kind!r}; leave its tag out of [protocol]")
        found = self.config.excerpt(action.task).parts
        at = len(action.history)
        return Observation(text=found[at][0] if at < len(found) else END)

    def score(self, task: Task, answer: str, /) -> Outcome:
        """The share of the facts that the notes retain within the budget, less half of the share that is stale, less
        the share of exact words that are invented. A note counts that can be kept of one of the parts."""
        excerpt = self.config.excerpt(task)
        said = [line for text in answer.split(BETWEEN) if (line := text.strip())]
        notes = [WrittenNote(line, checked=_kept(line, excerpt.sources)) for line in said]
        text = Text("\n".join(within(notes, int(self.config.share * excerpt.tokens))))
        found = [verdict(fact, text) for fact in excerpt.facts()]
        recall = tuple(float(one is Verdict.RETAINED) for one in found)
        stale = fmean(one is Verdict.STALE for one in found)
        whole, source = Text("\n".join(said)), about("\n".join(text for text, _ in excerpt.parts))
        new = len(invented(whole, source)) / max(1, len(whole.anchors))
        written = sum(map(len, said)) / max(1, sum(len(text) for text, _ in excerpt.parts))
        metrics = {"em": recall, "stale": stale, "invented": new, "written": written}
        return Outcome(fmean(recall) - stale / 2 - new, metrics)


def _kept(line: str, sources: Sequence[Source]) -> str:
    """What is kept of a line about one of these: as it stands, where one of them says so."""
    kept = [kept_of(line, source) for source in sources]
    return line if line in kept else next(filter(None, kept), "")


class NoteExpert:
    """Notes of each part what a careful reader would; a function of the context alone."""

    def __init__(self, tags: Tags, noted: set[tuple[str, tuple[str, ...]]]) -> None:
        self._tags, self._noted = tags, dict(noted)

    def __call__(self, context: str) -> str:
        tags = self._tags
        shown = context.rpartition(f"<{tags.result}>")[2] if f"<{tags.result}>" in context else ""
        shown = " ".join(shown.removesuffix(f"</{tags.result}>").split())
        notes, query = self._noted.get(shown, ()), "" if shown == END else NEXT
        return completion(tags, context, state=None, notes=notes, query=query, answers=NOTES)
