"""The loop: memory x environment x engine -> Trajectory.

    contexts of the open attempts -> engine -> parse -> environment -> next contexts -> ...

An engine that streams (`Streaming`) samples all attempts at once, and each goes on as soon as its completion has ended;
the environment replies to all that have ended by the same token together. With an engine that forms batches itself,
such as servers (`Engine.concurrency`), each attempt advances alone. With any other, all take their turns together.

Everything that can go wrong with an attempt is recorded as its ending; nothing is raised.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from pydantic import Field

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS
from mem1.dialogue import Dialogue, Shown, turn_of
from mem1.engines.base import (
    Completion,
    Engine,
    Request,
    Sampling,
    Streaming,
    derived_seed,
    one_each,
    stream_rounds,
)
from mem1.envs.base import Action, Environment, Observation, Outcome
from mem1.errors import UserError
from mem1.memory import Context, Fold, MemoryPolicy, answer_from, next_context, recalled
from mem1.net.threads import in_parallel
from mem1.protocol import ANSWER, MALFORMED, NOTE, RECALL, SUMMARY, Tags
from mem1.records import Ended, Metric, Task, Trajectory, Turn
from mem1.scoring import measurement, number

Value = TypeVar("Value")
GENERAL_COMPLETION = 1000
"""Token budget of one completion of a general model, as in the paper."""


class Budget(Config):
    """Tokens that an attempt may use.

    Budget().completion(2)                    ->    48, for a small policy trained on short completions
    Budget().completion(2, general=True)      ->  1000, for a model with a chat template or with instructions
    """

    completion_per_objective: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    completion_extra: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """A completion has at most `completion_per_objective * N + completion_extra` tokens. None: 8 and 32; or, if both
    are None, 1,000 tokens for a model with a chat template or a prompt that explains the tags, as in the paper."""
    context: int = Field(default=4096, ge=1, le=MOST_TOKENS)
    """Maximum of context plus completion budget, in tokens; beyond it an attempt ends with `out_of_tokens`."""
    force_answer: bool = True
    """Open the answer tag at the end of the last turn's context, so that the attempt must answer."""

    def completion(self, objectives: int, *, general: bool = False) -> int:
        """Token budget of one completion; `general`: the model has a chat template or is given instructions."""
        if general and self.completion_per_objective is None and self.completion_extra is None:
            return GENERAL_COMPLETION
        each = 8 if self.completion_per_objective is None else self.completion_per_objective
        return each * objectives + (self.completion_extra or 32)


@dataclass
class _Attempt:
    """One trajectory in the making; the only mutable thing here."""

    key: int
    """Its place among the attempts of the call."""
    task: Task
    number: int
    """Number of this attempt at its task, from 0."""
    prompt_ids: tuple[int, ...]
    turns: list[Turn] = field(default_factory=list)
    asked: tuple[tuple[int, ...], Context, str | None] | None = None
    """The context that was last asked for: its tokens, what the memory says of it, and the action that it opens."""
    taken: int = 0
    """Turns of the task so far: all but summaries, unless one follows another."""
    actions: list[tuple[str, str]] = field(default_factory=list)
    """(kind, argument) of everything that the environment has replied to, or is about to."""
    ended: Ended | None = None
    detail: str = ""
    answer: str = ""
    seconds: float = 0.0
    """Wall time from the start of the call to the end of the attempt."""

    @property
    def turns_left(self) -> int:
        return self.task.turn_limit - self.taken

    @property
    def request(self) -> Action:
        *earlier, (kind, content) = self.actions
        return Action(self.task, kind, content, tuple(earlier))


