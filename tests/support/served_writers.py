"""A writer that is told what to note, behind the server of `mem1 serve-writer`, and a history to send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
from servers import app_in_a_thread

from mem1.extras.writer.note_writer import WrittenPart
from mem1.extras.writer.serving import make_app
from mem1.extras.writer.summaries import Summaries
from mem1.messages.bounds import estimated
from mem1.messages.writing import Reading

ASK = {"role": "user", "content": "Summarise the conversation so far for an agent that goes on with it."}
COMPACT = {"role": "user", "content": "Compact it."}
TASK = {"role": "user", "content": "Book a dock for the crane."}


def called(number: int, text: str) -> list[dict[str, Any]]:
    """A call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "ask", "arguments": f'{{"n": {number}}}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": text}]


HISTORY = [TASK, *called(1, "The crane is CR-4471."), *called(2, "Dock 14 is free from 3 May 2027."), ASK]
TOLD = {"CR-4471": "crane: CR-4471 !", "Dock 14": "dock: 14, from 3 May 2027"}


class Told:
    """A writer that notes what it is told to, where the words stand in the part."""

    def __init__(
        self,
        notes: dict[str, str] = TOLD,
        before: Callable[[Reading], None] = lambda reading: None,
        concurrency: int = 1,
    ) -> None:
        self.notes, self._before = notes, before
        self.shown: list[Reading] = []
        self.read = self.written = 0
        self.concurrency = concurrency

    def noted(self, reading: Reading, /) -> WrittenPart:
        self._before(reading)
        self.shown.append(reading)
        found = [note for words, note in self.notes.items() if words in reading.exchange]
        written = WrittenPart(found, estimated(reading.exchange), sum(map(estimated, found)))
        self.read += written.read
        self.written += written.written
        return written


@contextmanager
def served(writer: Any, **options: Any) -> Iterator[openai.OpenAI]:
    with app_in_a_thread(make_app(Summaries(writer), **options)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="sesame", max_retries=0, timeout=60)
        with client:
            yield client
