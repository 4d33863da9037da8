"""The front door: a recipe is read, trained and evaluated in three lines.

    recipe = mem1.load_recipe("atlas-quick", "rl.learning_rate=1e-4")
    mem1.train(recipe, out="runs/quick")
    rows = mem1.evaluate(recipe, "runs/quick/policy", objectives=(2,), tasks=100)

A model on a server needs no recipe, and no torch:

    engine = mem1.connect("http://127.0.0.1:8000/v1", model="qwen", tokenizer="models/qwen")
    rows = mem1.evaluate(mem1.AtlasTasks(), engine, memory="full", objectives=(2,), tasks=100)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mem1.configuration import load_toml
from mem1.configuration.mistakes import explain
from mem1.dialogue import TagDialogue
from mem1.engines.base import Engine
from mem1.envs.base import TaskSource
from mem1.envs.tasks import TasksConfig, as_source
from mem1.errors import UserError, suggestion
from mem1.evaluation.metrics import Row
from mem1.model_folder import asset
from mem1.protocol import PAPER, Tags
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.recipe import Recipe

if TYPE_CHECKING:
    from mem1.engines.openai import OpenAIEngine
    from mem1.evaluation.agents import EvaluatedAgent
    from mem1.policy.policy import Policy
    from mem1.training.train import Finished


def recipe_folder() -> Path:
    """The shipped recipes: inside the installed package, or at the root of the repository."""
    installed = asset("recipes")
    return installed if installed.is_dir() else installed.parents[3] / "recipes"


def find_recipe(name: str | Path) -> Path:
    """The TOML file called `name`: as a path, else as a shipped recipe. Raises UserError listing the shipped ones."""
    folder = recipe_folder()
    for candidate in (Path(name), folder / name, folder / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    known = sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml"))
    raise UserError(
        f"no recipe {str(name)!r}{suggestion(str(name), known)}: neither a file nor one of the shipped recipes "
        f"({', '.join(known)})"
    )


def load_recipe(name: str | Path, *overrides: str) -> Recipe:
    """A recipe from a file, or a shipped one by its name, with "key=value" overrides.

    Raises UserError for an unknown recipe and for keys and values that do not fit.
    """
    return load_toml(find_recipe(name), Recipe, overrides)


def train(recipe: Recipe | str | Path, out: str | Path, *, resume: bool = False, **hooks: Any) -> Finished:
    """Train in this process, by a recipe or the one of this name; the run's folder is `out`, its trained policy
    `out/policy`.

    `hooks` are the other parameters of `mem1.training.train.train`, such as on_step. Raises UserError as it does.
    """
    from mem1.training.train import train as run

    recipe = load_recipe(recipe) if isinstance(recipe, (str, Path)) else recipe
    return run(recipe, Path(out), command=sys.argv, resume=resume, **hooks)


def connect(url: str | Sequence[str], *, model: str, tokenizer: str | Path, tags: Tags = PAPER) -> OpenAIEngine:
    """The engine of a model behind an OpenAI-compatible server, or several servers of the same model.

    `tokenizer` is the folder with the model's tokenizer.json. Raises UserError where the server cannot be used.
    """
    from mem1.engines.codec import Codec
    from mem1.engines.openai import OpenAIEngine
    from mem1.engines.servers import ModelServer

    server = ModelServer(urls=(url,) if isinstance(url, str) else tuple(url), model=model)
    return OpenAIEngine.open(server, Codec.load(Path(tokenizer)), tags.stop_strings)


def evaluate(
    tasks_or_recipe: Recipe | TasksConfig | TaskSource | str | Path | Any,
    model: Policy | Engine | str | Path,
    *,
    name: str = "policy",
    memory: str | None = None,
    objectives: int | Sequence[int] | None = None,
    tasks: int | None = None,
    out: str | Path | None = None,
    identity: str = "",
) -> list[Row]:
    """One row per number of objectives, measured on the evaluation half of the tasks.

    tasks_or_recipe     a recipe or its name, a task configuration, or an object with tasks, observe and score
    model               a policy, the folder of one, or an engine that has a codec
    name                what the rows call the model
    out                 folder that keeps the trajectories, and from which an interrupted evaluation goes on
    identity            with `out`, what tells an environment or engine of your own from others, such as "parrot, v2"

    What is not given is as in the recipe, else as in a recipe's defaults. Raises UserError for what cannot be used, and
    where `out` holds attempts made with other settings.
    """
    source: TaskSource | None = None
    if isinstance(tasks_or_recipe, (str, Path)):
        tasks_or_recipe = load_recipe(tasks_or_recipe)
    if isinstance(tasks_or_recipe, Recipe):
        recipe = tasks_or_recipe
    elif isinstance(tasks_or_recipe, TasksConfig):
        recipe = Recipe(tasks=tasks_or_recipe)
    else:
        recipe, source = Recipe(tasks=TasksConfig()), as_source(tasks_or_recipe)
    changed: dict[str, Any] = {"evaluation": _sizes(recipe.evaluation, objectives, tasks)}
    recipe = recipe.model_copy(update=changed | ({} if memory is None else {"memory": memory}))
    agent = _agent(recipe, model, name)
    if out is not None:
        if Path(name).name != name:
            raise UserError(f"name = {name!r} names files in {out}; leave out the folder: {Path(name).name!r}")
        own = [] if source is None else [tasks_or_recipe]
        if hasattr(model, "complete") and not hasattr(model, "identity"):
            own.append(model)
        agent = _told_apart(agent, identity, own)
    source = source or agent.speaks.tasks.source("evaluation", agent.speaks.tags)
    return agent.evaluate(recipe, source, folder=None if out is None else Path(out))[0]


def _sizes(of_recipe: Evaluation, objectives: int | Sequence[int] | None, tasks: int | None) -> Evaluation:
    several = objectives if objectives is None or isinstance(objectives, Sized) else (objectives,)
    if isinstance(several, str):
        raise UserError(f"objectives = {objectives!r}: give numbers, such as [1, 2, 4]")
    given = {"objectives": None if several is None else tuple(several), "tasks": tasks}
    try:
        return Evaluation.model_validate(
            of_recipe.model_dump() | {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise UserError(explain(error, Evaluation, ())) from error


def _agent(recipe: Recipe, model: Any, name: str) -> EvaluatedAgent:
    from mem1.engines.chat_template import ChatTemplate
    from mem1.evaluation.agents import EvaluatedAgent, loaded_agent, policy_agent
    from mem1.policy.protocol import Known, resolve
    from mem1.recipe.protocol import FRAMED

    if isinstance(model, (str, Path)):
        return loaded_agent(recipe, model, name=name)
    if not hasattr(model, "complete"):
        if not hasattr(model, "fingerprint"):
            raise UserError(f"model = {model!r:.80}: give a policy, the folder of one, or an engine")
        speaks = resolve(recipe, None if model.folder is None else Known.at(model.folder))
        if speaks.kind == FRAMED and model.chat_template == ChatTemplate():
            raise UserError(f"protocol = framed ({speaks.because}): load the policy with chat_template=True")
        return policy_agent(recipe, model, speaks, name=name)
    if not hasattr(model, "codec"):
        raise UserError(f"{type(model).__name__} has no codec, so its tokens cannot be read; give it one")
    speaks = resolve(recipe, Known(where="the engine", lacks="the engine brings no chat template"))
    called = getattr(model, "identity", type(model).__name__)
    return EvaluatedAgent(
        engine=model,
        speaks=speaks,
        dialogue=TagDialogue(model.codec, speaks.tags),
        name=name,
        identity=lambda: f"{called} tokens of {model.codec.fingerprint()}",
        at_a_time=16,
        general=hasattr(model, "dialect"),
    )


def _told_apart(agent: EvaluatedAgent, identity: str, own: Sequence[Any]) -> EvaluatedAgent:
    """The agent whose attempts are told from those of others; `own`: objects that no configuration describes."""
    if own and not identity:
        raise UserError(
            f"out: attempts of {' and '.join(type(thing).__name__ for thing in own)} cannot be told from those of "
            "others; give identity, a text that changes whenever they do"
        )
    known = agent.identity
    return replace(agent, identity=lambda: f"{known()}, {identity}") if identity else agent
