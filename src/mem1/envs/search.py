"""Questions answered by searching: a search action returns passages, the answer is scored by exact match and F1.

env = SearchEnvironment({"world-7": bm25}, top_k=2, style="titled")
env.observe([Action(task, "search", "capital of Norway")])[0].text
-> "Doc 1 (Title: Oslo) Oslo is the capital of Norway.\\nDoc 2 (Title: Bergen) Bergen is a city in Norway."

MultihopTasks(questions="test.jsonl", corpus="wiki.jsonl", composition="chain", depth=2)
-> tasks in which each question refers to the answer of the one before
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from mem1.durable import sha256_of
from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
from mem1.envs.hub_corpus import check_corpus, local_corpus
from mem1.envs.tasks import (
    PROMPT_TOKENS,
    QUESTION_TOKENS,
    TOKENS_PER_WORD,
    QuestionTasks,
    TextSizes,
    passage_texts,
)
from mem1.errors import UserError
from mem1.protocol import SEARCH, Tags
from mem1.records import Passage, Question, Task
from mem1.registry import register
from mem1.retrieval import RetrievalFailed, Retriever
from mem1.retrieval.base import checked_results
from mem1.retrieval.client import HttpRetriever, RetrievalServer
from mem1.retrieval.index_folder import content_of, first_passages, open_passages, open_retriever
from mem1.scoring import SQUAD, score_answers
from mem1.tasks.bridge_questions import LinkedQuestions
from mem1.tasks.compose import (
    Composition,
    Split,
    as_composed,
    check_depth,
    check_disjoint,
    compose_as,
    consecutive,
    marked,
)
from mem1.tasks.datasets import read_dataset, read_questions, read_tasks
from mem1.tasks.datasets.files import PREFIX
from mem1.tasks.datasets.reading import read_pool
from mem1.tasks.gold_expert import GoldExpert
from mem1.tasks.prompts import PromptChoice, TaskTemplate

Style = Literal["titled", "released", "bare", "addressed"]
"""Layout of a passage: "Doc 1 (Title: Oslo) text", "Doc 1(Title: Oslo) text" as in MEM1's released code, the text
alone, or "Doc 1 (Title: Oslo) address text"."""

NOTHING_FOUND = "No passage was found."
"""Shown where a search returns no passage."""


@dataclass(frozen=True, slots=True)
class SearchEnvironment:
    """Searches the collection that each task names."""

    actions: ClassVar[tuple[str, ...]] = (SEARCH,)
    """Kinds of action that it replies to."""
    retrievers: Mapping[str, Retriever]
    """Name of a collection (`Task.corpus`) -> its search engine."""
    _: KW_ONLY
    top_k: int = 3
    """Passages shown per search."""
    passage_words: int | None = None
    """Number of words shown of each passage, not counting its title; None: all."""
    style: Style = "titled"
    reward: str = "sum"
    """sum: the number of answers that match exactly, in [0, N]; mean: their share, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if self.passage_words is not None and self.passage_words < 1:
            raise UserError(f"passage_words must be at least 1, or left out for all words, not {self.passage_words}")
        if self.reward not in ("sum", "mean"):
            raise UserError(f"unknown reward {self.reward!r}; known: sum, mean. Your own is tasks.reward of a recipe")
        if self.style not in get_args(Style):
            raise UserError(f"unknown style of passages {self.style!r}; known: {', '.join(get_args(Style))}")

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """One observation per search; one call of the search engine per collection.

        Raises UserError for another kind of action and for a collection without a search engine.
        """
        positions: defaultdict[str, list[int]] = defaultdict(list)
        for position, action in enumerate(actions):
            self._check(action)
            positions[action.task.corpus].append(position)
        observations: dict[int, Observation] = {}
        for corpus, members in positions.items():
            found = self._search(corpus, [actions[i].argument for i in members])
            observations.update(zip(members, found, strict=True))
        return [observations[i] for i in range(len(actions))]

    def score(self, task: Task, answer: str) -> Outcome:
        """The reward; exact match ("em") by the task's scorer and F1 ("f1") per question as metrics."""
        scorer = register.scorer.get(task.scorer or SQUAD)
        scores = score_answers(answer, [q.answers for q in task.questions], task.numbers, scorer=scorer)
        reward = sum(scores.em) / (len(scores.em) if self.reward == "mean" else 1)
        return Outcome(reward, {"em": tuple(scores.em), "f1": tuple(scores.f1)})

    def _check(self, action: Action) -> None:
        task, kind = action.task, action.kind
        if kind not in self.actions:
            known = ", ".join(self.actions)
            raise UserError(f"task {task.id!r}: this environment has no action {kind!r}; it has: {known}")
        if task.corpus not in self.retrievers:
            known = ", ".join(map(repr, self.retrievers)) or "none"
            raise UserError(
                f"task {task.id!r} searches {task.corpus!r}, which has no search engine; there are: {known}"
            )

    def found(self, task: Task, query: str) -> list[Passage]:
        """The passages that a search shows in this task, with the words that it shows. Raises RetrievalFailed."""
        (found,) = self.retrievers[task.corpus].search([query], self.top_k)
        return [replace(passage, text=self._words(passage)) for passage, _ in found]

    def _search(self, corpus: str, queries: Sequence[str]) -> list[Observation]:
        try:
            results = self.retrievers[corpus].search(queries, self.top_k)
        except RetrievalFailed as error:
            return [Observation(text="", failed=str(error) or "the search engine did not answer")] * len(queries)
        try:
            checked = checked_results(results, len(queries), self.top_k)
        except RetrievalFailed as error:  # nothing that another search could mend
            raise UserError(f"{type(self.retrievers[corpus]).__name__}: {error}") from error
        return [Observation(text=self.shown([passage for passage, _ in found])) for found in checked]

    def shown(self, passages: Sequence[Passage]) -> str:
        """The text of a search that returns these passages."""
        return "\n".join(self._line(n, p) for n, p in enumerate(passages, start=1)) or NOTHING_FOUND

    def _line(self, number: int, passage: Passage) -> str:
        text = self._words(passage)
        if self.style == "bare":
            return text
        title = " ".join(passage.title.split())
        if self.style == "addressed":
            text = f"{passage.id} {text}"
        gap = "" if self.style == "released" else " "
        return f"Doc {number}{gap}(Title: {title}) {text}" if title else f"Doc {number} {text}"

    def _words(self, passage: Passage) -> str:
        # white space is folded: a line end inside a passage could look like the start of another one
        return " ".join(passage.text.split()[: self.passage_words])


