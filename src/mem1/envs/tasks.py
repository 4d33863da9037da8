"""What a recipe's [tasks] can be: any class that is a `TasksConfig`, or a plain class with tasks, observe and score.

    class SumsTasks(mem1.TasksConfig):                              [tasks]
        largest: int = 100                                          kind = "sums:SumsTasks"
                                                                    largest = 10
        def source(self, split, tags):
            return Sums(self.largest, split)

A task configuration holds everything that mem1 needs to know about a domain; every method but `source` has a default.
A plain class is configured by the parameters of its constructor; parameters called split and tags get the half of the
tasks and the tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pydantic

from mem1.configuration import Config
from mem1.configuration.by_name import ByName, Made, made_by
from mem1.envs.base import Environment, TaskSource
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Metric, Passage, Task, Trajectory
from mem1.registry import check_arguments, register
from mem1.scoring import SQUAD
from mem1.tasks.compose import Split
from mem1.tasks.gold_expert import GoldExpert
from mem1.tasks.prompts import PromptChoice, TaskTemplate, TurnLimit, instructs

Reward = Callable[[Task, Trajectory], float]
"""The reward of a finished attempt, which has its ending, answer, turns, metrics and the environment's own reward."""
TEXTS = 1000
"""Tasks whose prompts a tokenizer is trained on."""
MOST_PASSAGES = 5000
"""Passages of a corpus that a tokenizer is trained on."""
TOKENS_PER_WORD = 1.4
"""Assumed for English text under a large vocabulary."""
PROMPT_TOKENS, QUESTION_TOKENS = 250, 30
"""Assumed length of instructions, and of one question."""


@runtime_checkable
class Excerpts(Protocol):
    """A scripted expert that demonstrates parts of tasks."""

    def __call__(self, context: str, /) -> str:
        """The completion of this context."""
        ...

    def placed(self, task: Task) -> Task:
        """The task as it is attempted for a demonstration, with the prompt that it has."""
        ...

    def shown(self, attempt: Trajectory) -> Trajectory:
        """What of a demonstration a policy should learn from."""
        ...


class TextSizes(NamedTuple):
    """Lengths that planning assumes, in tokens of a large vocabulary."""

    prompt: int
    result: int


