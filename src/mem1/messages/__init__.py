"""Memory for agents that speak in chat messages: what the model should see of a conversation, and what to forget."""

from __future__ import annotations

from mem1.messages.bounds import UNBOUNDED, Bounds
from mem1.messages.check import check
from mem1.messages.folding import ask, fold, recall, with_state
from mem1.messages.memory import RECALL_TOOL, Memory
from mem1.messages.records import Event
from mem1.messages.writing import Reading, Writer

__all__ = [
    "RECALL_TOOL",
    "UNBOUNDED",
    "Bounds",
    "Event",
    "Memory",
    "Reading",
    "Writer",
    "ask",
    "check",
    "fold",
    "recall",
    "with_state",
]
