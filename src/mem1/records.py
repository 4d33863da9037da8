"""The nouns of mem1: Question, Passage, Task, Turn, Trajectory, Group, Ended.

Everything else passes these around. They are frozen, hold no tensors, and are checked once, where they
are made. A trajectory is written once as one line of JSON (`trajectory_to_json`) which the trainer, the
evaluator and the viewer read.

    turn 1: context [p q]       completion [a b]      result [i]
    turn 2: context [p q a b i] completion [c d]
    Trajectory(turns=(Turn((p, q), (a, b), ...), Turn((p, q, a, b, i), (c, d), ...)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

TRACE_VERSION = 3
"""Version of the JSON record written by `trajectory_to_json`; raised when older records can no longer be read."""

Span = tuple[int, int]
"""Half-open range [start, stop) of token indices."""

Origin = tuple[int, str, int, int]
"""(turn, role, start, stop): context tokens copied from an earlier turn, counted from 1 (0: from none of them). The
role is "state", "note", "query", "result" or "text"."""

Metric = float | tuple[float, ...]
"""One number for an attempt, or one per objective."""


def per_objective(value: Metric) -> tuple[float, ...]:
    """The values of a metric, one per objective; a single number counts as one."""
    return value if isinstance(value, tuple) else (value,)


VersionRun = tuple[int, int]
"""(version, tokens): a run of sampled tokens, and the number of optimiser steps that their weights had taken."""


class Ended(str, Enum):
    """How a trajectory ended: by the policy, by a budget, or by a failure."""

    ANSWERED = "answered"
    """The policy gave its answer (or, in a shop, bought something)."""
    OUT_OF_TURNS = "out_of_turns"
    """The turn limit was reached and the last turn was not an answer."""
    OUT_OF_TOKENS = "out_of_tokens"
    """A completion used its whole token budget, or a context no longer fits the model."""
    BAD_TAGS = "bad_tags"
    """A completion could not be parsed; `Trajectory.detail` says why."""
    TOOL_FAILED = "tool_failed"
    """The environment (a retriever, a shop) failed; not the policy's fault."""
    ENGINE_FAILED = "engine_failed"
    """The model's server failed, or the spending limit was reached; not the policy's fault."""
    OUT_OF_TIME = "out_of_time"
    """An agent of [agent] did not return within its time limit."""
    AGENT_FAILED = "agent_failed"
    """An agent of [agent] raised, exited with an error, or returned something that is no answer."""

    def __str__(self) -> str:
        return self.value

    @property
    def scorable(self) -> bool:
        """Whether the ending is the policy's doing; a failed tool or engine is not."""
        return self not in (Ended.TOOL_FAILED, Ended.ENGINE_FAILED)

    @property
    def truncated(self) -> bool:
        """Cut by a budget rather than ended by the task or the policy."""
        return self in (Ended.OUT_OF_TURNS, Ended.OUT_OF_TOKENS, Ended.OUT_OF_TIME)


