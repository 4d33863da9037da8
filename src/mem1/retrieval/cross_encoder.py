"""Cross-encoders of sentence-transformers as a scorer for `Reranked`: they read query and passage together.

    Reranked(bm25, load_cross_encoder("models/ms-marco-MiniLM-L6-v2"))

Weights come from safetensors alone and code in the model's folder is never run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import searched_text
from mem1.retrieval.model_folder import model_folder, need_sentence_transformers
from mem1.retrieval.rerank import Scorer


def load_cross_encoder(name: str, *, device: str | None = None, batch_size: int = 32) -> Scorer:
    """The cross-encoder in a local folder or of a Hugging Face id; `device` None: a GPU if there is one.

    Raises UserError where it is missing, incomplete, pickled, or gives more than one score a passage.
    """
    need_sentence_transformers()
    folder = model_folder(name)
    from sentence_transformers import CrossEncoder
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model = CrossEncoder(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot load the cross-encoder {folder}: {error}") from error
    if model.num_labels != 1:
        raise UserError(f"{folder} gives {model.num_labels} scores a passage; reranking needs a model with one")
    lock = threading.Lock()  # a fast tokenizer refuses to be used by two threads at once

    def score(query: str, passages: Sequence[Passage]) -> list[float]:
        pairs = [(_whole(query), _whole(searched_text(passage))) for passage in passages]
        with lock:
            return model.predict(pairs, batch_size=batch_size, show_progress_bar=False).tolist()

    return score


def _whole(text: str) -> str:
    """Half a surrogate pair is no character to a tokenizer."""
    return text.encode("utf-8", "replace").decode("utf-8")
