"""A tiny model of which each test has a copy."""

from __future__ import annotations

from transformers import PreTrainedModel
from worlds import CODEC

from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel


def fresh() -> PreTrainedModel:
    return new_model(TinyModel(hidden_size=32, layers=2, feed_forward=64), vocab_size=CODEC.vocab_size, seed=0)


MODEL = fresh()
