"""Memories that a language model writes, in at most so many tokens: summaries, and notes of each exchange.

    Summary(PLAIN, write).compress(Kept("..."), pieces, 500)    ->   the summary so far and what came since, as one
    ExchangeNotes(write).compress(Kept("..."), pieces, 500)     ->   the same, and some lines on each exchange

A summary is written again with each part of the transcript that fits into the model's context; notes are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mem1.agent.chat import ServedChat
from mem1.errors import UserError
from mem1.extras.probe.compressors import Compressor, Kept
from mem1.extras.probe.pieces import Piece, exchanges, newest
from mem1.messages.bounds import estimated, oldest, tokens_of
from mem1.messages.writing import parts_of
from mem1.messages.written import about, kept_of
from mem1.net.exchange import read_key

Write = Callable[[list[Mapping[str, Any]]], str]
"""A model that replies to messages."""

PLAIN = (
    "Summarise the work below for an agent that continues it without seeing it. Keep every exact name, number, path, "
    "date and identifier, every decision and rule of the user, what failed, and of values that changed the newest."
)
SECTIONS = (
    "Write a detailed summary of the conversation so far, paying close attention to the user's explicit requests and "
    "to your previous actions, so that the work can continue without lost context. Sections: 1. Primary request and "
    "intent. 2. Key concepts. 3. Files, records and exact values. 4. Errors and fixes. 5. Decisions. 6. All user "
    "messages. 7. Pending tasks. 8. Current work. 9. Next step."
)
"""As coding agents ask for it today."""
_NOTE = (
    "Write notes about the exchange below: one line for each fact that a later step may need, with its exact names, "
    "numbers, paths, dates and identifiers. Write nothing else; if it has no such fact, write: nothing"
)
_WORDS_PER_TOKEN = 0.7
_CONTEXT = 4_096
"""Tokens that a writer reads at a time, what it kept included."""


@dataclass
class Counting:
    """A model, and the tokens that it has read and written."""

    write: Write
    read: int = 0
    written: int = 0
    failure: UserError | None = None
    """What the model failed with: a memory may go on without it, an examination may not."""

    def __call__(self, messages: list[Mapping[str, Any]]) -> str:
        try:
            reply = self.write(messages)
        except UserError as error:
            self.failure = error
            raise
        self.read += tokens_of(messages)
        self.written += estimated(reply)
        return reply


class Summary:
    """One text that is written anew with every part of what has come."""

    def __init__(self, instructions: str, write: Write) -> None:
        self._instructions, self._write = instructions, write

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        text = kept.text
        for part in parts(pieces, max(_CONTEXT // 4, _CONTEXT - 2 * tokens)):
            wish = f"{self._instructions} Use at most {int(tokens * _WORDS_PER_TOKEN)} words."
            before = f"\n\nSummary so far:\n{text}" if text else ""
            asked = f"{wish}{before}\n\nWhat came since:\n{part}"
            text = oldest(self._write([{"role": "user", "content": asked}]).strip(), tokens)
        return Kept(text)


class ExchangeNotes:
    """Lines that are written once for each exchange and checked against it; the newest, where all are too many."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        lines = kept.text.splitlines()
        for exchange_ in exchanges(pieces):
            for part in parts(exchange_, _CONTEXT // 2):
                said, source = self._write([{"role": "user", "content": f"{_NOTE}\n\n{part}"}]), about(part)
                notes = [line for line in said.splitlines() if line.strip(" .-").casefold() not in ("", "nothing")]
                lines += [note for line in notes if (note := kept_of(line, source))]
        return Kept(newest("\n".join(lines), tokens))


WRITTEN: Mapping[str, Callable[[Write], Compressor]] = {
    "summary": partial(Summary, PLAIN),
    "summary-sections": partial(Summary, SECTIONS),
    "writer": ExchangeNotes,
}
"""By the names that `mem1 probe` takes."""


def parts(pieces: Sequence[Piece], tokens: int) -> Iterator[str]:
    """The text of all pieces, in order, in parts of at most so many tokens; a longer piece is cut."""
    return parts_of([piece.text for piece in pieces], tokens)


def served(base_url: str, model: str, *, max_tokens: int | None = None, **server: Any) -> Write:
    """A model behind a chat server, at temperature 0; its key is OPENAI_API_KEY. `server`: fields of `ModelServer`.

    max_tokens      of a reply; None: the server's own limit

    Raises UserError for an address that is none, and where the model gives no reply.
    """
    key = "OPENAI_API_KEY" if read_key("OPENAI_API_KEY") else None
    chat = ServedChat.at(base_url, model, {"temperature": 0, "max_tokens": max_tokens}, api_key_env=key, **server)

    def write(messages: list[Mapping[str, Any]]) -> str:
        text = chat.reply(messages, ()).message["content"]
        return text if isinstance(text, str) else ""

    return write
