"""A trained policy that writes notes about an agent's work, one part after the other.

    writer = NoteWriter.load("runs/writer/policy")
    writer.write(reading_of("Go through ...", [], 0, "[assistant] read_mail(...) ..."))
    ->  ["Pellick Timber audit invoice: INV-482130", "INV-482130 due: 3 May 2027"]

What it is shown is laid out as in training (`mem1.extras.writer.reading`): the task, the notes in sight, one part. So
it keeps nothing between calls, and its context is as long after a thousand exchanges as after ten. What several threads
ask for at a time is computed together.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mem1.engines.base import Completion, Engine, Request, Sampling, Streaming
from mem1.engines.codec import Codec
from mem1.engines.device import ON_CPU, Device
from mem1.errors import UserError
from mem1.extras.writer.reading import NEXT, prompt_of
from mem1.messages.writing import Reading
from mem1.net.threads import Batcher, in_parallel
from mem1.policy.folders import policy_folder
from mem1.policy.policy import load_config, load_policy
from mem1.policy.protocol import Known
from mem1.protocol import Tags, blocks, observation, strip_markup
from mem1.tasks.completions import completion

if TYPE_CHECKING:
    from mem1.engines.servers import ModelServer

_COMPLETION = 120
"""Longest completion, in tokens."""
_TOGETHER = 16
"""Completions that this process computes at a time."""
_GREEDY = Sampling(temperature=0.0)
_END_S = 60.0
"""Seconds that the end of the process waits for a completion."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What a writer notes about a part."""

    notes: Sequence[str]
    """Lines; empty: there is nothing to note."""
    read: int
    """Tokens of the context."""
    written: int
    """Tokens of the completion."""


