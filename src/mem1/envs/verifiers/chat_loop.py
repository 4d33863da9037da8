"""The agent that plays in verifiers' environments: a chat loop with tools, in this process.

Its harness for chat models starts a program for each turn, with uv. This one is verifiers' own loop without that: it
asks the model, calls the tools that the reply names, and ends with a reply that names none. verifiers finds a harness
by the name of a module, so `NAME` is registered for this one.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatLoop"]

NAME = "mem1_chat_loop"
"""The id of this harness."""


class ChatLoopConfig(vf.HarnessConfig):
    """What every harness has."""


class ChatLoop(vf.Harness[ChatLoopConfig]):
    """Runs no program of the model's, so it needs no sandbox."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Talk to the model at `endpoint` until it calls no tool."""
        system, prompt = self.resolve_prompt(data)
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        first = [] if system is None else [vf.SystemMessage(content=system)]
        messages = [message_to_wire(message) for message in (*first, *said)]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, connected = await connect_mcp({"mcpServers": servers}, stack)
            client = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), headers={"Authorization": f"Bearer {secret}"}
            )
            http = await stack.enter_async_context(client)
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                async with http.post(f"{endpoint}/chat/completions", json=body) as response:
                    reply = await response.json()
                    if response.status != 200:  # a stop, among others; verifiers knows why
                        return vf.ProgramResult(exit_code=1, stdout="", stderr=json.dumps(reply)[:500])
                message = reply["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    content = await _called(call["function"], connected, dispatch)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def _called(function: dict[str, str], servers: Any, dispatch: Any) -> Any:
    """The result of a tool, or what is wrong with the call."""
    if function["name"] not in dispatch:
        return f"error: there is no tool {function['name']!r}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are not valid JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    return await call_mcp(servers, dispatch, function["name"], arguments)


sys.modules.setdefault(NAME, sys.modules[__name__])
