"""From questions to tasks: the prompt at the start of every context, tags, turn limit and labels.

    render("plain", questions, PAPER)  ->  "Q1 Who founded Alvex? Q2 Where was Mira Toll born?"

Questions that refer to one another's answers are numbered in every template. Your own prompt: see
`mem1.register.prompt`, or in a recipe `prompt = { file = "prompt.txt" }`, a template in a file.

A template's fields: {questions}, {objectives}, {example} (how answers are labelled), {order} (of the labels), {state},
{result}, {hint} and one field per action of the tags, such as {search} and {answer}; with notes also {note} and
{example_note}. Tags are filled in without brackets.

`TaskTemplate` has what tasks of one source share:

    TaskTemplate(prompt="plain", tags=PAPER).task("n2-0", questions, rng)              Q1 Who ... Q2 Where is ...
    TaskTemplate(prompt="plain", tags=PAPER, labels=40).task("n2-0", questions, rng)   Q7 Who ... Q31 Where is ...
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, Field, Tag, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_OBJECTIVES, name_or
from mem1.errors import UserError
from mem1.protocol import Tags, strip_markup, strip_tags
from mem1.records import Question, Task
from mem1.registry import register
from mem1.tasks import prompt_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A template and the way its questions are joined."""

    template: str
    separator: str
    """Between two questions."""
    numbered: bool = True
    """Whether each question is preceded by its label: Q1, Q2, ..."""


class PromptFile(Config):
    """`prompt = { file = "prompt.txt" }`: a template in a file."""

    file: str
    """UTF-8 text with the field {questions}; {{ and }} stand for braces."""
    separator: str = "\n"
    """Between two questions."""
    numbered: bool = True
    """Whether each question is preceded by its label: Q1, Q2, ..."""


PromptName = Annotated[str, AfterValidator(lambda name: register.prompt.get(name) and name), Tag("str")]
PromptChoice = Annotated[PromptName | Annotated[PromptFile, Tag("PromptFile")], name_or("PromptFile")]
"""`prompt` of a recipe: a name, or a file."""


def find_prompt(choice: PromptChoice) -> Prompt:
    """The prompt of this name or in this file. Raises UserError for an unknown name and an unusable file."""
    if isinstance(choice, PromptFile):
        return Prompt(template=_read(choice.file), separator=choice.separator, numbered=choice.numbered)
    return register.prompt.get(choice)


@lru_cache(maxsize=16)
def _read(file: str) -> str:
    """The template. The file is read once per process, so that all tasks of a run have one prompt."""
    try:
        template = Path(file).read_text(encoding="utf-8")
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} (prompt.file) cannot be read: {error}; give a file of UTF-8 text") from error
    except ValueError as error:
        raise UserError(f"{file} (prompt.file): {error}; write {{{{ and }}}} for braces") from error
    if odd := [name for name in fields if not name.isidentifier()]:
        raise UserError(f"{file} (prompt.file): {{{odd[0]}}} is no field; write {{{{ and }}}} for braces")
    if "questions" not in fields:
        raise UserError(f"{file} (prompt.file) has no {{questions}}, where the questions of a task are put")
    return template


LABELS = 40
"""Questions whose labels (Q1 ... Q40) are single tokens in our own tokenizers, unless a recipe has more."""
THEN = " then "
"""Between two labels of the order."""
DONE = "done"
"""Follows the last label of the order."""

ORDER = re.compile(rf" (?:\| )?(?=Q)(?<!\d{THEN})(?:Q\d+{THEN})+{DONE}")
"""The order of the labels in a prompt that has it; not looked for within one that does not end."""

