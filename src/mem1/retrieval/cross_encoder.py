"""Cross-encoders of sentence-transformers as a scorer for `Reranked`: they read query and passage together.

    Reranked(bm25, load_cross_encoder("models/ms-marco-MiniLM-L6-v2"))

Weights come from safetensors alone and code in the model's folder is never run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import searched_text, sound_text
from mem1.retrieval.model_folder import load_model
from mem1.retrieval.rerank import Scorer


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
