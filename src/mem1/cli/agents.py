"""Who works on the tasks of a recipe (a model in this process, a server, a script), and its evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mem1.cli.options import chosen_device, few_workers
from mem1.cli.progress import EvaluationBar, Prices, bars, say, stderr
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.engines.base import Engine
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.config import OwnEngine, ServedModel
    from mem1.engines.device import Computed, Device
    from mem1.envs.base import TaskSource
    from mem1.evaluation.flops import ModelShape
    from mem1.evaluation.metrics import Row
    from mem1.protocol import Tags
    from mem1.records import Trajectory
    from mem1.rollout import Rollout
    from mem1.training.loop.recipe import Recipe
    from mem1.training.weights.policy import Policy

STAND_IN = "stand-in"
"""Name of the tokenizer that counts when the served model's is not available."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A model that is ready to work."""

    engine: Engine
    codec: Codec
    chat_template: ChatTemplate
    name: str
    """Its name in rows and files."""
    identity: str
    """Tells it from every other agent."""
    at_a_time: int | None = None
    """Number of tasks to run at a time, each by itself; None: all in one batch."""
    computed: Computed | None = None
    """Device and precision of this process; None: a server or a script answers."""
    shape: ModelShape | None = None
    """For FLOPs; None: not known."""
    prices: Prices | None = None
    notes: tuple[str, ...] = ()
    """For the user: how it is called and counted."""

    def rollout(self, recipe: Recipe, source: TaskSource, tags: Tags) -> Rollout:
        """Runs it on the tasks of `source`, as the recipe says."""
        from mem1.rollout import GENERAL_COMPLETION
        from mem1.training.loop.recipe import recipe_rollout

        budget = recipe.budget
        if recipe.engine.kind == "server" and budget.completion_per_objective is budget.completion_extra is None:
            limits = {"completion_per_objective": 0, "completion_extra": GENERAL_COMPLETION}
            recipe = recipe.model_copy(update={"budget": budget.model_copy(update=limits)})
        return recipe_rollout(
            recipe, engine=self.engine, codec=self.codec, chat_template=self.chat_template, source=source, tags=tags
        )


def open_agent(invocation: typer.Context, recipe: Recipe, tags: Tags) -> Agent:
    """The one of the recipe's [engine]. Raises UserError if it cannot be opened."""
    from mem1.engines.config import OwnEngine, ServedModel
    from mem1.training.weights.policy import SHIPPED, load_policy

    if isinstance(recipe.engine, ServedModel):
        return _served(recipe, recipe.engine, tags)
    if isinstance(recipe.engine, OwnEngine):
        return _own(recipe, recipe.engine, tags)
    if recipe.model.new is not None:
        raise UserError("the recipe's model is new: train it first, and give the trained folder by --model")
    device = chosen_device(invocation, recipe.model.device)
    name = recipe.model.path or SHIPPED
    policy = load_policy(name, chat_template=recipe.model.chat_template, device=device, dtype=recipe.model.dtype)
    return policy_agent(recipe, policy, tags, device, name=Path(name).name)


def policy_agent(recipe: Recipe, policy: Policy, tags: Tags, device: Device, *, name: str) -> Agent:
    """A policy in this process, with the recipe's workers."""
    from mem1.engines.workers import local_engine
    from mem1.evaluation.flops import model_shape

    computed = policy.computed(device)
    return Agent(
        engine=local_engine(policy.model, policy.codec, tags.stop_strings, workers=device.workers(recipe.workers)),
        codec=policy.codec,
        chat_template=policy.chat_template,
        name=name,
        identity=policy.fingerprint(),
        computed=computed,
        shape=model_shape(policy.model),
        notes=(str(computed), *few_workers(device, recipe.workers)),
    )


@contextmanager
def trained_agent(recipe: Recipe, policy: Policy, tags: Tags, device: Device, *, name: str) -> Iterator[Agent]:
    """A policy as its training samples: on the servers of [rollout], which get its weights, or in this process."""
    from mem1.evaluation.flops import model_shape
    from mem1.training.loop.rl_config import ServerRollouts
    from mem1.training.loop.train import weight_sync

    with weight_sync(recipe, policy) as sync:
        if sync is None or recipe.rl is None or not isinstance(recipe.rollout, ServerRollouts):
            yield policy_agent(recipe, policy, tags, device, name=name)
            return
        sync.push_weights(policy.model, recipe.rl.version_at(recipe.rl.steps))
        yield Agent(
            engine=sync.engine,
            codec=policy.codec,
            chat_template=policy.chat_template,
            name=name,
            identity=policy.fingerprint(),
            at_a_time=recipe.rollout.concurrency,
            shape=model_shape(policy.model),
        )