_SHOWN = 8
"""Passages of a sample of results."""
SERVER_S = 3.0
"""Deadline of a search server in a dry run, in seconds."""


Files = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""One file, or several."""
QuestionGroup = tuple[Question, ...]
"""A single question, or the questions of a composed task."""
_OF_QUESTIONS = ("decompose", "evaluation_share", "without", "format", "aliases")
"""Settings without effect on files of composed tasks."""


class QuestionFiles(QuestionTasks):
    """Files of questions, and how tasks are composed of them."""

    questions: Files
    """File of the evaluation's questions, in any format of `mem1.tasks.datasets`, or hf:owner/name:split; or several,
    of which repeated questions are left out."""
    train_questions: Files | None = None
    """Files of the training's questions; None: those that `evaluation_share` leaves, or evaluation only."""
    evaluation_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of `questions` that are the evaluation's, by a hash of each text; the others are the training's. None: all
    are the evaluation's."""
    without: Files | None = None
    """Files of questions that are left out of the training's, as of a test; None: none."""
    format: str | None = None
    """Format of the files: a name of `mem1.tasks.datasets.FORMATS`, a registered one, or package.module:NAME. None:
    recognised from their content."""
    aliases: str | None = None
    """id_aliases.json of 2WikiMultihopQA; None: the answers of the questions' files alone."""
    development_questions: str | None = None
    """File of the questions of validations during training (`evaluation.every`); None: no validation."""
    decompose: bool = False
    """Replace each question by its single hops (2WikiMultihopQA and MuSiQue)."""
    composition: Composition | Literal["consecutive", "file"] = "independent"
    """How the questions of a task depend on one another: independent, chain, shared or comparison; `consecutive`:
    independent neighbours of one source in one file, in its order; `file`: the files hold composed tasks, used
    unchanged."""
    question_marks: bool = False
    """Append a question mark to every question without one."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""

    @model_validator(mode="after")
    def _options_go_together(self) -> QuestionFiles:
        check_depth(self.composition, self.depth)
        asked = [name for name in _OF_QUESTIONS if getattr(self, name)]
        if self.composition == "file" and asked:
            raise ValueError(f"{', '.join(asked)}: needs files of questions; composition = file has composed tasks")
        if self.train_questions is not None and self.evaluation_share is not None:
            raise ValueError("give train_questions or evaluation_share, which both say what is trained on; not both")
        return self

    def development(self) -> QuestionFiles:
        if self.development_questions is None:
            raise UserError(
                "evaluation.every validates on development questions; give their file by tasks.development_questions"
            )
        developed = _flat(self._read((self.development_questions,)))
        for path in (*_listed(self.questions), *_listed(self.train_questions)):
            check_disjoint(
                _flat(self._read((path,))),
                developed,
                trained=f"questions of {path}",
                evaluated=f"questions of tasks.development_questions = {self.development_questions!r}",
                own_ids=True,
            )
        return self.model_copy(update={"questions": self.development_questions, "evaluation_share": None})

    def half(self, split: Split) -> list[list[QuestionGroup]]:
        """Per file of this half its single questions, or the questions of each of its composed tasks.

        Raises UserError if there are none, or if both halves have a question.
        """
        if split == "evaluation":
            return self._read(_listed(self.questions), split)
        if self.evaluation_share is not None:
            return self._read(_listed(self.questions), split, _listed(self.without))
        if self.train_questions is None:
            raise UserError("tasks.train_questions is missing: give a file of questions to train on")
        train = self._read(_listed(self.train_questions), split, _listed(self.without))
        check_disjoint(_flat(train), _flat(self.half("evaluation")))
        return train

    def _read(
        self, paths: Sequence[str], split: Split | None = None, without: Sequence[str] = ()
    ) -> list[list[QuestionGroup]]:
        share = None if split is None else self.evaluation_share
        how: dict[str, Any] = {"format": self.format, "aliases": self.aliases, "decompose": self.decompose}
        if self.composition == "file":
            files = [read_tasks(path) for path in paths]
        elif len(paths) == 1 and share is None and not without:
            files = [[(question,) for question in read_questions(paths[0], **how)]]
        else:
            half = None if share is None else split
            pooled = read_pool(paths, split=half, evaluation_share=share or 0.0, without=without, **how)
            files = [[(question,) for question in file] for file in pooled]
        if self.question_marks:
            files = [[tuple(map(marked, group)) for group in file] for file in files]
        return files

    def trained_on(self) -> str:
        drawn = self.questions if self.evaluation_share is not None else self.train_questions
        named = (*_listed(drawn), *_listed(self.without), *_listed(self.aliases))
        files = [path for path in named if not path.startswith(PREFIX)]  # the hub's may change in their page alone
        return "-".join([*(sha256_of(path)[:32] for path in files), super().trained_on()])

    def given_passages(self) -> list[Passage]:
        named = (self.questions, self.train_questions, self.development_questions)
        paths = [path for files in named for path in _listed(files)]
        read = (read_dataset(path, format=self.format, decompose=self.decompose) for path in paths)
        return list({passage.id: passage for data in read for passage in data.passages}.values())

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        assert isinstance(environment, SearchEnvironment)
        return GoldExpert(tags, tasks, environment.found)

    def text_sizes(self, objectives: int) -> TextSizes:
        words: int = self.top_k * self.passage_words  # type: ignore[attr-defined]  # of both subclasses
        return TextSizes(PROMPT_TOKENS + QUESTION_TOKENS * objectives, 20 + round(words * TOKENS_PER_WORD))


@dataclass(frozen=True)
class FileQuestions(TaskSource):
    """The tasks of one half; a subclass defines what they search."""

    config: QuestionFiles
    split: Split
    tags: Tags

    corpus: ClassVar[str]
    """Name of what is searched."""

    @cached_property
    def questions(self) -> list[Question]:
        """All questions of this half, those of composed tasks included."""
        return _flat(self._files)

    @cached_property
    def _files(self) -> list[list[QuestionGroup]]:
        return self.config.half(self.split)

    @cached_property
    def _linked(self) -> LinkedQuestions:
        return LinkedQuestions(self.questions)

    @cached_property
    def _form(self) -> TaskTemplate:
        return self.config.template(self.tags, self.corpus)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config = self.config
        if config.composition in ("file", "consecutive"):
            composed = config.composition == "file"
            parts = (file if composed else consecutive(_flat([file]), objectives) for file in self._files)
            groups = [group for part in parts for group in part]
            return as_composed(groups, self._form, objectives=objectives, count=count, seed=seed)
        return compose_as(
            config.composition,
            config.depth,
            questions=self.questions,
            material=self._linked,
            form=self._form,
            objectives=objectives,
            count=count,
            seed=seed,
        )


def _listed(files: Files | None) -> tuple[str, ...]:
    return () if files is None else (files,) if isinstance(files, str) else files


def _flat(files: Sequence[Sequence[QuestionGroup]]) -> list[Question]:
    return [question for file in files for group in file for question in group]


class MultihopTasks(QuestionFiles):
    """Tasks from files of questions, your own or a public data set, with passages in a file or on a server."""

    prompts: ClassVar[tuple[str, str, str]] = ("mem1", "mem1-example", "tools")
    kind: str = "multihop"
    corpus: str | None = None
    """File of the passages, searched by BM25, or hf:owner/name:split, or the folder of an index that `mem1 index` made;
    None: see `retriever`."""
    retriever: RetrievalServer | str | None = None
    """Server that searches the passages, or your own retriever as package.module:Name; None: `corpus` is searched."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    top_k: int = Field(default=3, ge=1)
    passage_words: int = Field(default=100, ge=1)
    """Number of words shown of each passage."""
    style: Style = "titled"
    """Layout of each passage: titled, released, bare or addressed."""
    snippet_words: int | None = Field(default=None, ge=1)
    """Number of words shown of each passage, around the best match of the query; None: the first `passage_words`."""

    @model_validator(mode="after")
    def _one_collection(self) -> MultihopTasks:
        if (self.corpus is None) == (self.retriever is None):
            raise ValueError('give one collection to search: corpus = "FILE", or retriever.urls = ["http://HOST:PORT"]')
        return self

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError if a question occurs in both halves or a file is missing."""
        return _Multihop(self, split, tags)

    def texts(self, tags: Tags) -> Iterable[str]:
        return super().texts(tags) if self.corpus is None else passage_texts(open_passages(local_corpus(self.corpus)))

    def results(self) -> Sequence[str]:
        if self.corpus is None or not Path(self.corpus).exists():
            return ()
        style = SearchEnvironment({}, passage_words=self.passage_words, style=self.style)
        return [style.shown([passage]) for passage in first_passages(self.corpus, _SHOWN)]

    def searched(self) -> str:
        if self.corpus is not None:
            return content_of(local_corpus(self.corpus))
        return self.retriever if isinstance(self.retriever, str) else ""  # servers may change their addresses

    def check_search(self) -> str:
        if self.corpus is not None:
            otherwise = "give a file of passages, or the folder of an index"
            return check_corpus(self.corpus, otherwise, "its index is built or opened")
        if isinstance(self.retriever, str):
            return f"{self.retriever}; it is made when the run begins"
        assert self.retriever is not None
        patience = {"deadline_s": SERVER_S, "timeout_s": SERVER_S}
        HttpRetriever.open(self.retriever.model_copy(update=patience)).close()
        return f"{', '.join(self.retriever.urls)} answers"


@dataclass(frozen=True)
class _Multihop(FileQuestions):
    config: MultihopTasks

    @cached_property
    def environment(self) -> SearchEnvironment:
        return SearchEnvironment(
            {self.corpus: self._searched()},
            top_k=self.config.top_k,
            passage_words=self.config.passage_words,
            style=self.config.style,
            reward=self.config.own_reward,
        )

    def _searched(self) -> Retriever:
        if self.config.snippet_words is None:
            return self._retriever()
        from mem1.retrieval.combine import Snippets

        return Snippets(self._retriever(), self.config.snippet_words)

    def _retriever(self) -> Retriever:
        if self.config.corpus is not None:
            return open_retriever(local_corpus(self.config.corpus))
        if isinstance(self.config.retriever, str):
            return register.retriever.get(self.config.retriever)()
        assert self.config.retriever is not None
        return HttpRetriever.open(self.config.retriever)

    corpus: ClassVar[str] = "passages"
    """The same wherever they are, as it is part of the tasks."""
