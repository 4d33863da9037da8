"""Checks whether a provider would accept a conversation: the rules of pairing and order, read from the messages alone.

    check([{"role": "user", ...}, {"role": "tool", ...}])    UserError: messages[1] answers 'a', which nothing called

Sources, as of November 2026: the API references of OpenAI (chat completions; Responses, and the types of its library
3.57), Anthropic (platform.claude.com/docs: messages, tool use, server tools, thinking, late system messages) and Google
(thought signatures), the errors that users of these APIs report, and what chat templates refuse (a second system
message, no message of the user).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mem1.errors import UserError

Message = Mapping[str, Any]
_TEXT_OR_PARTS = (str, list, tuple)
_THOUGHTS = ("thinking", "redacted_thinking")


def check(
    messages: Sequence[Message], form: str = "chat", *, waiting: bool = False, given: Sequence[Message] | None = None
) -> None:
    """Raises UserError, naming the first message that a provider would refuse.

    `waiting`: calls at the end may still wait for their results. `given`: the conversation that a memory made them of:
    a turn that did not begin with thoughts there, as models that think when they like to have them, has lost none.
    """
    try:
        rules = _RULES[form]
    except KeyError:
        raise UserError(f"unknown form of messages {form!r}; known: {', '.join(_RULES)}") from None
    try:
        rules(messages, waiting)
        if form == "anthropic":
            _thoughts_first(messages, given)
    except (LookupError, TypeError, AttributeError) as error:  # a list where a text belongs, or nothing
        raise UserError(f"a message is not as providers have it ({type(error).__name__}: {error})") from error


def _chat(messages: Sequence[Message], waiting: bool) -> None:
    open_calls: dict[str, None] = {}
    users = 0
    for at, message in enumerate(messages):
        role = message["role"]
        _require(
            role in ("system", "developer", "user", "assistant", "tool", "function"),
            f"messages[{at}] has the role {role!r}",
        )
        # chat templates: a system message only at the beginning
        _require(at == 0 or role not in ("system", "developer"), f"messages[{at}] is a second or late system message")
        if role in ("tool", "function"):
            # a function's message names the function that the assistant's function_call called
            _answered(message.get("tool_call_id" if role == "tool" else "name"), open_calls, at)
            _require(message.get("content") is not None, f"messages[{at}] has no content")
            continue
        # "must be followed by tool messages responding to each 'tool_call_id'"
        _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
        if role == "assistant":
            open_calls = _chat_calls(message, at)
            # content is "required unless tool_calls or function_call is specified"; a refusal or audio can stand for it
            says = any(message.get(key) for key in ("content", "refusal", "audio"))
            _require(bool(open_calls) or says, f"messages[{at}] has neither content nor calls")
        users += role == "user"
        _require(role == "assistant" or bool(message.get("content")), f"messages[{at}] has no content")
    _require(users > 0, "no message is the user's")
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")
    _signed(messages)


def _chat_calls(message: Message, at: int) -> dict[str, None]:
    calls = message.get("tool_calls") or []
    if not calls and message.get("function_call"):
        return {message["function_call"]["name"]: None}
    open_calls = {call["id"]: None for call in calls}
    _require(len(open_calls) == len(calls), f"messages[{at}] has two calls with one id")
    return open_calls


def _signed(messages: Sequence[Message]) -> None:
    """Gemini 3 over this form: the first of parallel calls carries the thought's signature, in each step since the last
    message of the user ("Function call is missing a thought_signature"), if any step of the model's does."""
    called = [(at, message["tool_calls"]) for at, message in enumerate(messages) if message.get("tool_calls")]
    if not any(_signature(calls[0]) for _, calls in called):
        return
    since = max(at for at, message in enumerate(messages) if message["role"] == "user")
    for at, calls in called:
        _require(at < since or bool(_signature(calls[0])), f"messages[{at}] lacks the signature of its first call")


def _signature(call: Message) -> Any:
    return ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature")


