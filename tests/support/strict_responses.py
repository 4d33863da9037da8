"""What OpenAI's Responses API refuses of a request, in its wording: for scripted servers of that form.

refusal({"input": [{"type": "function_call_output", "call_id": "a", ...}], "model": "m"})
    Reply(status=400, ...): "No tool call found for function call output with call_id a."
refusal(body, reasoned={"fc_1": "rs_1"})     what the server remembers: this call came out of that reasoning

Sources, as of November 2026: the types of openai 3.57 (tests/messages/test_strict_servers.py compares `ITEMS` with
them), and the errors that its users report. Practice differs from the types in two places: `id` of a message or of
reasoning may be left out (clients that keep nothing on the server do), and `status` of reasoning is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server_replies import Reply

Found = Iterator[tuple[str | None, str | None, str]]
"""(parameter, code, message)"""
OPTIONS = frozenset(
    (
        *("background", "context_management", "conversation", "include", "input", "instructions", "max_output_tokens"),
        *("max_tool_calls", "metadata", "model", "parallel_tool_calls", "previous_response_id", "prompt", "stream"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier"),
        *("service_tier", "store", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs"),
        *("top_p", "truncation", "user"),
    )
)
ITEMS: Mapping[str, tuple[str, str]] = {
    "message": ("content role", "id phase status"),
    "reasoning": ("summary", "id content encrypted_content"),
    "function_call": ("arguments call_id name", "async caller id namespace status"),
    "function_call_output": ("output", "call_id caller id name namespace status"),
    "custom_tool_call": ("call_id input name", "async caller id namespace"),
    "custom_tool_call_output": ("call_id output", "caller id"),
    "computer_call": ("call_id id pending_safety_checks status", "action actions"),
    "computer_call_output": ("call_id output", "acknowledged_safety_checks id status"),
    "shell_call": ("action call_id", "caller environment id status"),
    "shell_call_output": ("call_id output", "caller id max_output_length status"),
    "local_shell_call": ("action call_id id status", ""),
    "local_shell_call_output": ("id output", "status"),
    "apply_patch_call": ("call_id operation status", "caller id"),
    "apply_patch_call_output": ("call_id status", "caller id output"),
    "tool_search_call": ("arguments", "call_id execution id status"),
    "tool_search_output": ("tools", "call_id execution id status"),
    "web_search_call": ("action id status", ""),
    "file_search_call": ("id queries status", "results"),
    "code_interpreter_call": ("code container_id id outputs status", ""),
    "image_generation_call": (
        "id result status",
        "action background error output_format quality revised_prompt size svg_usage",
    ),
    "mcp_list_tools": ("id server_label tools", "error"),
    "mcp_approval_request": ("arguments id name server_label", ""),
    "mcp_approval_response": ("approval_request_id approve", "id reason"),
    "mcp_call": ("arguments id name server_label", "approval_request_id error output status"),
    "program": ("call_id code fingerprint id", ""),
    "program_output": ("call_id id result status", ""),
    "additional_tools": ("role tools", "id"),
    "configuration_update": ("", "id reasoning text"),
    "compaction": ("encrypted_content", "id"),
    "compaction_trigger": ("", "id"),
    "item_reference": ("id", ""),
}
"""Type of an item -> fields that it has to have, and those that it may have, beside `type`."""
TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("call_id", "name", "namespace", "id", "input", "code", "approval_request_id", "result"), str),
    **dict.fromkeys(("summary", "tools", "queries", "pending_safety_checks"), list),
    **dict.fromkeys(("action", "operation", "caller"), dict),
    "approve": bool,
}
NULLABLE = frozenset(("result", "code", "call_id", "caller", "namespace", "name", "id", "approval_request_id"))
OUTPUTS: Mapping[str, type | tuple[type, ...]] = {
    "function_call_output": (str, list),
    "custom_tool_call_output": (str, list),
    "computer_call_output": dict,
    "shell_call_output": list,
    "local_shell_call_output": str,
    "apply_patch_call_output": (str, type(None)),
}
NAMES = {str: "a string", list: "an array", dict: "an object", bool: "a boolean", type(None): "null"}
IN_PARTS = ("input_text", "input_image", "input_file")
OUT_PARTS = ("output_text", "refusal")
STATES = ("in_progress", "completed", "incomplete", "searching", "generating", "interpreting", "calling", "failed")
CALLS: Mapping[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Calls that the client answers -> type of the answer."""
OF_THE_CLIENT = frozenset((*CALLS.values(), "additional_tools", "configuration_update", "compaction_trigger"))


def refusal(body: Mapping[str, Any], *, reasoned: Mapping[str, str] | None = None) -> Reply | None:
    """The refusal of a request; None: it is taken. `reasoned`: id of an item -> of the reasoning that led to it."""
    for param, code, message in _mistakes(body, reasoned or {}):
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        return Reply(status=404 if code == "not_found" else 400, body=json.dumps({"error": error}, indent=2).encode())
    return None


