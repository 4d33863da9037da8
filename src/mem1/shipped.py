"""The things of mem1's own that a recipe can name: the one table of dotted paths, after all rooms that it names.

`mem1.registry` reads it at the first look-up, and imports a thing when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping

SHIPPED: Mapping[str, Mapping[str, str] | str] = {
    "tasks": {
        "atlas": "mem1.envs.atlas:AtlasTasks",
        "english": "mem1.envs.english:EnglishTasks",
        "multihop": "mem1.envs.search:MultihopTasks",
        "cloze": "mem1.envs.cloze:ClozeTasks",
        "web": "mem1.envs.web:WebTasks",
        "webshop": "mem1.envs.webshop.tasks:WebShopTasks",
        "errand": "mem1.envs.webshop.errand:ErrandTasks",
        "memory-agent-bench": "mem1.bench.memory_agent_bench:MemoryAgentBenchTasks",
        "gymnasium": "mem1.envs.gymnasium:GymnasiumTasks",
        "verifiers": "mem1.envs.verifiers.tasks:VerifiersTasks",
    },
    "scorer": "mem1.scoring:SCORERS",
    "memory": "mem1.memory.policies:POLICIES",
    "prompt": "mem1.tasks.prompts:PROMPTS",
    "dataset": "mem1.tasks.datasets.reading:FORMATS",
    "tags": "mem1.protocol:TAG_SETS",
    "tool_call_format": "mem1.engines.tool_calls:FORMATS",
    "algorithm": {
        "grpo": "mem1.algorithms.group:Grpo",
        "dr_grpo": "mem1.algorithms.group:DrGrpo",
        "rloo": "mem1.algorithms.group:Rloo",
        "reinforce": "mem1.algorithms.group:Reinforce",
        "reinforce_pp": "mem1.algorithms.group:ReinforcePlusPlus",
        "dapo": "mem1.algorithms.group:Dapo",
        "rejection": "mem1.algorithms.group:Rejection",
        "gspo": "mem1.algorithms.ratios:Gspo",
        "cispo": "mem1.algorithms.ratios:Cispo",
        "ppo": "mem1.algorithms.ppo:Ppo",
        "channels": "mem1.algorithms.channels:Channels",
    },
    "channel": {
        "outcome": "mem1.algorithms.channels:Outcome",
        "objectives": "mem1.algorithms.channels:Objectives",
        "memory_length": "mem1.algorithms.channels:MemoryLength",
    },
    "engine": {
        "local": "mem1.engines.config:LocalModel",
        "server": "mem1.engines.config:ServedModel",
        "script": "mem1.recipe.scripted:ScriptedAnswer",
    },
    "index": {
        "bm25": "mem1.retrieval.bm25:BM25",
        "dense": "mem1.retrieval.dense:Dense",
    },
    "search_api": "mem1.retrieval.web.search:APIS",
    "writer": {
        "tensorboard": "mem1.training.monitoring.writers:TensorBoard",
        "wandb": "mem1.training.monitoring.writers:Wandb",
        "trackio": "mem1.training.monitoring.writers:Trackio",
        "mlflow": "mem1.training.monitoring.writers:MLflow",
    },
    "document": "mem1.retrieval.documents:READERS",
}
"""List of `mem1.register` -> name -> "module:Name", or the "module:Name" of a mapping from names to the things."""