@dataclass(frozen=True, kw_only=True)
class RolloutParts:
    """Parts that all rollouts share."""

    engine: Engine
    dialogue: Dialogue
    """How turns are written in tokens."""
    environment: Environment
    budget: Budget = field(default_factory=Budget)
    reward: Callable[[Task, Trajectory], float] | None = None
    """Computes the reward from the scored attempt; None: that of the environment, or of the agent."""
    on_turn: Callable[[Task, Turn], None] | None = None
    """Called with each turn: once the environment has replied to it, or with those of an agent once it has ended."""

    def scored(self, attempt: Trajectory, outcome: Outcome | None = None) -> Trajectory:
        """The attempt with its scores, unless they would measure the tool or the engine.

        outcome     what the agent says of it; None: what the environment does

        Raises UserError for a reward or a metric that is no finite number, and for a metric whose numbers are not one
        per objective.
        """
        if not attempt.ended.scorable:
            return attempt
        task = attempt.task
        assert task is not None  # rollouts make no other attempts
        outcome = outcome or self.environment.score(task, attempt.answer)
        if not isinstance(outcome, Outcome):
            raise UserError(f"{type(self.environment).__name__}.score returned {outcome!r:.80}; it returns an Outcome")

        def metric(value: Any) -> Metric:
            found = measurement(value)
            unscored = found == () and attempt.ended is not Ended.ANSWERED
            if isinstance(found, tuple) and len(found) != task.objectives and not unscored:
                raise ValueError(f"{len(found)} numbers for {task.objectives} objectives, not one for each")
            return found

        metrics = {name: _read(f"metric {name!r}", metric, value, attempt) for name, value in outcome.metrics.items()}
        attempt = replace(attempt, reward=_read("reward", number, outcome.reward, attempt), metrics=metrics)
        if self.reward is None:
            return attempt
        own = self.reward(task, attempt)
        return replace(attempt, reward=float(_read("reward by tasks.reward", number, own, attempt)))


def _read(what: str, read: Callable[[Any], Value], value: Any, attempt: Trajectory) -> Value:
    try:
        return read(value)
    except ValueError as error:
        assert attempt.task is not None
        raise UserError(
            f"the {what} of task {attempt.task.id!r}, attempt {attempt.attempt}, is {error} (the answer is "
            f"{attempt.answer[:80]!r}); correct what computes it"
        ) from error


def check_memory(memory: MemoryPolicy, tags: Tags, *, in_tags: bool) -> None:
    """Raises UserError where the tags lack one that the memory needs; `in_tags`: the dialogue writes them."""
    if memory == Fold(None):
        raise UserError("fold(auto) is a memory of chat agents: it needs prices; give a number, such as fold(4)")
    for asked in sorted(memory.asks & {SUMMARY, RECALL, NOTE}):
        if in_tags and (tags.note is None if asked == NOTE else asked not in tags.action_tags):
            raise UserError(f"the memory {memory.name} asks for a {asked}, but the tags {tags.name!r} have none for it")
    if NOTE in memory.asks and not in_tags:
        raise UserError(f"the memory {memory.name} keeps notes, which calls of tools have none of; set protocol=framed")


