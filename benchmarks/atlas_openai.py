"""The Atlas agent with the plain `openai` client: entry = "atlas_openai:run" in a recipe.

It keeps its memory constant by itself: each call holds the task, what the model said last, and what came of it.
"""

from __future__ import annotations

import json

from openai import OpenAI

from mem1.endpoint.client import act
from mem1.records import Task

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the encyclopedia.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
CLIENT = OpenAI(base_url="http://127.0.0.1/v1", api_key="any")


def run(task: Task, base_url: str) -> str | None:
    """The answer."""
    client = CLIENT.with_options(base_url=base_url)
    ask = {"role": "user", "content": task.prompt}
    newest: list[object] = []
    while True:
        reply = client.chat.completions.create(model="policy", messages=[ask, *newest], tools=[SEARCH])  # type: ignore[call-overload]
        said = reply.choices[0].message
        if not said.tool_calls:
            return said.content
        newest = [said.model_dump(exclude_none=True)]
        for call in said.tool_calls:
            found = act(base_url, "search", json.loads(call.function.arguments)["query"])  # type: ignore[union-attr]
            newest.append({"role": "tool", "tool_call_id": call.id, "content": found})
