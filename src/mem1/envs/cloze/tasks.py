"""Tasks of clozes over your own corpus, optionally mixed with real questions about it.

ClozeTasks(corpus="clozes")    what `mem1 data cloze notes --out clozes` wrote
ClozeTasks(corpus="notes")     the documents themselves: clozes are made first, and cached under ~/.cache/mem1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from mem1.envs.base import Environment, TaskSource
from mem1.envs.cloze.folder import ClozeFolder, open_cloze_folder
from mem1.envs.search.env import SearchEnvironment
from mem1.envs.tasks import QUESTION_TOKENS, TOKENS_PER_WORD, QuestionTasks, TextSizes, must_exist, passage_texts
from mem1.errors import UserError, printable
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.retrieval.combine import Snippets
from mem1.tasks.atlas import Laziness
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.cloze.compose import ClozeMaterial, compose_clozes
from mem1.tasks.cloze.expert import MARKS, ClozeExpert
from mem1.tasks.cloze.making import OnProgress
from mem1.tasks.cloze.questions import Ranked
from mem1.tasks.compose import TaskTemplate, TurnLimit, check_disjoint
from mem1.tasks.datasets import read_questions
from mem1.tasks.dependencies import Composition, check_depth, compose_dependent
from mem1.tasks.splits import Split


class ClozeTasks(QuestionTasks):
    """Tasks from blanked facts of a corpus."""

    kind: str = "cloze"
    special_tokens: ClassVar[tuple[str, ...]] = MARKS
    corpus: str
    """Folder that `mem1 data cloze` wrote; or a file of passages, an index or a folder of documents, from which
    clozes are made and cached."""
    making: ClozeOptions = ClozeOptions()
    """How clozes are made, unless `corpus` already holds them."""
    held_out: Literal["development", "test"] = "development"
    """Part of the corpus that evaluations ask about."""
    worst_rank: int | None = Field(default=None, ge=1)
    """Only clozes whose passage ranks this or better in a search with the window; None: all."""
    window_words: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    """Minimum and maximum number of words around the blank; None: all clozes."""
    composition: Composition = "independent"
    """How the questions of a task depend on one another: independent, chain, shared or comparison."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    questions: str | None = None
    """File of real questions about the corpus, for evaluation; None: clozes alone."""
    train_questions: str | None = None
    """File of real questions for training; None: clozes alone."""
    real: float = Field(default=0.0, ge=0, le=1)
    """Probability that a question of a task is a real one, if its half has a file."""
    prompt: str = "cloze"
    top_k: int = Field(default=2, ge=1)
    """Passages per search."""
    snippet_words: int = Field(default=24, ge=1)
    """Number of words shown of each passage, around the best match of the query."""
    titles: bool = False
    """Show each passage's title before its words."""
    turn_limit: TurnLimit = TurnLimit()
    laziness: Laziness = Laziness()
    """Habits of the expert in demonstrations: diligent, stop and forget. Ignored for dependent or real questions, whose
    expert simply searches each question."""

    @model_validator(mode="after")
    def _options_go_together(self) -> ClozeTasks:
        check_depth(self.composition, self.depth)
        if self.window_words is not None and self.window_words[0] > self.window_words[1]:
            raise ValueError(f"window_words = {list(self.window_words)}: the fewest words come first, the most second")
        if self.real and self.composition != "independent":
            raise ValueError("real questions need composition = independent")
        if self.real and self.questions is None and self.train_questions is None:
            raise ValueError("real questions need files: give questions, train_questions")
        return self

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half: passages of the training part, or of the part that is held out."""
        return _Clozes(self, split, tags)

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        if self.composition == "independent" and not self.real:
            return ClozeExpert(tags=tags, laziness=self.laziness, seed=seed)
        return super().expert(tasks, environment, tags, seed=seed)

    def texts(self, tags: Tags) -> Iterable[str]:
        return passage_texts(self.folder().index().passages)

    def check_tasks(self) -> str:
        must_exist(self.corpus, "tasks.corpus", "give documents of your own by corpus=FOLDER")
        return f"{self.corpus}; its clozes are made or read when the run begins"

    def text_sizes(self, objectives: int) -> TextSizes:
        words = self.top_k * self.snippet_words
        return TextSizes(20 + QUESTION_TOKENS * objectives, 20 + round(words * TOKENS_PER_WORD))

    def folder(self) -> ClozeFolder:
        """The clozes of the corpus. Raises UserError if there is nothing at `corpus`."""
        return open_cloze_folder(self.corpus, self.making, on_making=_say_where)


@dataclass(frozen=True)
class _Clozes(TaskSource):
    config: ClozeTasks
    split: Split
    tags: Tags

    @cached_property
    def folder(self) -> ClozeFolder:
        return self.config.folder()

    @cached_property
    def environment(self) -> SearchEnvironment:
        config = self.config
        retriever = Snippets(self.folder.index(), config.snippet_words)
        style = "titled" if config.titles else "bare"
        return SearchEnvironment({self._corpus: retriever}, top_k=config.top_k, style=style, reward=config.own_reward)

    @property
    def _corpus(self) -> str:
        return Path(self.config.corpus).name

    @cached_property
    def clozes(self) -> list[Ranked]:
        """The clozes of this half within the limits. Raises UserError if there are none."""
        part = "train" if self.split == "train" else self.config.held_out
        found = [cloze for cloze in self.folder.questions(part) if self._wanted(cloze)]
        if not found:
            raise UserError(
                f"{self.config.corpus} has no {part} clozes with this worst_rank and window_words; loosen them, give "
                "more text, or make the clozes with a larger share of that part"
            )
        return found

    def _wanted(self, cloze: Ranked) -> bool:
        least, most = self.config.window_words or (0, cloze.words)
        return cloze.rank <= (self.config.worst_rank or cloze.rank) and least <= cloze.words <= most

    @cached_property
    def _real(self) -> list[Question]:
        train, evaluation = self.config.train_questions, self.config.questions
        if train is not None and evaluation is not None:
            check_disjoint(read_questions(train), read_questions(evaluation))
        path = train if self.split == "train" else evaluation
        return [] if path is None or not self.config.real else read_questions(path)

    @cached_property
    def _material(self) -> ClozeMaterial:
        return ClozeMaterial(self.clozes)

    @cached_property
    def _form(self) -> TaskTemplate:
        config = self.config
        return TaskTemplate(prompt=config.prompt, tags=self.tags, turn_limit=config.turn_limit, corpus=self._corpus)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config = self.config
        if config.composition == "independent":
            share = config.real if self._real else 0.0
            return compose_clozes(
                self.clozes, self._real, self._form, share=share, objectives=objectives, count=count, seed=seed
            )
        return compose_dependent(
            self._material,
            self._form,
            dependence=config.composition,
            depth=config.depth or 1,
            objectives=objectives,
            count=count,
            seed=seed,
        )


def _say_where(folder: Path) -> OnProgress:
    """Announce on stderr that questions are being made: about a minute for ten thousand passages."""
    from rich.console import Console

    Console(stderr=True, highlight=False, markup=False).print(printable(f"Making clozes (once); kept in {folder}"))
    return lambda what, done, of: None