UNSCORED = "unscored"
"""Metric of an attempt that the environment failed to score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its gold answers.

    Raises ValueError for an empty text, for no gold answer, with which it can only score 0, and for answers in one
    text.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    """Gold aliases; a prediction is right if it matches any of them."""
    source: str = ""
    """Dataset or world it comes from."""
    hops: int | None = None
    """Number of searches that must follow one another; None: unknown."""
    passage_ids: tuple[str, ...] = ()
    """Ids of the supporting passages, where known."""
    titles: tuple[str, ...] = ()
    """Titles of the supporting passages, where known: the entities that the question is about."""
    depends_on: tuple[int, ...] = ()
    """Positions, from 1, of the earlier questions of the task whose answers this one refers to."""
    read_at: int | None = None
    """Turn, from 1, that reads what this is about, where the environment decides what is read when; None: the policy
    does."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if isinstance(self.answers, str):  # of which each letter would be one
            raise ValueError(f"question {self.id!r}: give its answers as a tuple of texts, such as ({self.answers!r},)")
        object.__setattr__(self, "answers", tuple(self.answers))
        if not any(map(str.strip, self.answers)):
            raise ValueError(f"question {self.id!r} has no answer")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a search can return. Raises ValueError for an empty text."""

    id: str
    title: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"passage {self.id!r} has no text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """N questions to be answered together, with everything else that an attempt depends on."""

    id: str
    questions: tuple[Question, ...]
    prompt: str
    """The text shown at the head of every context: instruction and numbered questions."""
    turn_limit: int
    """Largest number of turns; the last one must answer."""
    corpus: str = ""
    """Name of the collection that its searches go to (key of the environment's retrievers)."""
    seed: int = 0
    labels: tuple[int, ...] = ()
    """Numbers of the questions in the prompt and in the answer (Q3, Q7), increasing; empty: 1 to N."""
    scorer: str = ""
    """Name of the rule that says whether an answer is right; empty: SQuAD's, where answers are texts."""
    whole: bool = False
    """Whether an answer goes on behind a semicolon, to the next label, as where a gold answer only has to be in it."""

    def __post_init__(self) -> None:
        if not self.questions:
            raise ValueError(f"task {self.id!r} has no questions")
        if self.labels and len(self.labels) != len(self.questions):
            raise ValueError(f"task {self.id!r} has {len(self.questions)} questions, but {len(self.labels)} labels")
        if list(self.labels) != sorted(set(self.labels)) or min(self.labels, default=1) < 1:
            raise ValueError(f"task {self.id!r}: labels must increase, from 1 on, not {list(self.labels)}")
        if self.turn_limit < 1:
            raise ValueError(f"task {self.id!r}: turn_limit must be at least 1, not {self.turn_limit}")
        for number, question in enumerate(self.questions, start=1):
            if not all(1 <= earlier < number for earlier in question.depends_on):
                raise ValueError(
                    f"task {self.id!r}: Q{number} depends on {list(question.depends_on)}; a question may depend only "
                    "on earlier ones"
                )

    @property
    def objectives(self) -> int:
        return len(self.questions)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The label of each question."""
        return self.labels or tuple(range(1, len(self.questions) + 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """Per question, the length of the longest chain of references that leads to it; 0: it refers to no other."""
        depths: list[int] = []
        for question in self.questions:
            depths.append(max((depths[earlier - 1] + 1 for earlier in question.depends_on), default=0))
        return tuple(depths)


def note_role(position: int) -> str:
    """The role of a note among those of its completion: "note", "note 2", "note 3" for the positions 0, 1, 2."""
    return f"note {position + 1}" if position else "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One call of the policy: the exact tokens it was given and the exact tokens it sampled."""

    context_ids: tuple[int, ...]
    """The exact tokens the model was given."""
    completion_ids: tuple[int, ...]
    """The exact tokens it sampled, the stop token included."""
    logprobs: tuple[float, ...] = ()
    """Sampler's log-probability of each completion token at the sampling temperature; empty: not recorded."""
    observation_ids: tuple[int, ...] = ()
    """The environment's reply with its tags, encoded once by itself; empty on the last turn."""
    text: str = ""
    """The completion as text."""
    state: str = ""
    """Parsed internal state."""
    notes: tuple[str, ...] = ()
    """Parsed notes, in order."""
    action: str = ""
    """Parsed kind of action: "search", "answer", another action of the protocol, or "malformed"."""
    content: str = ""
    """The action's argument: a query, an answer, or why the output was malformed."""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Calls of tools as (kind, argument, error), where the model speaks its own protocol; error: why the environment
    did not see it, or empty."""
    observation: str = ""
    """The environment's reply as text, hint included, tags excluded."""
    prefilled: bool = False
    """The context ended with an opened tag: the answer's on the last turn, or that of a requested summary."""
    context_spans: Mapping[str, Span] = field(default_factory=dict)
    """Ranges of `context_ids` by role: "prompt", and of the newest kept turn "state", "query", "result"."""
    context_origins: tuple[Origin, ...] = ()
    """Origins of the tokens of `context_ids` after the prompt, in order; empty: not recorded, or no such tokens."""
    completion_spans: Mapping[str, Span] = field(default_factory=dict)
    """Ranges of `completion_ids` by role: "thought", "state", "action", "state_text" (the state without tags),
    "rest" (text after the action, which does not survive) and those of `note_role` (notes with their tags)."""
    weights_versions: tuple[VersionRun, ...] = ()
    """Versions of the weights that sampled the completion, in the order of its tokens, as a server reports them.
    Several if weights changed in the middle; empty: not recorded."""

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.completion_ids):
            raise ValueError(
                f"a turn has {len(self.completion_ids)} completion tokens but {len(self.logprobs)} logprobs; "
                "give one log-probability per completion token, or none"
            )
        if self.weights_versions and sum(tokens for _, tokens in self.weights_versions) != len(self.completion_ids):
            raise ValueError(
                f"a turn has {len(self.completion_ids)} completion tokens but weights_versions "
                f"{self.weights_versions}; give (version, tokens) for all of them, or for none"
            )
        if not self.context_ids:
            raise ValueError("a turn needs at least one context token: nothing predicts its first completion token")

    @property
    def labelled(self) -> bool:
        """Whether a note may begin with the label of a question."""
        return True

    @property
    def num_tokens(self) -> int:
        """Context and completion together."""
        return len(self.context_ids) + len(self.completion_ids)

    @property
    def prefill_ids(self) -> tuple[int, ...]:
        """The opened tag at the end of the context of a prefilled turn; empty for other turns."""
        return self.context_ids[max(stop for _, stop in self.context_spans.values()) :] if self.prefilled else ()

    @property
    def words(self) -> str:
        """State, action and result as one text."""
        return f"{self.state} {self.content} {self.observation}"

    @property
    def said_tokens(self) -> int:
        """Number of tokens that it adds: a prefilled tag and the completion."""
        return len(self.prefill_ids) + len(self.completion_ids)

    @property
    def result_tokens(self) -> int:
        """Number of tokens of the environment's reply."""
        return len(self.observation_ids)

    @property
    def state_tokens(self) -> int:
        """Number of tokens of the state's or summary's text, without tags."""
        start, stop = self.completion_spans.get("state_text", (0, 0))
        return stop - start

    def note_tokens(self, position: int) -> int:
        """Number of tokens of the note at this position, tags included."""
        start, stop = self.completion_spans[note_role(position)]
        return stop - start

    @property
    def prompt_tokens(self) -> int:
        """Number of context tokens that belong to the task's prompt; 0 if the spans were not recorded."""
        start, stop = self.context_spans.get("prompt", (0, 0))
        return stop - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at one task. A failed rollout is a trajectory with its own ending, not an exception."""

    turns: tuple[Turn, ...]
    task: Task | None = None
    ended: Ended = Ended.ANSWERED
    detail: str = ""
    """Reason for the ending, where it needs one (malformed output, a failed tool)."""
    answer: str = ""
    """The final answer's text; empty if there was none."""
    reward: float | None = None
    """None: never scored. 0.0: scored, nothing right."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """The environment's measurements besides the reward, by name: one number, or one per objective. Question domains
    have "em" (exact match, 0 or 1) and "f1" (in [0, 1]); empty: never scored, or nothing measured."""
    context: str = ""
    """Name of the memory, such as "constant" or "fold(4)"."""
    attempt: int = 0
    """Number of this attempt at its task, from 0; with the seed and the task it determines what is sampled."""
    seconds: float = 0.0
    """Wall time from the start of its batch to the end of the round in which it ended.

    The attempts of a batch take their turns together, so this includes waiting for the others, and the sum over
    attempts is more than the time of the batch.
    """

    def per_objective(self, metric: str) -> tuple[float, ...]:
        """The values of a metric, one per objective; a single number counts as one; empty: not measured."""
        return per_objective(self.metrics.get(metric, ()))

    @property
    def num_completion_tokens(self) -> int:
        return sum(len(turn.completion_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G attempts at one task; the unit over which group-relative advantages are computed."""

    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError("a group needs at least one trajectory")
        ids = {t.task.id for t in self.trajectories if t.task is not None}
        if len(ids) > 1:
            raise ValueError(f"a group holds attempts at one task, not at {len(ids)}: {sorted(ids)[:4]}")

    @property
    def rewards(self) -> tuple[float, ...]:
        """Raises ValueError if a trajectory was never scored."""
        rewards = tuple(t.reward for t in self.trajectories if t.reward is not None)
        if len(rewards) != len(self.trajectories):
            raise ValueError("a trajectory of this group was never scored (reward is None); score it before training")
        return rewards


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A plain dict for one line of `trajectories.jsonl`; `trajectory_from_json` is its inverse."""
    return {
        "version": TRACE_VERSION,
        **_fields(trajectory),
        "turns": [_fields(turn) for turn in trajectory.turns],
        "task": None if trajectory.task is None else task_to_json(trajectory.task),
        "ended": trajectory.ended.value,
    }


_LATER = ("labels", "scorer", "whole")
"""Fields of a task that a record has only where they say something."""


def task_to_json(task: Task) -> dict[str, Any]:
    """A plain dict for JSON, without labels where they are 1 to N, the scorer that is the default, `whole` where it is
    not so, and turns that the environment does not fix."""
    fields = {name: value for name, value in _fields(task).items() if name not in _LATER or value}
    return {**fields, "questions": [_question_to_json(question) for question in task.questions]}


def _question_to_json(question: Question) -> dict[str, Any]:
    return {name: value for name, value in _fields(question).items() if name != "read_at" or value is not None}


def task_from_json(record: Mapping[str, Any]) -> Task:
    """Inverse of `task_to_json`."""
    names = ("answers", "passage_ids", "titles", "depends_on")
    questions = tuple(Question(**_tuples(q, *names)) for q in record["questions"])
    return Task(**{**_tuples(record, "labels"), "questions": questions})


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """Inverse of `trajectory_to_json`. Raises ValueError on another version of the format."""
    fields = dict(record)
    version = fields.pop("version", None)
    if version != TRACE_VERSION:
        raise ValueError(f"trajectory record has version {version!r}; this mem1 reads version {TRACE_VERSION}")
    fields["turns"] = tuple(_turn(t) for t in fields["turns"])
    task = fields.get("task")
    if task is not None:
        fields["task"] = task_from_json(task)
    fields["ended"] = Ended(fields["ended"])
    metrics = fields.get("metrics", {})
    fields["metrics"] = _tuples(metrics, *metrics)
    return Trajectory(**fields)


def _fields(record: Question | Task | Turn | Trajectory) -> dict[str, Any]:
    """The fields by name, as they are: `dataclasses.asdict` would copy every token of every turn."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _turn(record: Mapping[str, Any]) -> Turn:
    fields = _tuples(record, "context_ids", "completion_ids", "logprobs", "observation_ids", "notes")
    fields["calls"] = tuple((str(kind), str(text), str(error)) for kind, text, error in fields.get("calls", ()))
    fields["weights_versions"] = tuple((int(v), int(n)) for v, n in fields["weights_versions"])
    fields["context_origins"] = tuple((int(n), str(r), int(a), int(b)) for n, r, a, b in fields["context_origins"])
    for name in ("context_spans", "completion_spans"):
        fields[name] = {role: (int(a), int(b)) for role, (a, b) in fields[name].items()}
    return Turn(**fields)


def _tuples(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: tuple(v) if k in names and isinstance(v, Sequence) else v for k, v in record.items()}
