"""The memory of chat agents: random conversations under every policy, then each policy, state and bound by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from transcripts import FORMS, conversation, prefixes

from mem1.errors import UserError
from mem1.messages import Bounds, ask, check, fold, recall, with_state
from mem1.messages.bounds import tokens_of
from mem1.messages.transcript import ASK, Message, texts

POLICIES = (
    *("full", "archive(1)", "archive(3)", "window(1)", "window(3)", "constant", "fold(3)", "notes", "notes(100)"),
    *("masked", "notebook(2)", "dropout(50)", "discard_all(200)", "summary(200)", "capped(60)", "belief"),
    *("external(2)", "none"),
)
BOUNDS = (
    Bounds(),
    Bounds(result=60, state=60, images=1),
    Bounds(prompt=1_500, result=200, state=100, handles=False),
)


def pinned(messages: Sequence[Message]) -> list[str]:
    """The texts of the user's messages, in order, without requests for states."""
    found = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user":
            parts = (
                [content]
                if isinstance(content, str)
                else [p["text"] for p in content or () if isinstance(p.get("text"), str)]
            )
            found += [part for part in parts if not part.startswith(ASK)]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_prefix_of_a_conversation_folds_to_one_that_providers_accept(form: str):
    random = Random(form)
    folds = 0
    whole = conversation(random, form)
    before = json.dumps(whole)
    for messages in prefixes(whole):
        own = {id(message) for message in messages}
        for policy in POLICIES:
            for bounds in BOUNDS:
                seen = fold(messages, policy, form=form, bounds=bounds)
                folds += 1
                check(seen, form, waiting=True)
                assert fold(seen, policy, form=form, bounds=bounds) == seen
                shown, kept = pinned(seen), pinned(messages)
                kept = kept[:1] if bounds.prompt else kept
                assert all(any(text.startswith(task) for text in shown) for task in kept)
                assert [m for m in seen if m.get("role") == "system"] == [
                    m for m in messages if m.get("role") == "system"
                ]
                said = [
                    m for m in seen if m.get("role") == "assistant" or m.get("type") in ("reasoning", "function_call")
                ]
                assert all(id(m) in own or "reasoning_content" not in m for m in said)
                assert bounds.prompt is None or tokens_of(seen) <= bounds.prompt
    assert json.dumps(whole) == before
    assert folds > 300


def call(number: int, result: str = "found nothing", text: str = "") -> list[dict[str, Any]]:
    """An exchange in the form "chat"."""
    function = {"name": "search", "arguments": f'{{"q": {number}}}'}
    said = {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }
    return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]


SYSTEM = {"role": "system", "content": "You are an agent."}
TASK = {"role": "user", "content": "Find the mayor of Oslo."}
LONG = "Oslo has a mayor. " * 100
FOUR = [SYSTEM, TASK, *call(1, LONG), *call(2, LONG), *call(3, LONG), *call(4, LONG)]


def test_keep_shows_the_very_same_messages():
    assert all(shown is given for shown, given in zip(fold(FOUR), FOUR, strict=True))


def test_mask_leaves_handles_by_which_recall_finds_the_results():
    seen = fold(FOUR, "archive(3)")
    place = seen[3]["content"]
    assert place.startswith("[result of search, 450 tokens, was dropped; recall(") and seen[5:] == FOUR[5:]
    handle = place.partition('recall("')[2][:9]
    assert recall(FOUR, handle) == LONG
    with pytest.raises(UserError, match="no result has the handle 'r00000000'"):
        recall(FOUR, "r00000000")
    assert (
        fold(FOUR, "archive(3)", bounds=Bounds(handles=False))[3]["content"]
        == "[result of search, 450 tokens, was dropped]"
    )


def test_window_drops_whole_exchanges_and_keeps_what_the_user_said_in_place():
    later = {"role": "user", "content": "And of Bergen."}
    messages = [*FOUR[:6], later, *FOUR[6:]]
    assert fold(messages, "window(1)") == [SYSTEM, TASK, later, *FOUR[8:]]
    assert fold(messages, "window(2)") == [SYSTEM, TASK, later, *FOUR[6:]]
    assert fold(messages, "window(3)") == [SYSTEM, TASK, *FOUR[4:6], later, *FOUR[6:]]


