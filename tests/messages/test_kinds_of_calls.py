"""Each kind of call by hand: the shape of what is shortened, dropped, recalled or made up, and the order of parts."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest

from mem1.errors import UserError
from mem1.messages import Bounds, check, fold, recall
from mem1.messages.forms import RESPONSES
from mem1.messages.items import BLANK
from mem1.messages.transcript import NO_RESULT, Exchange, handle

TASK = {"role": "user", "content": "Do it."}
LATER = {"role": "user", "content": "Stop."}
LONG = "file\n" * 900
SHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
EXITED = {"type": "exit", "exit_code": 3}


def pair(kind: str, number: int, output: Any = LONG) -> list[dict[str, Any]]:
    """A call of the Responses API and its output."""
    id = f"c{number}"
    call: dict[str, Any] = {"type": f"{kind}_call", "call_id": id, "status": "completed"}
    answer: dict[str, Any] = {"type": f"{kind}_call_output", "call_id": id, "output": output}
    if kind == "computer":
        return [{**call, "action": {"type": "screenshot"}}, {**answer, "output": SHOT}]
    if kind == "shell":
        chunk = {"stdout": output, "stderr": "", "outcome": EXITED}
        return [{**call, "action": {"commands": ["ls"]}}, {**answer, "output": [chunk], "max_output_length": 9_000}]
    if kind == "local_shell":
        del answer["call_id"]
        return [{**call, "id": f"lsh{number}", "action": {"type": "exec", "command": ["ls"]}}, {**answer, "id": id}]
    if kind == "apply_patch":
        return [{**call, "operation": {"type": "delete_file", "path": "a"}}, {**answer, "status": "failed"}]
    return [{**call, "name": "exec", "input": "ls", "arguments": "{}"}, answer]


PLACE = "[result of "
SHAPES = [
    ("function", lambda answer: answer["output"]),
    ("custom_tool", lambda answer: answer["output"]),
    ("local_shell", lambda answer: answer["output"]),
    ("apply_patch", lambda answer: answer["output"]),
    ("shell", lambda answer: answer["output"][0]["stdout"]),
]


@pytest.mark.parametrize(("kind", "text_of"), SHAPES)
def test_an_output_of_the_responses_api_keeps_its_shape_and_comes_back_whole(kind: str, text_of: Any):
    items = [TASK, *pair(kind, 1), *pair(kind, 2)]
    masked = fold(items, "archive(1)", form="responses")
    assert text_of(masked[2]).startswith(PLACE) and masked[3:] == items[3:]
    assert {**masked[2], "output": 0} == {**items[2], "output": 0}
    short = fold(items, form="responses", bounds=Bounds(result=100))
    assert text_of(short[2]).startswith("file\nfile\n") and "more tokens; recall(" in text_of(short[2])
    name = text_of(masked[2]).partition('recall("')[2][:9]
    assert recall(items, name, form="responses").strip() == LONG.strip()
    for shown in (masked, short):
        check(shown, "responses")
        assert fold(shown, "archive(1)", form="responses", bounds=Bounds(result=100)) is not None
    if kind == "shell":
        assert masked[2]["output"] == [{"stdout": text_of(masked[2]), "stderr": "", "outcome": EXITED}]


def test_a_screenshot_gives_way_to_a_blank_picture_as_the_api_takes_no_text_there():
    items = [TASK, *pair("computer", 1), *pair("computer", 2)]
    blank = {"type": "computer_screenshot", "image_url": BLANK}
    for policy, bounds in (("archive(1)", Bounds()), ("full", Bounds(images=1))):
        shown = fold(items, policy, form="responses", bounds=bounds)
        assert [item["output"] for item in shown[2::2]] == [blank, SHOT]
        assert fold(shown, policy, form="responses", bounds=bounds) == shown
    exchange = RESPONSES.read(items).parts[1]
    assert isinstance(exchange, Exchange)
    (result,) = exchange.results
    whole = [{"type": "input_image", "image_url": SHOT["image_url"]}]
    assert recall(items, handle(result, whole), form="responses") == whole


def test_the_blank_picture_is_one():
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(BLANK.partition(",")[2])))
    assert image.size == (64, 64) and image.convert("L").getextrema() == (255, 255)


@pytest.mark.parametrize(
    ("kind", "made_up"),
    [
        ("function", {"output": NO_RESULT}),
        ("custom_tool", {"output": NO_RESULT}),
        ("local_shell", {"output": NO_RESULT}),
        ("apply_patch", {"status": "failed", "output": NO_RESULT}),
        ("shell", {"output": [{"stdout": "", "stderr": NO_RESULT, "outcome": {"type": "exit", "exit_code": 1}}]}),
        ("computer", None),
        ("teleport", None),
    ],
)
def test_a_call_that_nobody_answered_gets_an_output_of_its_own_type_or_is_taken_back(kind: str, made_up: Any):
    call, answer = pair(kind, 1)
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    shown = fold([TASK, thought, call, LATER], form="responses")
    if made_up is None:
        assert shown == [TASK, LATER]
    else:
        id = {key: answer[key] for key in ("call_id", "id") if key in answer}
        assert shown == [TASK, thought, call, {"type": answer["type"], **id, **made_up}, LATER]
    check(shown, "responses")
    assert fold([TASK, thought, call], form="responses") == [TASK, thought, call]


def test_an_output_of_a_later_version_stays_as_it_is():
    call, answer = pair("teleport", 1, {"to": "Oslo", "log": LONG})
    items = [TASK, call, answer, *pair("function", 2)]
    assert fold(items, "archive(1)", form="responses", bounds=Bounds(result=60, images=0))[:3] == items[:3]
    assert fold(items, "window(1)", form="responses") == [TASK, *items[3:]]


def test_reasoning_goes_with_the_item_that_follows_it():
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    call, output = pair("function", 1)
    said = {"type": "message", "role": "assistant", "content": "Done."}
    # a thought that stands before the output belongs to what comes after it
    items = [TASK, call, thought, output, said]
    assert fold(items, form="responses") == [TASK, call, output, thought, said]
    assert fold(items, "window(1)", form="responses") == [TASK, thought, said]
    # one that led to nothing is refused
    assert fold([TASK, thought, LATER], form="responses") == [TASK, LATER]


def test_what_a_server_goes_on_with_stays_with_the_request_and_what_the_user_said_meanwhile_comes_before():
    asked = {"type": "mcp_approval_request", "id": "r1", "server_label": "s", "name": "n", "arguments": "{}"}
    given = {"type": "mcp_approval_response", "approval_request_id": "r1", "approve": True}
    done = {"type": "mcp_call", "id": "m1", "approval_request_id": "r1", "name": "n", "arguments": "{}", "output": "o"}
    items = [TASK, asked, given, done, *pair("function", 1)]
    assert fold(items, form="responses") == items
    assert fold(items, "window(1)", form="responses") == items
    assert fold([*items, *pair("function", 2)], "window(1)", form="responses") == [TASK, *pair("function", 2)]
    assert fold([TASK, asked, given, LATER, done], form="responses") == [TASK, LATER, asked, given, done]
    assert fold([TASK, asked, LATER], form="responses")[2] == {
        "type": "mcp_approval_response",
        "approval_request_id": "r1",
        "approve": False,
        "reason": NO_RESULT,
    }


def use(*ids: str, server: str = "", thinking: str = "") -> dict[str, Any]:
    """An assistant's message of Anthropic's API."""
    blocks = [{"type": "thinking", "thinking": thinking, "signature": "c2ln"}] if thinking else []
    blocks += [{"type": "server_tool_use", "id": server, "name": "web_search", "input": {}}] if server else []
    return {
        "role": "assistant",
        "content": [*blocks, *({"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids)],
    }


def result(id: str, content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def results(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [result(id) for id in ids]}


FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
SAID = {"type": "text", "text": "Found it."}
TEXT = {"type": "text", "text": "Also Bergen."}


def test_what_anthropics_server_answers_in_a_later_message_stays_with_its_call():
    mixed = [use("a", server="s1"), results("a"), {"role": "assistant", "content": [FOUND, SAID]}]
    messages = [TASK, *mixed, LATER, use("b"), results("b")]
    assert fold(messages, form="anthropic") == messages
    assert fold(messages, "window(1)", form="anthropic") == [TASK, LATER, *messages[5:]]
    assert fold([TASK, *mixed, LATER], "window(1)", form="anthropic") == [TASK, *mixed, LATER]
    # until then the turn waits, and no memory drops it
    waiting = [TASK, *mixed[:2], use("c"), results("c")]
    assert fold(waiting, "window(1)", form="anthropic") == waiting
    # its own results give way to handles all the same
    long = [use("a", server="s1"), {"role": "user", "content": [result("a", LONG)]}, mixed[2]]
    masked = fold([TASK, *long, LATER, *messages[5:]], "masked(1)", form="anthropic")
    assert masked[2]["content"][0]["content"].startswith(PLACE) and masked[3] == mixed[2]
    # what the user added to results in the middle of the turn comes before it
    typed = {"role": "user", "content": [result("a"), TEXT]}
    shown = fold([TASK, mixed[0], typed, mixed[2]], form="anthropic")
    assert shown == [TASK, {"role": "user", "content": [TEXT]}, *mixed]


def test_a_paused_turn_is_one_turn():
    paused = {"role": "assistant", "content": [*use(server="s1")["content"], FOUND]}
    messages = [TASK, use("a"), results("a"), paused, {"role": "assistant", "content": [SAID]}]
    assert fold(messages, "window(1)", form="anthropic") == [TASK, *messages[3:]]


def test_thoughts_of_a_turn_that_is_not_over_stay():
    messages = [TASK, use("a", thinking="hm"), results("a"), use("b"), results("b"), use("c"), results("c")]
    shown = fold(messages, "window(1)", form="anthropic")
    assert shown[1] is messages[1] and shown[3:] == messages[5:] and len(shown) == 5
    begins_without = [TASK, messages[3], messages[4], *messages[1:3]]
    for given in (None, messages):
        with pytest.raises(UserError, match="has lost the thoughts"):
            check(begins_without, "anthropic", given=given)
    check(begins_without, "anthropic", given=begins_without)  # the model thinks when it likes to
    over = [*messages, {"role": "assistant", "content": [SAID]}, LATER, use("d"), results("d")]
    assert fold(over, "window(1)", form="anthropic") == [TASK, LATER, *over[9:]]


def test_anthropics_results_come_first_and_in_one_message_and_no_text_is_empty():
    empty = {"type": "text", "text": " \n"}
    messages = [
        *(TASK, {"role": "assistant", "content": [empty, *use("a", "b")["content"]]}),
        *({"role": "user", "content": [TEXT, result("b")]}, {"role": "user", "content": [result("a", [empty, SAID])]}),
        *({"role": "assistant", "content": " "}, LATER, {"role": "assistant", "content": [{**SAID, "text": "So: \n"}]}),
    ]
    assert fold(messages, form="anthropic") == [
        *(TASK, use("a", "b"), {"role": "user", "content": [result("a", [SAID]), result("b"), TEXT]}, LATER),
        {"role": "assistant", "content": [{**SAID, "text": "So:"}]},
    ]


REMINDER = {"role": "user", "content": "<system-message>\nBe brief.\n</system-message>"}


def test_anthropics_system_messages_stand_behind_the_first_of_the_user_or_are_texts_at_their_place():
    system = {"role": "system", "content": "Be brief."}
    turns = [use("a"), results("a"), use("b"), results("b")]
    assert fold([system, TASK, *turns], form="anthropic") == [TASK, system, *turns]
    shown = fold([TASK, *turns[:2], system, *turns[2:]], form="anthropic")
    assert shown == [TASK, *turns[:2], REMINDER, *turns[2:]]
    check(shown, "anthropic")


def chat(*ids: str, text: str | None = None) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def tool(id: str, content: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def test_a_result_finds_its_call_behind_the_users_words_or_a_later_turn():
    said = {"role": "assistant", "content": "One moment."}
    assert fold([TASK, chat("a"), LATER, tool("a")]) == [TASK, chat("a"), tool("a"), LATER]
    assert fold([TASK, chat("a"), LATER, said, tool("a"), LATER]) == [TASK, chat("a"), tool("a"), LATER, said, LATER]


def test_of_two_results_of_a_call_the_last_counts():
    """Clients write that a call was interrupted, and what it returned when it did in the end."""
    assert fold([TASK, chat("a"), tool("a", "interrupted"), LATER, tool("a")]) == [TASK, chat("a"), tool("a"), LATER]
    twice = {"role": "user", "content": [result("a", "interrupted"), result("a")]}
    assert fold([TASK, use("a"), twice], form="anthropic") == [TASK, use("a"), results("a")]
    call, output = pair("shell", 1)
    assert fold([TASK, call, pair("shell", 1, "no")[1], output], form="responses") == [TASK, call, output]
    # a server whose calls all have one id
    same = [TASK, chat("x"), tool("x", "one"), chat("x"), tool("x", "two")]
    assert fold(same) == same


def test_results_come_in_the_order_of_their_calls():
    assert fold([TASK, chat("a", "b"), tool("b"), tool("a")]) == [TASK, chat("a", "b"), tool("a"), tool("b")]


def test_functions_from_before_there_were_tools_are_exchanges_too():
    def called(name: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}

    answer = {"role": "function", "name": "f", "content": LONG}
    messages = [TASK, called("f"), answer, called("g"), LATER]
    shown = fold(messages)
    assert shown == [*messages[:4], {"role": "function", "name": "g", "content": NO_RESULT}, LATER]
    assert fold([*messages[:3], chat("a"), tool("a")], "archive(1)")[2]["content"].startswith(PLACE)
    check(shown)


def test_an_empty_reply_is_left_out_and_one_that_refuses_or_speaks_is_not():
    empty = {"role": "assistant", "content": None, "tool_calls": []}
    refusal = {"role": "assistant", "content": None, "refusal": "No."}
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert fold([TASK, empty, LATER, refusal, LATER, spoken]) == [TASK, LATER, refusal, LATER, spoken]


def test_late_system_messages_join_the_first_with_their_marks_or_stay_at_their_place():
    marked = {"type": "text", "text": "Rules.", "cache_control": {"type": "ephemeral"}}
    first, late = {"role": "system", "content": [marked], "name": "ops"}, {"role": "developer", "content": "Be brief."}
    shown = fold([first, late, TASK, chat("a"), tool("a")])
    assert shown[0] == {**first, "content": [marked, {"type": "text", "text": "Be brief."}]}
    assert shown[1:] == [TASK, chat("a"), tool("a")]
    assert fold([first, TASK, chat("a"), tool("a"), late]) == [first, TASK, chat("a"), tool("a"), REMINDER]


@pytest.mark.parametrize(
    ("form", "messages", "why"),
    [
        (
            "responses",
            [TASK, pair("shell", 1)[0], pair("function", 1)[1]],
            "a function_call_output answers a shell_call",
        ),
        ("responses", [TASK, pair("computer", 1)[0], {**pair("computer", 1)[1], "output": "gone"}], "no content of a"),
        ("responses", [TASK, pair("shell", 1)[0], {**pair("shell", 1)[1], "output": "gone"}], "no content of a"),
        (
            "responses",
            [TASK, pair("apply_patch", 1)[0], {**pair("apply_patch", 1)[1], "status": "in_progress"}],
            "no co",
        ),
        ("responses", [TASK, {"type": "program_output", "call_id": "p"}], "lacks its program"),
        ("responses", [TASK, {"type": "mcp_call", "approval_request_id": "r"}], "lacks the request for its approval"),
        ("anthropic", [TASK, {"role": "assistant", "content": [FOUND]}], "the server was never asked"),
        ("anthropic", [TASK, {"role": "assistant", "content": "So: "}], "ends in white space"),
        ("anthropic", [TASK, use("a"), {"role": "user", "content": [TEXT, result("a")]}], "text before a result"),
        ("anthropic", [TASK, use("a"), results("a", "a")], "called were"),
        ("anthropic", [TASK, {"role": "system", "content": "Be brief."}, TASK], "follows a system message and is no"),
        ("chat", [TASK, {"role": "function", "name": "f", "content": ""}], "which nothing called"),
        ("chat", [TASK, {"role": "assistant", "content": None}], "neither content nor calls"),
        ("chat", [TASK, {"role": "assistant", "content": None, "function_call": "x"}], "not as providers have it"),
        ("chat", [TASK, {"role": "assistant", "content": None, "function_call": {}}, TASK], "neither content nor"),
        ("chat", [{"content": "x"}], "not as providers have it"),
    ],
)
def test_check_names_what_a_provider_would_refuse(form: str, messages: list[Any], why: str):
    with pytest.raises(UserError, match=why):
        check(messages, form)


def test_check_misses_a_signature_of_geminis():
    signed = chat("a", "b")
    signed["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "c2ln"}}
    check([TASK, signed, tool("a"), tool("b")])
    with pytest.raises(UserError, match=r"messages\[4\] lacks the signature"):
        check([TASK, signed, tool("a"), tool("b"), chat("c"), tool("c")])


@pytest.mark.parametrize("key", [{"id": "item"}, {"id": "call"}, {"call_id": "call"}])
def test_a_local_shell_answers_by_the_id_of_its_item_or_of_its_call(key: dict[str, str]):
    action = {"type": "exec", "command": ["ls"], "env": {}}
    call = {"type": "local_shell_call", "id": "item", "call_id": "call", "action": action}
    items = [TASK, call, {"type": "local_shell_call_output", **key, "output": LONG}]
    shown = fold(items, form="responses")
    check(shown, "responses")
    assert shown == items


def test_a_tool_that_returned_nothing_has_an_empty_text_in_the_chat():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    shown = fold([*asked, {"role": "tool", "tool_call_id": "a", "content": None}])
    assert shown == [*asked, {"role": "tool", "tool_call_id": "a", "content": ""}]
    check(shown)