def reasoned_of(items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a server that sampled these items remembers: id of an item -> of the reasoning that led to it."""
    found: dict[str, str] = {}
    thought = None
    for item in items:
        if item.get("type") == "reasoning":
            thought = item.get("id")
        elif not _sampled(item):
            thought = None
        elif thought is not None and isinstance(item.get("id"), str):
            found[item["id"]] = thought
    return found


def _sampled(item: Mapping[str, Any]) -> bool:
    kind = item.get("type", "message")
    return item.get("role") == "assistant" if kind == "message" else kind not in OF_THE_CLIENT


def _mistakes(body: Mapping[str, Any], reasoned: Mapping[str, str]) -> Found:
    if "messages" in body:
        yield (
            "messages",
            "unsupported_parameter",
            "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'.",
        )
    for option in body:
        if option not in OPTIONS:
            yield option, "unknown_parameter", f"Unknown parameter: '{option}'."
    if not body.get("model"):
        yield "model", "missing_required_parameter", "Missing required parameter: 'model'."
    if body.get("stream_options") and not body.get("stream"):
        yield (
            "stream_options",
            None,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        )
    for at, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") in ("function", "custom") and not tool.get("name"):
            yield f"tools[{at}].name", "missing_required_parameter", f"Missing required parameter: 'tools[{at}].name'."
    given = body.get("input")
    if isinstance(given, str):
        return
    if given is None:
        yield "input", "missing_required_parameter", "Missing required parameter: 'input'."
    elif not isinstance(given, list):
        yield "input", "invalid_type", _wrong("input", "one of a list of input items or a string", given)
    else:
        for at, item in enumerate(given):
            yield from _of_an_item(item, f"input[{at}]")
        yield from _of_pairs(given)
        yield from _of_reasoning(given, reasoned, body.get("store") is not False)


def _wrong(where: str, expected: str, value: Any) -> str:
    got = NAMES.get(type(value), "an integer")
    return f"Invalid type for '{where}': expected {expected}, but got {got} instead."


def _of_an_item(item: Mapping[str, Any], where: str) -> Found:
    kind = item.get("type", "item_reference" if "role" not in item and "id" in item else "message")
    if kind not in ITEMS:
        known = ", ".join(f"'{each}'" for each in ITEMS)
        yield f"{where}.type", "invalid_value", f"Invalid value: '{kind}'. Supported values are: {known}."
        return
    required, optional = (fields.split() for fields in ITEMS[kind])
    for field in required:
        if field not in item:
            yield f"{where}.{field}", "missing_required_parameter", f"Missing required parameter: '{where}.{field}'."
    for field, value in item.items():
        at = f"{where}.{field}"
        if field not in (*required, *optional, "type"):
            yield at, "unknown_parameter", f"Unknown parameter: '{at}'."
        wanted = OUTPUTS.get(kind, TYPES.get(field)) if field == "output" else TYPES.get(field)
        if wanted is None or (value is None and field in NULLABLE and field in (*optional, "result", "code")):
            continue
        if not isinstance(value, wanted):
            several = wanted if isinstance(wanted, tuple) else (wanted,)
            yield at, "invalid_type", _wrong(at, " or ".join(NAMES[each] for each in several), value)
    id = item.get("call_id")
    if isinstance(id, str) and not 0 < len(id) <= 64:
        long = f"long. Expected a string with maximum length 64, but got a string with length {len(id)} instead."
        short = "short. Expected a string with minimum length 1, but got an empty string instead."
        yield (
            f"{where}.call_id",
            "string_above_max_length" if id else "empty_string",
            f"Invalid '{where}.call_id': string too {long if id else short}",
        )
    if kind in ("function_call", "mcp_call", "mcp_approval_request") and not isinstance(item.get("arguments"), str):
        at = f"{where}.arguments"
        yield at, "invalid_type", _wrong(at, "a string", item.get("arguments"))
    if isinstance(state := item.get("status"), str) and state not in STATES:
        yield f"{where}.status", "invalid_value", f"Invalid value: '{state}'. Supported values are: 'completed', ..."
    if kind == "message":
        yield from _of_a_message(item, where)
    elif kind in ("function_call_output", "custom_tool_call_output") and isinstance(item["output"], list):
        yield from _of_parts(item["output"], f"{where}.output", IN_PARTS)
    elif kind == "computer_call_output" and isinstance(item["output"], dict):
        yield from _of_a_screenshot(item["output"], f"{where}.output")
    elif kind == "shell_call_output":
        for number, chunk in enumerate(item["output"]):
            for field in ("outcome", "stderr", "stdout"):
                if field not in chunk:
                    at = f"{where}.output[{number}].{field}"
                    yield at, "missing_required_parameter", f"Missing required parameter: '{at}'."


def _of_a_message(item: Mapping[str, Any], where: str) -> Found:
    role, content = item["role"], item["content"]
    if role not in ("assistant", "system", "developer", "user"):
        known = "'assistant', 'system', 'developer', and 'user'"
        yield f"{where}.role", "invalid_value", f"Invalid value: '{role}'. Supported values are: {known}."
    if isinstance(content, list):
        yield from _of_parts(content, f"{where}.content", OUT_PARTS if role == "assistant" else IN_PARTS)
    elif not isinstance(content, str):
        expected = "one of an array of objects or string"
        yield f"{where}.content", "invalid_type", _wrong(f"{where}.content", expected, content)


def _of_parts(parts: Sequence[Any], where: str, known: Sequence[str]) -> Found:
    for number, part in enumerate(parts):
        at = f"{where}[{number}]"
        kind = part.get("type")
        if kind not in known:
            supported = ", ".join(f"'{each}'" for each in known)
            yield f"{at}.type", "invalid_value", f"Invalid value: '{kind}'. Supported values are: {supported}."
        elif kind in ("input_text", "output_text", "refusal"):
            field = "refusal" if kind == "refusal" else "text"
            if not isinstance(part.get(field), str):
                yield f"{at}.{field}", "invalid_type", _wrong(f"{at}.{field}", "a string", part.get(field))
        elif kind == "input_image" and isinstance(part.get("image_url"), dict):
            yield f"{at}.image_url", "invalid_type", _wrong(f"{at}.image_url", "an image URL", part["image_url"])


def _of_a_screenshot(output: Mapping[str, Any], where: str) -> Found:
    if output.get("type") != "computer_screenshot":
        yield (
            f"{where}.type",
            "invalid_value",
            f"Invalid value: '{output.get('type')}'. Supported values are: 'computer_screenshot'.",
        )
    url = output.get("image_url")
    if not output.get("file_id") and not str(url).startswith(("data:image/", "http://", "https://")):
        yield (
            f"{where}.image_url",
            "invalid_value",
            f"Invalid '{where}.image_url'. Expected a valid URL, but got a value with an invalid format.",
        )


def _of_pairs(items: Sequence[Mapping[str, Any]]) -> Found:
    """Every call has its output behind it, every output its call before it, of its own kind."""
    open_calls: dict[tuple[str, str], Mapping[str, Any]] = {}
    programs: set[str] = set()
    for item in items:
        kind = item.get("type", "message")
        if kind in CALLS and (id := _id_of_call(item)) is not None:
            open_calls[CALLS[kind], id] = item
        if kind == "program":
            programs.add(item["call_id"])
        if kind == "program_output" and item["call_id"] not in programs:
            yield "input", None, f"No program found for program output with call_id {item['call_id']}."
        if kind not in CALLS.values():
            continue
        id = _id_of_answer(item)
        if id is None:
            continue
        call = open_calls.pop((kind, id), None)
        if call is None and kind == "local_shell_call_output":  # both ids of a call are in use
            both = [key for key, each in open_calls.items() if key[0] == kind and each.get("id") == id]
            call = open_calls.pop(both[0]) if both else None
        if call is None and kind == "mcp_approval_response":
            yield "input", None, f"Approval request {id} not found for mcp_approval_response."
        elif call is None:
            yield "input", None, f"No tool call found for {kind.replace('_', ' ')} with call_id {id}."
        elif kind == "computer_call_output":
            known = {check["id"] for check in item.get("acknowledged_safety_checks") or ()}
            unknown = [check["id"] for check in call["pending_safety_checks"] if check["id"] not in known]
            if unknown:
                yield "input", None, f"Computer tool has unacknowledged safety check for {unknown}"
    for (_, id), call in open_calls.items():
        yield "input", None, f"No tool output found for {call['type'].replace('_', ' ')} {id}."


def _id_of_call(item: Mapping[str, Any]) -> str | None:
    return item["id"] if item["type"] == "mcp_approval_request" else item.get("call_id")


def _id_of_answer(item: Mapping[str, Any]) -> str | None:
    key = {"local_shell_call_output": "id", "mcp_approval_response": "approval_request_id"}.get(item["type"], "call_id")
    return item.get(key)


def _of_reasoning(items: Sequence[Mapping[str, Any]], reasoned: Mapping[str, str], stored: bool) -> Found:
    ids = {item.get("id") for item in items if item.get("type") == "reasoning"}
    for at, item in enumerate(items):
        kind, id = item.get("type", "message"), item.get("id")
        if not stored and (kind == "item_reference" or (kind == "reasoning" and not item.get("encrypted_content"))):
            yield (
                "input",
                "not_found",
                f"Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with "
                "`store` set to true, or remove this item from your input.",
            )
        if kind == "reasoning" and (at + 1 == len(items) or not _sampled(items[at + 1])):
            yield (
                "input",
                None,
                f"Item '{id}' of type 'reasoning' was provided without its required following item.",
            )
        if id in reasoned and reasoned[id] not in ids:
            yield (
                "input",
                None,
                f"Item '{id}' of type '{kind}' was provided without its required 'reasoning' item: '{reasoned[id]}'.",
            )
