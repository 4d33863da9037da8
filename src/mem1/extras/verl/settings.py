"""`mem1:` in verl's configuration: which recipe the agent loop follows.

    mem1:
      recipe: /shared/recipes/qwen2.5-7b-multihop/grpo.toml
      overrides: ["tasks.top_k=5"]
      concurrency: 256

Of the recipe, tasks, context policy, vocabulary, budget and model.chat_template hold; model, algorithm and sampling are
what verl's own configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pydantic
from pydantic import Field

from mem1.configuration import Config, load_toml
from mem1.engines.base import Engine
from mem1.engines.chat_frame import ChatFrame
from mem1.engines.codec import Codec
from mem1.envs.source import TaskSource
from mem1.errors import UserError
from mem1.protocol import Tags, vocabulary
from mem1.rollout import Rollout
from mem1.tasks.atlas.names import Split
from mem1.training.recipe import TrainConfig
from mem1.training.recipe_rollout import recipe_rollout


class VerlSettings(Config):
    """The section."""

    recipe: str
    """Path of a recipe (TOML), as the processes of every node see it."""
    overrides: tuple[str, ...] = ()
    """key=value, dotted: keys of the recipe to change."""
    concurrency: int = Field(default=256, ge=1, le=10_000)
    """Attempts that one agent-loop worker has under way at a time; each waits in a thread."""

    @property
    def tags(self) -> Tags:
        return vocabulary(self.opened.vocabulary)

    @property
    def opened(self) -> TrainConfig:
        """The recipe, read once a process. Raises UserError where it cannot be."""
        return _recipe(self.recipe, self.overrides)

    def rollout(self, engine: Engine, codec: Codec, frame: ChatFrame, split: Split) -> Rollout:
        """The loop over the tasks of one half; indexes and worlds are opened once a process."""
        source = _source(self.recipe, self.overrides, split)
        return recipe_rollout(self.opened, engine=engine, codec=codec, frame=frame, source=source, tags=self.tags)


def read_settings(section: Mapping[str, Any] | None) -> VerlSettings:
    """The section as verl has it, as plain values. Raises UserError where it is missing or wrong."""
    if section is None:
        raise UserError("verl's configuration has no section mem1; give mem1.recipe=FILE.toml")
    try:
        return VerlSettings.model_validate(dict(section))
    except pydantic.ValidationError as error:
        known = ", ".join(VerlSettings.model_fields)
        raise UserError(f"the section mem1 of verl's configuration (it has {known}): {error}") from error


@cache
def _recipe(path: str, overrides: tuple[str, ...]) -> TrainConfig:
    return load_toml(path, TrainConfig, overrides)


@cache
def _source(path: str, overrides: tuple[str, ...], split: Split) -> TaskSource:
    config = _recipe(path, overrides)
    return config.tasks.source(split, vocabulary(config.vocabulary))
