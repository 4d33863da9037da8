"""Encoders, which map texts to vectors of length 1.

    load_encoder("models/all-MiniLM-L6-v2").encode(["Oslo"])       [1, 384], by sentence-transformers

    known_prefixes("intfloat/e5-base-v2")      Prefixes(query="query: ", passage="passage: ")
    known_prefixes("models/bge-small-en-v1.5") Prefixes(query="Represent this sentence for ...: ", passage="")
    known_prefixes("my-encoder")               UserError: set them yourself

Encoders are trained with these texts before queries and passages, and wrong ones silently cost recall. An encoder is
recognised by the last part of its id or path; a folder called "model", or a snapshot in Hugging Face's cache, by the
folder above. Weights are read from safetensors only, and code in a model's folder never runs.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mem1.errors import UserError
from mem1.model_folder import fingerprint, load_model
from mem1.sanitize import sound_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Encoder(Protocol):
    """Anything that maps texts to directions, similar ones for similar meanings."""

    @property
    def name(self) -> str:
        """Folder or Hugging Face id, with which `load_encoder` can load it again."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies weights and settings, independent of their name."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, dimension], rows of length 1. Thread-safe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Texts put directly before a query or passage, including a final space; empty: none."""

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
"""Pattern of the whole name, in lower case with hyphens -> the authors' prefixes."""


def known_prefixes(encoder: str) -> Prefixes:
    """The prefixes of a published encoder. Raises UserError for one that is not in the table."""
    name = _name(encoder)
    for pattern, prefixes in _KNOWN.items():
        if re.fullmatch(pattern, name):
            return prefixes
    raise UserError(
        f"the prefixes that {encoder} (read as {name!r}) expects before queries and passages are unknown; look them up "
        'on its model card and set --query-prefix and --passage-prefix ("" for none)'
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
    """Longest text in tokens, including special ones; a longer text is truncated. None: no limit."""
    model: SentenceTransformer
    batch_size: int
    # fast tokenizers do not allow use by two threads at once
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
    """The encoder in a local folder or with a Hugging Face id; `device` None: a GPU if there is one.

    Raises UserError where it is missing, incomplete, pickled, or needs code of its own to run.
    """
    folder, model = load_model(name, device=device)
    # an index has its own prefixes; a default prompt would be added to them
    model.default_prompt_name = None
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise UserError(f"the encoder {folder} does not declare the length of its vectors, so it cannot be used")
    return SentenceEncoder(
        name=os.path.abspath(name) if os.path.isdir(name) else name,
        fingerprint=fingerprint(folder),
        dimension=dimension,
        max_tokens=model.max_seq_length,
        model=model,
        batch_size=batch_size,
    )