def test_fold_asks_for_a_state_every_k_exchanges_and_shows_it_behind_the_task():
    assert [ask(FOUR[:n], "fold(2)") is not None for n in (2, 4, 6, 8, 10)] == [False, False, False, True, True]
    request = ask(FOUR[:8], "fold(2)")
    assert request is not None and request[:-1] == fold(FOUR[:8], "fold(2)") and request[-1]["content"].startswith(ASK)
    messages = with_state(FOUR[:8], "Searched twice. </memory> Nothing.")
    seen = fold(messages, "fold(2)")
    behind = {
        "role": "user",
        "content": f"{TASK['content']}\n\n<memory>\nSearched twice. (/memory> Nothing.\n</memory>",
    }
    assert seen == [SYSTEM, behind, *FOUR[6:8]]
    messages += FOUR[8:]
    assert fold(messages, "fold(2)") == [SYSTEM, behind, *FOUR[6:]]
    assert ask(messages, "fold(2)") is None and ask([*messages, *call(5)], "fold(2)") is not None
    # a history that was replaced by what was shown goes on in the same way
    assert fold([*seen, *FOUR[8:]], "fold(2)") == [SYSTEM, behind, *FOUR[6:]]
    newer = fold(with_state([*messages, *call(5)], "New."), "fold(2)")
    assert newer[1]["content"].endswith("<memory>\nNew.\n</memory>") and newer[2:] == call(5)
    with pytest.raises(UserError, match="wrote no state"):
        with_state(FOUR, " ")


def test_a_state_goes_into_a_part_of_its_own_where_the_task_has_parts():
    task = {
        "role": "user",
        "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "x"}}],
    }
    seen = fold(with_state([task, *FOUR[2:6]], "Seen."), "fold(1)")
    assert seen == [
        {"role": "user", "content": [*task["content"], {"type": "text", "text": "<memory>\nSeen.\n</memory>"}]},
        *FOUR[4:6],
    ]
    assert fold(seen, "fold(1)") == seen


def test_notes_are_lines_of_the_model_or_else_its_calls_and_are_rewritten_at_their_cap():
    messages = [TASK, *call(1, "a", "ok <note> Oslo:\n 700,000 people </note>"), *call(2, "b"), *call(3, "c")]
    task, *newest = fold(messages, "notes", bounds=Bounds(handles=False))
    instruction, _, block = task["content"].partition("<memory>")
    assert instruction.startswith(TASK["content"]) and "<note>" in instruction and newest == call(3, "c")
    assert block == '\n- Oslo: 700,000 people\n- search({"q":2})\n</memory>'
    assert "[r" in fold(messages, "notes")[0]["content"]
    assert ask(messages, "notes") is None and ask(messages, "notes(5)") is not None
    state = fold(with_state(messages, "- all in one"), "notes(5)", bounds=Bounds(handles=False))
    assert state[0]["content"].endswith("<memory>\n- all in one\n</memory>") and state[1:] == call(3, "c")


def test_a_long_note_keeps_its_end():
    accounts = [f"DE{4821337700 + 1373 * number}" for number in range(35)]
    messages = [TASK, *call(1, "a", f"<note>Accounts: {', '.join(accounts)}</note>"), *call(2)]
    for text in (fold(messages, "notebook(4)")[0]["content"], recall(messages, "notes")):
        assert all(account in text for account in accounts)


def test_a_note_that_would_push_out_all_others_is_cut_at_a_word_and_recalled_whole():
    long = "Contract: " + "the seller delivers 4711 tons; " * 200
    said = ("a: 1", long, "b: 2", "c: 3")
    messages = [TASK, *(m for n, note in enumerate(said) for m in call(n, "r", f"<note>{note}</note>")), *call(9)]
    for policy in ("notes", "notebook(8)"):
        seen = fold(messages, policy)[0]["content"]
        assert "a: 1" in seen and "c: 3" in seen and re.search(r" (tons;|4711|the|seller|delivers) \u22ef", seen)
    assert long.strip() in recall(messages, "notes")


def test_notes_on_a_quarter_are_no_answers_to_a_question():
    said = ("Q3 revenue: 4.2M", "Q3 headcount was 118", "Q3 churn was 2.1 %", "q3 revenue: 4.3M")
    messages = [TASK, *(m for n, note in enumerate(said) for m in call(n, "a", f"<note>{note}</note>")), *call(9)]
    for policy in ("notes", "notebook(8)"):
        notes = [note for note in said if note in fold(messages, policy)[0]["content"]]
        assert notes == ["Q3 headcount was 118", "Q3 churn was 2.1 %", "q3 revenue: 4.3M"]


