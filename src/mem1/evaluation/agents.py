"""The model under evaluation (in this process, behind a server, or a script), and its evaluation.

agent = open_agent(recipe)                       the one of the recipe's [engine]
agent = policy_agent(recipe, policy)             a policy in this process
rows, trajectories = agent.evaluate(recipe, source, folder=Path("runs/a"))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mem1.dialogue import Dialogue
from mem1.engines.codec import Codec
from mem1.engines.out_of_memory import ANSWERING, memory_named
from mem1.errors import UserError
from mem1.evaluation.runner import Chunking, OnProgress, evaluate
from mem1.evaluation.store import made_with
from mem1.policy.folders import SHIPPED, tokenizer_folder
from mem1.policy.protocol import ResolvedProtocol, resolve
from mem1.recipe.protocol import FRAMED
from mem1.recipe.recipe import Recipe
from mem1.recipe.rollouts import recipe_rollout
from mem1.rollout import GENERAL_COMPLETION, RolloutPort

if TYPE_CHECKING:
    from mem1.engines.base import Engine
    from mem1.engines.device import Computed, Device, Machine
    from mem1.envs.base import TaskSource
    from mem1.evaluation.metrics import Row
    from mem1.evaluation.tokens import ModelShape
    from mem1.net.spending import SpendingLimit
    from mem1.policy.policy import Policy
    from mem1.records import Task, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class EvaluatedAgent:
    """A model that is ready to work."""

    engine: Engine
    speaks: ResolvedProtocol
    dialogue: Dialogue
    name: str
    """Its name in rows and files."""
    identity: Callable[[], str]
    """Tells it from every other agent."""
    at_a_time: int | None = None
    """Number of tasks to run at a time, each by itself; None: all in one batch."""
    computed: Computed | None = None
    """Device and precision of this process; None: a server or a script answers."""
    shape: ModelShape | None = None
    """For FLOPs; None: not known."""
    general: bool = False
    """Whether it is a general model on a server, whose completions need more room than a trained policy's."""
    limit: SpendingLimit | None = None
    """With the server's prices."""
    notes: tuple[str, ...] = ()
    """For the user: how it is called and counted."""

    @property
    def codec(self) -> Codec:
        return self.dialogue.codec

    def rollout(
        self, recipe: Recipe, source: TaskSource, *, on_turn: Callable[[Task, Turn], None] | None = None
    ) -> RolloutPort:
        """Runs it on the tasks of `source`, as the recipe says; `on_turn` as of `RolloutParts`."""
        budget = recipe.budget
        if self.general and budget.completion_per_objective is budget.completion_extra is None:
            limits = {"completion_per_objective": 0, "completion_extra": GENERAL_COMPLETION}
            recipe = recipe.model_copy(update={"budget": budget.model_copy(update=limits)})
        return recipe_rollout(recipe, engine=self.engine, dialogue=self.dialogue, source=source, on_turn=on_turn)

    def evaluate(
        self,
        recipe: Recipe,
        source: TaskSource,
        *,
        folder: Path | None,
        overwrite: bool = False,
        on_progress: OnProgress | None = None,
    ) -> tuple[list[Row], dict[int, list[Trajectory]]]:
        """Rows and trajectories by number of objectives, on the recipe's evaluation tasks; raises as `evaluate`.

        `overwrite`: the folder belongs to a run, whose evaluation may be repeated with other settings.
        """
        computed = None if self.computed is None else self.computed.record()
        with memory_named("evaluating", ANSWERING):
            return evaluate(
                self.rollout(recipe, source),
                source,
                recipe.evaluation,
                policy=self.name,
                folder=folder,
                settings=None if folder is None else made_with(self.identity(), self.speaks.tasks, computed),
                overwrite=overwrite,
                chunking=Chunking() if self.at_a_time is None else Chunking(tasks=1, at_a_time=self.at_a_time),
                on_progress=on_progress,
                shape=self.shape,
            )


def open_agent(recipe: Recipe, machine: Machine | None = None) -> EvaluatedAgent:
    """The one of the recipe's [engine]; `machine`: None is this one. Raises UserError if it cannot be opened."""
    path = recipe.model.path
    opened = recipe.engine.remote_engine(path)
    if opened is None:
        if recipe.model.new is not None:
            raise UserError("the recipe's model is new: train it first, and give the trained folder by --model")
        return loaded_agent(recipe, path or SHIPPED, machine)
    config, default = opened
    folder = tokenizer_folder(config.tokenizer, default or SHIPPED)
    codec, speaks = Codec.load(folder), resolve(recipe)
    dialogue = speaks.dialogue(codec, folder)
    engine = config.engine(dialogue)
    identity = f"{config.identity_of(engine)} tokens of {codec.fingerprint()}"
    return EvaluatedAgent(
        engine=engine,
        speaks=speaks,
        dialogue=dialogue,
        name=config.name,
        identity=lambda: identity + (" in its chat template" if speaks.kind == FRAMED else ""),
        at_a_time=config.concurrency,
        general=recipe.engine.kind == "server",
        limit=config.limit,
        notes=config.notes(engine),
    )


def loaded_agent(recipe: Recipe, path: str | Path, machine: Machine | None = None, *, name: str = "") -> EvaluatedAgent:
    """The policy in a folder, on the recipe's device; `name`: empty is that of the folder."""
    from mem1.engines.device import Machine, choose
    from mem1.policy.policy import check_sampled, load_policy

    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": str(path), "new": None})})
    device, speaks = choose(recipe.model.device, machine or Machine.here()), resolve(recipe)
    with memory_named("loading the policy", ANSWERING):
        policy = load_policy(path, chat_template=speaks.kind == FRAMED, device=device, dtype=recipe.model.dtype)
    check_sampled(policy.model, recipe)
    return policy_agent(recipe, policy, speaks, device, name=name or os.path.basename(os.path.abspath(path)))


def policy_agent(
    recipe: Recipe, policy: Policy, speaks: ResolvedProtocol, device: Device | None = None, *, name: str
) -> EvaluatedAgent:
    """A policy in this process, with the recipe's workers; `device`: None is where its weights are."""
    from mem1.engines.device import Device
    from mem1.engines.workers import local_engine
    from mem1.evaluation.tokens import model_shape

    device = device or Device(name=str(policy.model.device), at=policy.model.device)
    computed, dialogue = policy.computed(device), policy.dialogue(speaks)
    workers = device.workers(recipe.workers)
    return EvaluatedAgent(
        engine=local_engine(policy.model, policy.codec, dialogue.stop_strings, workers=workers),
        speaks=speaks,
        dialogue=dialogue,
        name=name,
        identity=policy.fingerprint,
        computed=computed,
        shape=model_shape(policy.model),
        notes=(str(computed), *device.worker_warnings(recipe.workers)),
    )
