"""Encoders of sentence-transformers: E5, BGE, MiniLM and whatever else it loads.

    encoder = load_encoder("models/all-MiniLM-L6-v2")
    encoder.encode(["Oslo is the capital of Norway."]).shape  ->  (1, 384)

Weights come from safetensors alone and code in the model's folder is never run. A text longer than the encoder's
sequence length is cut there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mem1.errors import UserError
from mem1.retrieval.base import sound_text
from mem1.retrieval.model_folder import fingerprint, load_model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


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