def _served(recipe: Recipe, served: ServedModel, tags: Tags) -> Agent:
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.openai import OpenAIEngine

    name = served.model or recipe.model.path
    if not name:
        raise UserError("--base-url needs --model, the model's name on the server (the server lists them at /models)")
    server = served.model_copy(update={"model": name})
    folder = tokenizer_folder(served.tokenizer, name)
    codec, chat_template = Codec.load(folder), recipe.model.chat_template
    template = ChatTemplate.load(folder, codec) if chat_template else ChatTemplate()
    stand_in = served.tokenizer == STAND_IN
    engine = OpenAIEngine.open(server, codec, tags.stop_strings, own_tokenizer=not stand_in)
    if chat_template and engine.dialect.own_template:
        raise UserError(
            "model.chat_template is for engine.endpoint=completions: at /chat/completions the server applies its own"
        )
    notes = [f"{server.urls[0]}: {engine.dialect}"]
    if stand_in:
        notes.append("Token counts and budgets are those of the stand-in tokenizer, not of the model.")
    identity = f"{name} by {engine.dialect}, tokens of {codec.fingerprint()}"
    read, written = server.limit.dollars_per_million_input, server.limit.dollars_per_million_output
    return Agent(
        engine=engine,
        codec=codec,
        chat_template=template,
        name=Path(name).name + (" (stand-in tokens)" if stand_in else ""),
        identity=identity + (" in its chat template" if chat_template else ""),
        at_a_time=server.concurrency,
        prices=Prices(read, written) if read or written else None,
        notes=tuple(notes),
    )


def _own(recipe: Recipe, config: OwnEngine, tags: Tags) -> Agent:
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.training.weights.policy import SHIPPED

    folder = tokenizer_folder(config.tokenizer, recipe.model.path or SHIPPED)
    codec = Codec.load(folder)
    template = ChatTemplate.load(folder, codec) if recipe.model.chat_template else ChatTemplate()
    return Agent(
        engine=config.engine(codec, tags, template),
        codec=codec,
        chat_template=template,
        name=config.name,
        identity=f"{config.identity} in tokens of {codec.fingerprint()}",
        at_a_time=config.concurrency,
    )


def tokenizer_folder(given: str | None, model: str) -> Path:
    """The folder that is given, or that of the model if it is here; there is no other default."""
    from mem1.training.weights.policy import policy_folder

    if given == STAND_IN:
        return Path(str(resources.files("mem1"))) / "assets" / STAND_IN
    folder = policy_folder(model if given is None else given)
    if given is not None or (folder / "tokenizer.json").is_file():
        return folder
    raise UserError(
        "--tokenizer is missing: give the folder with the served model's tokenizer.json, or its Hugging Face id if it "
        f"is in the local cache (hf download); {STAND_IN} counts with another model's tokenizer"
    )


def evaluate_agent(
    recipe: Recipe, agent: Agent, source: TaskSource, tags: Tags, *, folder: Path | None, overwrite: bool = False
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """Rows and trajectories by number of objectives, on the recipe's evaluation tasks; progress goes to stderr.

    `overwrite`: the folder belongs to a run, whose evaluation may be repeated with other settings.
    """
    from mem1.evaluation.runner import Chunking, evaluate
    from mem1.evaluation.store import made_with

    computed = None if agent.computed is None else agent.computed.record()
    with bars(stderr()) as progress:
        rows, trajectories = evaluate(
            agent.rollout(recipe, source, tags),
            source,
            recipe.evaluation,
            policy=agent.name,
            folder=folder,
            settings=None if folder is None else made_with(agent.identity, recipe.tasks, computed),
            overwrite=overwrite,
            chunking=Chunking() if agent.at_a_time is None else Chunking(tasks=1, at_a_time=agent.at_a_time),
            on_progress=EvaluationBar(progress, agent.name, agent.prices),
            shape=agent.shape,
        )
    for row in rows:
        if row.tasks < recipe.evaluation.tasks:
            say(
                f"{row.policy}, N = {row.objectives}: {row.tasks} tasks, not {recipe.evaluation.tasks}; these "
                "questions yield no others (no task is asked twice)"
            )
    return rows, trajectories


def evaluate_policy(
    recipe: Recipe, policy: Policy, device: Device, *, name: str, folder: Path
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """Rows and trajectories of a policy before or after its training."""
    from mem1.protocol import vocabulary

    tags = vocabulary(recipe.vocabulary)
    with trained_agent(recipe, policy, tags, device, name=name) as agent:
        source = recipe.tasks.source("evaluation", tags)
        return evaluate_agent(recipe, agent, source, tags, folder=folder, overwrite=True)


def show(rows: Sequence[Row], *, as_json: bool, computed: Computed | None = None) -> None:
    """Print the result: one JSON object with the device that computed it, or a table."""
    from rich.console import Console

    from mem1.evaluation.report.rows import ReportRow
    from mem1.evaluation.report.tables import print_table, warnings

    shown = [ReportRow.of(row) for row in rows]
    if not as_json:
        print_table(shown, Console())
        return
    computed_by = {} if computed is None else computed.record()
    print(json.dumps({"rows": [row.as_dict() for row in rows], **computed_by}))
    for warning in warnings(shown):
        stderr().print(warning, style="yellow", markup=False, soft_wrap=True)
