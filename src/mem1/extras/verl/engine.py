"""One attempt's engine over verl's client, and its trajectory as verl's outputs.

    thread of the attempt    complete([[1, 2]], max_tokens=[8], ...)          (waits)
    verl's loop              client.generate(request_id, prompt_ids=[1, 2], sampling_params={...})  ->  tokens

Our rollout is synchronous and runs in its own thread; requests run in verl's event loop. Tokens and log-probabilities
are the server's, never encoded again. Each turn becomes one output, so each sampled token is trained exactly once:

    turn 1: context [p q]        completion [a b]   ->  prompt_ids [p q]        response_ids [a b]  response_mask [1 1]
    turn 2: context [p q a b i]  completion [c d]   ->  prompt_ids [p q a b i]  response_ids [c d]  response_mask [1 1]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.engines.base import Completion, Sampling
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.records import Ended, Trajectory

_EXPECTED = {"top_p": (1,), "top_k": (-1, 0), "repetition_penalty": (1,), "logprobs": (True, 0)}
"""Sampling parameters, besides a temperature, and the values that leave the policy as it is."""


def asked_temperature(sampling_params: Mapping[str, Any]) -> float:
    """The temperature in verl's parameters. Raises UserError if any other parameter would bias the training."""
    for name, value in sampling_params.items():
        if name != "temperature" and value not in _EXPECTED.get(name, ()):
            allowed = ", ".join(f"{key}={values[0]}" for key, values in _EXPECTED.items())
            raise UserError(
                f"verl samples with {name}={value}, but mem1 needs samples of the unchanged policy, with their "
                f"log-probabilities ({allowed}); correct actor_rollout_ref.rollout or its val_kwargs"
            )
    if not sampling_params.get("logprobs"):
        raise UserError("verl requests no log-probabilities; set actor_rollout_ref.rollout.calculate_log_probs to true")
    return float(sampling_params["temperature"])


@dataclass(kw_only=True, eq=False)
class ServerEngine:
    """An engine for one attempt. Do not call it from the event loop's thread, which would wait for itself."""

    client: Any
    """verl's, whose `generate` returns a TokenOutput."""
    loop: asyncio.AbstractEventLoop
    codec: Codec
    stop_strings: Sequence[str]
    request_id: str
    """The same for all turns of an attempt, so that one server caches them all."""
    seconds: float = 0.0
    """Time spent waiting for servers."""
    oldest: int | None = None
    """Training step of the oldest weights that sampled a token; None: no server has reported one."""
    newest: int | None = None

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context; seeds are ignored, because verl's servers have their own random numbers.

        Raises UserError if the server returns no log-probabilities.
        """
        started = time.perf_counter()
        asked = [
            asyncio.run_coroutine_threadsafe(self._ask(context, budget, sampling.temperature), self.loop)
            for context, budget in zip(contexts, max_tokens, strict=True)
        ]
        answers = [future.result() for future in asked]
        self.seconds += time.perf_counter() - started
        return [self._completion(answer, budget) for answer, budget in zip(answers, max_tokens, strict=True)]

    async def _ask(self, context: Sequence[int], max_tokens: int, temperature: float) -> Any:
        """The server's output, or the text of the error that prevented it."""
        params = {
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": max_tokens,
            "stop": list(self.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,  # otherwise a tag that is a special token would not be seen
        }
        try:
            return await self.client.generate(self.request_id, prompt_ids=list(context), sampling_params=params)
        except Exception as error:  # whatever the error, the attempt has no completion
            return f"{type(error).__name__}: {error}"

    def _completion(self, answer: Any, max_tokens: int) -> Completion:
        if isinstance(answer, str):
            return _failed(answer)
        ids = tuple(answer.token_ids)
        if not ids or answer.stop_reason == "aborted":
            return _failed(f"the server returned {len(ids)} tokens and stopped with {answer.stop_reason!r}")
        if answer.log_probs is None or len(answer.log_probs) != len(ids):
            raise UserError(
                f"the server returned {len(answer.log_probs or ())} log-probabilities for {len(ids)} tokens; set "
                "actor_rollout_ref.rollout.calculate_log_probs to true, on a server that supports them"
            )
        self._note(answer.extra_fields)
        text = self.codec.decode(ids)
        return Completion(
            token_ids=ids,
            logprobs=tuple(answer.log_probs),
            stopped=len(ids) < max_tokens or any(stop in text for stop in self.stop_strings),
        )

    def _note(self, fields: Mapping[str, Any]) -> None:
        first, last = fields.get("min_global_steps"), fields.get("max_global_steps")
        if first is not None:
            self.oldest = first if self.oldest is None else min(self.oldest, first)
        if last is not None:
            self.newest = last if self.newest is None else max(self.newest, last)


def _failed(why: str) -> Completion:
    return Completion(token_ids=(), stopped=False, failed=why)


def turn_outputs(trajectory: Trajectory, engine: ServerEngine) -> list[dict[str, Any]]:
    """Fields of verl's AgentLoopOutput, one per turn; none for an attempt that cannot be scored."""
    if not trajectory.ended.scorable:
        return []
    assert trajectory.reward is not None
    shared = {
        "reward_score": trajectory.reward,
        "num_turns": len(trajectory.turns),
        "metrics": {
            "generate_sequences": engine.seconds,
            "tool_calls": max(0.0, trajectory.seconds - engine.seconds),
        },
    }
    return [
        {
            "prompt_ids": list(turn.context_ids),
            "response_ids": list(turn.completion_ids),
            "response_mask": [1] * len(turn.completion_ids),
            "response_logprobs": list(turn.logprobs),
            **shared,
            "extra_fields": {
                "min_global_steps": engine.oldest,
                "max_global_steps": engine.newest,
                "reward_extra_info": _measured(trajectory),
            },
        }
        for turn in trajectory.turns
    ]


def _measured(trajectory: Trajectory) -> dict[str, float]:
    """Values that verl logs for a validation. Only "acc" counts an attempt without rows, which failed, as 0."""
    em, f1 = trajectory.per_objective("em"), trajectory.per_objective("f1")
    return {
        "acc": sum(em) / (len(em) or 1),
        "f1": sum(f1) / (len(f1) or 1),
        "answered": float(trajectory.ended is Ended.ANSWERED),
        "turns": float(len(trajectory.turns)),
        "peak_tokens": float(max((turn.num_tokens for turn in trajectory.turns), default=0)),
    }
