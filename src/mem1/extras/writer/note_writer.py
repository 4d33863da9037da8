"""A trained policy that writes notes about an agent's work, one part after the other.

    writer = NoteWriter.load("runs/writer/policy")
    writer.write(reading_of("Go through ...", [], 0, "[assistant] read_mail(...) ..."))
    ->  ["Pellick Timber audit invoice: INV-482130", "INV-482130 due: 3 May 2027"]

What it is shown is laid out as in training (`mem1.extras.writer.reading`): the task, the notes in sight, one part. So
it keeps nothing between calls, and its context is as long after a thousand exchanges as after ten.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mem1.engines.base import Completion, Engine, Request, Sampling, Streaming
from mem1.engines.codec import Codec
from mem1.engines.device import ON_CPU, Device
from mem1.errors import UserError
from mem1.extras.writer.reading import NEXT, prompt_of
from mem1.messages.writing import Reading
from mem1.policy.folders import policy_folder
from mem1.policy.policy import load_policy
from mem1.policy.protocol import Known
from mem1.protocol import Tags, blocks, observation, strip_markup
from mem1.tasks.completions import completion

_COMPLETION = 120
"""Longest completion, in tokens."""
_END_S = 60.0
"""Seconds that the end of the process waits for a completion."""


class NoteWriter:
    """Writes notes with a policy that was trained to; for several threads, one after the other."""

    def __init__(self, codec: Codec, tags: Tags, engine: Engine) -> None:
        """Raises UserError for tags without notes, which are those of another policy."""
        if tags.note is None:
            raise UserError("the policy was not trained to write notes; do it with mem1 train smollm2/writer-start")
        self._codec, self._tags, self._engine = codec, tags, engine
        self._one = threading.Lock()
        self._ending = False
        atexit.register(self._end)
        self.given = self.read = self.written = 0
        """Tokens of the parts, of the contexts that it read, and of what it wrote, by its own tokenizer."""

    @classmethod
    def load(cls, folder: str | Path, *, workers: int = 1, device: Device = ON_CPU) -> NoteWriter:
        """The policy in a folder, in bfloat16 where the device computes in it.

        Raises UserError as `load_policy` does, and for one that is not trained to.
        """
        from mem1.engines.workers import local_engine

        policy = load_policy(folder, device=device, dtype="bfloat16" if device.bfloat16 else "float32")
        known = Known.at(policy_folder(folder))
        tags = known.tags
        if tags is None:
            raise UserError(f"{folder} does not say how it was trained to speak; give the folder of a trained writer")
        if known.saved is not None and (prompt := known.saved.get("prompt")) is not None:
            raise UserError(
                f"the policy in {folder} was trained on tasks of questions (prompt {prompt}), not to write notes about "
                "an agent's work; do that with mem1 train smollm2/writer-start"
            )
        return cls(policy.codec, tags, local_engine(policy.model, policy.codec, tags.stop_strings, workers=workers))

    def write(self, reading: Reading, /) -> Sequence[str]:
        """The notes about one part; empty: there is nothing to note. Raises UserError if the model fails, and at the
        end of the process."""
        found: list[str] = []
        with self._one:
            if self._ending:
                raise UserError("the process ends")
            self.write_along([reading], lambda _, notes: found.extend(notes))
        return found

    def _end(self) -> None:
        """Waits for the completion under way: torch aborts a process that ends while it computes."""
        self._ending = True
        self._one.acquire(timeout=_END_S)

    def write_along(self, readings: Sequence[Reading], then: Callable[[int, list[str]], Reading | None]) -> None:
        """The notes about each of several parts, and about what follows them, each work at its own pace.

        then    gets the place of a work among `readings` and the notes about its part, and returns its next part
        """

        def request(place: int, reading: Reading) -> Request:
            return Request(context=self._context(reading), max_tokens=_COMPLETION, seed=0, key=place)

        def follow(done: Sequence[tuple[Request, Completion]]) -> list[Request]:
            following: list[Request] = []
            for asked, sampled in done:
                if sampled.failed is not None:
                    raise UserError(f"the writer's model failed: {sampled.failed}")
                self.read += len(asked.context)
                self.written += len(sampled.token_ids)
                notes = notes_in(self._codec.decode(sampled.token_ids), self._tags)
                if (reading := then(asked.key, notes)) is not None:
                    following.append(request(asked.key, reading))
            return following

        waiting, sampling = [request(*one) for one in enumerate(readings)], Sampling(temperature=0.0)
        if isinstance(self._engine, Streaming):
            self._engine.stream(waiting, follow, sampling=sampling)
            return
        while waiting:  # an engine that takes a batch at a time
            contexts, limits = [one.context for one in waiting], [one.max_tokens for one in waiting]
            done = self._engine.complete(contexts, max_tokens=limits, sampling=sampling)
            waiting = follow(list(zip(waiting, done, strict=True)))

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


def notes_in(text: str, tags: Tags) -> list[str]:
    """The notes of a completion; one that is not closed is none, nor part of the next."""
    if tags.note is None:
        return []
    inside = (block.content.rpartition(f"<{tags.note}>")[2] for block in blocks(text, tags.note))
    return [note for one in inside if (note := " ".join(one.split()))]
