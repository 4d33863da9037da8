"""The loop that a recipe asks for: its context policy, vocabulary and budget, on the tasks of a source."""

from __future__ import annotations

from mem1.contexts import context_policy
from mem1.engines.base import Engine
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.envs.base import TaskSource
from mem1.protocol import Tags
from mem1.rollout import Rollout
from mem1.training.recipe import TrainConfig


def recipe_rollout(
    config: TrainConfig, *, engine: Engine, codec: Codec, frame: ChatTemplate, source: TaskSource, tags: Tags
) -> Rollout:
    """Whoever samples: this process, servers, or another project's. `frame` stands around every prompt."""
    return Rollout(
        engine=engine,
        codec=codec,
        environment=config.tasks.around(source.environment),
        context=context_policy(config.context),
        tags=tags,
        budget=config.budget,
        frame=frame,
        reward=config.tasks.reward_function,
    )
