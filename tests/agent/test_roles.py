"""Servers whose chat templates want another order of roles get it, after one refusal, and the conversation stays."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from chat_servers import Reply, chat_server

import mem1
from mem1.agent.roles import alternate, rule_in, without_system

USER, SECOND = {"role": "user", "content": "one"}, {"role": "user", "content": [{"type": "text", "text": "two"}]}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
TOOL = {"role": "tool", "tool_call_id": "a", "content": "found"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("detail", "rule"),
    [
        ("Unexpected role 'user' after role 'tool'", alternate),
        ("Conversation roles must alternate user/assistant/user/assistant/...", alternate),
        ("After the optional system message, conversation roles must alternate user and assistant", alternate),
        ("System role not supported", without_system),
        ("The model does not support system prompts", without_system),
        ("A conversation must alternate between user and assistant roles.", alternate),
        ("m does not support successive user or assistant messages (messages[1] and messages[2])", alternate),
        ("user or tool message(s) should alternate with assistant message(s).", alternate),
        ("Unsupported value: 'messages[0].role' does not support 'system' with this model.", without_system),
        ("This model doesn't support system messages. Try again without a system message.", without_system),
        ("Developer instruction is not enabled for models/gemma-3-27b-it", without_system),
        ("The model does not support system_fingerprint", None),
        ("the prompt is too long: 9,000 tokens", None),
        ("unknown role 'tools'", None),
    ],
)
def test_a_refusal_tells_the_rule(detail: str, rule: Any):
    assert rule_in(detail) is rule


def test_roles_alternate_and_nothing_is_lost():
    shown = alternate([SYSTEM, USER, SECOND, CALL, TOOL, USER])
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert shown[1]["content"] == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, CALL]
    assert alternate([USER, *said]) == [USER, {**CALL, "content": "a\n\nb"}]
    assert alternate([USER, CALL, TOOL, CALL, TOOL]) == [USER, CALL, TOOL, CALL, TOOL]


def test_a_system_message_joins_the_users_first():
    assert without_system([SYSTEM, USER, CALL, TOOL]) == [{**USER, "content": "Be brief.\n\none"}, CALL, TOOL]


def test_an_agent_goes_on_with_a_server_that_wants_another_order(caplog: pytest.LogCaptureFixture):
    orders: list[list[str]] = []

    def search(query: str) -> str:
        """Searches."""
        return "found"

    def behave(body: dict[str, Any], number: int) -> Reply:
        roles = [message["role"] for message in body["messages"]]
        why = "System role not supported" if "system" in roles else ""
        if any(pair in (("tool", "user"), ("user", "user")) for pair in pairwise(roles)):
            why = "Conversation roles must alternate user/assistant/user/assistant/..."
        if why:
            return Reply(status=400, body=json.dumps({"error": {"message": why}}).encode())
        orders.append(roles)
        call = {"id": f"c{number}", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        if len(orders) > 2:
            said = {"role": "assistant", "content": "Oslo"}
        return Reply(body=json.dumps({"choices": [{"message": said, "finish_reason": "stop"}]}).encode())

    with chat_server(behave) as server:
        agent = mem1.Agent(server.url, name="m", tools=[search], memory="full", instructions="Be brief.", max_turns=1)
        agent.run("go").run("go on").run("and the answer?")
    assert agent.answer == "Oslo"
    assert orders[-1] == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in agent.messages].count("system") == 1
    assert [record.message for record in caplog.records if "order of roles" in record.message] != []