PROMPTS: Mapping[str, Prompt] = {
    # only the questions, for a policy trained from scratch on one kind of task
    "plain": Prompt(template="{questions}", separator=" "),
    # the same, and the order of the labels, from which a small policy can copy the next one, or that there is none:
    # otherwise it would have to read the whole list to know
    "ordered": Prompt(template="{questions} {order}", separator=" "),
    # only clozes, each with an end mark, as the text after a blank would otherwise run into the next question; and the
    # order of the labels, from which a small policy can copy the next one, for more questions than it was trained on
    "cloze": Prompt(template="{questions} | {order}", separator=" | "),
    # instructions for a general language model without training on this protocol
    "mem1": Prompt(template=prompt_texts.MEM1, separator="\n"),
    # the same with notes
    "notes": Prompt(template=prompt_texts.NOTES, separator="\n"),
    # for the published code, whose scorer matches answers by position and reads a label as part of the answer
    "released": Prompt(template=prompt_texts.RELEASED, separator="; ", numbered=False),
    # instructions with pages to open
    "web": Prompt(template=prompt_texts.WEB, separator="\n"),
    # instructions for the shop
    "shop": Prompt(template=prompt_texts.SHOP, separator="\n"),
    # instructions for an episode of somebody else's environment
    "episode": Prompt(template=prompt_texts.EPISODE, separator="\n"),
    # mem1, notes and web with a worked example, for models that mem1 has not trained
    "mem1-example": Prompt(template=prompt_texts.MEM1_EXAMPLE, separator="\n"),
    "notes-example": Prompt(template=prompt_texts.NOTES_EXAMPLE, separator="\n"),
    "web-example": Prompt(template=prompt_texts.WEB_EXAMPLE, separator="\n"),
    # instructions for a model that calls tools (protocol = tools): questions, the shop
    "tools": Prompt(template=prompt_texts.TOOLS, separator="\n"),
    "tools-shop": Prompt(template=prompt_texts.TOOLS_SHOP, separator="\n"),
    "tools-episode": Prompt(template=prompt_texts.TOOLS_EPISODE, separator="\n"),
    # the benchmark, whatever the memory: in tags, and with native calls
    "bench": Prompt(template=prompt_texts.BENCH, separator="\n"),
    "bench-tools": Prompt(template=prompt_texts.BENCH_TOOLS, separator="\n"),
    "bench-errand": Prompt(template=prompt_texts.BENCH_ERRAND, separator="\n"),
    "bench-errand-tools": Prompt(template=prompt_texts.BENCH_ERRAND_TOOLS, separator="\n"),
    "bench-reading": Prompt(template=prompt_texts.BENCH_READING, separator="\n"),
    "bench-reading-tools": Prompt(template=prompt_texts.BENCH_READING_TOOLS, separator="\n"),
}


def first_question(text: str) -> str:
    """The first question of a task, recovered from its prompt."""
    for prompt in PROMPTS.values():
        head = prompt.template.partition("{questions}")[0].rpartition("\n")[2]
        if not prompt.numbered and head and head in text:
            asked = text.rpartition(head)[2].partition("\n")[0]
            if not asked.startswith("Q1 "):
                return asked.partition(prompt.separator)[0].strip()
    marked = ORDER.search(text)
    if marked is not None and marked[0].startswith(" |"):  # clozes end with a mark, which occurs in no cloze
        return text[: marked.start()].rsplit("Q1 ", 1)[-1].partition(" | ")[0].strip()
    text = text if marked is None else text[: marked.start()]
    return text.rsplit("Q1 ", 1)[-1].split("Q2 ", 1)[0].strip()


def instructs(choice: PromptChoice) -> bool:
    """Whether this prompt explains the tags to a model that was not trained on them; a file is taken to."""
    return isinstance(choice, PromptFile) or "{state}" in find_prompt(choice).template


def render(choice: PromptChoice, questions: Sequence[Question], tags: Tags, labels: Sequence[int] = ()) -> str:
    """The prompt of a task. Each question is put on one line and stripped of tags, as it may come from a document.

    labels   numbers of the questions; none: 1 to N

    Raises UserError as `find_prompt` does, and for a prompt with an action that the tags lack.
    """
    prompt = find_prompt(choice)
    numbered = prompt.numbered or any(question.depends_on for question in questions)
    texts = [" ".join(strip_markup(question.text, tags).split()) for question in questions]
    labels = labels or range(1, len(questions) + 1)
    listed = (f"Q{label} {text}" if numbered else text for label, text in zip(labels, texts, strict=True))
    return _filled(choice, prompt.separator.join(listed), tags, labels)


def fill(choice: PromptChoice, text: str, tags: Tags) -> str:
    """The prompt of a task whose environment says in a text what is to be done; its lines stay as they are, and so do
    other tags, as the environment may want them in an answer. Raises UserError as `render` does.
    """
    return _filled(choice, strip_tags(text, tags), tags, (1,))