class TasksConfig(Config):
    """Base of all task configurations."""

    kind: str = ""
    """Name of this class in a recipe: one that ships, a registered name, or package.module:Name."""
    reward: str = ""
    """Name of the reward: one of the domain's own, a registered name, or package.module:name, a function of the task
    and the finished attempt. Empty: the environment's."""
    environment: str | None = None
    """Registered name or package.module:Name of a function or class that takes this domain's environment and returns
    the one to use, such as one with a tool more. None: the domain's own."""

    rewards: ClassVar[tuple[str, ...]] = ()
    """Rewards that the domain's environment computes itself."""
    prompts: ClassVar[tuple[str, str, str]] = ("plain", "mem1-example", "tools")
    """Prompts where `prompt` names none: for policies of ours, for models that need instructions, for tool calls."""
    asks: ClassVar[tuple[str, ...]] = ()
    """Kinds of actions that the tags must have for these tasks, besides searches and answers."""
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Texts that a tokenizer trained for this domain keeps as one token, besides the tags."""

    @pydantic.field_validator("reward")
    @classmethod
    def _reward_is_known(cls, name: str) -> str:
        if name and name not in cls.rewards:
            if ":" not in name and name not in register.reward.names():
                known = ", ".join((*cls.rewards, *register.reward.names()))
                raise ValueError(f"unknown reward; known: {known}, or package.module:name")
            if not callable(register.reward.get(name)):
                raise ValueError("the reward must be a function (task, attempt) -> float")
        return name

    @pydantic.field_validator("environment")
    @classmethod
    def _environment_is_known(cls, name: str | None) -> str | None:
        return name if name is None or register.environment.get(name) else None

    @property
    def own_reward(self) -> str:
        """The reward that the environment computes."""
        return self.reward if self.reward in self.rewards else next(iter(self.rewards), "")

    @property
    def reward_function(self) -> Reward | None:
        """The function that replaces the environment's reward; None: the environment's own."""
        if self.reward in ("", *self.rewards):
            return None
        function = register.reward.get(self.reward)
        check_arguments(f"tasks.reward = {self.reward!r}", function, "task", "trajectory")
        return function

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no question of the other half occurs in it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method source(self, split, tags)")

    def development(self) -> TasksConfig:
        """The same tasks, with development tasks in place of those of the evaluation: for choices made in training.

        Raises UserError if there are none.
        """
        raise UserError(
            f"tasks.kind = {self.kind!r} has no development tasks to validate on; give {type(self).__name__} a method "
            "development() that returns its configuration for them, or leave out evaluation.every"
        )

    def wrap_environment(self, environment: Environment) -> Environment:
        """The environment that attempts use."""
        if self.environment is None:
            return environment
        wrapped = register.environment.get(self.environment)
        check_arguments(f"tasks.environment = {self.environment!r}", wrapped, "environment")
        return wrapped(environment)

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        """The scripted policy of supervised demonstrations: text of a context -> completion. See also `Excerpts`.

        environment     that of the source, without the one of `tasks.environment` around it
        """
        return GoldExpert(tags, tasks)

    def texts(self, tags: Tags) -> Iterable[str]:
        """Texts that a new tokenizer (model.new.tokenizer = "bpe") is trained on; by default prompts of the tasks."""
        for task in self.source("train", tags).tasks(objectives=1, count=TEXTS, seed=0):
            yield task.prompt
            yield " ".join(question.answers[0] for question in task.questions)

    def small(self) -> TasksConfig | None:
        """A small version for a rehearsal, without files and servers; None: an Atlas world takes its place."""
        return None

    def check_tasks(self) -> str | None:
        """A description of the tasks if a dry run cannot draw them; None: it draws them. Raises UserError."""
        return None

    def sample(self) -> TasksConfig:
        """The same tasks, made as cheaply as possible."""
        return self

    def results(self) -> Sequence[str]:
        """A sample of what the environment replies, for a check of the tokenizer; empty: not known without running."""
        return ()

    def given_passages(self) -> Sequence[Passage]:
        """The distinct passages that come with files of questions, as a collection to search; empty: none do."""
        return ()

    def write_folder(self, out: Path, on_progress: Callable[[str, int, int], None]) -> Mapping[str, Any]:
        """Write what the tasks are made of, for tasks that are made of something; returns statistics.

        `on_progress` gets an activity, the number done and the total. Raises UserError for other tasks.
        """
        raise UserError(f"--out {out}: the name of a file of tasks ends in .jsonl, .jsonl.gz or .parquet")

    def measured(self, source: TaskSource, task: Task, tags: Tags) -> Mapping[str, Metric]:
        """The metrics of an attempt at the task, by name: those of one without answer, and of one that is right."""
        environment = self.wrap_environment(source.environment)
        gold = "; ".join(f"Q{n} {q.answers[0]}" for n, q in zip(task.numbers, task.questions, strict=True))
        answers = ("", gold) if tags.answers else ("",)
        return {name: value for answer in answers for name, value in environment.score(task, answer).metrics.items()}

    def check_search(self) -> str:
        """A description of what replies to actions. Raises UserError if it cannot be reached."""
        return "in this process"

    def searched(self) -> str:
        """Digest of the files that are searched, or the name of a retriever of one's own; empty: there are none. Raises
        UserError where files cannot be read."""
        return ""

    def trained_on(self) -> str:
        """Digest of what a resumed training must find as it was: files of questions, and what is searched; empty: not
        known. Raises UserError or OSError where they cannot be read."""
        return self.searched()

    def turns(self, objectives: int) -> int:
        """Assumed turn limit of a task, for planning."""
        limit = getattr(self, "turn_limit", None)
        return 3 * objectives + 3 if limit is None else limit.turns(objectives)

    def text_sizes(self, objectives: int) -> TextSizes:
        """Assumed lengths of prompt and results, for planning."""
        return TextSizes(PROMPT_TOKENS + QUESTION_TOKENS * objectives, 500)

    def own_prompt(self, tags: Tags) -> PromptChoice:
        """The prompt of the recipe, else that for policies of ours."""
        return getattr(self, "prompt", None) or self.prompts[0]

    def instructions(self, tags: Tags, *, calls: bool) -> PromptChoice:
        """The prompt that says how to speak: in tags, or in `calls` of tools."""
        if calls:
            return self.prompts[2]
        return "notes-example" if tags.note and self.prompts[1] == "mem1-example" else self.prompts[1]

    @property
    def explains_tags(self) -> bool:
        """Whether the prompt explains the tags, so that a general model can follow them."""
        return "prompt" not in type(self).model_fields or instructs(getattr(self, "prompt", None) or self.prompts[0])


class QuestionTasks(TasksConfig):
    """Base of the domains whose tasks are questions with gold answers."""

    rewards: ClassVar[tuple[str, ...]] = ("sum", "mean")
    reward: str = "sum"
    """For a task of N questions, sum: the number of exact matches, in [0, N], so that larger tasks weigh more outside
    the group-normalised algorithms; mean: their share, in [0, 1]; or one of your own, as package.module:name."""
    scorer: str = SQUAD
    """When an answer is right: squad, by SQuAD's rules; exact, where signs, points and units count; or one of your own,
    as package.module:name."""
    turn_limit: TurnLimit = TurnLimit()
    """Turns of a task."""

    @pydantic.field_validator("scorer")
    @classmethod
    def _scorer_is_known(cls, name: str) -> str:
        if not callable(register.scorer.get(name)):
            raise ValueError("the scorer must be a function (prediction, gold aliases) -> 0 or 1")
        return name

    def template(self, tags: Tags, corpus: str, *, labels: int | None = None) -> TaskTemplate:
        """What tasks that search this collection have in common."""
        return TaskTemplate(
            prompt=self.own_prompt(tags),
            tags=tags,
            turn_limit=self.turn_limit,
            corpus=corpus,
            labels=labels,
            scorer="" if self.scorer == SQUAD else self.scorer,
        )


def passage_texts(passages: Sequence[Passage]) -> Iterable[str]:
    """The texts that a tokenizer for a corpus is trained on."""
    for passage in passages[:MOST_PASSAGES]:
        yield f"{passage.title} {passage.text}"


def must_exist(path: str, key: str, next_step: str) -> None:
    """Raises UserError if the file or folder that a recipe's key names does not exist."""
    if not Path(path).exists():
        raise UserError(f"{path} ({key}) does not exist; {next_step}")


