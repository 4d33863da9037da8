"""A memory for agents of the OpenAI Agents SDK.

    from mem1.extras.agents.openai_agents import AgentMemory
    await Runner.run(agent, "...", run_config=AgentMemory("fold(4)").run_config())

It is the run's `call_model_input_filter`: items, sessions and results of a run stay whole; only what the model is sent
is folded. The model writes a state in a call with the same model, settings, tools, handoffs and instructions.
Documentation: docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, finished, memory_of
from mem1.memory import MemoryPolicy
from mem1.messages import RECALL_TOOL, Memory
from mem1.messages.asking import for_state
from mem1.messages.transcript import Message

try:
    from agents import Agent, Handoff, Model, ModelTracing, RunConfig, RunContextWrapper, function_tool, handoff
    from agents.run import CallModelData, ModelInputData
except ImportError as error:
    raise UserError(
        f"a memory for the OpenAI Agents SDK needs it ({error}): pip install 'mem1-agents[openai-agents]'"
    ) from error

_RECALL = RECALL_TOOL["function"]
_SHOWN: ContextVar[Conversation[Any]] = ContextVar("mem1_shown")
"""The conversation of the run that this code belongs to."""


class AgentMemory:
    """Folds what the models of runs are sent, by a memory of `mem1.memory`; one object serves any number of runs.

    Settings as of `mem1.messages.Memory`. Where the model may see handles, each agent needs `recall` among its tools.
    """

    def __init__(self, policy: str | MemoryPolicy = "fold(4)", **settings: Any) -> None:
        self.memory = memory_of(policy, settings, form="responses")
        about = self.memory.recall_tool["function"]
        self.recall = function_tool(
            _recall_of(self.memory),
            name_override=about["name"],
            description_override=about["description"],
            strict_mode=False,
        )

    def run_config(self, run_config: RunConfig | None = None) -> RunConfig:
        """The configuration of a run with this memory; a filter that it has comes before."""
        given = RunConfig() if run_config is None else run_config
        earlier = given.call_model_input_filter

        async def filtered(data: CallModelData) -> ModelInputData:
            if earlier is not None:
                model_data = earlier(data)
                data = replace(data, model_data=await model_data if inspect.isawaitable(model_data) else model_data)
            return await self._filtered(data, given)

        return replace(given, call_model_input_filter=filtered)

    async def _filtered(self, data: CallModelData, run_config: RunConfig) -> ModelInputData:
        agent, sent = data.agent, data.model_data
        if self.memory.shows_handles and all(tool.name != _RECALL["name"] for tool in agent.tools):
            raise UserError(
                f"the memory names handles, but the agent {agent.name!r} lacks the tool for them: add memory.recall to "
                "its tools, or give Bounds(handles=False)"
            )
        conversation = Conversation.of(KIND, sent.input)
        _SHOWN.set(conversation)

        async def write(messages: list[Message]) -> list[Message]:
            items = await _written(agent, data, run_config, conversation.written(messages), self.memory.bounds.state)
            for item in items:
                finished(item, item.get("status"), self.memory)
            return items

        shown = await self.memory.aprompt(conversation.read, write=write, owner=sent.instructions or "")
        return ModelInputData(input=conversation.written(shown), instructions=sent.instructions)


async def _written(
    agent: Agent, data: CallModelData, run_config: RunConfig, items: list[Any], state_tokens: int
) -> list[Message]:
    """What the agent's model says to the items, called as the run calls it; a state has no output type."""
    context = RunContextWrapper(context=data.context)
    settings = agent.model_settings.resolve(run_config.model_settings)
    kept = for_state(vars(settings), state_tokens)
    response = await _model(agent, run_config).get_response(
        system_instructions=data.model_data.instructions,
        input=items,
        model_settings=replace(settings, **{name: kept.get(name) for name in vars(settings)}),
        tools=await agent.get_all_tools(context),
        output_schema=None,
        handoffs=await _handoffs(agent, context),
        tracing=ModelTracing.DISABLED,
        previous_response_id=None,
        conversation_id=None,
        prompt=await agent.get_prompt(context),
    )
    return response.to_input_items()


async def _handoffs(agent: Agent, context: RunContextWrapper) -> list[Handoff]:
    """Those that are enabled, as tools of the request."""
    found: list[Handoff] = []
    for other in agent.handoffs:
        made = other if isinstance(other, Handoff) else handoff(other)
        enabled = made.is_enabled if isinstance(made.is_enabled, bool) else made.is_enabled(context, agent)
        if await enabled if inspect.isawaitable(enabled) else enabled:
            found.append(made)
    return found


def _model(agent: Agent, run_config: RunConfig) -> Model:
    for model in (run_config.model, agent.model):
        if isinstance(model, Model):
            return model
        if model is not None:
            return run_config.model_provider.get_model(model)
    return run_config.model_provider.get_model(None)


def _recall_of(memory: Memory) -> Callable[..., Any]:
    """The tool `recall` of a memory."""

    def recall(handle: str, start: int = 0) -> Any:
        shown = _SHOWN.get(None)
        try:
            return "error: nothing was left out yet" if shown is None else shown.recall(memory, handle, start)
        except UserError as error:
            return f"error: {error}"

    return recall


KIND: Kind[Any] = Kind(read=dict, copied=lambda item, changed: changed, made=dict, form="responses")
"""Input items of the Responses API, which the SDK uses for every model."""