def _responses(items: Sequence[Message], waiting: bool) -> None:
    open_calls: dict[str, str] = {}
    """Id -> type of the call."""
    approvals: set[str] = set()
    programs: set[str] = set()
    items_of = dict[str, str]()
    """Id of the item of a local shell's call -> of the call: clients answer either."""
    users = 0
    reasoning = False
    for at, item in enumerate(items):
        kind, role = item.get("type", "message"), item.get("role")
        _require(kind != "item_reference", f"messages[{at}] refers to what a server keeps")
        if kind in _CALL_OF and isinstance(id := _answered_id(item), str):
            id = items_of.get(id, id)
            call = open_calls.get(id)
            _require(call is not None, f"messages[{at}] answers {id!r}, which nothing called")
            # each kind of call has its own kind of output
            _require(call == _CALL_OF[kind], f"messages[{at}]: a {kind} answers a {call}")
            _require(_OUTPUTS[kind](item), f"messages[{at}]: this is no content of a {kind}")
            # "Item 'rs_...' of type 'reasoning' was provided without its required following item"
            _require(not reasoning, f"messages[{at}] comes between reasoning and what it led to")
            del open_calls[id]
            continue
        if kind == "message" and role != "assistant":
            _require(
                at == 0 or role not in ("system", "developer"), f"messages[{at}] is a second or late system message"
            )
            # "No tool output found for function call ..."
            _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
            _require(not reasoning, f"messages[{at}] comes between reasoning and what it led to")
            users += role == "user"
            continue
        if kind in _ID_OF and isinstance(id := item.get(_ID_OF[kind]), str):
            _require(id not in open_calls, f"messages[{at}] has the id of another open call")
            open_calls[id] = kind
            if kind == "local_shell_call" and isinstance(item.get("id"), str):
                items_of[item["id"]] = id
            caller = item.get("caller") or {}
            called_by = caller.get("caller_id") if caller.get("type") == "program" else None
            _require(called_by is None or called_by in programs, f"messages[{at}] lacks the program that called it")
        if kind == "mcp_approval_request":
            approvals.add(item["id"])
        if kind == "mcp_call" and item.get("approval_request_id") is not None:
            _require(item["approval_request_id"] in approvals, f"messages[{at}] lacks the request for its approval")
        if kind == "program":
            programs.add(item["call_id"])
        if kind == "program_output":
            _require(item["call_id"] in programs, f"messages[{at}] lacks its program")
        reasoning = kind == "reasoning"
    _require(users > 0, "no message is the user's")
    _require(not reasoning, "reasoning without what it led to at the end")
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")


def _answered_id(item: Message) -> Any:
    kind = item["type"]
    if kind == "local_shell_call_output":
        return item.get("id", item.get("call_id"))
    key = {"mcp_approval_response": "approval_request_id"}.get(kind, "call_id")
    return item.get(key)


def _text_or_parts(item: Message) -> bool:
    return isinstance(item.get("output"), _TEXT_OR_PARTS)


def _screenshot(item: Message) -> bool:
    output = item.get("output")
    if not isinstance(output, Mapping) or output.get("type") != "computer_screenshot":
        return False
    return bool(output.get("file_id")) or str(output.get("image_url")).startswith(
        ("data:image/", "https://", "http://")
    )


def _chunks(item: Message) -> bool:
    output = item.get("output")
    return isinstance(output, list | tuple) and all(
        isinstance(chunk.get("stdout"), str)
        and isinstance(chunk.get("stderr"), str)
        and (chunk.get("outcome") or {}).get("type") in ("exit", "timeout")
        for chunk in output
    )


def _patched(item: Message) -> bool:
    return item.get("status") in ("completed", "failed") and isinstance(item.get("output", ""), str | None)


_ID_OF = {
    "function_call": "call_id",
    "custom_tool_call": "call_id",
    "computer_call": "call_id",
    "shell_call": "call_id",
    "local_shell_call": "call_id",
    "apply_patch_call": "call_id",
    "tool_search_call": "call_id",
    "mcp_approval_request": "id",
}
"""Calls that the client answers -> key of their id."""
_OUTPUTS: Mapping[str, Callable[[Message], bool]] = {
    "function_call_output": _text_or_parts,
    "custom_tool_call_output": _text_or_parts,
    "computer_call_output": _screenshot,
    "shell_call_output": _chunks,
    "local_shell_call_output": lambda item: isinstance(item.get("output"), str),
    "apply_patch_call_output": _patched,
    "tool_search_output": lambda item: isinstance(item.get("tools"), list | tuple),
    "mcp_approval_response": lambda item: isinstance(item.get("approve"), bool),
}
"""Types of answers -> whether one has the shape that its type has."""
_CALL_OF = {
    **{output: output.removesuffix("_output") for output in _OUTPUTS},
    "tool_search_output": "tool_search_call",
    "mcp_approval_response": "mcp_approval_request",
}


