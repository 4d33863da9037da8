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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.configuration import load_toml
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
) -> list[Row]:
    """One row per number of objectives, measured on the evaluation half of the tasks.

    tasks_or_recipe     a recipe or its name, a task configuration, or an object with tasks, observe and score
    model               a policy, the folder of one, or an engine that has a codec
    name                what the rows call the model
    out                 folder that keeps the trajectories, and from which an interrupted evaluation goes on

    What is not given is as in the recipe, else as in a recipe's defaults.
    """
    from mem1.engines.chat_template import ChatTemplate
    from mem1.evaluation.agents import EvaluatedModel, loaded_agent, policy_agent
    from mem1.policy.protocol import Known, resolve
    from mem1.recipe.protocol import FRAMED

    source: TaskSource | None = None
    if isinstance(tasks_or_recipe, (str, Path)):
        tasks_or_recipe = load_recipe(tasks_or_recipe)
    if isinstance(tasks_or_recipe, Recipe):
        recipe = tasks_or_recipe
    elif isinstance(tasks_or_recipe, TasksConfig):
        recipe = Recipe(tasks=tasks_or_recipe)
    else:
        recipe, source = Recipe(tasks=TasksConfig()), as_source(tasks_or_recipe)
    if isinstance(objectives, str):
        raise UserError(f"objectives = {objectives!r}: give numbers, such as [1, 2, 4]")
    several = (objectives,) if isinstance(objectives, int) else objectives
    given = {"objectives": None if several is None else tuple(several), "tasks": tasks}
    sizes = recipe.evaluation.model_dump() | {key: value for key, value in given.items() if value is not None}
    changed: dict[str, Any] = {"evaluation": Evaluation.model_validate(sizes)}
    recipe = recipe.model_copy(update=changed | ({} if memory is None else {"memory": memory}))
    given_model: Any = model
    if isinstance(model, (str, Path)):
        agent = loaded_agent(recipe, given_model, name=name)
    elif not hasattr(given_model, "complete"):
        speaks = resolve(recipe, None if given_model.folder is None else Known.at(given_model.folder))
        if speaks.kind == FRAMED and given_model.chat_template == ChatTemplate():
            raise UserError(f"protocol = framed ({speaks.because}): load the policy with chat_template=True")
        agent = policy_agent(recipe, given_model, speaks, name=name)
    elif not hasattr(given_model, "codec"):
        raise UserError(f"{type(model).__name__} has no codec, so its tokens cannot be read; give it one")
    else:
        speaks = resolve(recipe, Known(where="the engine", lacks="the engine brings no chat template"))
        agent = EvaluatedModel(
            engine=given_model,
            speaks=speaks,
            dialogue=TagDialogue(given_model.codec, speaks.tags),
            name=name,
            identity=lambda: type(model).__name__,
            at_a_time=16,
            general=hasattr(given_model, "dialect"),
        )
    source = source or agent.speaks.tasks.source("evaluation", agent.speaks.tags)
    return agent.evaluate(recipe, source, folder=None if out is None else Path(out))[0]
