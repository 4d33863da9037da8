"""Attempts by a third-party agent; called like `mem1.rollout.Rollout`.

    task  ->  the agent, with an address of its own  ->  its calls, sampled and recorded; its answer  ->  Trajectory

Everything that can go wrong with an attempt is recorded as its ending:

    answered        the agent returned an answer, a reward, or that it has none
    out_of_turns    it made more calls than it may, and did not return an answer; likewise
    out_of_tokens   a context left no room for a completion
    out_of_time     it did not return in time
    agent_failed    it raised, exited with an error, or asked for what the endpoint refuses
    tool_failed     the environment failed (`mem1.endpoint.client.act`)
    engine_failed   the model's server failed

All but the last two are scored, the agent's failures with no answer: what differs between attempts is what the policy
has said, and one that makes its agent fail or hang should learn not to. Where actions make the answer, as in a shop,
the environment scores them, however the agent ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import BoundedSemaphore

from mem1.dialogue import NativeDialogue
from mem1.endpoint.recording import Bounds, Recording
from mem1.endpoint.runs import AgentConfig, Returned, Runs
from mem1.endpoint.sampling import JoinedCalls
from mem1.endpoint.server import Endpoint
from mem1.engines.base import Completion, Engine, Sampling
from mem1.engines.request_queue import Row
from mem1.envs.base import Outcome
from mem1.errors import UserError
from mem1.memory import MemoryPolicy
from mem1.messages import Bounds as MemoryBounds
from mem1.messages import Memory
from mem1.net.threads import in_parallel
from mem1.records import Ended, Task, Trajectory
from mem1.rollout import RolloutParts, attempt_numbers


@dataclass(frozen=True, kw_only=True)
class AgentRollout(RolloutParts):
    """Everything but the tasks; call it with tasks, as often as needed."""

    agent: AgentConfig
    dialogue: NativeDialogue
    runs: Runs = field(init=False)
    _slots: BoundedSemaphore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises UserError where there is no such agent."""
        Endpoint.here()
        object.__setattr__(self, "runs", self.agent.runs())
        object.__setattr__(self, "_slots", BoundedSemaphore(self.agent.concurrency))

    @property
    def context_name(self) -> str:
        return self.agent.name

    def under(self, context: MemoryPolicy, *, engine: Engine | None = None) -> AgentRollout:
        """There is none: raises UserError."""
        raise UserError(f"[agent] makes its own contexts, which the memory {context.name} cannot; leave it out")

    def __call__(
        self,
        tasks: Sequence[Task],
        *,
        sampling: Sampling,
        numbers: Sequence[int] | None = None,
        weights_version: int = 0,
        progress: Callable[[Sequence[int]], None] | None = None,
    ) -> list[Trajectory]:
        """One trajectory per task, in order, as `Rollout` returns them.

        Samples depend on the weights, `sampling.seed`, the task, the attempt's number, and what the agent sends.
        """
        started = time.perf_counter()
        numbers = attempt_numbers(tasks) if numbers is None else numbers
        recordings: list[Recording] = []

        def attempt(job: tuple[int, Task, int]) -> Trajectory:
            place, task, number = job
            with self._slots:
                recording = self._recording(task, number, calls, sampling.seed, weights_version)
                recordings.append(recording)
                with Endpoint.here().open(recording, calls.observe) as base_url:
                    returned = self.runs(task, base_url)
                trajectory = self._finish(recording, returned, started)
            if calls.error is not None:
                raise calls.error
            if progress is not None:
                progress([place])
            return trajectory

        with JoinedCalls(self.engine, self.environment, sampling) as calls:
            try:
                jobs = [(place, *each) for place, each in enumerate(zip(tasks, numbers, strict=True))]
                return in_parallel(attempt, jobs, threads=max(2, self.agent.concurrency))
            finally:
                for recording in recordings:
                    recording.end()

    def _recording(self, task: Task, number: int, calls: JoinedCalls, seed: int, version: int) -> Recording:
        def sample(context: tuple[int, ...], most: int, own_seed: int) -> Completion:
            return calls.complete(Row(context, most, own_seed))

        name = self.agent.memory
        return Recording(
            task=task,
            number=number,
            chat=self.dialogue.messages,
            bounds=Bounds(
                calls=self.agent.calls or task.turn_limit,
                actions=None if self.dialogue.tags.answers else task.turn_limit,
                completion=self.budget.completion(task.objectives, general=self.dialogue.general(task)),
                context=self.budget.context,
            ),
            seed=seed,
            sample=sample,
            version=version,
            memory=None if name is None else Memory(name, bounds=MemoryBounds(handles=False)),
        )

    def _finish(self, recording: Recording, returned: Returned, started: float) -> Trajectory:
        turns, task = recording.end(), recording.task
        if not self.dialogue.tags.answers:  # actions make the answer, and what an agent says at its end is none
            returned = replace(returned, answer=recording.answer)
        ended, detail = _ending(recording, returned)
        answer = returned.answer if returned.answer is not None else recording.answer
        attempt = Trajectory(
            turns=turns,
            task=task,
            ended=ended,
            detail=detail,
            answer=answer or "",
            context=self.context_name,
            attempt=recording.number,
            seconds=time.perf_counter() - started,
        )
        if self.on_turn is not None:
            for turn in turns:
                self.on_turn(task, turn)
        own = None if returned.reward is None else Outcome(returned.reward, returned.metrics)
        return self.scored(attempt, own)


def _ending(recording: Recording, returned: Returned) -> tuple[Ended, str]:
    """How the attempt ended, and why. Where the agent fails after a refused call, that call is the reason."""
    trouble = recording.trouble
    if trouble is not None and not trouble[0].scorable:
        return trouble
    if returned.failed is not None:
        ended, why = returned.failed
        return trouble if trouble is not None and ended is Ended.AGENT_FAILED else (ended, why)
    if trouble is not None and returned.answer is None and returned.reward is None and recording.answer is None:
        return trouble
    return Ended.ANSWERED, ""
