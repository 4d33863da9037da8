"""The examination: compressors shorten transcripts to equally many tokens, and what is left of the facts is counted.

    taken = examine(transcript, "recency", share=0.1, cycles=20)
    taken.recall, taken.middle, taken.stale                      0.12, 0.11, 0.03

The tokens that a compressor may keep are a share of those of the whole transcript. In one cycle it is given all of it;
in twenty, equally many exchanges at a time, and after half of them it is asked what holds by then. All compressors
take the same transcripts, so a difference is one of pairs.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

from mem1.errors import UserError, suggestion
from mem1.evaluation.intervals import difference_interval, mean_interval
from mem1.extras.probe.compressors import SIMPLE, Compressor, Full, Kept
from mem1.extras.probe.memories import Message, Ours, Remembered, Replacing
from mem1.extras.probe.packages import OTHERS
from mem1.extras.probe.pieces import Piece
from mem1.extras.probe.readers import Extractive, is_right, served_answer
from mem1.extras.probe.readings import TRAINED, Noted, Noting
from mem1.extras.probe.retained import Text, Verdict, invented, verdict
from mem1.extras.probe.transcripts import Fact, Transcript
from mem1.extras.probe.writers import WRITTEN, Counting, Write
from mem1.memory import STATE, memory_policy
from mem1.memory.policies import POLICIES
from mem1.messages.bounds import estimated
from mem1.protocol import SUMMARY
from mem1.registry import load

BASELINE = "recency"
"""What the others are compared with."""
_TOGETHER = 3
"""Facts that a question may need together."""
MEASURES = ("recall", "middle", "together", "answered", "recoverable", "stale")
"""Shares that a row gives the means of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a compressor kept of one transcript. Shares are of the facts that hold; None: of none there is no share."""

    name: str
    kind: str
    number: int
    """Which transcript of its kind it is."""
    share: float
    """Tokens that it may keep, over those of the transcript."""
    cycles: int
    facts: int
    recall: float | None
    """Of the facts that are retained at the end."""
    middle: float | None
    """The same when half of the cycles are over; None: of one there is no half, or no fact holds by then."""
    together: float | None
    """Of the groups of three facts, those that are retained whole."""
    answered: float | None
    """Of the facts that the reader fills in."""
    recoverable: float | None
    """Of the facts that stand behind a handle alone."""
    stale: float | None
    """Of the facts that overtake others, those for which only an earlier value is there."""
    invented: tuple[str, ...]
    """Exact words that stand nowhere in the transcript."""
    exact: int
    """Exact words that are kept."""
    tokens: float
    """Tokens kept, over those of the transcript."""
    read: float
    """Tokens that the model has read, over those of the transcript."""
    written: float
    """Tokens that it has written, over those of the transcript."""


def compressor_of(
    name: str, head: Sequence[Message], tokens: int, write: Write | None, noting: Noting | None = None
) -> Compressor:
    """The compressor of this name for a transcript that begins with `head`.

    Raises UserError for an unknown one, where its package is not installed, and where it needs a model.
    """
    if name in SIMPLE:
        return SIMPLE[name]()
    if name == TRAINED:
        if noting is None:
            raise UserError(f"{name} needs one: give its folder by --writer")
        return Noted(noting)
    if name in WRITTEN:
        if write is None:
            raise UserError(f"{name} needs a model that writes: give --base-url and --model")
        return WRITTEN[name](write)
    if name in OTHERS:
        return Remembered(OTHERS[name](write), head)
    policy = name.partition("(")[0] in POLICIES
    if ":" in name and not policy:
        thing: Any = load(name)
        if hasattr(thing, "compress"):
            return cast("Compressor", thing() if isinstance(thing, type) else thing)
        if not callable(thing):
            raise UserError(f"{name} is neither a compressor nor a function from messages to messages")
        return Remembered(Replacing(cast("Any", thing), name), head)
    if not policy:
        known = list(dict.fromkeys((*SIMPLE, *WRITTEN, TRAINED, *OTHERS, *POLICIES)))
        raise UserError(
            f"unknown memory {name!r}{suggestion(name, known)}; known: {', '.join(known)}, or package.module:name"
        )
    if write is None and memory_policy(name).asks & {STATE, SUMMARY}:
        raise UserError(f"{name} needs a model that writes states: give --base-url and --model")
    return Remembered(Ours(name, write, tokens), head)


def examine(
    transcript: Transcript,
    name: str,
    *,
    share: float,
    cycles: int,
    number: int = 0,
    write: Write | None = None,
    reads: Write | None = None,
    noting: Noting | None = None,
) -> Taken:
    """Let a compressor keep a share of the tokens of a transcript.

    write       the model of compressors that need one
    reads       a model that fills in the blanks; None: the extractive reader does
    noting      what a trained writer noted of the transcript, for `trained-writer`
    """
    total = sum(piece.tokens for piece in transcript.pieces)
    tokens = int(share * total)
    once = noting if name == TRAINED else None
    counting = None if write is None else Counting(write)
    compressor = compressor_of(name, transcript.head, tokens, counting, noting)
    kept, middle = Kept(), None
    rounds = _rounds(transcript, cycles)
    for at, part in enumerate(rounds, start=1):
        kept = compressor.compress(kept, part, tokens)
        if counting is not None and counting.failure is not None:
            raise counting.failure
        _check(name, compressor, kept, tokens)
        if cycles > 1 and at == len(rounds) // 2:
            middle = _recall(transcript.holding(part[-1].message + 1), Text(kept.text))
    facts = transcript.holding(len(transcript.messages))
    text = Text(kept.text, kept.behind)
    found = [verdict(fact, text) for fact in facts]
    changed = [one for one, fact in zip(found, facts, strict=True) if fact.stale]
    return Taken(
        name=name,
        kind=transcript.kind,
        number=number,
        share=share,
        cycles=cycles,
        facts=len(facts),
        recall=_mean(one is Verdict.RETAINED for one in found),
        middle=middle,
        together=_together(found, number),
        answered=_answered(facts, kept.text, reads),
        recoverable=_mean(one is Verdict.RECOVERABLE for one in found),
        stale=_mean(one is Verdict.STALE for one in changed),
        invented=invented(text, transcript.source),
        exact=len(text.anchors),
        tokens=estimated(kept.text) / total,
        read=once.read if once else counting.read / total if counting else 0.0,
        written=once.written if once else counting.written / total if counting else 0.0,
    )


def _check(name: str, compressor: Compressor, kept: object, tokens: int) -> None:
    """Raises UserError for a compressor of one's own that does not keep to the rules."""
    if not isinstance(kept, Kept):
        raise UserError(f"{name} returned {type(kept).__name__}; compress returns mem1.extras.probe.compressors.Kept")
    found = estimated(kept.text)
    if found > tokens and not isinstance(compressor, Remembered | Full):
        raise UserError(f"{name} kept {found} tokens where it may keep {tokens}")


