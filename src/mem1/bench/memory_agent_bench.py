"""MemoryAgentBench (arXiv 2507.05257): a long text comes part by part, and questions about it come at the end.

    MemoryAgentBenchTasks(file="Conflict_Resolution.parquet").source("evaluation", PAPER).tasks(objectives=4, ...)
    ->  [Task(id="factconsolidation_sh_6k-0-q12+3+40+7", prompt="Read a long text ...", turn_limit=9)]

    search "next"  ->  "Part 1 of 7: 0. Oslo is the capital of ..."           ...          "Part 7 of 7: ..."
    search "next"  ->  "The text ends here. Answer: Q1 Where was ... Q2 ..."
    answer         ->  "Q1 Oslo; Q2 Mira Toll; Q3 ...; Q4 ..."

A record of the data (huggingface.co/datasets/ai-hyz/MemoryAgentBench, MIT) has `context`, `questions`, `answers` (a
list of gold answers per question) and `metadata`, whose `source` names the data set. The questions stay unknown while
the text is read, as in the original; N of them are asked together, where the original asks one at a time.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
from mem1.envs.tasks import TasksConfig, TextSizes, must_exist
from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.parquet import is_parquet, read_rows
from mem1.protocol import SEARCH, Tags
from mem1.records import Question, Task
from mem1.scoring import answers_given, exact_match, f1, normalize
from mem1.tasks.compose import Split
from mem1.tasks.prompts import PromptChoice, fill


def substring_match(prediction: str, golds: Sequence[str]) -> int:
    """1 if the prediction contains a gold answer, both normalised: the original's `substring_exact_match`."""
    return int(any(normalize(gold) in normalize(prediction) for gold in golds))


def label_match(prediction: str, golds: Sequence[str]) -> int:
    """Exact match without "label:" in front, which the original's prompt asks for and its authors advise to drop."""
    return exact_match(re.sub(r"(?i)^\s*label\s*:\s*", "", prediction), golds)


MATCHES: Mapping[str, Callable[[str, Sequence[str]], int]] = {
    "ruler_qa": substring_match,
    "eventqa": substring_match,
    "factconsolidation": substring_match,
    "longmemeval": substring_match,
    "detective_qa": exact_match,
    "icl": label_match,
}
"""Beginning of a source's name -> when an answer is right. The original has a model judge longmemeval."""
NOT_SCORED = {
    "recsys": "is scored by the titles of a film catalogue that is not among its files",
    "infbench": "asks for summaries, which only a model can judge",
}
"""Beginning of a source's name -> why it is not run here."""
_FIELDS = ("context", "questions", "answers", "metadata")


@dataclass(frozen=True, slots=True)
class Text:
    """One record: a text with its questions."""

    name: str
    """Source and number of the record in its file."""
    source: str
    parts: tuple[str, ...]
    questions: tuple[Question, ...]

    @property
    def rule(self) -> Callable[[str, Sequence[str]], int]:
        """When an answer is right."""
        return next(rule for start, rule in MATCHES.items() if self.source.startswith(start))


def read_texts(path: str, *, source: str | None, part_words: int) -> list[Text]:
    """The texts of a file (Parquet or JSONL) whose source begins with `source`; None: all that can be scored.

    Raises UserError, with file and line (Parquet: row), for a record of another form, and if no text is left.
    """
    must_exist(path, "tasks.file", "download a split of huggingface.co/datasets/ai-hyz/MemoryAgentBench")
    texts: list[Text] = []
    skipped: dict[str, str] = {}
    for line, record in read_rows(path, _FIELDS) if is_parquet(path) else read_objects(path):
        try:
            name = _source(record)
            reason = next((why for start, why in NOT_SCORED.items() if name.startswith(start)), None)
            if reason is not None:
                skipped[name] = reason
            elif source is None or name.startswith(source):
                texts.append(_text(record, name, line, part_words))
        except ValueError as error:
            raise UserError(f"{path}:{line}: {error}; is this a file of MemoryAgentBench?") from error
    if not texts:
        why = "; ".join(f"{name} {reason}" for name, reason in skipped.items()) or "no record has this source"
        raise UserError(f"{path} has no text for tasks.source_name = {source!r} that can be scored: {why}")
    return texts


def _source(record: Mapping[str, Any]) -> str:
    metadata = record.get("metadata")
    name = metadata.get("source") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError("the record has no metadata with a source")
    if not name.startswith((*MATCHES, *NOT_SCORED)):
        raise ValueError(f"the source {name!r} is unknown; known: {', '.join((*MATCHES, *NOT_SCORED))}")
    return name


def _text(record: Mapping[str, Any], source: str, line: int, part_words: int) -> Text:
    context, questions, answers = (record.get(field) for field in _FIELDS[:3])
    if not isinstance(context, str) or not context.strip():
        raise ValueError("'context' must be a text")
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers):
        raise ValueError("'questions' and 'answers' must be lists of the same length")
    return Text(
        name=f"{source}-{line - 1}",
        source=source,
        parts=tuple(parts(context, part_words)),
        questions=tuple(_questions(questions, answers, f"{source}-{line - 1}", source)),
    )


def _questions(questions: Sequence[Any], answers: Sequence[Any], name: str, source: str) -> Iterator[Question]:
    for number, (asked, gold) in enumerate(zip(questions, answers, strict=True)):
        golds = gold if isinstance(gold, list) else [gold]
        if not isinstance(asked, str) or not golds or not all(isinstance(one, str) for one in golds):
            raise ValueError(f"question {number} must be a text, and its answers a list of texts")
        yield Question(id=f"{name}-{number}", text=asked, answers=tuple(dict.fromkeys(golds)), source=source)


