"""A client of verl's servers that follows scripts, for tests without a server.

The attempts at a task (request ids whose first context is the same) use the scripts in turn. Every sampled token has a
different made-up log-probability, so that a mix-up shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from mem1.engines.base import Script
from mem1.engines.codec import Codec
from mem1.records import Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOutput:
    """A server's output, with verl's names."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: Mapping[str, Any] = field(default_factory=dict)


class ScriptedClient:
    """Stands in for verl's client."""

    def __init__(self, codec: Codec, scripts: Sequence[Script], *, weights_step: int = 0) -> None:
        self.codec, self.weights_step = codec, weights_step
        self._scripts = tuple(scripts)
        self._next: dict[tuple[int, ...], Iterator[Script]] = {}
        self._script_of: dict[str, Script] = {}
        self._sampled = 0
        self.asked: list[dict[str, Any]] = []
        """The sampling parameters of each request."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> ScriptedOutput:
        """What the attempt's script writes after this context, cut to the server's token budget."""
        self.asked.append(sampling_params)
        if request_id not in self._script_of:
            self._script_of[request_id] = next(self._next.setdefault(tuple(prompt_ids), cycle(self._scripts)))
        ids = self.codec.encode(self._script_of[request_id](self.codec.decode(prompt_ids)))
        ids = ids[: sampling_params["max_tokens"]]
        first, self._sampled = self._sampled, self._sampled + len(ids)
        return ScriptedOutput(
            token_ids=list(ids),
            log_probs=[-0.001 * (first + place + 1) for place in range(len(ids))],
            extra_fields={"min_global_steps": self.weights_step, "max_global_steps": self.weights_step},
        )


def even(task: Task, attempt: Trajectory) -> float:
    """A reward that a model without any training gets now and then: the share of even tokens."""
    sampled = [token for turn in attempt.turns for token in turn.completion_ids]
    return sum(token % 2 == 0 for token in sampled) / max(1, len(sampled))
