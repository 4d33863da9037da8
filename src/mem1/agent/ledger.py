"""Counts what an agent's calls of the model use: by the provider's usage where there is one, else by estimate.

provider says   prompt 1,200, cached 1,024, output 90        counted as it says
it says nothing                                              tokens of messages and tools as they are estimated;
                                                             cached is what the call before it began with, too
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from mem1.agent.chat import Reply
from mem1.agent.report import Ending, ModelCall, Report, report
from mem1.messages import Memory
from mem1.messages.bounds import tokens_of
from mem1.messages.transcript import Message


class Ledger:
    """All calls of one agent so far."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._calls: list[ModelCall] = []
        self._tool_calls = self._tool_errors = 0
        self.tools_tokens = 0
        """Of the tools that calls declare now."""
        self._before: Sequence[Message] = ()
        """Messages of the call before."""

    def tools(self, declared: Sequence[Message]) -> None:
        """The tools that all further calls declare."""
        count = self._memory.bounds.count
        self.tools_tokens = sum(count(json.dumps(tool, ensure_ascii=False)) for tool in declared)

    def turn(self, shown: Sequence[Message], whole: Sequence[Message], reply: Reply, *, observed: bool = True) -> None:
        """A turn of the agent: what the model saw, the whole conversation before it, and what the model said.

        `observed`: whether it saw what the memory had shown, and nothing else.
        """
        self._add(shown, reply, whole=whole)
        if observed and reply.counted is not None:
            self._memory.observe(reply.counted.prompt, shown)

    def state(self, request: Sequence[Message], reply: Reply) -> None:
        """A call for a state."""
        self._add(request, reply, whole=None)

    def tool(self, *, failed: bool) -> None:
        """A call of a tool."""
        self._tool_calls += 1
        self._tool_errors += failed

    def report(self, *, answer: str | None, ending: Ending | None, messages: Sequence[Message]) -> Report:
        """The report so far."""
        prices = self._memory.prices
        return report(
            self._calls,
            answer=answer,
            ending=ending,
            tool_calls=self._tool_calls,
            tool_errors=self._tool_errors,
            prices=prices,
            advice=self._memory.advice(messages) if prices is not None and self._tool_calls else None,
        )

    def _add(self, shown: Sequence[Message], reply: Reply, *, whole: Sequence[Message] | None) -> None:
        count, counted = self._memory.bounds.count, reply.counted
        guess = tokens_of(shown, count) + self.tools_tokens
        prompt = guess if counted is None else counted.prompt
        scale = prompt / guess
        if counted is not None and counted.cached is not None:
            cached = counted.cached
        else:
            cached = self._known(round(scale * self._same(shown)))
        self._before = shown
        appended = prompt if whole is None else round(scale * (tokens_of(whole, count) + self.tools_tokens))
        self._calls.append(
            ModelCall(
                state=whole is None,
                prompt=prompt,
                cached=cached,
                output=tokens_of([reply.message], count) if counted is None else counted.output,
                appended=appended,
                estimated=("prompt", "cached", "output")
                if counted is None
                else ("cached",)
                if counted.cached is None
                else (),
            )
        )

    def _same(self, shown: Sequence[Message]) -> int:
        """Tokens with which the call before began too; tools come first in every prompt."""
        same = 0
        for message, earlier in zip(shown, self._before, strict=False):
            if message != earlier:
                break
            same += 1
        return tokens_of(shown[:same], self._memory.bounds.count) + self.tools_tokens if self._before else 0

    def _known(self, tokens: int) -> int:
        prices = self._memory.prices
        return tokens if prices is None else prices.cache.kept(tokens)
