"""Requests for states: what is left out of the agent's settings, and how much room a state has."""

from __future__ import annotations

from typing import Any

import pytest

from mem1.messages.asking import for_state

KEPT: dict[str, Any] = {"model": "m", "temperature": 0.3, "tools": [{"name": "search"}], "reasoning_effort": "low"}
SPOILS = (
    *("stream", "n", "stop", "stop_sequences", "stop_token_ids", "response_format", "output_format", "modalities"),
    *("guided_json", "guided_choice", "structured_outputs", "json_schema", "grammar", "regex", "ebnf", "audio"),
)


@pytest.mark.parametrize("beside", ["", "extra_body"])
@pytest.mark.parametrize("name", SPOILS)
def test_what_spoils_a_state_is_left_out_and_all_else_stays(name: str, beside: str):
    given = {**KEPT, name: {"type": "object"}}
    assert for_state({beside: given} if beside else given, 1_000) == ({beside: KEPT} if beside else KEPT)


@pytest.mark.parametrize("name", ["tool_choice", "function_call"])
def test_a_choice_of_tools_stays_where_it_allows_text(name: str):
    for choice in (None, "auto", "none", {"type": "auto"}, {"type": "none"}):
        assert for_state({**KEPT, name: choice}, 1_000) == {**KEPT, name: choice}
    for choice in ("required", "any", {"type": "tool", "name": "a"}, {"name": "a"}, ["a"]):
        assert for_state({**KEPT, name: choice}, 1_000) == KEPT


def test_the_form_of_an_output_leaves_and_its_effort_stays():
    given = {"output_config": {"format": {"type": "json_schema"}, "effort": "low"}}
    assert for_state(given, 1_000) == {"output_config": {"effort": "low"}}


@pytest.mark.parametrize(
    ("given", "budget", "room"),
    [
        (100, None, 2_000),
        (4_096, None, 4_096),
        (4_096, 4_000, 6_000),
        (64_000, 63_000, 64_000),  # a provider may take no more, and no state is thought about for so long
        (20_000, 19_000, 20_000),
    ],
)
def test_a_state_has_room_beside_its_thoughts(given: int, budget: int | None, room: int):
    thinking = {} if budget is None else {"thinking": {"type": "enabled", "budget_tokens": budget}}
    assert for_state({"max_tokens": given, **thinking}, 1_000) == {"max_tokens": room, **thinking}
