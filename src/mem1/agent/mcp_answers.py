r"""Answers of MCP servers as the official client takes them: it refuses a whole list for one bad tool, and a whole
result for one part.

    sound({"tools": [{"name": "a"}, None]})         ->  {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
    sound({"content": [{"type": "hologram"}]})      ->  {"content": [{"type": "text", "text": "[hologram, ...]"}], ...}
    mended(b'{"text": "cut in an emoji \ud83d"}')   ->  b'{"text": "cut in an emoji ?"}'

A tool without a name is left out, and said once. Of the others stays what a call needs: not the schema of results, for
which the client refuses those that do not fit, though the model can read them. What is no text in a result is named.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pydantic_core

from mem1.agent.schema_parts import as_list
from mem1.errors import printable

log = logging.getLogger(__name__)
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SHOWN = 60


@contextlib.asynccontextmanager
async def made_sound(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """The streams of a transport, with `sound` answers."""
    async with transport as (messages, requests):
        yield _Sound(messages), requests


class _Sound:
    """A stream of messages."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    async def receive(self) -> Any:
        return _sound_message(await self._messages.receive())

    async def aclose(self) -> None:
        await self._messages.aclose()

    def __aiter__(self) -> _Sound:
        return self

    async def __anext__(self) -> Any:
        return _sound_message(await self._messages.__anext__())

    async def __aenter__(self) -> _Sound:
        await self._messages.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> Any:
        return await self._messages.__aexit__(*why)

    @property
    def last_context(self) -> Any:
        return getattr(self._messages, "last_context", None)


def _sound_message(message: Any) -> Any:
    answer: Any = getattr(message, "message", None)
    result = getattr(answer, "result", None)
    if not isinstance(result, dict) or (new := sound(result)) is result:
        return message
    return replace(message, message=answer.model_copy(update={"result": new}))


def sound(result: dict[str, Any]) -> dict[str, Any]:
    """A list of tools or the result of a call as the client takes it; any other result is the same object."""
    if isinstance(result.get("tools"), list):
        tools = [_tool(tool) for tool in result["tools"]]
        if nameless := tools.count(None):
            log.warning("%d tools of an MCP server are left out, as they have no name", nameless)
        return {**result, "tools": [tool for tool in tools if tool is not None]}
    if result.keys().isdisjoint(("content", "structuredContent")) or "inputRequests" in result:
        return result
    texts = [text for part in as_list(result.get("content")) if (text := _text(part)) is not None]
    if not any(texts) and result.get("structuredContent"):
        texts = [_json(result["structuredContent"])]
    rest = {key: value for key, value in result.items() if key not in ("content", "structuredContent", "_meta")}
    content = [{"type": "text", "text": text} for text in texts]
    return {**rest, "content": content, "isError": result.get("isError") in (True, "true", "True", 1)}


def mended(data: bytes) -> bytes:
    """JSON with a mark in the place of what is no character, such as half an emoji, where a server cut a text; the same
    object where there is nothing to mend, and for what is no JSON."""
    text = data.decode("utf-8", "replace")
    if "\ufffd" not in text and "\\ud" not in text and "\\uD" not in text:
        return data
    try:
        return json.dumps(json.loads(text, strict=False), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return data


def _tool(tool: Any) -> dict[str, Any] | None:
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        return None
    found = {"name": name, "inputSchema": _schema(tool.get("inputSchema"), name)}
    found |= {key: tool[key] for key in ("title", "description") if isinstance(tool.get(key), str)}
    if isinstance(hints := tool.get("annotations"), dict):
        found["annotations"] = {key: hints[key] for key in _HINTS if isinstance(hints.get(key), bool)}
    return found


def _schema(schema: Any, name: str) -> dict[str, Any]:
    """The schema of an object, as which arguments are given, without what is no schema among its properties."""
    found: dict[str, Any] = {**schema, "type": "object"} if isinstance(schema, dict) else {"type": "object"}
    properties = found.pop("properties", None)
    if isinstance(properties, dict):
        read = {key: {} if value is True else value for key, value in properties.items()}
        found["properties"] = {key: value for key, value in read.items() if isinstance(value, dict)}
        if wrong := sorted({key for key, value in read.items() if value is not False} - found["properties"].keys()):
            told = printable(", ".join(wrong)[:_SHOWN])
            log.warning("the MCP tool %s: no schema, so left out: %s", printable(name[:_SHOWN]), told)
    required = found.pop("required", None)
    if isinstance(required, list):
        known = found.get("properties", {})
        found["required"] = [key for key in required if isinstance(key, str) and key in known]
    return found


def _text(part: Any) -> str | None:
    """The text of a part of a result, or what it is; None: there is nothing."""
    if isinstance(part, str) or part is None:
        return part
    if not isinstance(part, Mapping):
        return _json(part)
    inner = part.get("resource")
    inner = inner if isinstance(inner, Mapping) else {}
    for text in (part.get("text"), inner.get("text")):
        if isinstance(text, str):
            return text
    if part.get("type") == "text":
        return None if part.get("text") is None else _json(part["text"])
    kind = next((known for each in (part, inner) if (known := each.get("mimeType"))), "of unknown type")
    where = part.get("uri") or inner.get("uri")
    return f"[{part.get('type')}, {kind}{f', {where}' if where else ''}: not text, so it is not shown]"


def _json(value: Any) -> str:
    return pydantic_core.to_json(value).decode()
