"""Search engines over real passages: recall, speed and memory of BM25, dense retrieval and both together.

    python benchmarks/retrieval.py --encoder FOLDER                      prints a Markdown table
    python benchmarks/retrieval.py --encoder FOLDER --passages 5000      a part: minutes instead of an hour
    python benchmarks/retrieval.py                                       BM25 alone, in seconds
    python benchmarks/retrieval.py --synthetic 1000000                   memory of BM25 over invented passages

Questions are those of HotpotQA in train.jsonl, dev.jsonl and test.jsonl: nothing is trained here. Recall is the share
of gold titles among the first k, mean over the questions; "all" is the share of questions with every gold title
there. A part of the passages keeps all gold ones, so recall on it is higher than on the whole. Each engine has a
process of its own, whose peak memory counts the passages and, for dense retrieval, the encoder. Build is from
passages in memory to a saved index; a single query is measured on the opened index, a batch holds all questions.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mem1.jsonl import read_objects
from mem1.records import Passage
from mem1.retrieval import BM25, Retriever
from mem1.retrieval.corpus import read_passages

QA = Path(__file__).parents[2] / "shared" / "data" / "qa"
SINGLE_QUERIES = 200
COLUMNS = (
    "engine",
    "passages",
    "questions",
    "recall @3",
    "@10",
    "all @3",
    "@10",
    "build, s",
    "batch, queries/s",
    "single, median ms",
    "peak memory, GB",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one process measures."""

    engine: str
    qa: Path
    folder: Path
    """For the indexes; the hybrid finds those of the other two there."""
    passages: int | None
    questions: int | None
    encoder: str | None


def main() -> None:
    from machine import commit, hardware  # with torch, which would count as memory of the engines' processes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--qa", type=Path, default=QA, help="folder with corpus.jsonl.gz, train.jsonl, dev.jsonl and test.jsonl"
    )
    parser.add_argument("--passages", type=int, help="take so many, gold ones among them")
    parser.add_argument("--questions", type=int, help="take so many")
    parser.add_argument("--encoder", help="folder or Hugging Face id; without: BM25 alone")
    parser.add_argument("--synthetic", type=int, help="BM25 over so many invented passages of 100 words, nothing else")
    parser.add_argument("--folder", type=Path, help="keep the indexes here, and go on from a killed embedding")
    given = parser.parse_args()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if given.synthetic is not None:
            print(in_own_process(synthetic, given.synthetic, folder))
            return
        engines = ("bm25",) if given.encoder is None else ("bm25", "dense", "hybrid")
        print(f"| {' | '.join(COLUMNS)} |\n|---|{'--:|' * (len(COLUMNS) - 1)}")
        for engine in engines:
            plan = Plan(
                engine=engine,
                qa=given.qa,
                folder=folder,
                passages=given.passages,
                questions=given.questions,
                encoder=given.encoder,
            )
            print(in_own_process(measure, plan), flush=True)


def in_own_process(work, *arguments) -> str:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measure(plan: Plan) -> str:
    """A row of the table."""
    questions = [
        record
        for name in ("train", "dev", "test")
        for _, record in read_objects(plan.qa / f"{name}.jsonl")
        if record["dataset"] == "hotpotqa" and record["gold_titles"]
    ][: plan.questions]
    passages = part_of(read_passages(plan.qa / "corpus.jsonl.gz"), questions, plan.passages)
    retriever, build_seconds = build(plan, passages)
    texts = [record["question"] for record in questions]
    single = [seconds(lambda text=text: retriever.search([text], 10))[1] for text in texts[:SINGLE_QUERIES]]
    results, batch_seconds = seconds(lambda: retriever.search(texts, 10))
    recalls: list[float] = []
    for measured in (mean_recall, all_found):
        for k in (3, 10):
            found = [
                measured(set(record["gold_titles"]), {passage.title for passage, _ in result[:k]})
                for record, result in zip(questions, results, strict=True)
            ]
            recalls.append(statistics.mean(found))
    built = "-" if build_seconds is None else f"{build_seconds:.1f}"
    return (
        f"| {plan.engine} | {len(passages):,} | {len(texts)} | {' | '.join(f'{r:.2f}' for r in recalls)} | {built} "
        f"| {len(texts) / batch_seconds:,.0f} | {1000 * statistics.median(single):.2f} | {peak_memory():.2f} |"
    )


def mean_recall(gold: set[str], found: set[str]) -> float:
    return len(gold & found) / len(gold)


def all_found(gold: set[str], found: set[str]) -> float:
    return float(gold <= found)


def part_of(passages: list[Passage], questions: list[dict], count: int | None) -> list[Passage]:
    """`count` passages in their order: those with a gold title, then others drawn at random."""
    if count is None:
        return passages
    gold = {title for record in questions for title in record["gold_titles"]}
    kept = {i for i, passage in enumerate(passages) if passage.title in gold}
    others = [i for i in range(len(passages)) if i not in kept]
    kept.update(random.Random(0).sample(others, max(0, count - len(kept))))
    return [passages[i] for i in sorted(kept)]


def build(plan: Plan, passages: list[Passage]) -> tuple[Retriever, float | None]:
    """The opened engine, and the seconds it took to build; None: made of what others built."""
    bm25_folder, dense_folder = plan.folder / "bm25", plan.folder / "dense"
    if plan.engine == "bm25":
        _, taken = seconds(lambda: BM25.build(passages).save(bm25_folder))
        return BM25.load(bm25_folder), taken
    from mem1.retrieval.combine import Hybrid
    from mem1.retrieval.dense import Dense, index_dense
    from mem1.retrieval.encoders import known_prefixes, load_encoder

    assert plan.encoder is not None
    encoder = load_encoder(plan.encoder)
    encoder.encode(["a text to warm up"])
    if plan.engine == "hybrid":
        return Hybrid([BM25.load(bm25_folder), Dense.load(dense_folder, encoder)]), None
    prefixes = known_prefixes(plan.encoder)
    _, taken = seconds(lambda: index_dense(passages, encoder, dense_folder, prefixes=prefixes))
    return Dense.load(dense_folder, encoder), taken


def synthetic(count: int, folder: Path) -> str:
    """Builds BM25 over invented passages and says what that took."""
    passages = list(itertools.islice(invented(), count))
    held = peak_memory()
    _, taken = seconds(lambda: BM25.build(passages).save(folder / "bm25"))
    built = peak_memory()
    size = sum(file.stat().st_size for file in (folder / "bm25").iterdir()) / 1e9
    bm25 = BM25.load(folder / "bm25")
    queries = [" ".join(passage.text.split()[:10]) for passage in passages[:SINGLE_QUERIES]]
    single = statistics.median(seconds(lambda query=query: bm25.search([query], 10))[1] for query in queries)
    header = "| passages | in memory before, GB | build and save, s | peak memory, GB | index, GB | single, median ms |"
    row = f"| {count:,} | {held:.2f} | {taken:.0f} | {built:.2f} | {size:.2f} | {1000 * single:.2f} |"
    return f"{header}\n|{'--:|' * 6}\n{row}"


def invented(words: int = 100, vocabulary: int = 500_000) -> Iterator[Passage]:
    """Passages of words whose frequency falls with their rank as in real text (Zipf)."""
    rng = random.Random(0)
    for number in itertools.count():
        ranks = (int(vocabulary ** rng.random()) for _ in range(words))
        text = " ".join(f"word{rank:x}" for rank in ranks)
        yield Passage(f"p{number}", f"Title {number}", text)


def seconds(work):
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def peak_memory() -> float:
    """GB of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts the process that started this one, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    main()
