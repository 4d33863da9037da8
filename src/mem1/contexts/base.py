"""Which tokens the model sees next: the common path of every context policy.

A context policy is a pure function from the prompt and the turns so far to the next context, in tokens.
Tokens that the model sampled enter the next context as they were sampled, never re-encoded; text from the
environment was encoded once, by itself, and enters as those tokens.

Every policy so far keeps the prompt and the last `kept(n)` of n turns, so a policy is one small function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mem1.records import Span, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The exact tokens of one model call, with the ranges of their roles."""

    ids: tuple[int, ...]
    spans: Mapping[str, Span]
    """"prompt", and of the newest kept turn "state", "query" and "result" where it has them."""


class ContextPolicy(Protocol):
    """How much of the past stays in the context."""

    @property
    def name(self) -> str:
        """As written in configurations, such as "constant" or "fold(4)"."""
        ...

    def kept(self, turns: int) -> int:
        """How many of the last of `turns` finished turns stay in the next context; 1 <= kept <= turns."""
        ...


def next_context(policy: ContextPolicy, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> Context:
    """The context of the next turn: prompt, then completion and result of each kept turn.

        constant, prompt p q, one turn with completion a b and result i   ->   p q a b i

    A thought that does not survive (a protocol with a thought tag of its own) is left out of the copy.
    """
    ids = list(prompt_ids)
    spans: dict[str, Span] = {"prompt": (0, len(ids))}
    kept = turns[len(turns) - policy.kept(len(turns)) :] if turns else ()
    for turn in kept:
        dropped = turn.completion_spans.get("thought", (0, 0))
        offset = len(ids)
        ids += turn.completion_ids[: dropped[0]] + turn.completion_ids[dropped[1] :]
        for source, role in (("state", "state"), ("action", "query")):
            if source in turn.completion_spans:
                start, stop = turn.completion_spans[source]
                shift = offset - (dropped[1] - dropped[0] if start >= dropped[1] else 0)
                spans[role] = (start + shift, stop + shift)
            else:
                spans.pop(role, None)
        spans["result"] = (len(ids), len(ids) + len(turn.observation_ids))
        ids += turn.observation_ids
    return Context(ids=tuple(ids), spans=spans)
