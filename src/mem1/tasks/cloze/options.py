"""How questions are made from a corpus."""

from __future__ import annotations

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import Seed


class ClozeOptions(Config):
    """The same options and the same corpus give the same questions."""

    left: int = Field(default=6, ge=3)
    """Words shown before the blank."""
    right: int = Field(default=4, ge=0)
    """Words shown after it; where one side has too few, the other gives more."""
    per_passage: int = Field(default=6, ge=1)
    """Questions of one passage at most, drawn among all that it has."""
    within: int = Field(default=2, ge=1)
    """Results of a search with the window among which its passage has to be."""
    development: float = Field(default=0.05, ge=0, lt=1)
    """Share of the passages whose questions are for choosing between policies."""
    test: float = Field(default=0.05, ge=0, lt=1)
    """Share of the passages whose questions are for the final number."""
    seed: Seed = 0
    """Of the draw of `per_passage`."""

    @model_validator(mode="after")
    def _something_is_left_to_train(self) -> ClozeOptions:
        if self.development + self.test >= 1:
            raise ValueError("development and test are shares of the passages; together they must be below 1")
        return self
