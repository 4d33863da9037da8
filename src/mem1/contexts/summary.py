"""`summary(n)`: append until more than n tokens have gathered, then ask the model for a summary and keep only that.

    turns 1 2 3, more than n tokens   ->   the model is given all three and an opened <summary>
    it writes ... </summary>          ->   the next context is prompt and summary; turns are appended to it again

A summary is a call of its own and does not use up one of the task's turns. This is what agents do that compact their
history (ReSum, arXiv 2509.13313), here with the tokens of the summary trained like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Selection, keep
from mem1.protocol import SUMMARY
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Summary:
    """Keep the last summary and the turns after it; ask for the next where they have more than `tokens` tokens."""

    tokens: int
    asks = SUMMARY

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"summary(n) needs n >= 1, not {self.tokens}")

    @property
    def name(self) -> str:
        return f"summary({self.tokens})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        last = max((i for i, turn in enumerate(turns) if turn.action == SUMMARY), default=-1)
        kept = keep(turns[max(last, 0) :])
        new = sum(len(t.completion_ids) + len(t.observation_ids) for t in turns[last + 1 :])
        return Selection(kept=kept.kept, asks=SUMMARY if new > self.tokens else None)
