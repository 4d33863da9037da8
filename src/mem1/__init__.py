"""mem1: train, evaluate and run LLM agents whose memory stays constant however long the task is.

    import mem1

    mem1.train(mem1.load_recipe("atlas-quick"), out="runs/quick")
    print(mem1.evaluate(mem1.load_recipe("atlas-quick"), mem1.load_policy("runs/quick/policy")))

Rooms, in the order of the imports: version, errors, durable, registry, lock, cache, interrupts, heap, programs, jsonl,
lexical, words, parquet, configuration, hub, model_folder, run_folder, net, pages, records, trajectory_files, sanitize,
protocol, prices, memory, messages, scoring, tasks, retrieval, envs, engines, dialogue, agent, rollout, endpoint,
packing, algorithms, recipe, policy, evaluation, training, planning, api, bench, extras, shipped, cli. Importing `mem1`
loads none but the version: each name below is imported when it is first used.
"""

# ruff: noqa: F401  (the imports below are for type checkers and editors)
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mem1.version import __version__

if TYPE_CHECKING:
    from mem1.agent import Agent, McpServer
    from mem1.algorithms.base import Algorithm, ClippedAlgorithm
    from mem1.api import connect, evaluate, load_recipe, train
    from mem1.configuration import Config
    from mem1.dialogue import Dialogue, NativeDialogue, TagDialogue
    from mem1.endpoint.client import act
    from mem1.engines.base import Completion, Engine, Sampling, ScriptedEngine
    from mem1.engines.codec import Codec
    from mem1.engines.local import LocalEngine
    from mem1.engines.openai import OpenAIEngine
    from mem1.engines.servers import ModelServer
    from mem1.envs.atlas import AtlasTasks
    from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
    from mem1.envs.search import MultihopTasks, SearchEnvironment
    from mem1.envs.tasks import TasksConfig
    from mem1.errors import UserError
    from mem1.evaluation.metrics import Row
    from mem1.memory import Kept, MemoryPolicy, Selection, memory_policy
    from mem1.packing import pack
    from mem1.policy.policy import Policy, load_policy
    from mem1.protocol import PAPER, RELEASED, Tags, extended, parse
    from mem1.recipe.recipe import Recipe
    from mem1.records import Ended, Group, Passage, Question, Task, Trajectory, Turn
    from mem1.registry import register
    from mem1.retrieval import BM25, Retriever
    from mem1.rollout import Budget, Rollout
    from mem1.tasks.compose import compose
    from mem1.tasks.prompts import TaskTemplate
    from mem1.training.logprobs import completion_logprobs
    from mem1.training.monitoring.writers import WrittenRun
    from mem1.training.rl import RlStage
    from mem1.training.verify import verify

_HOMES = {
    "mem1.agent": "Agent McpServer",
    "mem1.algorithms.base": "Algorithm ClippedAlgorithm",
    "mem1.api": "connect evaluate load_recipe train",
    "mem1.configuration": "Config",
    "mem1.memory": "MemoryPolicy Kept Selection memory_policy",
    "mem1.dialogue": "Dialogue NativeDialogue TagDialogue",
    "mem1.endpoint.client": "act",
    "mem1.engines.base": "Completion Engine Sampling ScriptedEngine",
    "mem1.engines.codec": "Codec",
    "mem1.engines.local": "LocalEngine",
    "mem1.engines.openai": "OpenAIEngine",
    "mem1.engines.servers": "ModelServer",
    "mem1.envs.atlas": "AtlasTasks",
    "mem1.envs.base": "Action Environment Observation Outcome TaskSource",
    "mem1.envs.search": "MultihopTasks SearchEnvironment",
    "mem1.envs.tasks": "TasksConfig",
    "mem1.errors": "UserError",
    "mem1.evaluation.metrics": "Row",
    "mem1.packing": "pack",
    "mem1.protocol": "PAPER RELEASED Tags extended parse",
    "mem1.records": "Ended Group Passage Question Task Trajectory Turn",
    "mem1.registry": "register",
    "mem1.retrieval": "BM25 Retriever",
    "mem1.rollout": "Budget Rollout",
    "mem1.tasks.compose": "compose",
    "mem1.tasks.prompts": "TaskTemplate",
    "mem1.training.logprobs": "completion_logprobs",
    "mem1.recipe.recipe": "Recipe",
    "mem1.training.rl": "RlStage",
    "mem1.training.monitoring.writers": "WrittenRun",
    "mem1.training.verify": "verify",
    "mem1.policy.policy": "Policy load_policy",
}
"""Module -> the names that it gives."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted([*_MODULES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mem1' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
