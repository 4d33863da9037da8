"""Servers that want other contents or ids get them after one refusal, also where their template refuses by 500."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from chat_servers import Reply, chat_server
from scripted import Script, said

import mem1
from mem1.agent.shapes import shapes_in, short_ids, with_texts, with_words

CALL = {"id": "call_0123456789", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "call_0123456789", "content": "found"}


def search(query: str) -> str:
    """Searches."""
    return "found"


def served(refuses: Any, **options: Any) -> tuple[mem1.Agent, list[dict[str, Any]]]:
    """An agent that has asked twice a server that refuses by `refuses(messages)`, and all requests."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        if why := refuses(body["messages"]):
            status, detail = why
            return Reply(status=status, body=json.dumps({"error": {"code": status, "message": detail}}).encode())
        done = any(message["role"] == "tool" for message in body["messages"])
        message = {"role": "assistant", "content": "Oslo"} if done else CALLS
        return Reply(body=json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())

    with chat_server(behave) as server:
        agent = mem1.Agent(server.url, name="m", tools=[search], memory="full", **options).run("go").run("and now?")
    return agent, server.requests


@pytest.mark.parametrize(
    ("detail", "shapes"),
    [
        ("Invalid value for 'content': expected a string, got null.", (with_texts, with_words)),
        ("[{'type': 'missing', 'loc': ('body', 'messages', 1, 'content')}]", (with_texts, with_words)),
        ("messages[2]: missing field `content` at line 1 column 300", (with_texts, with_words)),
        ("messages.1.content: Input should be a valid string", (with_texts, with_words)),
        ("invalid message content type: <nil>", (with_texts, with_words)),
        ("messages.1: all messages must have non-empty content", (with_words,)),
        ("Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9.", (short_ids,)),
        ("Invalid 'messages[1].tool_calls[0].id': string too long. Expected at most 40", (short_ids,)),
        ("invalid params, chat content is empty (2013)", (with_words,)),
        ("message at position 1 with role 'assistant' must not be empty", (with_words,)),
        ("Each message must have at least one content element.", (with_words,)),
        ("messages \u53c2\u6570\u975e\u6cd5\u3002content \u4e0d\u80fd\u4e3a\u7a7a", (with_words,)),
        ("Invalid 'messages[2].tool_call_id': string too long.", (short_ids,)),
        ("messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", (short_ids,)),
        ("the prompt is too long: 9,000 tokens", ()),
        ("property 'reasoning' is unsupported", ()),
    ],
)
def test_a_refusal_tells_the_shapes(detail: str, shapes: Any):
    assert shapes_in(detail) == shapes


def test_contents_and_ids_are_rewritten_alike_and_nothing_else():
    assert with_texts([CALLS, FOUND]) == [{**CALLS, "content": ""}, FOUND]
    assert with_words([{**CALLS, "content": ""}, FOUND]) == [{**CALLS, "content": "I call search."}, FOUND]
    short = "opkuNiWCO"
    assert short_ids([CALLS, FOUND]) == [
        {**CALLS, "tool_calls": [{**CALL, "id": short}]},
        {**FOUND, "tool_call_id": short},
    ]


def test_an_agent_goes_on_where_a_call_needs_a_content():
    def refuses(messages: list[dict[str, Any]]) -> Any:
        bare = any(not message.get("content") for message in messages)
        return (422, "messages.1.content: Input should be a valid string") if bare else None

    agent, requests = served(refuses)
    assert agent.answer == "Oslo" and agent.messages[1]["content"] is None
    assert requests[-1]["messages"][1]["content"] == "I call search." and len(requests) == 5


