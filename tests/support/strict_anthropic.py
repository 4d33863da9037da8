"""What Anthropic's Messages API refuses of a request, in its wording: for scripted servers of that form.

refusal({"messages": [{"role": "assistant", ...}], "model": "m", "max_tokens": 9})
    Reply(status=400, ...): 'messages: first message must use the "user" role'
refusal(body, said=messages)     what the server remembers of its own: thoughts of the last turn come back as they were
refusal(body, late_system=False)  a model before Opus 4.8, which takes no system message behind the first

Sources, as of November 2026: the types of anthropic 2.14, from which `BLOCKS` and `OPTIONS` are, and the errors that
users of the API report. Consecutive messages of one role are taken: the API merges them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_replies import Reply

Message = Mapping[str, Any]
OPTIONS = frozenset(
    (
        *("max_tokens", "messages", "model", "cache_control", "container", "diagnostics", "inference_geo", "metadata"),
        *("output_config", "service_tier", "speed", "stop_sequences", "system", "thinking", "tool_choice", "tools"),
        *("stream", "temperature", "top_k", "top_p", "user_profile_id", "workspace_id"),
        *("context_management", "mcp_servers", "output_format"),  # beta
    )
)
BLOCKS: Mapping[str, tuple[str, str]] = {
    "text": ("text", "cache_control citations"),
    "image": ("source", "cache_control transformations"),
    "document": ("source", "cache_control citations context title"),
    "search_result": ("content source title", "cache_control citations"),
    "thinking": ("signature thinking", ""),
    "redacted_thinking": ("data", ""),
    "tool_use": ("id input name", "cache_control caller toolset_name"),
    "tool_result": ("tool_use_id", "cache_control content is_error toolset_name"),
    "server_tool_use": ("id input name", "cache_control caller"),
    "mcp_tool_use": ("id input name server_name", "cache_control"),
    "mcp_tool_result": ("tool_use_id", "cache_control content is_error"),
    "container_upload": ("file_id", "cache_control"),
    "compaction": ("", "cache_control content encrypted_content signature tool_changes"),
    "web_search_tool_result": ("content tool_use_id", "cache_control caller"),
    "web_fetch_tool_result": ("content tool_use_id", "cache_control caller"),
    **{
        f"{name}_tool_result": ("content tool_use_id", "cache_control")
        for name in ("code_execution", "bash_code_execution", "text_editor_code_execution", "tool_search", "advisor")
    },
}
"""Type of a block -> fields that it has to have, and those that it may have, beside `type`."""
IN_RESULTS = ("text", "image", "document", "search_result", "tool_reference")
OF_THE_USER = ("text", "image", "document", "search_result", "tool_result", "container_upload")
THOUGHTS = ("thinking", "redacted_thinking")
THINKING_DOCS = (
    "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost "
    "set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To "
    "avoid this requirement, disable `thinking`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
)


@dataclass(frozen=True)
class Turn:
    """Consecutive messages of one role."""

    role: str
    at: int
    """Place of the first one."""
    blocks: list[Message]


def refusal(body: Mapping[str, Any], *, said: Sequence[Message] = (), late_system: bool = True) -> Reply | None:
    """The refusal of a request; None: it is taken. `said`: the conversation as the server remembers it."""
    for message in _mistakes(body, said, late_system):
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "req_1"}
        return Reply(status=400, body=json.dumps(error).encode())
    return None


def _mistakes(body: Mapping[str, Any], said: Sequence[Message], late_system: bool) -> Iterator[str]:
    for option in ("model", "messages", "max_tokens"):
        if option not in body:
            yield f"{option}: Field required"
    for option in body:
        if option not in OPTIONS:
            yield f"{option}: Extra inputs are not permitted"
    if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        yield "max_tokens: Input should be greater than or equal to 1"
    yield from _of_thinking(body)
    yield from _of_system(body.get("system"))
    for at, tool in enumerate(body.get("tools") or ()):
        yield from _of_a_tool(tool, f"tools.{at}")
    names = [tool.get("name") for tool in body.get("tools") or ()]
    if len({*names}) < len(names):
        yield "tools: Tool names must be unique."
    messages = body["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        yield "messages: Input should be a valid list of objects"
    if not messages:
        yield "messages: at least one message is required"
    for at, message in enumerate(messages):
        yield from _of_a_message(message, at, late_system)
    marked = _marks([body.get("system"), body.get("tools"), messages])
    if marked > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marked}."
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _of_order(messages)
    turns = _turns(messages)
    yield from _of_calls(turns)
    yield from _of_the_servers_calls(turns)
    yield from _of_the_end(body, turns, said)


def _of_thinking(body: Mapping[str, Any]) -> Iterator[str]:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        if thinking.get("budget_tokens", 0) < 1024:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        if body["max_tokens"] <= thinking["budget_tokens"]:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    if thinking.get("type") in ("enabled", "adaptive"):
        if body.get("temperature", 1) != 1:
            yield "`temperature` may only be set to 1 when thinking is enabled."
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            yield "Thinking may not be enabled when tool_choice forces tool use."


def _of_system(system: Any) -> Iterator[str]:
    if system is not None and not isinstance(system, str | list):
        yield "system: Input should be a valid list"
    for at, block in enumerate(system if isinstance(system, list) else ()):
        if block.get("type") != "text":
            yield f"system.{at}.type: Input should be 'text'"
        if not block["text"]:
            yield "system: text content blocks must be non-empty"


def _of_a_tool(tool: Message, where: str) -> Iterator[str]:
    if tool.get("type", "custom") not in ("custom", None):
        return  # the server's own
    for field in ("name", "input_schema"):
        if field not in tool:
            yield f"{where}.custom.{field}: Field required"
    if tool["input_schema"].get("type") != "object":
        yield f"{where}.custom.input_schema.type: Field required"
    known = ("allowed_callers", "cache_control", "defer_loading", "description", "eager_input_streaming")
    for field in tool:
        if field not in (*known, "input_examples", "strict", "type", "name", "input_schema"):
            yield f"{where}.custom.{field}: Extra inputs are not permitted"


def _of_a_message(message: Message, at: int, late_system: bool) -> Iterator[str]:
    where, role, content = f"messages.{at}", message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        yield f"{where}.role: Input should be 'user' or 'assistant'"
    if role == "system" and not late_system:
        yield (
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" '
            "as an input message role."
        )
    for field in message:
        if field not in ("role", "content") and (role, field) not in (
            ("system", "output_config"),
            ("system", "clear_at"),
        ):
            yield f"{where}.{field}: Extra inputs are not permitted"
    if "content" not in message:
        yield f"{where}.content: Field required"
    if not isinstance(content, str | list):
        yield f"{where}.content: Input should be a valid list"
    if not content:
        yield f"{where}: {role} messages must have non-empty content"
    if isinstance(content, str):
        if not content.strip():
            yield "messages: text content blocks must contain non-whitespace text"
        return
    for number, block in enumerate(content or ()):
        yield from _of_a_block(block, f"{where}.content.{number}", role)


def _of_a_block(block: Message, where: str, role: Any) -> Iterator[str]:
    kind = block.get("type")
    if kind not in BLOCKS or (role == "system" and kind != "text"):
        known = ", ".join(f"'{each}'" for each in BLOCKS)
        yield (f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {known}")
        return
    if role == "user" and kind not in OF_THE_USER:
        yield f"{where}: `{kind}` blocks can only be in `assistant` messages"
    if role == "assistant" and kind == "tool_result":
        yield f"{where}: `tool_result` blocks can only be in `user` messages"
    required, optional = (fields.split() for fields in BLOCKS[kind])
    for field in required:
        if field not in block:
            yield f"{where}.{kind}.{field}: Field required"
    for field in block:
        if field not in (*required, *optional, "type"):
            yield f"{where}.{kind}.{field}: Extra inputs are not permitted"
    if kind == "text":
        yield from _of_a_text(block["text"], where)
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use") and not isinstance(block["input"], dict):
        yield f"{where}.{kind}.input: Input should be a valid dictionary"
    inner = block.get("content") if kind == "tool_result" else None
    for number, part in enumerate(inner if isinstance(inner, list) else ()):
        at = f"{where}.tool_result.content.{number}"
        if part.get("type") not in IN_RESULTS:
            yield f"{at}: Input tag '{part.get('type')}' found using 'type' does not match any of the expected tags"
        elif part["type"] == "text":
            yield from _of_a_text(part["text"], at)


def _of_a_text(text: Any, where: str) -> Iterator[str]:
    if not isinstance(text, str):
        yield f"{where}.text.text: Input should be a valid string"
    elif not text:
        yield "messages: text content blocks must be non-empty"
    elif not text.strip():
        yield "messages: text content blocks must contain non-whitespace text"


def _marks(value: Any) -> int:
    """Number of marks for the cache."""
    if isinstance(value, list | tuple):
        return sum(map(_marks, value))
    if not isinstance(value, Mapping):
        return 0
    return (value.get("cache_control") is not None) + _marks(value.get("content"))


def _of_order(messages: Sequence[Message]) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    for at, role in enumerate(roles):
        if role == "system" and roles[at - 1] != "user":
            yield f"messages.{at}: role 'system' must follow a 'user' message"
        if role == "system" and at + 1 < len(roles) and roles[at + 1] != "assistant":
            yield f"messages.{at}: role 'system' must precede an 'assistant' message or end the array"


def _turns(messages: Sequence[Message]) -> list[Turn]:
    turns: list[Turn] = []
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if message["role"] == "system":
            continue
        if turns and turns[-1].role == message["role"]:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(Turn(message["role"], at, blocks))
    return turns


def _of_calls(turns: Sequence[Turn]) -> Iterator[str]:
    seen: set[str] = set()
    for number, turn in enumerate(turns):
        before = turns[number - 1].blocks if number and turn.role == "user" else ()
        called = [block["id"] for block in before if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in turn.blocks if block["type"] == "tool_result"]
        for place, block in enumerate(turn.blocks):
            if block["type"] == "tool_result" and block["tool_use_id"] not in called:
                yield (
                    f"messages.{turn.at}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )
        first = next((place for place, block in enumerate(turn.blocks) if block["type"] != "tool_result"), len(results))
        missing = [id for id in called if id not in results or first < len(results)]
        if turn.role == "assistant" and number + 1 == len(turns):
            missing = [block["id"] for block in turn.blocks if block["type"] == "tool_use"]
        if missing:
            at = turn.at if turn.role == "assistant" else turns[number - 1].at
            yield (
                f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        if len({*results}) < len(results):
            yield (
                f"messages.{turn.at}.content: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {results[0]}"
            )
        for block in turn.blocks:
            if block["type"] in ("tool_use", "server_tool_use", "mcp_tool_use"):
                if block["id"] in seen and block["type"] == "tool_use":
                    yield "messages: `tool_use` ids must be unique"
                seen.add(block["id"])


def _of_the_servers_calls(turns: Sequence[Turn]) -> Iterator[str]:
    """Results behind their calls; a call that nothing answers may stand in the last turn alone, which goes on."""
    waiting: dict[tuple[str, str], Turn] = {}
    for turn in turns:
        for place, block in enumerate(turn.blocks):
            kind = block["type"]
            if kind in ("server_tool_use", "mcp_tool_use"):
                waiting[kind, block["id"]] = turn
            elif kind.endswith("_tool_result"):
                use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
                if waiting.pop((use, block["tool_use_id"]), None) is None:
                    yield (
                        f"messages.{turn.at}.content.{place}: unexpected `tool_use_id` found in `{kind}` blocks: "
                        f"{block['tool_use_id']}. Each `{kind}` block must have a corresponding `{use}` block before "
                        "it."
                    )
    open_at = _begins_at(turns)
    for (use, id), turn in waiting.items():
        if turn.at < open_at:
            yield (f"messages.{turn.at}: `{use}` ids were found without a corresponding result block: {id}.")


def _begins_at(turns: Sequence[Turn]) -> int:
    """Where the turn that is not over begins: behind the user's last words."""
    spoken = [t.at for t in turns if t.role == "user" and any(b["type"] != "tool_result" for b in t.blocks)]
    return max(spoken, default=0)


