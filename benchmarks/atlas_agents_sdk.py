"""The Atlas agent with the OpenAI Agents SDK: entry = "atlas_agents_sdk:run" in a recipe.

The SDK keeps all items; a filter shows the model the task and the newest exchange only.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI

from mem1.endpoint.client import act
from mem1.records import Task

set_tracing_disabled(True)


def constant_memory(data: CallModelData[Any]) -> ModelInputData:
    """Show the model the task, what it said last, and what came of it."""
    first, *later = data.model_data.input
    results = [place for place, item in enumerate(later) if item.get("type") == "function_call_output"]
    said = [place for place, item in enumerate(later) if place not in results]
    begins = max((place for place in said if place == 0 or place - 1 in results), default=0)
    return ModelInputData(input=[first, *later[begins:]], instructions=data.model_data.instructions)


async def run(task: Task, base_url: str) -> str:
    """The answer."""

    @function_tool
    async def search(query: str) -> str:
        """Searches the encyclopedia."""
        return await asyncio.to_thread(act, base_url, "search", query)

    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        agent = Agent(name="Atlas", model=OpenAIChatCompletionsModel("policy", client), tools=[search])
        config = RunConfig(call_model_input_filter=constant_memory)
        done = await Runner.run(agent, task.prompt, max_turns=1000, run_config=config)
    return str(done.final_output)