class RolloutPort(Protocol):
    """Makes attempts at tasks: `Rollout`, or that of an agent. Training and evaluation know no more of it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def dialogue(self) -> Dialogue: ...

    @property
    def environment(self) -> Environment: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def context_name(self) -> str:
        """Who makes the contexts, as `Trajectory.context` says it: a memory, or an agent."""
        ...

    def under(self, context: MemoryPolicy, *, engine: Engine | None = None) -> RolloutPort:
        """The same under another memory, with another engine if one is given.

        Raises UserError where an agent makes the contexts.
        """
        ...

    def __call__(
        self,
        tasks: Sequence[Task],
        *,
        sampling: Sampling,
        numbers: Sequence[int] | None = None,
        weights_version: int = 0,
        progress: Callable[[Sequence[int]], None] | None = None,
    ) -> list[Trajectory]:
        """One trajectory per task, in order; the parameters are those of `Rollout`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rollout(RolloutParts):
    """Everything but the tasks; call it with tasks, as often as needed."""

    context: MemoryPolicy

    def __post_init__(self) -> None:
        if not hasattr(self.context, "asks"):
            raise UserError(
                f"context = {self.context!r:.80} is no memory; give one, such as mem1.memory_policy('constant')"
            )
        check_memory(self.context, self.dialogue.tags, in_tags=self.dialogue.forces_answers)

    @property
    def context_name(self) -> str:
        return self.context.name

    def under(self, context: MemoryPolicy, *, engine: Engine | None = None) -> Rollout:
        """The same under another memory, with another engine if one is given."""
        return replace(self, context=context, engine=engine or self.engine)

    def __call__(
        self,
        tasks: Sequence[Task],
        *,
        sampling: Sampling,
        numbers: Sequence[int] | None = None,
        weights_version: int = 0,
        progress: Callable[[Sequence[int]], None] | None = None,
    ) -> list[Trajectory]:
        """One trajectory per task, in order, scored unless its tool or engine failed; repeat a task for a group.

        Samples depend on the weights, `sampling.seed`, the task, the number of the attempt at it and the turn, not on
        the other tasks. `numbers` holds the attempts' numbers; None: each task's attempts count from 0.
        `weights_version` is recorded for turns whose version the engine does not report. `progress` is called with the
        places of the tasks whose attempts have ended, after the turns that were taken together. With an engine of some
        concurrency, environment, `progress` and `on_turn` are called from several threads.
        """
        started = time.perf_counter()
        different = {task.prompt: task for task in tasks}  # a group's attempts share their prompt
        prompts = {text: self.dialogue.prompt(task) for text, task in different.items()}
        numbers = attempt_numbers(tasks) if numbers is None else numbers
        if len(numbers) != len(tasks):
            raise UserError(f"numbers has {len(numbers)} entries for {len(tasks)} tasks; give one for each, or None")
        attempts = [
            _Attempt(key, task, number, prompts[task.prompt])
            for key, (task, number) in enumerate(zip(tasks, numbers, strict=True))
        ]

        def begin(together: Sequence[_Attempt]) -> list[Request]:
            requests = self._ask(together, sampling)
            if over := [attempt for attempt in together if attempt.ended is not None]:
                tell(over)
            return requests

        def follow(finished: Sequence[tuple[Request, Completion]]) -> list[Request]:
            taken = [(attempts[request.key], completion) for request, completion in finished]
            self._take(taken, weights_version)
            requests = self._ask([attempt for attempt, _ in taken if attempt.ended is None], sampling)
            tell([attempt for attempt, _ in taken if attempt.ended is not None])
            return requests

        def tell(over: Sequence[_Attempt]) -> None:
            for attempt in over:
                attempt.seconds = time.perf_counter() - started
            if progress is not None:
                progress([attempt.key for attempt in over])

        def advance(together: Sequence[_Attempt]) -> None:
            stream_rounds(self.engine, begin(together), follow, sampling)

        concurrency = getattr(self.engine, "concurrency", 1)
        if isinstance(self.engine, Streaming):
            self.engine.stream(begin(attempts), follow, sampling=sampling)
        elif concurrency == 1:
            advance(attempts)
        else:
            in_parallel(advance, [[attempt] for attempt in attempts], threads=concurrency)
        return [self._finish(attempt) for attempt in attempts]

    def _ask(self, attempts: Sequence[_Attempt], sampling: Sampling) -> list[Request]:
        """What these attempts ask of the engine next; it ends those whose context leaves no room for a completion."""
        requests: list[Request] = []
        for attempt in attempts:
            context = next_context(self.context, attempt.prompt_ids, attempt.turns)
            requested = context.requested_action or self._last_action(attempt)
            ids = context.ids + self.dialogue.opening(requested)
            room = self._room(attempt.task)
            if len(ids) + room > self.budget.context:
                attempt.ended = Ended.OUT_OF_TOKENS
                attempt.detail = f"a context of {len(ids)} tokens leaves no room within {self.budget.context}"
                continue
            attempt.asked = ids, context, requested
            seed = derived_seed(sampling.seed, attempt.task.id, attempt.number, len(attempt.turns))
            requests.append(Request(context=ids, max_tokens=room, seed=seed, key=attempt.key))
        return requests

    def _take(self, taken: Sequence[tuple[_Attempt, Completion]], version: int) -> None:
        """One turn of each of these attempts."""
        for attempt, completion in taken:
            if completion.failed is not None:
                attempt.ended, attempt.detail = Ended.ENGINE_FAILED, completion.failed
                continue
            versions = completion.weights_versions or ((version, len(completion.token_ids)),)
            fields = {"logprobs": completion.logprobs, "weights_versions": versions}
            assert attempt.asked is not None
            turn = turn_of(self.dialogue, *attempt.asked, completion.token_ids, **fields)
            attempt.turns.append(turn)
            again = [t.action for t in attempt.turns[-2:]] == [SUMMARY, SUMMARY]  # or nothing would bound their number
            attempt.taken += turn.action != SUMMARY or again
            self._judge(attempt, completion)
        self._observe([attempt for attempt, _ in taken if attempt.ended is None])
        for attempt, completion in taken:
            if attempt.ended is None and attempt.turns_left == 0:
                attempt.ended = Ended.OUT_OF_TURNS
            if self.on_turn is not None and completion.failed is None:
                self.on_turn(attempt.task, attempt.turns[-1])

    def _room(self, task: Task) -> int:
        """Token budget of a completion."""
        return self.budget.completion(task.objectives, general=self.dialogue.general(task))

    def _last_action(self, attempt: _Attempt) -> str | None:
        last = self.budget.force_answer and attempt.turns_left == 1
        return ANSWER if last and self.dialogue.forces_answers and self.dialogue.tags.answers else None

    def _judge(self, attempt: _Attempt, completion: Completion) -> None:
        turn = attempt.turns[-1]
        if turn.action == MALFORMED:
            attempt.ended = Ended.BAD_TAGS if completion.stopped else Ended.OUT_OF_TOKENS
            attempt.detail = turn.content
        elif turn.action == ANSWER:
            noted = self.dialogue.tags.note is not None
            attempt.ended = Ended.ANSWERED
            attempt.answer = answer_from(turn.content, attempt.turns) if noted else turn.content
        elif turn.action == SUMMARY and not turn.prefilled:
            attempt.ended, attempt.detail = Ended.BAD_TAGS, "a summary that was not asked for"
        elif attempt.turns_left == 0 and self.dialogue.tags.answers:
            attempt.ended = Ended.OUT_OF_TURNS  # an action other than an answer would have no effect

    def _observe(self, attempts: Sequence[_Attempt]) -> None:
        """Let the environment reply to every open attempt; a summary is followed only by a hint.

        Several calls of one turn are made one after the other, each by all attempts together. The environment gets
        neither a recall nor a call that cannot be run.
        """
        wanted = [() if a.turns[-1].action == SUMMARY else self.dialogue.actions(a.turns[-1]) for a in attempts]
        texts: list[list[str]] = [[] if actions else [""] for actions in wanted]
        trusted: set[int] = set()
        for place in range(max(map(len, wanted), default=0)):
            acting: list[_Attempt] = []
            for attempt, actions, shown in zip(attempts, wanted, texts, strict=True):
                if attempt.ended is None and place < len(actions):
                    kind, argument, error = actions[place]
                    shown.append(recalled(self.context, attempt.turns) if kind == RECALL and not error else error)
                    if kind != RECALL and not error:
                        attempt.actions.append((kind, argument))
                        acting.append(attempt)
            replies = self.environment.observe([a.request for a in acting]) if acting else []
            replies = one_each(replies, len(acting), self.environment, "observe", "actions", Observation)
            found = dict(zip(map(id, acting), replies, strict=True))
            for attempt, shown in zip(attempts, texts, strict=True):
                if (reply := found.get(id(attempt))) is not None:
                    shown[-1] = reply.text
                    trusted.update([id(attempt)] if reply.trusted else [])
                    self._reply(attempt, reply)
        told = [
            (attempt, self._shown(attempt, shown, id(attempt) in trusted))
            for attempt, shown in zip(attempts, texts, strict=True)
            if attempt.ended is None and attempt.turns_left > 0
        ]
        written = self.dialogue.replies([shown for _, shown in told])
        for (attempt, _), (text, ids) in zip(told, written, strict=True):
            attempt.turns[-1] = replace(attempt.turns[-1], observation=text, observation_ids=ids)

    def _shown(self, attempt: _Attempt, texts: Sequence[str], trusted: bool) -> Shown:
        memory = None if self.dialogue.tags.memory_left is None else self.context.filled(attempt.turns)
        return Shown(attempt.turns[-1], tuple(texts), attempt.turns_left, trusted, memory)

    def _reply(self, attempt: _Attempt, reply: Observation) -> None:
        if reply.failed is not None:
            attempt.ended, attempt.detail = Ended.TOOL_FAILED, reply.failed
            return
        if reply.answer is not None:
            attempt.answer = reply.answer
        if reply.ended:
            attempt.ended = Ended.ANSWERED

    def _finish(self, attempt: _Attempt) -> Trajectory:
        assert attempt.ended is not None
        return self.scored(
            Trajectory(
                turns=tuple(attempt.turns),
                task=attempt.task,
                ended=attempt.ended,
                detail=attempt.detail,
                answer=attempt.answer,
                context=self.context.name,
                attempt=attempt.number,
                seconds=attempt.seconds,
            )
        )


def attempt_numbers(tasks: Sequence[Task]) -> list[int]:
    """How often each task occurs before its place.   tasks a, a, b, a  ->  0, 1, 0, 2"""
    seen: Counter[str] = Counter()
    numbers: list[int] = []
    for task in tasks:
        numbers.append(seen[task.id])
        seen[task.id] += 1
    return numbers