def _filled(choice: PromptChoice, questions: str, tags: Tags, numbers: Sequence[int]) -> str:
    labels = [f"Q{number}" for number in numbers]
    fields = {
        "questions": questions,
        "objectives": len(labels),
        "order": THEN.join([*labels, DONE]),
        "example": "; ".join(f"{label} ..." for label in labels[:3]),
        "state": tags.state,
        **({} if tags.note is None else {"note": tags.note, "example_note": f"<{tags.note}> Q1 ... </{tags.note}>"}),
        "result": tags.result,
        "hint": tags.hint,
        **tags.action_tags,
    }
    try:
        return find_prompt(choice).template.format(**fields)
    except KeyError as error:
        name = choice.file if isinstance(choice, PromptFile) else choice
        raise UserError(
            f"prompt {name!r} mentions {error}, which the tags {tags.name!r} lack; they have: "
            f"{', '.join([*tags.action_tags, *(['note'] if tags.note else [])])}"
        ) from error


T = TypeVar("T")


class ByPrompt(Generic[T]):
    """Finds what belongs to the prompt that a context begins with, such as its task."""

    def __init__(self, values: Iterable[tuple[str, T]], fold: Callable[[str], str]) -> None:
        """(prompt, value) pairs; prompts are compared after `fold`, as a tokenizer may change their white space."""
        self._fold = fold
        self._values = {fold(prompt): value for prompt, value in values}
        # longest first: the prompt of one question may be the beginning of a prompt of two
        self._lengths = sorted({len(prompt) for prompt in self._values}, reverse=True)

    def find(self, context: str) -> tuple[T, str]:
        """The value and the folded rest of the context. Raises StopIteration for an unknown prompt."""
        folded = self._fold(context)
        length = next(length for length in self._lengths if folded[:length] in self._values)
        return self._values[folded[:length]], folded[length:]


class TurnLimit(Config):
    """Maximum number of turns of a task by its number of questions: 3N + 3, another line, or a table.

    TurnLimit(up_to={4: 6}, per_objective=0, extra=20)      6 turns up to four questions, 20 beyond
    """

    up_to: dict[Annotated[int, Field(ge=1, le=MOST_OBJECTIVES)], Annotated[int, Field(ge=1)]] = Field(default={})
    """Largest number of questions -> turns; larger tasks have `per_objective * N + extra`."""
    per_objective: int = Field(default=3, ge=0)
    extra: int = Field(default=3, ge=0)
    """Additional turns per task."""

    @model_validator(mode="after")
    def _every_task_has_a_turn(self) -> TurnLimit:
        if self.per_objective + self.extra < 1:
            raise ValueError("per_objective and extra are both 0: a task beyond up_to would have no turn; raise one")
        return self

    def turns(self, objectives: int) -> int:
        fitting = [size for size in self.up_to if objectives <= size]
        return self.up_to[min(fitting)] if fitting else self.per_objective * objectives + self.extra


@dataclass(frozen=True, kw_only=True)
class TaskTemplate:
    """Turns questions into a task: the properties that all tasks of one source share."""

    prompt: PromptChoice
    """The prompt at the start of every context."""
    tags: Tags
    turn_limit: TurnLimit = field(default_factory=TurnLimit)
    corpus: str = ""
    """Name of the collection that the tasks search; their ids begin with it."""
    labels: int | None = None
    """Largest label: each task draws its labels, which increase, from 1 to this; None: 1 to N."""
    scorer: str = ""
    """Scorer of the tasks (`Task.scorer`)."""

    def drawn_labels(self, name: str, objectives: int) -> tuple[int, ...]:
        """The labels of the task "corpus-name"; none: 1 to N. Raises UserError for more questions than labels."""
        if self.labels is None:
            return ()
        if objectives > self.labels:
            raise UserError(f"{objectives} questions need as many labels; raise tasks.labels, now {self.labels}")
        rng = random.Random(f"labels {self.corpus} {name}")
        return tuple(sorted(rng.sample(range(1, self.labels + 1), objectives)))

    def task(self, name: str, questions: tuple[Question, ...], rng: random.Random) -> Task:
        """The task "corpus-name" of these questions, with a seed drawn from `rng`."""
        labels = self.drawn_labels(name, len(questions))
        return Task(
            id="-".join(filter(None, (self.corpus, name))),
            questions=questions,
            prompt=render(self.prompt, questions, self.tags, labels),
            turn_limit=self.turn_limit.turns(len(questions)),
            corpus=self.corpus,
            seed=rng.getrandbits(31),
            labels=labels,
            scorer=self.scorer,
        )
