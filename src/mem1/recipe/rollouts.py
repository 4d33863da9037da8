"""What makes the attempts of a recipe: our own loop, or the agent of [agent]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mem1.dialogue import Dialogue, NativeDialogue
from mem1.endpoint.rollout import AgentRollout
from mem1.engines.base import Engine
from mem1.engines.dialects import TokenIds
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.recipe.recipe import Recipe
from mem1.records import Task, Turn
from mem1.rollout import Rollout, RolloutPort


def recipe_rollout(
    config: Recipe,
    *,
    engine: Engine,
    dialogue: Dialogue,
    source: TaskSource,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> RolloutPort:
    """The rollout of a recipe, whatever samples (this process, servers); `on_turn` as of `RolloutParts`.

    Raises UserError where there is no such agent, and where its calls cannot be recorded exactly.
    """
    environment = config.tasks.wrap_environment(source.environment)
    offering = dialogue.offering(getattr(environment, "tools", ()))
    common = {"engine": engine, "environment": environment, "budget": config.budget, "on_turn": on_turn}
    if config.agent is None:
        context, reward = memory_policy(config.memory), config.tasks.reward_function
        return Rollout(dialogue=offering, context=context, reward=reward, **common)
    assert isinstance(dialogue, NativeDialogue)  # a resolved protocol speaks in messages to an agent
    _check_exact(engine)
    return AgentRollout(agent=config.agent, dialogue=dialogue, reward=config.tasks.reward_function, **common)


def _check_exact(engine: Any) -> None:
    """Raises UserError for a server that takes or returns text: its calls would be encoded anew."""
    dialect = getattr(engine, "dialect", None)
    if dialect is not None and not isinstance(dialect, TokenIds):
        raise UserError(
            f"[agent] records the exact tokens of each call, and this server exchanges text ({dialect}); use mem1 "
            "serve-policy, vLLM with token ids, or the model in this process"
        )
