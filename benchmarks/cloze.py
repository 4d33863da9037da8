"""Clozes of a whole corpus: how many there are, whether their passages are found, whether their answers come into view.

    python benchmarks/cloze.py                       prints Markdown tables
    python benchmarks/cloze.py --passages 5000       questions of a part of the passages; all of them are searched
    python benchmarks/cloze.py --held-out-only       leaves the search for the training part out: a tenth of the time

Found: the share of the held-out questions (development and test part), before the filter by search, whose passage is
among the first k results of BM25 for the whole question. In view: the share of the same questions whose answer stands,
as it is written, in what two results show; "its own" counts the question's passage alone. Each number is the mean over
passages, with the 95 % interval over passages, since questions of one passage hang together.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from mem1.evaluation.intervals import mean_interval
from mem1.protocol import strip_markup
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.combine import snippet
from mem1.retrieval.corpus import read_passages
from mem1.tasks.cloze import Cloze, ClozeOptions
from mem1.tasks.cloze.compose import names_around
from mem1.tasks.cloze.making import draw_clozes, ranked

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "qa" / "corpus.jsonl.gz"
SHOWN = (16, 24, 32, 48, None)
"""Words of a snippet; None: the whole passage."""
RESULTS = 2
DEEPEST = 10
"""Results in which a passage is looked for."""


def main() -> None:
    from machine import commit, hardware

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--passages", type=int, help="make questions of so many, drawn at random")
    parser.add_argument("--held-out-only", action="store_true", help="search for the held-out questions alone")
    given = parser.parse_args()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n", flush=True)
    started = time.process_time()
    passages = read_passages(given.corpus)
    bm25 = BM25.build(passages)
    indexed = time.process_time()
    asked = passages if given.passages is None else random.Random(0).sample(passages, given.passages)
    options = ClozeOptions()
    counts: Counter[str] = Counter()
    drawn = draw_clozes(asked, options, counts)
    made = time.process_time()
    print(f"{len(asked):,} passages: {dict(counts)}; {len(drawn):,} questions before the search", flush=True)
    held_out = [cloze for cloze in drawn if cloze.part != "train"]
    print_found(held_out, bm25)
    searched = time.process_time()
    print_in_view(held_out, bm25)
    print_dependent(held_out, bm25)
    steps = f"read and index {indexed - started:.0f}, blank and filter {made - indexed:.0f}"
    if not given.held_out_only:
        before = time.process_time()
        kept = [cloze for cloze in ranked(drawn, bm25.search, options.within) if cloze.rank is not None]
        parts = Counter(cloze.part for cloze in kept)
        print(f"\n{len(kept):,} questions after all filters: {dict(parts)}")
        steps += f", search for all {time.process_time() - before:.0f}"
    print(
        f"CPU seconds: {steps}, search for {len(held_out):,} {searched - made:.0f}; peak memory {peak_memory():.2f} GB"
    )


def print_found(clozes: Sequence[Cloze], bm25: BM25) -> None:
    ranks = [cloze.rank for cloze in ranked(clozes, bm25.search, DEEPEST)]
    print(f"\n| {len(clozes):,} held-out questions | within | share |\n|---|--:|--:|")
    for k in (1, 2, 3, 5, DEEPEST):
        share = by_passage((cloze, rank is not None and rank <= k) for cloze, rank in zip(clozes, ranks, strict=True))
        print(f"| passage found | {k} | {share} |", flush=True)


def print_in_view(clozes: Sequence[Cloze], bm25: BM25) -> None:
    results = bm25.search([cloze.text for cloze in clozes], RESULTS)
    print(f"\n| words shown of each of {RESULTS} | answer in view | its own |\n|---|--:|--:|")
    for words in SHOWN:
        seen: list[tuple[Cloze, bool]] = []
        own: list[tuple[Cloze, bool]] = []
        for cloze, result in zip(clozes, results, strict=True):
            texts = {passage.id: shown(passage, cloze.text, words) for passage, _ in result}
            seen.append((cloze, any(stands_in(cloze.answer, text) for text in texts.values())))
            own.append((cloze, stands_in(cloze.answer, texts.get(cloze.passage_id, ""))))
        print(f"| {words or 'all'} | {by_passage(seen)} | {by_passage(own)} |", flush=True)


def print_dependent(clozes: Sequence[Cloze], bm25: BM25) -> None:
    """Whether the passage is found although a name of the window is not known: then the question needs no other."""
    pairs = [(cloze, " ".join(parts)) for cloze in clozes for parts in names_around(cloze.text).values()][: len(clozes)]
    found = bm25.search([text for _, text in pairs], RESULTS)
    share = by_passage(
        (cloze, cloze.passage_id in {passage.id for passage, _ in result})
        for (cloze, _), result in zip(pairs, found, strict=True)
    )
    print(f"\n{len(pairs):,} windows with a name left out: passage within {RESULTS}: {share}", flush=True)


def shown(passage: Passage, query: str, words: int | None) -> str:
    return strip_markup(passage.text if words is None else snippet(passage.text, query, words=words))


def stands_in(answer: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", " ".join(text.split())) is not None


def by_passage(told: Iterable[tuple[Cloze, bool]]) -> str:
    """Mean over passages, with its interval."""
    values: defaultdict[str, list[bool]] = defaultdict(list)
    for cloze, true in told:
        values[cloze.passage_id].append(true)
    means = [sum(each) / len(each) for each in values.values()]
    low, high = mean_interval(means)
    return f"{sum(means) / len(means):.3f} [{low:.3f}, {high:.3f}]"


def peak_memory() -> float:
    """GB of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    main()
