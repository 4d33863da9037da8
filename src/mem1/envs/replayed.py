"""Episodes of environments that keep a state, for rollouts whose environments keep nothing between calls.

An action comes with all earlier ones of its attempt, so an episode can be repeated from its beginning, in another
process too. The newest episodes are kept, so that this is seldom necessary:

    observe([Action(task, "act", "up")])                                begins an episode, and keeps it under ("up",)
    observe([Action(task, "act", "left", history=(("act", "up"),))])    goes on with it

The answer of an attempt is its actions as a JSON list, from which its score can be found again.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from mem1.envs.base import Action, Environment, Observation, Outcome
from mem1.errors import UserError
from mem1.net.threads import in_parallel
from mem1.protocol import ACT, Tags
from mem1.records import UNSCORED, Metric, Question, Task
from mem1.tasks.prompts import PromptChoice, fill

Key = tuple[str, tuple[str, ...]]
"""(id of a task, actions so far)."""
Kept = TypeVar("Kept")
SCORED = "(scored by the environment)"
"""In place of a gold answer, as only the environment can score an attempt."""
MOST_OUTCOMES = 10_000
"""Scores that are kept until they are asked for."""


class EpisodeFailed(Exception):
    """The environment, not the policy, is why an episode cannot go on."""


def said(error: BaseException) -> str:
    """An error of a stranger's environment, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


class Episode(Protocol):
    """One episode in progress. Its methods raise EpisodeFailed."""

    @property
    def over(self) -> bool:
        """Whether the environment has ended it."""
        ...

    def act(self, action: str, /) -> Observation:
        """The environment's reply, as text; empty where the action ended the episode."""
        ...

    def end(self) -> Outcome:
        """Score the episode as far as it went, and free it."""
        ...

    def close(self) -> None:
        """Free it without a score; a second time does nothing."""
        ...


@dataclass(eq=False)
class ReplayedEnvironment:
    """Any environment that can begin an episode of a task. Several threads may call it."""

    begin: Callable[[Task], Episode]
    """Always in the same state for the same task. Raises EpisodeFailed."""
    live: int = 256
    """Episodes kept; the actions of an older one are repeated when it goes on."""
    threads: int = 1
    """Actions of a batch that may be under way at once."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Tools of the environment, as JSON schemas, for models that call tools; each is a kind of action."""
    called: Callable[[str, str], str] = lambda tool, argument: argument
    """Writes a tool and its argument as an action of an episode."""
    _episodes: _Newest[Episode] = field(init=False, repr=False)
    _outcomes: _Newest[Outcome] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._episodes, self._outcomes = _Newest(self.live), _Newest(MOST_OUTCOMES)

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """The environment's replies. Raises UserError for another kind of action."""
        return in_parallel(self._reply, actions, self.threads)

    def score(self, task: Task, answer: str) -> Outcome:
        """The score after the actions that `answer` lists, 0 after none; the reward is the metric "score" as well.

        Where the environment fails, the score is 0 and the metric "unscored" 1.
        """
        key = (task.id, _read(task, answer))
        if (outcome := self._outcomes.pop(key)) is not None:
            return outcome
        if not key[1]:
            if (begun := self._episodes.pop(key)) is not None:
                begun.close()
            return Outcome(0.0, {"score": 0.0})
        try:
            return _scored(self._resumed(task, key[1]))
        except EpisodeFailed:  # it was the policy that ended the attempt, so the run goes on
            return Outcome(0.0, {"score": 0.0, UNSCORED: 1.0})

    def offer(self, task: Task, episode: Episode) -> None:
        """An episode of this task that was begun to find its prompt: the first attempt goes on with it."""
        self._keep((task.id, ()), episode)

    def _reply(self, action: Action) -> Observation:
        task, known = action.task, [ACT, *(tool["function"]["name"] for tool in self.tools)]
        made = (*action.history, (action.kind, action.argument))
        if other := sorted({kind for kind, _ in made}.difference(known)):
            raise UserError(
                f"task {task.id!r}: this environment has no action {other[0]!r}; it has: {', '.join(known)}"
            )
        done = tuple(argument if kind == ACT else self.called(kind, argument) for kind, argument in made)
        episode: Episode | None = None
        try:
            episode = self._resumed(task, done[:-1])
            reply = _act(episode, done[-1])
            ended = episode.over
            if ended or len(done) >= task.turn_limit:
                self._outcomes.put((task.id, done), _scored(episode))
            else:
                self._keep((task.id, done), episode)
        except EpisodeFailed as error:
            if episode is not None:
                episode.close()
            return Observation(text="", failed=str(error))
        return replace(reply, answer=json.dumps(done), ended=ended)

    def _resumed(self, task: Task, actions: tuple[str, ...]) -> Episode:
        if (kept := self._episodes.pop((task.id, actions))) is not None:
            return kept
        episode = self.begin(task)
        try:
            for action in actions:
                _act(episode, action)
        except EpisodeFailed:
            episode.close()
            raise
        return episode

    def _keep(self, key: Key, episode: Episode) -> None:
        for oldest in self._episodes.put(key, episode):
            oldest.close()