def test_calls_that_wait_are_never_dropped_and_dead_ones_get_a_result_that_says_so():
    waiting = call(5)[:1]
    assert fold([*FOUR, *waiting], "window(1)") == [SYSTEM, TASK, *FOUR[8:], *waiting]
    assert ask([*FOUR, *waiting], "fold(1)") is None
    assert fold(FOUR, "window(1)", pending={"c2"}) == [SYSTEM, TASK, *FOUR[4:6], *FOUR[8:]]
    *_, dead, answer = fold([TASK, *waiting, *call(6)], "full")[:3]
    assert dead is waiting[0] and answer == {
        "role": "tool",
        "tool_call_id": "c5",
        "content": "error: this call was never answered",
    }


def test_a_shortened_result_is_read_to_its_end_within_its_bound():
    """What `recall` returns is shortened too, and says where it goes on."""
    whole = "".join(f"line {i}\n" for i in range(150))
    messages = [TASK, *call(1)[:1], {"role": "tool", "tool_call_id": "c1", "content": whole}]
    bounds, read = Bounds(result=100), ""
    for number in range(2, 20):
        seen = fold(messages, bounds=bounds)
        assert fold(seen, bounds=bounds) == seen and tokens_of(seen[-1:]) <= 104
        part, found, rest = seen[-1]["content"].partition("\n[")
        read += part
        if not found:
            break
        name, start = re.search(r'recall\("(\w+)", start=(\d+)\) shows more\]$', rest).groups()  # type: ignore[union-attr]
        again = recall(messages, name, start=int(start))
        messages += [*call(number)[:1], {"role": "tool", "tool_call_id": f"c{number}", "content": again}]
    assert read == whole
    with pytest.raises(UserError, match=r"ends after \d+ characters; start=9999 is too far"):
        recall(messages, name, start=9999)


def test_bounds_hold_for_results_images_state_and_the_whole_prompt():
    seen = fold(FOUR, bounds=Bounds(result=100))
    assert (
        all(tokens_of([m]) <= 100 + 4 for m in seen if m["role"] == "tool")
        and "more tokens; recall(" in seen[3]["content"]
    )
    handle = seen[3]["content"].partition('recall("')[2][:9]
    assert recall(FOUR, handle) == LONG
    fitted = fold(FOUR, bounds=Bounds(prompt=1_100))
    assert tokens_of(fitted) <= 1_100 and [len(texts(m["content"])) < 100 for m in fitted[3::2]] == [
        True,
        True,
        False,
        False,
    ]
    assert fold(FOUR, bounds=Bounds(prompt=600))[-1] == FOUR[-1]
    long_task, *newest = fold([{"role": "user", "content": LONG * 3}, *call(1)], bounds=Bounds(prompt=300))
    assert long_task["content"].startswith(LONG[:400]) and long_task["content"].endswith(LONG[-200:])
    assert "tokens of this message were left out ...]" in long_task["content"] and newest == call(1)
    with pytest.raises(UserError, match="only the least of the pinned ones, the state and what waits for a result"):
        fold([TASK, *call(1, text=LONG)[:1]], bounds=Bounds(prompt=300))
    long_state = fold(with_state(FOUR, "\n".join(f"line {i}" for i in range(200))), "fold(1)", bounds=Bounds(state=50))
    assert long_state[1]["content"].endswith("</memory>") and "line 0\n" in long_state[1]["content"]
    assert tokens_of(long_state[1:2]) < 80
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    shots = [TASK, *call(1), *call(2), *call(3)]
    shots = [{**m, "content": [picture]} if m["role"] == "tool" else m for m in shots]
    kept = fold(shots, bounds=Bounds(images=1))
    assert kept[-1]["content"] == [picture] and kept[2]["content"][0]["text"].startswith("[image dropped; recall(")
    dropped = fold(shots, "window(1)")
    assert dropped[0]["content"].count("[image dropped; recall(") == 2
    with pytest.raises(UserError, match="the bound 'state' must be at least 50, not 3"):
        Bounds(state=3)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (
            [TASK, {"role": "tool", "tool_call_id": "x", "content": ""}],
            r"messages\[1\]: a result without the assistant message that called",
        ),
        (
            [TASK, call(1)[0], {"role": "tool", "tool_call_id": "x", "content": ""}],
            r"messages\[2\]: a result for 'x', but .*called 'c1'",
        ),
        ([SYSTEM, *call(1)], "no message of the user"),
        ([TASK, {"role": "function", "content": ""}], r"messages\[1\]: a result without the assistant message"),
        ([TASK, {"role": "critic", "content": ""}], r"messages\[1\]: unknown role 'critic'"),
        ([TASK, "hello"], r"messages\[1\] is a str; a message is a dictionary"),
        ([TASK, {"role": "assistant", "tool_calls": [{"function": {}}]}], r"messages\[1\]: a tool call needs an id"),
    ],
)
def test_a_conversation_that_no_provider_accepts_is_refused_in_one_line(messages: list[Any], why: str):
    with pytest.raises(UserError, match=why) as raised:
        fold(messages)
    assert "\n" not in str(raised.value)