def test_an_agent_goes_on_where_ids_have_nine_letters():
    def refuses(messages: list[dict[str, Any]]) -> Any:
        ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        strange = [id for id in ids if not re.fullmatch("[a-zA-Z0-9]{9}", id)]
        why = "but must be a-z, A-Z, 0-9, with a length of 9."
        return (400, f"Tool call id was {strange[0]} {why}") if strange else None

    agent, requests = served(refuses)
    assert agent.answer == "Oslo" and agent.messages[1]["tool_calls"][0]["id"] == "call_0123456789"
    _, called, result, *_ = requests[-1]["messages"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "opkuNiWCO"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_template_that_refuses_by_500_teaches_as_one_by_400_and_is_not_asked_in_vain(streaming: bool):
    def behave(body: dict[str, Any], number: int) -> Reply:
        if body["messages"][0]["role"] == "system":
            said = "Jinja Exception: System role not supported at row 3, column 12"
            return Reply(status=500, body=json.dumps({"error": {"code": 500, "message": said}}).encode())
        return Reply(text="Oslo")

    with chat_server(behave) as server:
        agent = mem1.Agent(server.url, name="m", memory="full", instructions="Be brief.")
        list(agent.stream("go")) if streaming else agent.run("go")
    assert agent.answer == "Oslo"
    assert [request["messages"][0]["role"] for request in server.requests] == ["system", "user"]


def test_an_option_that_a_gateway_refuses_by_500_is_left_out_and_another_fault_is_tried_again():
    def behave(body: dict[str, Any], number: int) -> Reply:
        if "stream_options" in body:
            said = "create() got an unexpected keyword argument 'stream_options'"
            return Reply(status=500, body=json.dumps({"error": {"message": said}}).encode())
        return Reply(status=500, body=b"overloaded") if number == 1 else Reply(text="Oslo")

    with chat_server(behave) as server:
        steps = list(mem1.Agent(server.url, name="m", memory="full").stream("go"))
    assert steps == ["Oslo"] and len(server.requests) == 3


def test_ids_that_a_reply_lacks_are_such_as_every_provider_takes():
    text = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
    agent = mem1.Agent(Script(said(text), said("Oslo")), tools=[search], memory="full").run("go")
    assert re.fullmatch("[a-zA-Z0-9]{9}", agent.messages[1]["tool_calls"][0]["id"])


@pytest.mark.parametrize(
    "arguments",
    [
        '{"query": "a\nb"}',
        json.dumps('{"query": "a\\nb"}'),
        "{'query': 'a\\nb'}",
        '{"query": "a\\nb",}',
        '```json\n{"query": "a\\nb"}\n```',
        {"query": "a\nb"},
    ],
)
def test_arguments_are_read_as_they_are_meant_and_kept_as_json(arguments: Any):
    call = {"id": "a", "type": "function", "function": {"name": "search", "arguments": arguments}}
    asked: list[str] = []

    def search(query: str) -> str:
        """Searches."""
        asked.append(query)
        return "found"

    model = Script({"role": "assistant", "content": None, "tool_calls": [call]}, said("Oslo"))
    agent = mem1.Agent(model, tools=[search], memory="full").run("go")
    assert asked == ["a\nb"] and agent.answer == "Oslo"
    assert json.loads(agent.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"query": "a\nb"}


@pytest.mark.parametrize(
    ("name", "kept", "result"),
    [
        ("functions.search", "search", "found"),
        ("search<|channel|>commentary", "search", "found"),
        ("functions.search:0", "search", "found"),
        ("default_api:search", "search", "found"),
        ("my search", "my_search", "error: there is no tool 'my_search'; there are search, recall"),
        ("", "unknown", "error: there is no tool 'unknown'; there are search, recall"),
    ],
)
def test_the_name_of_a_call_goes_back_in_letters_that_providers_take(name: str, kept: str, result: str):
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": '{"query": "x"}'}}
    model = Script({"role": "assistant", "content": None, "tool_calls": [call]}, said("Oslo"))
    agent = mem1.Agent(model, tools=[search], memory="full").run("go")
    assert agent.messages[1]["tool_calls"][0]["function"]["name"] == kept
    assert agent.messages[2]["content"] == result


def test_headers_and_parameters_are_sent_with_every_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_KEY", "k-abcdefghijkl")
    with chat_server(lambda body, number: Reply(text="Oslo")) as server:
        agent = mem1.Agent(
            server.url,
            name="m",
            headers={"api-key": "$AZURE_KEY", "x-team": "${AZURE_KEY}!"},
            query={"api-version": "1"},
        )
        assert agent.run("go").answer == "Oslo"
    assert server.paths == ["/v1/chat/completions?api-version=1"]
    assert server.headers[0]["api-key"] == "k-abcdefghijkl"
    assert server.headers[0]["x-team"] == "k-abcdefghijkl!"
    with pytest.raises(mem1.UserError, match="name, headers go with a base URL"):
        mem1.Agent(lambda messages, tools: "x", headers={"a": "b"})