def parts(text: str, words: int) -> Iterator[str]:
    """The text in pieces of at most `words` words; a piece ends with a line where one ends in its second half."""
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    first = 0
    while first + words < len(starts):
        line_end = text.rfind("\n", starts[first + words // 2 - 1], starts[first + words])
        end = starts[first + words] if line_end < 0 else line_end
        yield text[starts[first] : end].rstrip()
        first = bisect_left(starts, end)
    yield text[starts[first] :].rstrip()


@dataclass(frozen=True)
class ReadingEnvironment:
    """Shows the parts of a text one after the other, then its questions."""

    texts: Mapping[str, Text]
    """Name (`Task.corpus`) -> text."""

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """The next part after each search, whatever its words. Raises UserError for another kind of action."""
        return [self._reply(action) for action in actions]

    def score(self, task: Task, answer: str) -> Outcome:
        """The number of right answers; per question "em", by the rule of its source, and "f1"."""
        rule = self._text(task).rule
        given = answers_given(answer, task)
        em = tuple(float(bool(g) and rule(g, q.answers)) for g, q in zip(given, task.questions, strict=True))
        overlap = tuple(f1(g, q.answers) for g, q in zip(given, task.questions, strict=True))
        return Outcome(sum(em), {"em": em, "f1": overlap})

    def _reply(self, action: Action) -> Observation:
        if action.kind != SEARCH:
            raise UserError(f"task {action.task.id!r}: a text has no action {action.kind!r}; it has: {SEARCH}")
        pieces, number = self._text(action.task).parts, len(action.history)
        if number < len(pieces):
            return Observation(text=f"Part {number + 1} of {len(pieces)}: {pieces[number]}")
        asked = "\n".join(f"Q{n} {question.text}" for n, question in enumerate(action.task.questions, start=1))
        return Observation(text=f"The text ends here. Answer:\n{asked}")

    def _text(self, task: Task) -> Text:
        if task.corpus not in self.texts:
            raise UserError(f"task {task.id!r} reads {task.corpus!r}, which is not among the {len(self.texts)} texts")
        return self.texts[task.corpus]


class MemoryAgentBenchTasks(TasksConfig):
    """Texts of MemoryAgentBench with their questions, for evaluation."""

    prompts: ClassVar[tuple[str, str, str]] = ("bench-reading", "bench-reading", "bench-reading-tools")
    kind: str = "memory-agent-bench"
    file: str
    """One split of the data set, Parquet or JSONL."""
    source_name: str | None = None
    """Beginning of the name of the sources to use, such as factconsolidation_sh_6k; None: all that can be scored."""
    part_words: int = Field(default=2000, ge=2)
    """Words of a part. The original's parts have 4,096 tokens."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """Raises UserError for the training half: these are test data."""
        if split == "train":
            raise UserError("MemoryAgentBench has only test data; train on other tasks, and evaluate on these")
        return _Texts(self, tags)

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        raise UserError("MemoryAgentBench has only test data, which no expert demonstrates")

    def texts(self, tags: Tags) -> Iterator[str]:
        raise UserError("MemoryAgentBench has only test data; train no tokenizer on them")

    def check_tasks(self) -> str:
        must_exist(self.file, "tasks.file", "download a split of huggingface.co/datasets/ai-hyz/MemoryAgentBench")
        return f"{self.file}; it is read when the run begins"

    def text_sizes(self, objectives: int) -> TextSizes:
        return TextSizes(250, round(1.4 * self.part_words))


@dataclass(frozen=True)
class _Texts(TaskSource):
    config: MemoryAgentBenchTasks
    tags: Tags

    @cached_property
    def environment(self) -> ReadingEnvironment:
        config = self.config
        texts = read_texts(config.file, source=config.source_name, part_words=config.part_words)
        return ReadingEnvironment({text.name: text for text in texts})

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Each text in turn, with questions in a seeded order; a question is used once before any is repeated."""
        texts = [text for text in self.environment.texts.values() if len(text.questions) >= objectives]
        if not texts:
            most = max(len(text.questions) for text in self.environment.texts.values())
            raise UserError(f"no text of {Path(self.config.file).name} has {objectives} questions; the most is {most}")
        rng = random.Random(f"memory-agent-bench/{objectives}/{seed}")
        left: dict[str, list[Question]] = {text.name: [] for text in texts}
        tasks = []
        for number in range(count):
            text = texts[number % len(texts)]
            if len(left[text.name]) < objectives:
                left[text.name] = rng.sample(text.questions, len(text.questions))
            drawn = [left[text.name].pop() for _ in range(objectives)]
            tasks.append(self._task(text, tuple(drawn)))
        return tasks

    def _task(self, text: Text, questions: tuple[Question, ...]) -> Task:
        about = f"The text has {len(text.parts)} parts. Number of questions: {len(questions)}."
        return Task(
            id=f"{text.name}-q{'+'.join(question.id.rpartition('-')[2] for question in questions)}",
            questions=questions,
            prompt=fill(self.config.own_prompt(self.tags), about, self.tags),
            turn_limit=len(text.parts) + 2,
            corpus=text.name,
            whole=text.rule is substring_match,
        )