def test_anthropics_text_behind_results_is_pinned_when_they_go():
    def turn(number: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": f"t{number}", "name": "search", "input": {"q": number}}
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": LONG}
        return [{"role": "assistant", "content": [thinking, use]}, {"role": "user", "content": [result, *more]}]

    also = {"type": "text", "text": "Also Bergen."}
    messages = [TASK, *turn(1, also), *turn(2)]
    assert fold(messages, "full", form="anthropic") == messages
    assert fold(messages, "window(1)", form="anthropic") == [TASK, {"role": "user", "content": [also]}, *turn(2)]
    masked = fold(messages, "archive(1)", form="anthropic")
    assert (
        masked[1] is messages[1]
        and masked[2]["content"][0]["content"].startswith("[result of search")
        and masked[2]["content"][1] == also
    )
    with pytest.raises(UserError, match=r"messages\[1\]: a result without the assistant message that called it"):
        fold([TASK, turn(1)[1]], form="anthropic")


def test_responses_keep_reasoning_with_what_it_led_to_and_refuse_references():
    items = [
        TASK,
        *(
            {"type": "reasoning", "id": "rs1", "encrypted_content": "x", "summary": []},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        ),
        {"type": "function_call_output", "call_id": "a", "output": LONG},
        *(
            {"type": "reasoning", "id": "rs2", "encrypted_content": "y", "summary": []},
            {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        ),
        {"type": "function_call_output", "call_id": "b", "output": LONG},
    ]
    assert fold(items, "window(1)", form="responses") == [TASK, *items[4:]]
    assert fold(items, "archive(1)", form="responses")[3]["output"].startswith("[result of f, 450 tokens, was dropped")
    with pytest.raises(UserError, match=r"messages\[0\]: a reference to an item that the server keeps"):
        fold([{"type": "item_reference", "id": "x"}], form="responses")


@pytest.mark.parametrize("name", ["fold", "fold(0)", "folds(2)", "window(1", "mem1.memory:Kept(1)"])
def test_an_unknown_memory_is_refused_with_the_known_ones(name: str):
    with pytest.raises(UserError, match="memory"):
        fold(FOUR, name)


@pytest.mark.parametrize("memory", ["fold(1)", "notes"])
@pytest.mark.parametrize("picture", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_what_was_shown_may_come_back_as_parts_of_a_text_or_as_a_text_of_parts(
    memory: str, picture: bool, as_text: bool
):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    own = "Find the port of host 7." if as_text else [{"type": "text", "text": "Find the port of host 7."}]
    own = own if as_text or not picture else [*own, image]
    messages: list[dict[str, Any]] = [{"role": "user", "content": own}]
    for n in range(6):
        function = {"name": "look", "arguments": "{}"}
        called = {"id": f"c{n}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": f"<note>k{n}: v{n}</note>", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": "a result " * 50},
        ]
    if memory != "notes":
        messages = [*with_state(messages[:9], "The state."), *messages[9:]]
    shown = fold(messages, memory)
    assert fold(shown, memory) == shown
    whole = texts(shown[0]["content"])
    changed = [{"type": "text", "text": whole, "cache_control": {"type": "ephemeral"}}] if as_text else whole
    again = fold([{"role": "user", "content": changed}, *shown[1:]], memory)
    one, other = (re.sub(r"\n+", "\n", text) for text in (texts(again[0]["content"]), whole))
    assert one == other and again[1:] == shown[1:]


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (5, "its content is a int"),
        ({"text": "a"}, "its content is a dict"),
        ([None], "a part of its content is None"),
        (["text"], "a part of its content is 'text'"),
    ],
)
def test_a_content_that_no_api_knows_is_named(form: str, content: Any, message: str):
    with pytest.raises(UserError, match=re.escape(f"messages[0]: {message}")):
        fold([{"role": "user", "content": content}], "window(1)", form=form)
    assistant = {"role": "assistant", "content": content, **({"type": "message"} if form == "responses" else {})}
    with pytest.raises(UserError, match=re.escape(f"messages[1]: {message}")):
        fold([{"role": "user", "content": "Go."}, assistant], "window(1)", form=form)
