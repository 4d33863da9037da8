"""What verl loads: our rollout as its agent loop, and the manager that starts the loop's workers.

actor_rollout_ref.rollout.agent.agent_loop_manager_class: mem1.extras.verl.agent_loop.ContextLoopManager

The manager rejects a configuration that would train on different numbers. Its workers add the number of the attempt to
each row's "uid", the only field that verl passes to an advantage estimator (see advantages.py).
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from uuid import uuid4

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import mem1.extras.verl.register  # noqa: F401  # registers the estimators in the trainer's process
from mem1.dialogue import Dialogue
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.extras.verl.advantages import trajectory_name
from mem1.extras.verl.engine import ServerEngine, asked_temperature, turn_outputs
from mem1.extras.verl.settings import AGENT, VerlSettings, check_one_step, check_trainer, read_row, read_settings
from mem1.memory import memory_policy
from mem1.policy.protocol import resolve

_LOG = logging.getLogger(__name__)


@register(AGENT)
class ContextLoop(AgentLoopBase):
    """Runs one attempt; verl makes an instance for each."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """Outputs of one attempt at the task in `kwargs`, the columns of its row; none if a tool or server failed."""
        settings = settings_of(self.config)
        task, split = read_row(kwargs["extra_info"])
        codec = _codec(self.tokenizer)
        dialogue = _dialogue(self.tokenizer, settings.recipe, settings.overrides)
        engine = ServerEngine(
            client=self.server_manager,
            loop=asyncio.get_running_loop(),
            codec=codec,
            stop_strings=dialogue.stop_strings,
            request_id=uuid4().hex,
        )
        rollout = settings.rollout(engine, dialogue, split)
        if split == "train":
            check_one_step(self.config, task, memory_policy(settings.opened.memory))
        sampling = Sampling(temperature=asked_temperature(sampling_params))
        (trajectory,) = await engine.loop.run_in_executor(
            _threads(settings.concurrency), lambda: rollout([task], sampling=sampling)
        )
        if not trajectory.ended.scorable:
            _LOG.warning("attempt at %s omitted, %s: %s", task.id, trajectory.ended, trajectory.detail)
        return [AgentLoopOutput(**fields) for fields in turn_outputs(trajectory, engine)]


def settings_of(config: DictConfig) -> VerlSettings:
    """The section `mem1` of verl's configuration."""
    section: Any = None if "mem1" not in config else OmegaConf.to_container(config.mem1, resolve=True)
    return read_settings(section)


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    """Threads of this process; the event loop's own executor has too few, so attempts would wait for each other."""
    return ThreadPoolExecutor(number, thread_name_prefix="mem1-attempt")


@cache
def _codec(tokenizer: Any) -> Codec:
    """A copy of the tokenizer that verl trains with, so that nobody else changes its padding or truncation."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise UserError("the model has no fast tokenizer; mem1 needs its tokenizer.json")
    return Codec(Tokenizer.from_str(fast.to_str()))


@cache
def _dialogue(tokenizer: Any, recipe_path: str, overrides: tuple[str, ...]) -> Dialogue:
    """That of the recipe; made once, as each attempt asks for it."""
    settings = VerlSettings(recipe=recipe_path, overrides=overrides)
    speaks = resolve(settings.opened)
    return speaks.dialogue(_codec(tokenizer), tokenizer, "the tokenizer of verl's configuration")


_Worker: Any = AgentLoopWorkerTQ.__ray_actor_class__
"""The class behind the actor; an actor itself cannot be inherited from."""


class ContextLoopWorker(_Worker):
    """verl's worker, with the number of the attempt in each row of a training attempt."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Ray pickles the code of an inherited __init__ by value, with a copy of its class that is not the worker's base
        super().__init__(*args, **kwargs)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        outputs = output if isinstance(output, list) else [output]
        if validate or not outputs:
            return  # a validation is summarised by its tasks' own "uid"
        group, attempt = kwargs["uid"], kwargs["session_id"]
        named = {"uid": trajectory_name(group, attempt)}
        await tq.async_kv_batch_put(
            keys=[f"{group}_{attempt}_{turn}" for turn in range(len(outputs))],
            fields=list_of_dict_to_tensordict([named] * len(outputs)),
            partition_id="train",
        )


class ContextLoopManager(AgentLoopManagerTQ):
    """verl's manager with our workers. Raises UserError for an unsuitable configuration."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        plain: Any = OmegaConf.to_container(config, resolve=True)
        check_trainer(plain, settings_of(config).opened.budget)
        super().__init__(config, *args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ContextLoopWorker)
