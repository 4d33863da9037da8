"""What the strict server of OpenAI's Responses refuses, and that it takes the same request once that is mended."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from strict_responses import ITEMS, reasoned_of, refusal
from transcripts import PIXEL

USER = {"role": "user", "content": "Find it."}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "found"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Oslo"}]}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}
CHECK = {"id": "cu_sc_1", "code": "malicious_instructions", "message": "?"}
CLICK = {
    **{"type": "computer_call", "id": "cu_1", "call_id": "a", "status": "completed"},
    **{"action": {"type": "screenshot"}, "pending_safety_checks": [CHECK]},
}
SHOT = {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "image_url": PIXEL}}
SHELL = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}
CHUNK = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
CHUNKS = {"type": "shell_call_output", "call_id": "a", "output": [CHUNK]}
LOCAL = {
    **{"type": "local_shell_call", "id": "l", "call_id": "a", "status": "completed"},
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
ASKED = {"type": "mcp_approval_request", "id": "r", "server_label": "s", "name": "n", "arguments": "{}"}
GIVEN = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}
PROGRAM = {"type": "program", "id": "p", "call_id": "a", "code": "", "fingerprint": "f"}
ENDED = {"type": "program_output", "id": "o", "call_id": "a", "result": "1", "status": "completed"}
SEARCHED = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}


def body(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": [USER, *items], **more}


def less(item: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != field}


def told(given: dict[str, Any], **more: Any) -> str:
    """The wording of the refusal; nothing where the request is taken."""
    found = refusal(given, **more)
    return "" if found is None or found.body is None else json.loads(found.body)["error"]["message"]


PAIRS = {
    "an output without its call": (
        "No tool call found for function call output with call_id a.",
        body(OUTPUT),
        body(CALL, OUTPUT),
    ),
    "an output before its call": (
        "No tool call found for function call output with call_id a.",
        body(OUTPUT, CALL),
        body(CALL, OUTPUT),
    ),
    "a second output": (
        "No tool call found for function call output with call_id a.",
        body(CALL, OUTPUT, OUTPUT),
        body(CALL, OUTPUT),
    ),
    "a call without its output": ("No tool output found for function call a.", body(CALL), body(CALL, OUTPUT)),
    "a shell without its output": ("No tool output found for shell call a.", body(SHELL), body(SHELL, CHUNKS)),
    "an output of another kind": (
        "No tool call found for custom tool call output with call_id a.",
        body(CALL, {**OUTPUT, "type": "custom_tool_call_output"}),
        body(CALL, OUTPUT),
    ),
    "a local shell's output under no id of its call": (
        "No tool call found for local shell call output with call_id x.",
        body(LOCAL, {"type": "local_shell_call_output", "id": "x", "output": "a"}),
        body(LOCAL, {"type": "local_shell_call_output", "id": "l", "output": "a"}),
    ),
    "an approval that nothing asked for": (
        "Approval request r not found for mcp_approval_response.",
        body(GIVEN),
        body(ASKED, GIVEN),
    ),
    "a program's output without the program": (
        "No program found for program output with call_id a.",
        body(ENDED),
        body(PROGRAM, ENDED),
    ),
    "checks that nobody acknowledged": (
        "Computer tool has unacknowledged safety check for ['cu_sc_1']",
        body(CLICK, SHOT),
        body(CLICK, {**SHOT, "acknowledged_safety_checks": [CHECK]}),
    ),
    "reasoning at the end": (
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        body(THOUGHT),
        body(THOUGHT, SAID),
    ),
    "reasoning before the user": (
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        body(THOUGHT, USER, SAID),
        body(USER, THOUGHT, SAID),
    ),
    "reasoning before an output": (
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        body(CALL, THOUGHT, OUTPUT),
        body(THOUGHT, CALL, OUTPUT),
    ),
    "reasoning that is kept nowhere": (
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        body(less(THOUGHT, "encrypted_content"), SAID, store=False),
        body(THOUGHT, SAID, store=False),
    ),
    "a reference to what is kept nowhere": (
        "Item with id 'msg_1' not found.",
        body({"type": "item_reference", "id": "msg_1"}, store=False),
        body({"type": "item_reference", "id": "msg_1"}),
    ),
}
SHAPES = {
    "a type that does not exist": ("Invalid value: 'tool'.", body({"type": "tool"}), body()),
    "a role that does not exist": (
        "Invalid value: 'tool'. Supported values are: 'assistant'",
        body({"role": "tool", "content": "x"}),
        body({"role": "developer", "content": "x"}),
    ),
    "an unknown field": (
        "Unknown parameter: 'input[1].parsed_arguments'.",
        body({**CALL, "parsed_arguments": {}}, OUTPUT),
        body({**CALL, "status": "completed"}, OUTPUT),
    ),
    "the status of reasoning": (
        "Unknown parameter: 'input[1].status'.",
        body({**THOUGHT, "status": "completed"}, SAID),
        body(THOUGHT, SAID),
    ),
    "calls of another form": (
        "Unknown parameter: 'input[1].tool_calls'.",
        body({"role": "assistant", "content": "x", "tool_calls": []}),
        body({"role": "assistant", "content": "x"}),
    ),
    "a missing id": ("Missing required parameter: 'input[1].id'.", body(less(SEARCHED, "id")), body(SEARCHED)),
    "a missing name": (
        "Missing required parameter: 'input[1].name'.",
        body(less(CALL, "name"), OUTPUT),
        body(CALL, OUTPUT),
    ),
    "a status that does not exist": (
        "Invalid value: 'done'.",
        body({**CALL, "status": "done"}, OUTPUT),
        body({**CALL, "status": "completed"}, OUTPUT),
    ),
    "arguments that are no text": (
        "Invalid type for 'input[1].arguments': expected a string, but got an object instead.",
        body({**CALL, "arguments": {}}, OUTPUT),
        body(CALL, OUTPUT),
    ),
    "an output that is an object": (
        "Invalid type for 'input[2].output': expected a string or an array, but got an object instead.",
        body(CALL, {**OUTPUT, "output": {"a": 1}}),
        body(CALL, {**OUTPUT, "output": '{"a": 1}'}),
    ),
    "a shell's output that is a text": (
        "Invalid type for 'input[2].output': expected an array, but got a string instead.",
        body(SHELL, {**CHUNKS, "output": "a"}),
        body(SHELL, CHUNKS),
    ),
    "a chunk without its outcome": (
        "Missing required parameter: 'input[2].output[0].outcome'.",
        body(SHELL, {**CHUNKS, "output": [less(CHUNK, "outcome")]}),
        body(SHELL, CHUNKS),
    ),
    "a screenshot that is no image": (
        "Invalid 'input[2].output.image_url'. Expected a valid URL",
        body({**CLICK, "pending_safety_checks": []}, {**SHOT, "output": {**SHOT["output"], "image_url": "[image]"}}),
        body({**CLICK, "pending_safety_checks": []}, SHOT),
    ),
    "a screenshot of another type": (
        "Invalid value: 'input_text'. Supported values are: 'computer_screenshot'.",
        body({**CLICK, "pending_safety_checks": []}, {**SHOT, "output": {"type": "input_text", "text": "x"}}),
        body({**CLICK, "pending_safety_checks": []}, SHOT),
    ),
    "a part of another form": (
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file'.",
        body({"role": "user", "content": [{"type": "text", "text": "x"}]}),
        body({"role": "user", "content": [{"type": "input_text", "text": "x"}]}),
    ),
    "what the user says as the model's": (
        "Invalid value: 'input_text'. Supported values are: 'output_text', 'refusal'.",
        body({"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        body(SAID),
    ),
    "an image of another form": (
        "Invalid type for 'input[1].content[0].image_url': expected an image URL, but got an object instead.",
        body({"role": "user", "content": [{"type": "input_image", "image_url": {"url": PIXEL}}]}),
        body({"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}),
    ),
    "a part without its text": (
        "Invalid type for 'input[1].content[0].text': expected a string, but got null instead.",
        body({"role": "user", "content": [{"type": "input_text", "text": None}]}),
        body({"role": "user", "content": [{"type": "input_text", "text": ""}]}),
    ),
    "no content": (
        "Invalid type for 'input[1].content': expected one of an array of objects or string, but got null instead.",
        body({"role": "assistant", "content": None}),
        body(SAID),
    ),
    "a long id": (
        "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64",
        body({**CALL, "call_id": "a" * 65}, {**OUTPUT, "call_id": "a" * 65}),
        body({**CALL, "call_id": "a" * 64}, {**OUTPUT, "call_id": "a" * 64}),
    ),
    "an empty id": (
        "Invalid 'input[1].call_id': string too short.",
        body({**CALL, "call_id": ""}, {**OUTPUT, "call_id": ""}),
        body(CALL, OUTPUT),
    ),
    "messages": (
        "Unsupported parameter: 'messages'.",
        {"model": "m", "messages": [USER]},
        {"model": "m", "input": [USER]},
    ),
    "an option that does not exist": ("Unknown parameter: 'stop'.", body(stop=["x"]), body(top_p=0.5)),
    "no model": ("Missing required parameter: 'model'.", {"input": "x"}, {"input": "x", "model": "m"}),
    "no input": ("Missing required parameter: 'input'.", {"model": "m"}, {"input": "x", "model": "m"}),
    "an input that is neither": ("Invalid type for 'input'", {"model": "m", "input": {}}, {"model": "m", "input": []}),
    "options of a stream without one": (
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        body(stream_options={"include_obfuscation": False}),
        body(stream_options={"include_obfuscation": False}, stream=True),
    ),
    "a tool of another form": (
        "Missing required parameter: 'tools[0].name'.",
        body(tools=[{"type": "function", "function": {"name": "search"}}]),
        body(tools=[{"type": "function", "name": "search", "parameters": None}]),
    ),
}


@pytest.mark.parametrize(("wording", "refused", "mended"), [*PAIRS.values(), *SHAPES.values()], ids=[*PAIRS, *SHAPES])
def test_a_request_is_refused_in_the_apis_wording_and_taken_when_mended(wording: str, refused: Any, mended: Any):
    assert told(refused).startswith(wording)
    assert told(mended) == ""


def test_an_item_without_the_reasoning_that_led_to_it_is_refused_where_the_server_remembers_it():
    whole = body(THOUGHT, CALL, {**CALL, "id": "fc_2", "call_id": "b"}, OUTPUT, {**OUTPUT, "call_id": "b"})
    known = reasoned_of(whole["input"])
    assert known == {"fc_1": "rs_1", "fc_2": "rs_1"}
    assert told(whole, reasoned=known) == ""
    lost = {**whole, "input": [item for item in whole["input"] if item is not THOUGHT]}
    assert told(lost, reasoned=known).startswith(
        "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."
    )
    nameless = {**lost, "input": [less(item, "id") for item in lost["input"]]}
    assert told(nameless, reasoned=known) == ""


def test_a_refusal_has_the_apis_status_and_names_the_parameter():
    found = refusal(body(OUTPUT))
    assert found is not None and found.status == 400 and found.body is not None
    error = json.loads(found.body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "input")
    gone = refusal(body({"type": "item_reference", "id": "x"}, store=False))
    assert gone is not None and gone.status == 404


def _members(union: Any) -> Iterator[Any]:
    if typing.get_origin(union) is typing.Union:
        for each in typing.get_args(union):
            yield from _members(each)
    else:
        yield union


def test_fields_of_items_are_those_of_the_openai_librarys_types():
    param = pytest.importorskip("openai.types.responses.response_input_item_param")
    required: dict[str, set[str]] = {}
    known: dict[str, set[str]] = {}
    for each in _members(param.ResponseInputItemParam):
        hints = typing.get_type_hints(each, include_extras=True)
        (kind,) = [name for name in typing.get_args(typing.get_type_hints(each)["type"]) if isinstance(name, str)] or [
            "item_reference"
        ]
        needs = {name for name, hint in hints.items() if "Required[" in str(hint)} - {"type"}
        required[kind] = required.get(kind, needs) & needs
        known[kind] = known.get(kind, set()) | hints.keys() - {"type"}
    # in practice: clients that keep nothing on the server leave the id of reasoning out, and its status is refused
    required["reasoning"] -= {"id"}
    known["reasoning"] -= {"status"}
    assert {kind: (set(a.split()), {*a.split(), *b.split()}) for kind, (a, b) in ITEMS.items()} == {
        kind: (required[kind], known[kind]) for kind in known
    }