class NoteWriter:
    """Writes notes with a policy that was trained to. Thread-safe."""

    def __init__(self, codec: Codec, tags: Tags, engine: Engine) -> None:
        """Raises UserError for tags without notes, which are those of another policy."""
        if tags.note is None:
            raise UserError("the policy was not trained to write notes; do it with mem1 train smollm2/writer-start")
        self._codec, self._tags, self._engine = codec, tags, engine
        self._lock, self._computing, self._ending = threading.Lock(), threading.Lock(), False
        self._elsewhere: int | None = getattr(engine, "concurrency", None)
        if self._elsewhere is None:
            self._asked = Batcher(self._computed, threads=1, size=_TOGETHER)
            atexit.register(self._end)
        else:
            self._asked = Batcher(self._completed, threads=self._elsewhere, size=1)
        self.given = self.read = self.written = 0
        """Tokens of the parts, of the contexts that it read, and of what it wrote, by its own tokenizer."""

    @property
    def concurrency(self) -> int:
        """Most parts, of different conversations, that are worth giving to it at a time."""
        return self._elsewhere or _TOGETHER

    @classmethod
    def load(cls, folder: str | Path, *, workers: int = 1, device: Device = ON_CPU) -> NoteWriter:
        """The policy in a folder, in bfloat16 where the device computes in it.

        Raises UserError as `load_policy` does, and for one that is not trained to.
        """
        from mem1.engines.workers import local_engine

        load_config(policy_folder(folder))  # says what a folder without a model is
        tags = _tags(folder)
        policy = load_policy(folder, device=device, dtype="bfloat16" if device.bfloat16 else "float32")
        return cls(policy.codec, tags, local_engine(policy.model, policy.codec, tags.stop_strings, workers=workers))

    @classmethod
    def connect(cls, folder: str | Path, server: ModelServer) -> NoteWriter:
        """The policy in a folder, whose weights, or a GGUF file of them, a server runs: vLLM, llama.cpp.

        Raises UserError for a folder as `load`, and where the server does not answer or has another tokenizer.
        """
        from mem1.engines.openai import OpenAIEngine

        codec, tags = Codec.load(policy_folder(folder)), _tags(folder)
        return cls(codec, tags, OpenAIEngine.open(server, codec, tags.stop_strings))

    def write(self, reading: Reading, /) -> Sequence[str]:
        """The notes about one part; empty: there is nothing to note. Raises as `noted`."""
        return self.noted(reading).notes

    def noted(self, reading: Reading, /) -> WrittenPart:
        """The same, with what it has cost. Raises UserError if the model fails, and at the end of the process."""
        context = self._context(reading)
        (sampled,) = self._asked.submit([context], None).result()
        return self._written(context, sampled)

    def _computed(self, contexts: Sequence[Sequence[int]], _: None) -> list[Completion]:
        with self._computing:
            if self._ending:
                raise UserError("the process ends")
            return self._completed(contexts, _)

    def _completed(self, contexts: Sequence[Sequence[int]], _: None) -> list[Completion]:
        return self._engine.complete(contexts, max_tokens=[_COMPLETION] * len(contexts), sampling=_GREEDY)

    def _end(self) -> None:
        """Waits for the completions under way: torch aborts a process that ends while it computes."""
        self._ending = True
        self._computing.acquire(timeout=_END_S)

    def write_along(self, readings: Sequence[Reading], then: Callable[[int, Sequence[str]], Reading | None]) -> None:
        """The notes about each of several parts, and about what follows them, each work at its own pace.

        then    gets the place of a work among `readings` and the notes about its part, and returns its next part; of a
                server's, in several threads
        """

        def request(place: int, reading: Reading) -> Request:
            return Request(context=self._context(reading), max_tokens=_COMPLETION, seed=0, key=place)

        def follow(done: Sequence[tuple[Request, Completion]]) -> list[Request]:
            notes = [(asked.key, self._written(asked.context, sampled).notes) for asked, sampled in done]
            return [request(key, one) for key, found in notes if (one := then(key, found)) is not None]

        def whole(work: tuple[int, Reading]) -> None:
            place, reading = work
            while (following := then(place, self.write(reading))) is not None:
                reading = following

        if isinstance(self._engine, Streaming):
            self._engine.stream([request(*one) for one in enumerate(readings)], follow, sampling=_GREEDY)
        else:
            in_parallel(whole, list(enumerate(readings)), threads=self.concurrency)

    def _written(self, context: Sequence[int], sampled: Completion) -> WrittenPart:
        if sampled.failed is not None:
            raise UserError(f"the writer's model failed: {sampled.failed}")
        with self._lock:
            self.read += len(context)
            self.written += len(sampled.token_ids)
        notes = notes_in(self._codec.decode(sampled.token_ids), self._tags)
        return WrittenPart(notes, len(context), len(sampled.token_ids))

    def _context(self, reading: Reading) -> tuple[int, ...]:
        tags, codec = self._tags, self._codec
        at = len(reading.notes) - reading.latest
        earlier = [
            id
            for note, first in zip(reading.notes[:at], reading.begins[:at], strict=True)
            for id in self._note(note, first=first)
        ]
        last = [strip_markup(note, tags) for note in reading.notes[at:]]
        asked = codec.encode(completion(tags, "", state=None, notes=last, query=NEXT, answers=""))
        _, tagged = observation(reading.exchange, 1, tags)
        (shown,) = codec.encode_each_untrusted([tagged], tags)
        with self._lock:
            self.given += len(shown)
        return (
            *codec.with_bos(codec.encode_untrusted(prompt_of(strip_markup(reading.task, tags)), tags)),
            *earlier,
            *asked,
            *shown,
        )

    def _note(self, note: str, *, first: bool) -> tuple[int, ...]:
        """A note on what was before the last part, as a memory cuts it out of its completion: one behind another has
        the space between them, unless that is a token of its own."""
        ids = self._codec.encode(
            f"{'' if first else ' '}<{self._tags.note}> {strip_markup(note, self._tags)} </{self._tags.note}>"
        )
        return ids if first or self._codec.decode(ids[:1]).strip() else ids[1:]


def _tags(folder: str | Path) -> Tags:
    """Those that the policy in the folder writes notes in. Raises UserError where it is not known to."""
    known = Known.at(policy_folder(folder))
    if known.tags is None:
        raise UserError(f"{folder} does not say how it was trained to speak; give the folder of a trained writer")
    if known.saved is not None and (prompt := known.saved.get("prompt")) is not None:
        raise UserError(
            f"the policy in {folder} was trained on tasks of questions (prompt {prompt}), not to write notes about "
            "an agent's work; do that with mem1 train smollm2/writer-start"
        )
    return known.tags


def notes_in(text: str, tags: Tags) -> list[str]:
    """The notes of a completion; one that is not closed is none, nor part of the next."""
    if tags.note is None:
        return []
    inside = (block.content.rpartition(f"<{tags.note}>")[2] for block in blocks(text, tags.note))
    return [note for one in inside if (note := " ".join(one.split()))]