class _PlainTasks(Made, TasksConfig):
    def source(self, split: Split, tags: Tags) -> TaskSource:
        return as_source(self.make(split=split, tags=tags), where=f"tasks.kind = {self.kind!r}: ")

    @property
    def explains_tags(self) -> bool:
        return False


@dataclass(frozen=True)
class _Both:
    made: Any

    @property
    def environment(self) -> Environment:
        return self.made

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        return self.made.tasks(objectives=objectives, count=count, seed=seed)


def as_source(thing: Any, where: str = "") -> TaskSource:
    """A task source from one, or from an object with tasks, observe and score. Raises UserError for any other, with
    `where` it comes from."""
    for name in ("tasks",) if hasattr(thing, "environment") else ("tasks", "observe", "score"):
        if not callable(getattr(thing, name, None)):
            raise UserError(f"{where}{type(thing).__name__} has no method {name}")
    return thing if hasattr(thing, "environment") else _Both(thing)


def source_name(source: TaskSource) -> str:
    """The name of its class, for messages; of an object with tasks, observe and score, that of its own."""
    return type(source.made if isinstance(source, _Both) else source).__name__


def made_tasks(source: TaskSource, *, objectives: int, count: int, seed: int, exactly: bool = True) -> Sequence[Task]:
    """The tasks that the source makes. Raises UserError unless they are a list of so many tasks of so many questions.

    exactly     whether `count` must be met; else the source may have fewer different ones
    """
    found: Any = source.tasks(objectives=objectives, count=count, seed=seed)
    said = f"{source_name(source)}.tasks returned"
    if not isinstance(found, Iterable):
        raise UserError(f"{said} a {type(found).__name__}; it returns a list of Task")
    found = list(found)
    if wrong := [task for task in found if not isinstance(task, Task)]:
        raise UserError(f"{said} {wrong[0]!r:.80}; it returns a list of Task")
    if other := [task.objectives for task in found if task.objectives != objectives]:
        raise UserError(
            f"{said} a task of {other[0]} questions, not {objectives}, as asked for; give objectives = [{other[0]}]"
        )
    if exactly and len(found) != count:
        raise UserError(
            f"{said} {len(found)} tasks of {objectives} objectives, not {count}, as asked for; return as many, "
            "the same again where there are no more"
        )
    return found


def _section(thing: Any) -> Any:
    return made_by(thing, TasksConfig, _PlainTasks, given=("split", "tags"))


Tasks = Annotated[TasksConfig, ByName(register.tasks, key="kind", adapt=_section)]
"""The [tasks] of a recipe."""