def _anthropic(messages: Sequence[Message], waiting: bool) -> None:
    open_calls: list[str] = []
    server_calls: set[str] = set()
    before = None
    _require(bool(messages) and messages[0]["role"] == "user", "the first message is not the user's")
    for at, message in enumerate(messages):
        role, blocks = message["role"], _blocks_of(message)
        # "role 'system' must precede an 'assistant' message or end the array"
        _require(before != "system" or role == "assistant", f"messages[{at}] follows a system message and is no answer")
        # "messages.N: all messages must have non-empty content", "text content blocks must be non-empty"
        _require(bool(blocks), f"messages[{at}] has no content")
        for block in blocks:
            _require(block.get("type") != "text" or bool(block["text"].strip()), f"messages[{at}] has an empty text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if role == "system":
            # mid-conversation system messages stand immediately after a message of the user
            _require(before == "user", f"messages[{at}] is a system message that follows none of the user's")
            _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
        elif role == "assistant":
            # "tool_use ids were found without tool_result blocks immediately after"
            _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
            _require(not results, f"messages[{at}] has results in the assistant's role")
            open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            _require(len(set(open_calls)) == len(open_calls), f"messages[{at}] has two calls with one id")
            for block in blocks:
                if block["type"].endswith("_tool_use"):
                    server_calls.add(block["id"])
                elif block["type"].endswith("_tool_result"):
                    # "Each `..._tool_result` block must have a corresponding `server_tool_use` block before it"
                    _require(
                        block["tool_use_id"] in server_calls,
                        f"messages[{at}] answers {block['tool_use_id']!r}, which the server was never asked",
                    )
        else:
            _require(role == "user", f"messages[{at}] has the role {role!r}")
            # "each tool_use must have a single result", and no result answers anything else
            _require(
                sorted(results) == sorted(open_calls), f"messages[{at}] answers {results}; called were {open_calls}"
            )
            kinds = [block["type"] == "tool_result" for block in blocks]
            _require(kinds == sorted(kinds, reverse=True), f"messages[{at}] has text before a result")
            open_calls = []
        before = role
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")
    # "final assistant content cannot end with trailing whitespace"
    last = _blocks_of(messages[-1])[-1]
    ends = last.get("text", "") if messages[-1]["role"] == "assistant" else ""
    _require(ends == ends.rstrip(), "the last message of the assistant ends in white space")


def _thoughts_first(messages: Sequence[Message], given: Sequence[Message] | None) -> None:
    """While a loop of tools is open: "a final `assistant` message must start with a thinking block (preceding the
    lastmost set of `tool_use` and `tool_result` blocks)" if the model thought in it, unless it thinks adaptively."""
    said = _open_turn(messages)
    if any(block["type"] in _THOUGHTS for blocks in said for block in blocks) and not _begins_with_thoughts(said):
        _require(
            given is not None and not _begins_with_thoughts(_open_turn(given)),
            "the turn that is not over has lost the thoughts that it began with",
        )


def _open_turn(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """What the model said since the last words of the user, by message."""
    said = list[Sequence[Message]]()
    for message in reversed(messages):
        blocks = _blocks_of(message)
        if message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks):
            break
        if message["role"] == "assistant":
            said.append(blocks)
    return said[::-1]


def _begins_with_thoughts(said: Sequence[Sequence[Message]]) -> bool:
    return bool(said) and said[0][0]["type"] in _THOUGHTS


def _blocks_of(message: Message) -> Sequence[Message]:
    blocks = message["content"]
    return [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks


def _answered(id: Any, open_calls: dict[str, None], at: int) -> None:
    _require(isinstance(id, str) and id in open_calls, f"messages[{at}] answers {id!r}, which nothing called")
    del open_calls[id]


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise UserError(why)


_RULES: Mapping[str, Callable[[Sequence[Message], bool], None]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
}
