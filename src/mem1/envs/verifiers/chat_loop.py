"""The agent that plays in verifiers' environments: a chat loop with tools, in this process.

Its harness for chat models starts a program for each turn, with uv. This one is verifiers' own loop without that: it
asks the model, calls the tools that the reply names, and ends with a reply that names none. verifiers finds a harness
by the name of a module, so `NAME` is registered for this one.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatLoop"]

Message = dict[str, Any]
Send = Callable[[list[Message], Callable[[list[Message]], Awaitable[Message]]], Awaitable[Message]]
"""(conversation, function that asks the model) -> the model's message."""
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
            send, own_tools, own = self.remembering()

            async def ask(shown: list[Message]) -> Message:
                body = {"model": ctx.model, "messages": shown, **({"tools": offered} if offered else {})}
                async with http.post(f"{endpoint}/chat/completions", json=body) as response:
                    reply = await response.json()
                    if response.status != 200:  # a stop, among others; verifiers knows why
                        raise Refused(json.dumps(reply)[:500])
                return reply["choices"][0]["message"]

            async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
                if name in dispatch:
                    return await call_mcp(connected, dispatch, name, arguments)
                try:
                    return own(**arguments)
                except Exception as error:  # the model's mistake
                    return f"error: {error}"

            offered = [*tools, *own_tools]
            names = {tool["function"]["name"] for tool in offered}
            while True:
                try:
                    message = await send(messages, ask)
                except Refused as error:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    content = await _called(call["function"], names, call_tool)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    def remembering(self) -> tuple[Send, Sequence[Any], Callable[..., Any]]:
        """How messages are sent, with the tools that go with that and the function behind them; here, as they are."""
        return lambda messages, ask: ask(messages), (), lambda: None


class Refused(Exception):
    """The endpoint refused a request."""


async def _called(function: dict[str, str], names: set[str], call_tool: Any) -> Any:
    """The result of a tool, or what is wrong with the call."""
    if function["name"] not in names:
        return f"error: there is no tool {function['name']!r}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are not valid JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    return await call_tool(function["name"], arguments)


sys.modules.setdefault(NAME, sys.modules[__name__])