def measured(environment: Environment, task: Task) -> Mapping[str, Metric]:
    """The metrics of an episode that ended after one action: what is measured at the end is not there before it."""
    return environment.score(task, json.dumps(["?"])).metrics


def one_task(name: str, text: str, *, turn_limit: int, prompt: PromptChoice, tags: Tags) -> Task:
    """The task of an episode that begins with this text. Raises UserError for a prompt that does not fit."""
    text = text.strip() or "Begin."
    # with the name, as episodes that begin alike are different tasks
    question = Question(id=name, text=f"{text} ({name})", answers=(SCORED,))
    return Task(id=name, questions=(question,), prompt=fill(prompt, text, tags), turn_limit=turn_limit)


def check_episodes(tags: Tags, objectives: int = 1) -> None:
    """Raises UserError where the tags have no action for such environments, or a task is to have several goals."""
    if ACT not in tags.action_tags:
        raise UserError(f"the tags {tags.name!r} have no action of the kind act, which this environment needs")
    if tags.answers:
        raise UserError(f"the tags {tags.name!r} have answers, but this environment decides when it is over")
    if objectives != 1:
        raise UserError(f"an episode has one objective, not {objectives}: use objectives = [1] (--objectives 1)")


class _Newest(Generic[Kept]):
    """The newest values, at most `most`. Several may have the same key: attempts that did the same so far."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._values: OrderedDict[Key, deque[Kept]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: Key, value: Kept) -> list[Kept]:
        """Keep the value; returns those that are too many."""
        with self._lock:
            self._values.setdefault(key, deque()).append(value)
            self._values.move_to_end(key)
            self._count += 1
            return [self._take(next(iter(self._values))) for _ in range(self._count - self._most)]

    def pop(self, key: Key) -> Kept | None:
        with self._lock:
            return self._take(key) if key in self._values else None

    def _take(self, key: Key) -> Kept:
        self._count -= 1
        value = self._values[key].popleft()
        if not self._values[key]:
            del self._values[key]
        return value


def _act(episode: Episode, action: str) -> Observation:
    if episode.over:
        raise EpisodeFailed("its actions, repeated, ended the episode too early: it is not reproducible")
    return episode.act(action)


def _scored(episode: Episode) -> Outcome:
    outcome = episode.end()
    if not math.isfinite(outcome.reward):
        raise EpisodeFailed(f"its reward is {outcome.reward}; it must be a finite number")
    return replace(outcome, metrics={**outcome.metrics, "score": outcome.reward})


def _read(task: Task, answer: str) -> tuple[str, ...]:
    try:
        actions = json.loads(answer or "[]")
    except ValueError:
        actions = None
    if not (isinstance(actions, list) and all(isinstance(action, str) for action in actions)):
        raise UserError(f"task {task.id!r}: the answer {answer[:80]!r} is not a JSON list of actions")
    return tuple(actions)
