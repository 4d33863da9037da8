"""The port of every encoder: texts in, vectors of length 1 out; and one that needs no model.

    HashedWords(dimension=4).encode(["Oslo", "oslo oslo", ""])  ->  [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

A real one is `SentenceEncoder`, in sentence_encoder.py.

What an encoder was trained to see before a query and before a passage; a wrong prefix costs recall silently.

    known_prefixes("intfloat/e5-base-v2")      Prefixes(query="query: ", passage="passage: ")
    known_prefixes("models/bge-small-en-v1.5") Prefixes(query="Represent this sentence for ...: ", passage="")
    known_prefixes("my-encoder")               UserError: give them yourself

An encoder is known by the last part of its id or path. A folder called "model", and a snapshot in the cache of
Hugging Face, has the name of the folder above.

Encoders of sentence-transformers: E5, BGE, MiniLM and whatever else it loads.

    encoder = load_encoder("models/all-MiniLM-L6-v2")
    encoder.encode(["Oslo is the capital of Norway."]).shape  ->  (1, 384)

Weights come from safetensors alone and code in the model's folder is never run. A text longer than the encoder's
sequence length is cut there.

Cross-encoders of sentence-transformers as a scorer for `Reranked`: they read query and passage together.

    Reranked(bm25, load_cross_encoder("models/ms-marco-MiniLM-L6-v2"))

Weights come from safetensors alone and code in the model's folder is never run.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import searched_text, sound_text
from mem1.retrieval.combine import Scorer
from mem1.retrieval.model_folder import fingerprint, load_model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_WORD = re.compile(r"\w+")


class Encoder(Protocol):
    """Anything that turns a text into a direction; texts of one meaning should point one way."""

    @property
    def name(self) -> str:
        """Folder or id by which `load_encoder` finds it again."""
        ...

    @property
    def fingerprint(self) -> str:
        """The same for the same weights and settings, whatever they are called."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, dimension], each of length 1. May be called from several threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedWords:
    """Counts of words, each put at a place given by its checksum; for tests and demonstrations."""

    dimension: int = 256

    @property
    def name(self) -> str:
        return "hashed-words"

    @property
    def fingerprint(self) -> str:
        return f"hashed-words-{self.dimension}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in _WORD.findall(text.lower()):
                vector[zlib.crc32(word.encode("utf-8", "replace")) % self.dimension] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Put before the text as it is, a space at the end included; empty: nothing."""

    query: str = ""
    passage: str = ""


_E5 = Prefixes(query="query: ", passage="passage: ")
_BGE = Prefixes(query="Represent this sentence for searching relevant passages: ")
_BGE_CHINESE = Prefixes(query="为这个句子生成表示以用于检索相关文章\uff1a")
_NONE = Prefixes()
_KNOWN: dict[str, Prefixes] = {
    r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?": _E5,
    r"bge-(small|base|large)-en(-v1\.5)?": _BGE,
    r"bge-(small|base|large)-zh(-v1\.5)?": _BGE_CHINESE,
    r"bge-m3": _NONE,
    r"(gt-)?all-minilm-l(6|12)-v[12]": _NONE,
    r"(paraphrase|multi-qa|msmarco)-minilm-.*": _NONE,
    r"(all|multi-qa|paraphrase|msmarco)-(mpnet-base|distilroberta|distilbert).*": _NONE,
    r"gte-(small|base|large)": _NONE,
    r"contriever(-msmarco)?": _NONE,
}
"""Pattern of the whole name, in lower case and with hyphens -> prefixes of its authors."""


def known_prefixes(encoder: str) -> Prefixes:
    """The prefixes of a published encoder. Raises UserError for one that is not in the table."""
    name = _name(encoder)
    for pattern, prefixes in _KNOWN.items():
        if re.fullmatch(pattern, name):
            return prefixes
    raise UserError(
        f"it is not known what {encoder} (read as {name!r}) expects before queries and passages; look it up on its "
        'model card and give --query-prefix and --passage-prefix ("" for nothing)'
    )


def _name(encoder: str) -> str:
    parts = list(PurePath(encoder).parts)
    if len(parts) >= 3 and parts[-2] == "snapshots":
        parts = [parts[-3].rpartition("--")[2]]
    elif len(parts) >= 2 and parts[-1] == "model":
        parts = parts[:-1]
    return parts[-1].lower().replace("_", "-") if parts else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceEncoder:
    """An `Encoder` around a model of sentence-transformers."""

    name: str
    fingerprint: str
    dimension: int
    max_tokens: int | None
    """Longest text in tokens, special ones included. None: the model has no limit."""
    model: SentenceTransformer
    batch_size: int
    # a fast tokenizer refuses to be used by two threads at once
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        sound = [sound_text(text) for text in texts]
        with self._lock:
            vectors = self.model.encode(
                sound, batch_size=self.batch_size, normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)


def load_encoder(name: str, *, device: str | None = None, batch_size: int = 32) -> SentenceEncoder:
    """The encoder in a local folder or of a Hugging Face id; `device` None: a GPU if there is one.

    Raises UserError where it is missing, incomplete, pickled, or needs code of its own to run.
    """
    folder, model = load_model("SentenceTransformer", name, device=device)
    # the prefixes of an index are its own; a default prompt would come on top of them
    model.default_prompt_name = None
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise UserError(f"the encoder {folder} does not say how long its vectors are; it cannot be indexed")
    return SentenceEncoder(
        name=os.path.abspath(name) if os.path.isdir(name) else name,
        fingerprint=fingerprint(folder),
        dimension=dimension,
        max_tokens=model.max_seq_length,
        model=model,
        batch_size=batch_size,
    )


def load_cross_encoder(name: str, *, device: str | None = None, batch_size: int = 32) -> Scorer:
    """The cross-encoder in a local folder or of a Hugging Face id; `device` None: a GPU if there is one.

    Raises UserError where it is missing, incomplete, pickled, or gives more than one score a passage.
    """
    folder, model = load_model("CrossEncoder", name, device=device)
    if model.num_labels != 1:
        raise UserError(f"{folder} gives {model.num_labels} scores a passage; reranking needs a model with one")
    lock = threading.Lock()  # a fast tokenizer refuses to be used by two threads at once

    def score(query: str, passages: Sequence[Passage]) -> list[float]:
        pairs = [(sound_text(query), sound_text(searched_text(passage))) for passage in passages]
        with lock:
            return model.predict(pairs, batch_size=batch_size, show_progress_bar=False).tolist()

    return score
