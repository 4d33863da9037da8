"""What MCP servers answer beside the protocol: one bad tool costs no other, and one bad part no result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_over_http import Served
from scripted import Script, calls, results, said

import mem1
from mem1.agent import McpServer
from mem1.agent.mcp_answers import mended, sound

OBJECT = {"type": "object"}
TEXT = {"type": "text", "text": "found"}


@pytest.mark.parametrize(
    ("tool", "taken"),
    [
        ({}, {"inputSchema": OBJECT}),
        ({"inputSchema": None, "annotations": "no", "outputSchema": OBJECT}, {"inputSchema": OBJECT}),
        ({"inputSchema": {"type": "string"}}, {"inputSchema": OBJECT}),
        (
            {"inputSchema": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
            {"inputSchema": {**OBJECT, "properties": {"a": {"type": "string"}}, "required": ["a"]}},
        ),
        (
            {"inputSchema": {**OBJECT, "properties": {"a": True, "b": False, "required": ["a"]}, "required": ["b"]}},
            {"inputSchema": {**OBJECT, "properties": {"a": {}}, "required": []}},
        ),
        (
            {"inputSchema": OBJECT, "title": "T", "annotations": {"readOnlyHint": True, "idempotentHint": "yes"}},
            {"inputSchema": OBJECT, "title": "T", "annotations": {"readOnlyHint": True}},
        ),
    ],
)
def test_a_tool_is_taken_with_what_of_it_is_right(tool: Any, taken: Any):
    nameless = [None, "a", {"name": None}, {"name": ""}]
    page = {"tools": [*nameless, {"name": "a", **tool}], "nextCursor": "b"}
    assert sound(page) == {"tools": [{"name": "a", **taken}], "nextCursor": "b"}


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ({"content": [TEXT, {"type": "hologram", "data": "x"}]}, ["found", "[hologram, of unknown type: not text, so"]),
        ({"content": [{"type": "text", "text": None}, TEXT]}, ["found"]),
        ({"content": [{"type": "text", "text": {"a": 1}}]}, ['{"a":1}']),
        ({"content": "found"}, ["found"]),
        ({"content": TEXT}, ["found"]),
        ({"content": [], "structuredContent": ["found"]}, ['["found"]']),
        ({"structuredContent": {"a": 1}}, ['{"a":1}']),
        ({"content": [TEXT], "structuredContent": {"a": 1}}, ["found"]),
        ({"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "found"}}]}, ["found"]),
        (
            {"content": [{"type": "resource_link", "uri": "a:b", "name": "b"}]},
            ["[resource_link, of unknown type, a:b:"],
        ),
    ],
)
def test_a_result_is_read_as_text_whatever_else_is_in_it(result: Any, texts: list[str]):
    read = sound({**result, "isError": None})
    assert [part["text"][: len(text)] for part, text in zip(read["content"], texts, strict=True)] == texts
    assert read == {"content": [{"type": "text", "text": part["text"]} for part in read["content"]], "isError": False}
    assert sound({"content": [], "isError": "true"})["isError"] is True


def test_other_answers_stay_the_same_object():
    for other in ({}, {"protocolVersion": "1", "capabilities": {"tools": {}}}, {"inputRequests": {}, "content": None}):
        assert sound(other) is other


def test_half_an_emoji_and_bytes_that_are_no_text_give_way_to_a_mark():
    whole = json.dumps({"a": "\U0001f600 \\ud83d"}).encode()
    assert json.loads(mended(whole)) == json.loads(whole)
    assert json.loads(mended(b'{"a": "cut \\ud83d", "b": "\\udE00"}')) == {"a": "cut ?", "b": "?"}
    assert json.loads(mended(b'{"a": "\xff"}')) == {"a": "\ufffd"}
    for same in (b'{"a": "b"}', b"no JSON \xff", "{}\u4e2d".encode()):
        assert mended(same) is same


@pytest.mark.parametrize("events", [False, True])
def test_a_server_is_of_use_whatever_one_of_its_tools_is(events: bool):
    promised = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = Script(calls(("note", "{}"), ("bad", "{}")), said("ok"))
    with Served(events=events) as server:
        server.tools = {"note": {"outputSchema": promised}, "bad": {"inputSchema": None}}
        server.text = "found \ud83d"
        with mem1.Agent(model, tools=[McpServer(server.url)], memory="full") as agent:
            assert agent.run("go").answer == "ok"
    assert results(agent) == ["found ?", "found ?"]
