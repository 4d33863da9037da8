"""Embedding on disk: a run that is killed goes on where it stopped, and mixes nothing."""

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
from corpora import TOWNS

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.embedding import CHUNK, VectorOrigin, embed
from mem1.retrieval.encoders import HashedWords

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
from test_embedding import HashedWords, PASSAGES, made_of, embed

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
def test_a_killed_run_goes_on_after_its_last_chunk_and_gives_the_same_bytes(tmp_path: Path, uninterrupted: bytes):
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
def test_whatever_moment_it_was_killed_at(tmp_path: Path, uninterrupted: bytes, done: int | None, rows: int):
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
def test_what_was_begun_with_something_else_is_refused(
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


def test_a_full_disk_says_so_and_what_is_finished_stays(tmp_path: Path, uninterrupted: bytes):
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


def test_vectors_that_are_no_numbers_are_refused():
    class Broken(HashedWords):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            return np.full((len(texts), self.dimension), np.nan, dtype=np.float32)

    with pytest.raises(UserError, match="returns NaN or infinity"):
        embed(TOWNS, Broken(), made_of(TOWNS))
