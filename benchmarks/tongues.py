"""How BM25 finds real English passages, and what indexing them takes, to compare two ways of cutting text into words.

    PYTHONPATH=src python benchmarks/tongues.py
    PYTHONPATH=/tmp/before/src python benchmarks/tongues.py          # a work tree of the commit before

Needs ../shared/data/qa: questions with gold titles, and passages, those with a gold title among them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from mem1.jsonl import read_objects
from mem1.retrieval import BM25
from mem1.retrieval.corpus import read_passages

QA = Path(__file__).parents[2] / "shared" / "data" / "qa"
CUTOFFS = (1, 5, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qa", type=Path, default=QA, help="folder of corpus.jsonl.gz and the questions")
    parser.add_argument("--passages", type=int, default=12_000)
    parser.add_argument("--questions", type=int, default=1_000)
    parser.add_argument("--builds", type=int, default=3, help="the fastest of so many counts")
    given = parser.parse_args()
    records = [
        r for name in ("train", "dev", "test") for _, r in read_objects(given.qa / f"{name}.jsonl") if r["gold_titles"]
    ]
    questions = random.Random(0).sample(records, min(given.questions, len(records)))
    gold = {title for record in questions for title in record["gold_titles"]}
    everything = read_passages(given.qa / "corpus.jsonl.gz")
    others = [passage for passage in everything if passage.title not in gold]
    passages = [passage for passage in everything if passage.title in gold]
    passages += random.Random(1).sample(others, max(0, given.passages - len(passages)))
    taken: list[float] = []
    for _ in range(given.builds):
        began = time.process_time()
        index = BM25.build(passages)
        taken.append(time.process_time() - began)
    began = time.process_time()
    results = index.search([record["question"] for record in questions], max(CUTOFFS))
    searched = time.process_time() - began
    recalls: dict[int, list[float]] = {k: [] for k in CUTOFFS}
    reciprocal = []
    for record, result in zip(questions, results, strict=True):
        wanted, titles = set(record["gold_titles"]), [passage.title for passage, _ in result]
        for k in CUTOFFS:
            recalls[k].append(len(wanted & set(titles[:k])) / len(wanted))
        reciprocal.append(next((1 / rank for rank, title in enumerate(titles, start=1) if title in wanted), 0.0))
    print(f"{len(passages):,} passages, {len(questions):,} questions, {len(index.index.vocab_dict):,} words")
    print(" ".join(f"recall@{k} {statistics.mean(recalls[k]):.4f}" for k in CUTOFFS), end=" ")
    print(f"MRR {statistics.mean(reciprocal):.4f}")
    print(f"build {min(taken):.2f} s of CPU, {1000 * searched / len(questions):.2f} ms per question")


if __name__ == "__main__":
    main()
