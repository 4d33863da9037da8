"""What verl loads as actor_rollout_ref.rollout.agent.agent_loop_manager_class.

The manager refuses a configuration that would train on other numbers, and starts workers that name the trajectory of
each row ("uid", see rows.py), which is all that an estimator of advantages is told.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from mem1.extras.verl import register  # noqa: F401  # the trainer's process loads this module
from mem1.extras.verl.advantages import trajectory_name
from mem1.extras.verl.agent_loop import settings_of
from mem1.extras.verl.settings import check_trainer

_Worker: Any = AgentLoopWorkerTQ.__ray_actor_class__
"""The class behind the actor; an actor itself cannot be inherited from."""


class ContextLoopWorker(_Worker):
    """verl's worker; the rows of a training attempt also say which attempt they are of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Ray sends the code of an inherited __init__ by value, with a copy of its class that is not the worker's base
        super().__init__(*args, **kwargs)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        outputs = output if isinstance(output, list) else [output]
        if validate or not outputs:
            return  # a validation is summed up by its tasks' own "uid"
        group, attempt = kwargs["uid"], kwargs["session_id"]
        named = {"uid": trajectory_name(group, attempt)}
        await tq.async_kv_batch_put(
            keys=[f"{group}_{attempt}_{turn}" for turn in range(len(outputs))],
            fields=list_of_dict_to_tensordict([named] * len(outputs)),
            partition_id="train",
        )


class ContextLoopManager(AgentLoopManagerTQ):
    """verl's manager with our workers. Raises UserError for a configuration that does not fit."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        plain: Any = OmegaConf.to_container(config, resolve=True)
        check_trainer(plain, settings_of(config).opened.budget)
        super().__init__(config, *args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ContextLoopWorker)
