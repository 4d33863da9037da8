"""The Atlas agent with LangChain: entry = "atlas_langchain:run" in a recipe.

LangChain's agent keeps all messages; a middleware shows the model the task and the newest exchange only.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse, wrap_model_call
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mem1.endpoint.client import act
from mem1.records import Task


@wrap_model_call
def constant_memory(request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
    """Show the model the task, what it said last, and what came of it."""
    first, *later = request.messages
    said = [place for place, message in enumerate(later) if isinstance(message, AIMessage)]
    return handler(request.override(messages=[first, *later[said[-1] if said else 0 :]]))


def run(task: Task, base_url: str) -> str:
    """The answer."""

    @tool
    def search(query: str) -> str:
        """Searches the encyclopedia."""
        return act(base_url, "search", query)

    model = ChatOpenAI(model="policy", base_url=base_url, api_key=SecretStr("any"), max_retries=0)
    agent: Any = create_agent(model, [search], middleware=[constant_memory])
    done = agent.invoke({"messages": [{"role": "user", "content": task.prompt}]}, {"recursion_limit": 1000})
    return done["messages"][-1].text
