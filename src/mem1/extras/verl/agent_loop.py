"""Our rollout as verl's agent loop: a task in, one output a turn out."""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from mem1.engines.base import Sampling
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.extras.verl.engine import ServerEngine, asked_temperature, turn_outputs
from mem1.extras.verl.settings import AGENT, VerlSettings, check_one_step, read_settings
from mem1.extras.verl.tasks import read_row

_LOG = logging.getLogger(__name__)


@register(AGENT)
class ContextLoop(AgentLoopBase):
    """One attempt; verl makes one of these for each."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """`kwargs` are the columns of the task's row. No output where tool or server failed: verl leaves it out."""
        settings = settings_of(self.config)
        task, split = read_row(kwargs["extra_info"])
        codec = _codec(self.tokenizer)
        engine = ServerEngine(
            client=self.server_manager,
            loop=asyncio.get_running_loop(),
            codec=codec,
            stop_strings=settings.tags.stop_strings,
            request_id=uuid4().hex,
        )
        frame = _frame(self.tokenizer) if settings.opened.model.chat_template else ChatTemplate()
        rollout = settings.rollout(engine, codec, frame, split)
        if split == "train":
            check_one_step(self.config, task, rollout.context)
        sampling = Sampling(temperature=asked_temperature(sampling_params))
        (trajectory,) = await engine.loop.run_in_executor(
            _threads(settings.concurrency), lambda: rollout([task], sampling=sampling)
        )
        if not trajectory.ended.scorable:
            _LOG.warning("attempt at %s left out, %s: %s", task.id, trajectory.ended, trajectory.detail)
        return [AgentLoopOutput(**fields) for fields in turn_outputs(trajectory, engine)]


def settings_of(config: DictConfig) -> VerlSettings:
    """The section `mem1` of verl's configuration."""
    section: Any = None if "mem1" not in config else OmegaConf.to_container(config.mem1, resolve=True)
    return read_settings(section)


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    """Of this process; the loop's own executor has so few that attempts would wait for one another."""
    return ThreadPoolExecutor(number, thread_name_prefix="mem1-attempt")


@cache
def _codec(tokenizer: Any) -> Codec:
    """The tokenizer that verl trains with, as a copy: nobody else sets its padding or truncation."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise UserError("the model has no fast tokenizer; mem1 needs one (tokenizer.json)")
    return Codec(Tokenizer.from_str(fast.to_str()))


@cache
def _frame(tokenizer: Any) -> ChatTemplate:
    """Of the chat template that verl trains with."""
    return ChatTemplate.of(tokenizer, _codec(tokenizer), where="the tokenizer of verl's configuration")
