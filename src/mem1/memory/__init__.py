"""Memories of an agent: MEM1's `constant`, `notes`, `notebook(k)`, `full`, baselines, and memories of your own."""

from __future__ import annotations

from mem1.memory.catalogue import KNOWN, memory_policy
from mem1.memory.contexts import Context, next_context
from mem1.memory.notes import answer_from, memory_spans, notebook
from mem1.memory.policies import (
    Archive,
    Belief,
    Capped,
    DiscardAll,
    Dropout,
    Fold,
    Full,
    Masked,
    NoMemory,
    Notebook,
    Notes,
    RetrievedNotes,
    Summary,
    Window,
)
from mem1.memory.recall import recalled
from mem1.memory.selection import STATE, Exchange, Kept, MemoryPolicy, Selection

__all__ = [
    "KNOWN",
    "STATE",
    "Archive",
    "Belief",
    "Capped",
    "Context",
    "DiscardAll",
    "Dropout",
    "Exchange",
    "Fold",
    "Full",
    "Kept",
    "Masked",
    "MemoryPolicy",
    "NoMemory",
    "Notebook",
    "Notes",
    "RetrievedNotes",
    "Selection",
    "Summary",
    "Window",
    "answer_from",
    "memory_policy",
    "memory_spans",
    "next_context",
    "notebook",
    "recalled",
]