def check_cycles(transcripts: Sequence[Transcript], cycles: int) -> None:
    """Raises UserError where a transcript has fewer exchanges than that."""
    for transcript in transcripts:
        _rounds(transcript, cycles)


def _rounds(transcript: Transcript, cycles: int) -> list[list[Piece]]:
    """Its pieces in so many parts of equally many exchanges."""
    parts = transcript.exchanges
    if len(parts) < cycles:
        raise UserError(f"{cycles} cycles need as many exchanges; the transcript has {len(parts)}")
    borders = [len(parts) * at // cycles for at in range(cycles + 1)]
    return [[piece for part in parts[a:b] for piece in part] for a, b in itertools.pairwise(borders)]


def _recall(facts: Sequence[Fact], text: Text) -> float | None:
    return _mean(verdict(fact, text) is Verdict.RETAINED for fact in facts)


def _together(found: Sequence[Verdict], seed: int) -> float | None:
    shuffled = random.Random(f"together/{seed}").sample(list(found), len(found))
    groups = [shuffled[at : at + _TOGETHER] for at in range(0, len(shuffled) - _TOGETHER + 1, _TOGETHER)]
    return _mean(all(one is Verdict.RETAINED for one in group) for group in groups)


def _answered(facts: Sequence[Fact], text: str, reads: Write | None) -> float | None:
    if reads is not None:
        return _mean(is_right(fact, served_answer(reads, text, fact.cloze)) for fact in facts)
    reader = Extractive(text)
    return _mean(is_right(fact, reader(fact.cloze)) for fact in facts)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there; None: none is."""
    found = [float(value) for value in values if value is not None]
    return fmean(found) if found else None


def rows(taken: Sequence[Taken]) -> list[dict[str, Any]]:
    """A row for each compressor, share and number of cycles: means over the transcripts that have such a share, with
    95 % intervals; None: none has.

    `ahead` is the recall beyond that of `BASELINE` on the same transcripts, where it took them too.
    """
    cells: dict[tuple[str, float, int], list[Taken]] = {}
    for one in taken:
        cells.setdefault((one.name, one.share, one.cycles), []).append(one)
    return [_row(cell, cells.get((BASELINE, *key[1:]), ())) for key, cell in cells.items()]


def _row(cell: Sequence[Taken], baseline: Sequence[Taken]) -> dict[str, Any]:
    first = cell[0]
    found: dict[str, Any] = {"memory": first.name, "share": first.share, "cycles": first.cycles}
    found |= {"transcripts": len(cell), "facts": sum(one.facts for one in cell)}
    for measure in MEASURES:
        found[measure] = _mean(getattr(one, measure) for one in cell)
    recalls = {(one.kind, one.number): one.recall for one in cell if one.recall is not None}
    found["recall_low"], found["recall_high"] = mean_interval([*recalls.values()]) if recalls else (None, None)
    theirs = {(one.kind, one.number): one.recall for one in baseline if one.recall is not None}
    if first.name != BASELINE and recalls and theirs.keys() == recalls.keys():
        ours, others = [*recalls.values()], [theirs[key] for key in recalls]
        found["ahead"] = fmean(ours) - fmean(others)
        found["ahead_low"], found["ahead_high"] = difference_interval([ours], [others])
    found["invented"] = sum(len(one.invented) for one in cell)
    found["invented_words"] = list(dict.fromkeys(word for one in cell for word in one.invented))
    found["exact"] = sum(one.exact for one in cell)
    for mean in ("tokens", "read", "written"):
        found[mean] = fmean(getattr(one, mean) for one in cell)
    return found
