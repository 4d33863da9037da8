"""What a policy is shown of chat messages and tools, and what its text says to an environment of verifiers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tag_sets import PAPER_SHOP

from mem1.envs.base import Action, Observation, Outcome
from mem1.envs.replayed import EpisodeFailed, ReplayedEnvironment, one_task
from mem1.envs.verifiers.messages import call, explained, news, shown, spoken
from mem1.envs.verifiers.tasks import VerifiersTasks
from mem1.errors import UserError
from mem1.protocol import strip_tags

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a fact.\n  Slowly.",
            "parameters": {
                "properties": {"name": {"type": "string"}, "most": {"type": "integer"}, "or": {"anyOf": []}}
            },
        },
    },
    {"type": "function", "function": {"name": "look"}},
]


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def calls(text: str) -> list[tuple[str, str]] | None:
    message = spoken(text, TOOLS, number=3)
    if "tool_calls" not in message:
        assert message == said("assistant", text)
        return None
    assert [call["id"] for call in message["tool_calls"]] == [f"call_3_{n}" for n in range(len(message["tool_calls"]))]
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def test_messages_are_shown_with_who_spoke_where_several_did():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert shown([said("system", "Be brief."), said("user", "Hi")]) == "Be brief.\n\nHi"
    assert shown([said("user", parts)]) == "a\nb"
    assert shown([said("tool", "1"), said("tool", "2")]) == "1\n\n2"
    few = [said("system", "S"), said("user", "1"), said("assistant", "2"), said("user", "3")]
    assert shown(few) == "S\n\nuser: 1\n\nassistant: 2\n\nuser: 3"
    assert news(few) == few[3:] and news(few[:2]) == few[:2] and news(few[:3]) == []
    with pytest.raises(EpisodeFailed, match="a message has image_url: only texts can be shown"):
        shown([said("user", [{"type": "image_url", "image_url": {"url": "data:"}}])])


def test_tools_are_explained_by_the_calls_that_name_them():
    assert explained([]) == ""
    assert explained(TOOLS).splitlines()[1:] == [
        'look_up({"name": string, "most": integer, "or": any}): Finds a fact. Slowly.',
        "look({})",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('look_up({"name": "Oslo (Norway)"})', [("look_up", '{"name": "Oslo (Norway)"}')]),
        (' look_up ( { "name" : "a)b" } ) ', [("look_up", '{ "name" : "a)b" }')]),
        ("look()", [("look", "{}")]),
        ('look({})\nlook_up({"name": "x"})', [("look", "{}"), ("look_up", '{"name": "x"}')]),
        ("look_up(Oslo)", [("look_up", "Oslo")]),
        ('look_up({"name": "x"}', [("look_up", '{"name": "x"}')]),
        ("look({}) and then I answer", [("look", "{} and then I answer")]),
        ("I shall look({})", None),
        ("looking({})", None),
        ("Oslo", None),
        ("", None),
    ],
)
def test_a_text_that_is_calls_calls_tools_and_any_other_is_a_reply(text: str, found: Any):
    assert calls(text) == found


def test_without_tools_nothing_is_a_call():
    assert spoken("look({})", []) == said("assistant", "look({})")


@given(st.text(max_size=60), st.sampled_from(["", "look(", "look_up({", 'look({"a": ', "look({})look("]))
@example(")0", "look(")  # empty brackets are no arguments, written {}; what follows them is kept
def test_any_text_is_a_message_and_arguments_are_never_made_up(text: str, start: str):
    found, given = calls(start + text), start + text
    assert found is None or all(
        arguments == "{}"
        or arguments.split()[0] in given
        or (arguments.startswith("{} ") and arguments.removeprefix("{} ") in given)
        for _, arguments in found
        if arguments.split()
    )


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3))
def test_arguments_that_are_json_arrive_as_they_were_written(arguments: dict[str, str]):
    written = json.dumps(arguments)
    assert calls(f"look({written})") == [("look", written)]


def test_what_a_model_that_calls_tools_said_is_the_call_that_a_text_would_make():
    assert calls(call(TOOLS[0], '{"name": "x", "most": 2}')) == [("look_up", '{"name": "x", "most": 2}')]
    only = {"function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}
    assert calls(call(only, 'a "b") <c>')) == [("look", json.dumps({"at": 'a "b") <c>'}))]


class Recorded:
    """An episode that repeats what was done."""

    over = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def act(self, action: str) -> Observation:
        self.done.append(action)
        return Observation(text=" | ".join(self.done))

    def end(self) -> Outcome:
        return Outcome(1.0)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("live", [1, 9])
def test_calls_of_tools_and_actions_follow_one_another_in_one_episode(live: int):
    named = {tool["function"]["name"]: tool for tool in TOOLS}
    environment = ReplayedEnvironment(
        lambda task: Recorded(), live=live, tools=TOOLS, called=lambda name, argument: call(named[name], argument)
    )
    task, other = (one_task(n, "Go.", turn_limit=9, prompt="plain", tags=PAPER_SHOP) for n in ("a", "b"))
    first = Action(task, "look_up", '{"name": "x"}')
    environment.observe([first, Action(other, "act", "hi")])
    then = Action(task, "act", "well", ((first.kind, first.argument),))
    (reply,) = environment.observe([then])
    assert reply.text == 'look_up({"name": "x"}) | well' and json.loads(reply.answer or "") == reply.text.split(" | ")
    assert environment.score(task, reply.answer or "").reward == 1
    with pytest.raises(UserError, match="has no action 'jump'; it has: act, look_up, look"):
        environment.observe([Action(task, "jump", "high")])


def test_deep_json_ends():
    assert calls("look(" + "[" * 100_000) is not None


def test_only_tags_of_the_vocabulary_are_stripped_from_the_environment_s_own_words():
    text = "Write <b>x</b> [Hint] 3 < 4 </ ACTION > <IS> [1] <answer>"
    assert strip_tags(text, PAPER_SHOP) == "Write <b>x</b> (Hint) 3 < 4 (/ ACTION ) (IS) [1] <answer>"


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"] + ["verifiers"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UserError, match=r"needs verifiers 0.4 and Python 3.11 .*: pip install .mem1-agents\[verifiers\]."
    ):
        VerifiersTasks(taskset="not-made-yet").source("train", PAPER_SHOP)
