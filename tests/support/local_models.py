"""A tiny model of which each test has a copy, and what its passes compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel
from worlds import CODEC

from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel


def fresh() -> PreTrainedModel:
    return new_model(TinyModel(hidden_size=32, layers=2, feed_forward=64), vocab_size=CODEC.vocab_size, seed=0)


MODEL = fresh()


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """Tokens of each forward pass."""
    tokens: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _m, given, _o: tokens.append(given[0].numel()))
    yield tokens
    hook.remove()
