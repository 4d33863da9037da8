"""Schemas of tools are rewritten to what every provider takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Script, calls, results, said

import mem1
from mem1.agent import Tool
from mem1.agent.schemas import accepted
from mem1.messages import RECALL_TOOL

EMPTY = {"type": "object", "properties": {}}
TEXT = {"type": "string"}
ANY = {
    "anyOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "array", "items": {"type": "string"}},
    ]
}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
KNOWN = {
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "description", "default",
    "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "$ref", "$defs",
}  # fmt: skip


def refused(schema: Any, defined: Any = None, *, root: bool = True) -> str:
    """Why the strictest of the providers would refuse a schema; "": none would."""
    defined = schema.get("$defs", {}) if root else defined
    if not isinstance(schema, dict) or not schema.keys() <= KNOWN:
        return f"keywords of {schema!r:.200}"
    if "$ref" in schema:
        return "" if not root and schema["$ref"].removeprefix("#/$defs/") in defined else f"ref {schema['$ref']}"
    if root and (schema.get("type") != "object" or schema.keys() & {"anyOf", "enum"}):
        return "root"
    parts = [*schema.get("anyOf", []), *schema.get("properties", {}).values(), *(defined.values() if root else ())]
    if "anyOf" not in schema:
        kind = schema.get("type")
        if not isinstance(kind, str):
            return f"type {kind!r}"
        if kind == "object" and (
            "properties" not in schema or not set(schema.get("required", [])) <= {*schema["properties"]}
        ):
            return "properties"
        if kind == "array":
            parts.append(schema.get("items"))
        if "enum" in schema and (kind != "string" or not all(isinstance(value, str) for value in schema["enum"])):
            return "enum"
    if isinstance(more := schema.get("additionalProperties"), dict):
        parts.append(more)
    return next(filter(None, (refused(part, defined, root=False) for part in parts)), "")


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "object"}, EMPTY),
        ({}, EMPTY),
        (True, EMPTY),
        ({"type": ["object", "null"], "nullable": True, "$schema": "x", "$id": "y", "$comment": "z"}, EMPTY),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/B"}}}, "B": TEXT}},
            {"type": "object", "properties": {"a": TEXT}},
        ),
        (
            {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
            {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]},
        ),
        (
            {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "gone"], "not": {}},
            {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]},
        ),
        (
            {"type": "object", "properties": {"n": NODE}, "$defs": {"Node": NODE}},
            {"type": "object", "properties": {"n": NODE}, "$defs": {"Node": NODE}},
        ),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, {**NODE, "$defs": {"Node": NODE}}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, EMPTY),
        ({"$ref": "#"}, EMPTY),
    ],
)
def test_a_root_becomes_an_object_with_properties(schema: Any, wanted: Any):
    assert accepted(schema).schema == wanted


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (True, ANY),
        ({"anyOf": [{"not": {}}, TEXT]}, TEXT),
        ({}, ANY),
        ({"type": "array"}, {"type": "array", "items": ANY}),
        ({"items": [TEXT, {"type": "null"}]}, {"type": "array", "items": {"anyOf": [TEXT, {"type": "null"}]}}),
        ({"type": ["string", "null"], "minLength": 2}, {"anyOf": [{**TEXT, "minLength": 2}, {"type": "null"}]}),
        ({"type": "string", "nullable": True}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"const": "x", "default": None, "title": "X"}, {"type": "string", "enum": ["x"]}),
        ({"enum": ["a", None]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
        ({"enum": [1, 2], "description": "Size."}, {"type": "integer", "description": "Size. (one of: 1, 2)"}),
        ({"type": "string", "format": "date"}, {"type": "string", "description": '(format: "date")'}),
        ({"oneOf": [TEXT, {"type": "integer"}]}, {"anyOf": [TEXT, {"type": "integer"}]}),
        ({"allOf": [TEXT], "description": "d"}, {"type": "string", "description": "d"}),
        ({"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": True}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"type": "number", "description": "(exclusiveMinimum: 1)"}),
    ],
)  # fmt: skip
def test_a_part_is_told_in_keywords_that_all_providers_take(part: Any, wanted: Any):
    assert accepted({"properties": {"a": part}}).schema == {"type": "object", "properties": {"a": wanted}}


@pytest.mark.parametrize("anything", [True, False, 7, "x", None, {}, [True]])
def test_a_reference_that_leads_to_what_is_no_schema_of_an_object_is_told(anything: Any):
    row = {"type": "object", "properties": {"value": {"$ref": "#/$defs/Value"}}}
    told = accepted({"properties": {"row": {"$ref": "#/$defs/Row"}}, "$defs": {"Row": row, "Value": anything}}).schema
    value = told["properties"]["row"]["properties"]["value"]
    assert value["anyOf"] == ANY["anyOf"] and refused(told) == ""


def test_alternatives_beside_closed_properties_have_all_of_them():
    kinds = [{"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("read", "write")]
    closed = {"additionalProperties": False, "properties": {"kind": TEXT, "path": TEXT}, "required": ["path"]}
    told = accepted({"properties": {"action": {"type": "object", **closed, "oneOf": kinds}}}).schema
    parts = told["properties"]["action"]["anyOf"]
    assert [part["properties"]["kind"]["enum"] for part in parts] == [["read"], ["write"]]
    for part in parts:
        assert part["properties"].keys() == {*part["required"]} == {"kind", "path"}
        assert part["properties"]["path"] == TEXT and part["additionalProperties"] is False


def test_alternatives_of_a_root_are_its_arguments_and_the_description_says_which_go_together():
    a = {"properties": {"kind": {"const": "a"}, "x": TEXT}, "required": ["kind", "x"], "additionalProperties": False}
    b = {"properties": {"kind": {"const": "b"}, "y": TEXT}, "required": ["kind", "y"]}
    for keyword in ("anyOf", "oneOf"):
        found = accepted({"type": "object", keyword: [a, b]})
        kinds = {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["b"]}]}
        assert found.schema == {
            "type": "object",
            "properties": {"kind": kinds, "x": TEXT, "y": TEXT},
            "required": ["kind"],
        }
        assert found.note == "[give one of these sets of arguments: kind, x | kind, y]"


def test_a_root_of_another_type_and_a_schema_without_bounds_are_left_out_and_that_is_said():
    assert (
        accepted({"type": "array", "items": TEXT}).note
        == "[its schema is of type array, not of an object, and is left out]"
    )
    crowd = accepted({"type": "object", "properties": dict.fromkeys(map(str, range(100_000)), TEXT)})
    assert crowd.schema == EMPTY and "left out: it has more than 40,000 bytes" in crowd.note
    split = {
        f"a{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/a{i + 1}"} for k in "xy"}} for i in range(50)
    }
    doubled = accepted({"$ref": "#/$defs/a0", "$defs": split})  # 2 ** 50 parts where all are put in their places
    assert len(doubled.schema["$defs"]) == 49 and refused(doubled.schema) == ""
    deep: Any = TEXT
    cyclic: dict[str, Any] = {"type": "object"}
    cyclic["properties"] = {"a": cyclic}
    for _ in range(1_000):
        deep = {"type": "object", "properties": {"a": deep}}
    for found in (accepted(deep), accepted(cyclic)):
        assert refused(found.schema) == "" and "[cut: what is deeper is left out]" in json.dumps(found.schema)
    for wrap in ("anyOf", "allOf", "oneOf"):
        deep = TEXT
        for _ in range(1_000):
            deep = {wrap: [deep]}
        assert refused(accepted(deep).schema) == refused(accepted({"properties": {"a": deep}}).schema) == ""


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ({}, None),
        ({"additionalProperties": True}, True),
        ({"additionalProperties": False}, TEXT),
        ({"additionalProperties": {"type": "integer"}}, {"anyOf": [TEXT, {"type": "integer"}]}),
    ],
)
def test_properties_whose_names_follow_a_pattern_may_be_given(beside: Any, told: Any):
    schema = {"type": "object", "patternProperties": {"^x": TEXT}, **beside}
    assert accepted(schema).schema.get("additionalProperties") == told
    inner = accepted({"properties": {"labels": schema}}).schema["properties"]["labels"]
    assert inner["additionalProperties"] == (True if told is None else told)


def test_arguments_whose_names_are_refused_reach_the_tool_under_their_own():
    schema = {"type": "object", "properties": {"$top": {"type": "integer"}, "top": TEXT}, "required": ["$top"]}
    tool = Tool(name="list", description="Lists.", parameters=schema, call=lambda given: given)
    model = Script(calls(("list", '{"top_2": 3, "top": "x"}')), said("ok"))
    with mem1.Agent(model, tools=[tool], memory="full") as agent:
        agent.run("go")
    declared = model.tools[0]["function"]["parameters"]
    assert declared["properties"] == {"top_2": {"type": "integer"}, "top": TEXT} and declared["required"] == ["top_2"]
    assert results(agent) == ['{"$top":3,"top":"x"}']


def test_a_long_description_goes_on_where_it_has_no_limit_and_a_missing_one_is_the_name():
    text = "".join(f"{i}," for i in range(1_000))
    long = Tool(name="read", description=text, parameters={}, call=str).declared["function"]
    assert len(long["description"]) == 1_024
    assert long["description"].removesuffix(" [goes on in its parameters]") + long["parameters"]["description"] == text
    assert Tool(name="read", description=" ", parameters={}, call=str).declared["function"]["description"] == "read"


def test_what_is_declared_by_the_memory_itself_needs_no_change():
    parameters = RECALL_TOOL["function"]["parameters"]
    assert accepted(parameters).schema == parameters


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "array", "string", "#", "#/$defs/a", "x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "a", "enum", "const",
             "required", "nullable", "default", "format", "additionalProperties", "minimum", "prefixItems", "not"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(values)
def test_whatever_a_server_sends_as_a_schema_is_one_that_no_provider_refuses(schema: Any):
    found = accepted(schema).schema
    assert refused(found) == "", found
    assert accepted(found).schema == found
