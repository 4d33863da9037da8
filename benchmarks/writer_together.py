"""How much quicker a memory writer reads several conversations at a time than one after the other.

    python benchmarks/writer_together.py runs/writer/policy --conversations 8 --exchanges 6

Prints the seconds of both, and their ratio, for the first exchanges of made transcripts of the kinds atlas and office.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine import commit, hardware

from mem1.engines.device import Machine, choose
from mem1.extras.probe.kinds import Settings, make_transcript
from mem1.extras.probe.transcripts import Transcript
from mem1.extras.writer.note_writer import NoteWriter
from mem1.extras.writer.transcripts import parts_of_transcript
from mem1.messages.writing import reading_of
from mem1.messages.written import WrittenNote, checked


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("writer", type=Path, help="folder of a policy that was trained to write notes")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--exchanges", type=int, default=6)
    given = parser.parse_args(arguments)
    writer = NoteWriter.load(given.writer, device=choose("auto", Machine.here()))
    settings = Settings(exchanges=20)
    transcripts = [
        make_transcript(("atlas", "office")[number % 2], "development", number, settings)
        for number in range(given.conversations)
    ]

    def read(transcript: Transcript) -> int:
        notes: list[WrittenNote] = []
        texts = parts_of_transcript(transcript)[: given.exchanges]
        for number, (text, _) in enumerate(texts):
            notes += checked(writer.write(reading_of(transcript.task, reversed(notes), number, text)), text, number)
        return len(texts)

    read(transcripts[0])  # the first use is slower
    started = time.perf_counter()
    parts = sum(map(read, transcripts))
    between = time.perf_counter()
    with ThreadPoolExecutor(given.conversations) as threads:
        assert sum(threads.map(read, transcripts)) == parts
    alone, together = between - started, time.perf_counter() - between
    print(f"{parts} parts of {given.conversations} conversations; commit {commit()}; {hardware()}")
    print(f"one after the other {alone:.1f} s, together {together:.1f} s: {alone / together:.2f} times as quick")


if __name__ == "__main__":
    main()