def _of_the_end(body: Mapping[str, Any], turns: Sequence[Turn], said: Sequence[Message]) -> Iterator[str]:
    own = [turn for turn in turns if turn.role == "assistant"]
    loop = [turn for turn in own if turn.at > _begins_at(turns)]
    if (body.get("thinking") or {}).get("type") == "enabled" and loop and loop[0].blocks[0]["type"] not in THOUGHTS:
        yield (
            f"messages.{loop[0].at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{loop[0].blocks[0]['type']}`. {THINKING_DOCS}"
        )
    if own:
        yield from _of_the_last_thoughts(own[-1], said)
    last = turns[-1].blocks[-1]
    if turns[-1].role == "assistant" and last["type"] == "text" and last["text"] != last["text"].rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


def _of_the_last_thoughts(turn: Turn, said: Sequence[Message]) -> Iterator[str]:
    ids = {block["id"] for block in turn.blocks if block["type"] == "tool_use"}
    thoughts = [block for block in turn.blocks if block["type"] in THOUGHTS]
    for remembered in _turns(said):
        blocks = remembered.blocks
        if not ids & {block["id"] for block in blocks if block["type"] == "tool_use"} or not thoughts:
            continue
        if thoughts != [block for block in blocks if block["type"] in THOUGHTS]:
            yield (
                f"messages.{turn.at}.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant "
                "message cannot be modified. These blocks must remain as they were in the original response."
            )
