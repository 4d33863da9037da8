"""`[recall]` and `[sft]` of a recipe: the stages before reinforcement learning.

[recall]            [sft]
steps = 150         steps = 400
pairs = [4, 8]      objectives = [1, 2, 3, 4]
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS, LearningRate, Sizes
from mem1.recipe.rl import MemoryName
from mem1.registry import register


class Recall(Config):
    """`[recall]`: associative recall on random tokens, which teaches a small model to copy."""

    steps: int = Field(default=150, ge=1)
    tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Tokens per step."""
    pairs: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(default=(4, 8, 16, 32), min_length=1)
    """Numbers of key-value pairs per sequence; each step draws one."""
    learning_rate: LearningRate = 0.02
    """Learning rate of Muon, for matrices."""
    adam_learning_rate: LearningRate = 3e-3
    """Learning rate of AdamW, for everything else."""
    warmup: int = Field(default=10, ge=0)


TURNS_PER_PIECE = 4
"""Turns per piece of a demonstration: long ones are cut, so that a step of [sft] mixes many tasks."""


OneOrMore = Annotated[
    tuple[str, ...],
    BeforeValidator(
        lambda given: (given,) if isinstance(given, str) else tuple(given) if type(given) is list else given
    ),
    Field(min_length=1),
]
"""A list of texts, or one text by itself."""


class Sft(Config):
    """`[sft]`: supervised fine-tuning on recorded attempts, or on demonstrations by a scripted expert."""

    steps: int = Field(default=400, ge=1)
    trajectories: OneOrMore | None = None
    """Files of recorded attempts to train: a pattern such as "runs/*/evaluation/*.jsonl", or a list of them. None:
    demonstrations by the expert."""
    reader: str | None = None
    """Function that reads these files: a registered name, or package.module:name. None: they are mem1's own."""
    min_reward: float | None = None
    """Smallest recorded reward of an attempt that is trained; None: any attempt that answered."""
    objectives: Sizes = (1, 2, 3, 4)
    """Numbers of objectives of the demonstrated tasks."""
    tasks: int = Field(default=2000, ge=1, le=10_000_000)
    """Demonstrated tasks per number of objectives."""
    memories: tuple[MemoryName, ...] = ()
    """Memories of the demonstrations; tasks are dealt to them in turn. Empty: the recipe's own."""
    cut_short: float = Field(default=0.0, ge=0, le=1)
    """Share of the demonstrations whose turn limit is too low, so that they show a forced answer."""
    tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Tokens per step; shared tokens count once."""
    pack_tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Maximum tokens per forward and backward pass; affects only memory, speed and the order of additions."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the matrices of the layers, AdamW for the rest; for small models from scratch. adamw: AdamW for
    everything, as is usual for pretrained models."""
    learning_rate: LearningRate | None = None
    """Learning rate of Muon, for matrices, or of AdamW alone. None: 0.02 for muon, 1e-5 for adamw."""
    adam_learning_rate: LearningRate | None = None
    """Learning rate of AdamW beside Muon, for everything else. None: 3e-3."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Share of each matrix that is taken off per step, times the learning rate; biases and norms do not decay."""
    warmup: int = Field(default=10, ge=0)
    decay: float = Field(default=0.4, ge=0, le=1)
    """Share of the steps, at the end of the stage, over which the learning rates fall linearly towards 0, at most to a
    twentieth."""

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates of the optimiser that `optimizer` names, and of AdamW beside Muon."""
        return self.learning_rate or (0.02 if self.optimizer == "muon" else 1e-5), self.adam_learning_rate or 3e-3

    @field_validator("reader")
    @classmethod
    def _reader_is_known(cls, name: str | None) -> str | None:
        if name is not None and not callable(register.reader.get(name)):
            raise ValueError("the reader must be a function (path, codec) -> trajectories")
        return name

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Sft:
        demonstrating, recorded = ("objectives", "tasks", "memories", "cut_short"), ("reader", "min_reward")
        unused, why = demonstrating, "is for demonstrations by the expert; leave it out, or leave out trajectories"
        if self.trajectories is None:
            unused, why = recorded, "is for recorded attempts; give trajectories, or leave it out"
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} {why}")
        if self.optimizer == "adamw" and self.adam_learning_rate is not None:
            raise ValueError("adam_learning_rate is AdamW's beside Muon; with optimizer = 'adamw' give learning_rate")
        return self
