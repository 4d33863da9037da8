"""What is given up for a prompt's bound, in which order, in every form; nothing but the least frame is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mem1.messages import Bounds, Event, Memory, check, fold, recall
from mem1.messages.bounds import estimated, remembering, tokens_of
from mem1.messages.transcript import Message, texts

FORMS = ("chat", "responses", "anthropic", "signed")
"""Signed: chat completions whose calls carry Gemini's signature."""
MEMORIES = ("full", "window(2)", "fold(4)", "notes", "notebook(2)", "archive(2)", "masked", "constant")


def turn(form: str, number: int, results: list[str], **said: Any) -> list[dict[str, Any]]:
    """An exchange with a call for each result."""
    ids = [f"c{number}_{i}" for i in range(len(results))]
    if form == "anthropic":
        calls = [{"type": "tool_use", "id": id, "name": "run", "input": {}} for id in ids]
        told = [
            {"type": "tool_result", "tool_use_id": id, "content": text} for id, text in zip(ids, results, strict=True)
        ]
        return [{"role": "assistant", "content": calls}, {"role": "user", "content": told}]
    if form == "responses":
        items = [{"type": "function_call", "call_id": id, "name": "run", "arguments": "{}"} for id in ids]
        return [
            *items,
            *(
                {"type": "function_call_output", "call_id": id, "output": text}
                for id, text in zip(ids, results, strict=True)
            ),
        ]
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}} if form == "signed" else {}
    calls = [{"id": id, "type": "function", "function": {"name": "run", "arguments": "{}"}, **signature} for id in ids]
    return [
        {"role": "assistant", "content": None, **said, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(ids, results, strict=True)),
    ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def api(form: str) -> str:
    return "chat" if form == "signed" else form


@pytest.mark.parametrize(
    ("text", "real"),
    [
        # most tokens of cl100k, o200k and Anthropic's tokenizer of 2023
        ("Nobody could tell me why the bridge was closed for so long, but the mayor said so.", 18),
        ('def read(self, answer: bytes) -> dict[str, Any]:\n    return read_json(answer)["kind"]\n', 22),
        ('{"id": 17, "price": 19.99, "created_at": "2026-11-28T04:53:35Z"}', 32),
        ("奥斯陆是挪威的首都和最大城市。", 17),
        ("オスロはノルウェーの首都であり、最大の都市です。", 25),
        ("오슬로는 노르웨이의 수도이자 가장 큰 도시입니다.", 29),
        ("Осло является столицей и крупнейшим городом Норвегии.", 29),
        ("ออสโลเป็นเมืองหลวงและเมืองที่ใหญ่ที่สุดของนอร์เวย์", 46),
        ("c2lnbmF0dXJlLzJ4K1hRb0p3WmFrVjhNcWc5dHpKUGJ5", 30),
    ],
)
def test_estimates_follow_real_counts(text: str, real: int):
    assert 0.7 * real <= estimated(text) <= 1.6 * real


def test_an_estimate_grows_with_its_text_and_a_remembered_count_is_the_same():
    text = 'A river, 1901; 奥斯陆 là thủ đô 🎉 {"id": 1} \ud800 ' * 20
    sizes = [estimated(text[:end]) for end in range(len(text))]
    assert sizes == sorted(sizes)
    counted = remembering(estimated)
    assert [counted(text), counted(text), counted("a")] == [estimated(text), estimated(text), 1]


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"role": "assistant", "content": "ab", "reasoning_content": "abc"}, 4 + 5),
        ({"role": "assistant", "content": "ab", "reasoning": "abc", "new_field": {"of": ["a", "provider"]}}, 4 + 14),
        ({"role": "assistant", "content": None, "reasoning_details": [{"type": "x", "data": "abcd"}]}, 4 + 4),
        ({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "abcde"}, 4 + 5),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "abc"}]}, 4 + 3),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "extra_content": {"g": "abc"}}]}, 4 + 3),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "s", "input": {"q": [12]}}]}, 4 + 4),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, 1_004),
        ({"role": "user", "content": [{"type": "x", "url": "data:image/png;base64," + "A" * 9_999}]}, 1_004),
        ({"role": "user", "content": [{"inlineData": {"mimeType": "image/png", "data": "A" * 9_999}}]}, 1_004),
        (user("data: a;b"), 4 + 9),
        (
            {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "abc"}}]},
            4 + 3,
        ),
        ({"role": "tool", "tool_call_id": "c", "content": {"answer": "abc", "n": 1}}, 4 + 3),
    ],
)
def test_all_of_a_message_that_goes_out_counts(message: Message, tokens: int):
    assert tokens_of([message], len) == tokens


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_turn_of_many_long_parallel_results_goes_on_and_each_is_recalled(memory: str, form: str):
    lines = 700 if memory == "full" else 70
    long = "\n".join(f"line {number}: nothing to see here" for number in range(lines))
    messages = [user("Run them."), *turn(form, 0, [f"{number}\n{long}" for number in range(50)])]
    seen = fold(messages, memory, form=api(form), bounds=Bounds(prompt=6_000))
    check(seen, api(form))
    assert tokens_of(seen) <= 6_000 and json.dumps(seen).count("more tokens; recall(") == 50
    handle = json.dumps(seen).partition('more tokens; recall(\\"')[2][:9]
    assert recall(messages, handle, form=api(form)) == f"0\n{long}"
    assert fold(seen, memory, form=api(form), bounds=Bounds(prompt=6_000)) == seen
    small = fold(messages, memory, form=api(form), bounds=Bounds(prompt=600))
    check(small, api(form))
    assert tokens_of(small) <= 600 and small[0]["content"].startswith("Run them.")


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_chat_of_two_thousand_turns_stays_within_its_bound(memory: str, form: str):
    turns = 2_000 if memory == "full" else 500
    messages = [user("Hello, be kind.")]
    for number in range(turns):
        messages += [{"role": "assistant", "content": f"Answer {number} to it."}, user(f"Question {number}, if I may?")]
    bounds = Bounds(prompt=3_000)
    seen = fold(messages, memory, form=form, bounds=bounds)
    check(seen, form)
    assert tokens_of(seen) <= 3_000 and seen[-1] == messages[-1] and messages[-2] in seen
    assert seen[0]["content"].startswith("Hello, be kind.")
    questions = [m for m in seen if m["role"] == "user" and m["content"].startswith("Question")]
    assert len(questions) > 60
    line = next(m["content"] for m in seen if "earlier messages" in texts(m["content"]))
    assert line.startswith(f"[{turns - len(questions):,} earlier messages of the user were left out]")
    assert fold(seen, memory, form=form, bounds=bounds) == seen
    more = fold([*seen, *messages[-2:] * 200], "full", form=form, bounds=bounds)
    assert tokens_of(more) <= 3_000
    kept = sum(m["role"] == "user" and m["content"].startswith("Question") for m in more)
    assert f"[{turns + 200 - kept:,} earlier messages" in str(more)


def test_a_users_text_that_reads_as_our_line_is_a_message_like_any_other():
    line = "[7 earlier messages of the user were left out]"
    messages = [
        user("Another task."),
        *[m for n in range(400) for m in ({"role": "assistant", "content": "ok"}, user(line))],
    ]
    seen = fold(messages, bounds=Bounds(prompt=1_000))
    kept = sum(m["content"] == line for m in seen)
    assert f"[{400 - kept:,} earlier messages" in str(seen)


LONG = "The harbour was built in 1901 by the council of the town. " * 100


def test_thoughts_of_earlier_turns_leave_before_exchanges_and_signed_ones_only_with_theirs():
    def said(number: int, **fields: Any) -> list[dict[str, Any]]:
        return turn("chat", number, ["found"], **fields)

    plain = [*said(0, reasoning_content=LONG), {"role": "assistant", "content": "done", "reasoning": LONG}]
    messages = [user("Find it."), *plain, user("And the other."), *said(1, reasoning_content="here"), *said(2)]
    events: list[Event] = []
    seen = Memory("full", bounds=Bounds(prompt=500), on_event=events.append).prompt(messages)
    assert seen == [
        {key: value for key, value in message.items() if message not in plain or not key.startswith("reasoning")}
        for message in messages
    ]
    assert [(event.kind, event.why) for event in events] == [("cut", "thoughts of earlier turns were left out")]
    signed = said(0, reasoning_details=[{"type": "reasoning.text", "text": LONG, "signature": "c2ln"}])
    assert fold([messages[0], *signed, *messages[4:]], bounds=Bounds(prompt=500)) == [messages[0], *messages[4:]]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_pinned_is_shortened_in_its_middle_and_only_after_all_else(form: str):
    older = [user("First, " + LONG), *turn(form, 0, [LONG]), user("Older, " + LONG)]
    messages = [*older, *turn(form, 1, ["found"]), user("Last, " + LONG + "End.")]

    def shown(prompt: int) -> list[Message]:
        seen = fold(messages, form=api(form), bounds=Bounds(prompt=prompt))
        check(seen, api(form))
        assert tokens_of(seen) <= prompt
        return seen

    last = messages[-1]
    size = tokens_of([last])
    assert messages[0] in (seen := shown(3 * size + 200)) and last in seen and messages[-3] in seen
    seen = shown(2 * size + 500)  # the older message is cut
    assert seen[0] == messages[0] and seen[-1] == last and "Older, The harbour" in str(seen)
    assert "tokens of this message were left out ...]" in str(seen)
    seen = shown(size)  # it left, and the task and the last one are cut alike
    assert seen[0]["content"].startswith("First, The harbour") and seen[-1]["content"].endswith("End.")
    assert seen[-1]["content"].startswith("Last, The harbour") and "[1 earlier messages of the user" in str(seen)
    assert all(message in shown(300) for message in turn(form, 1, ["found"]))


def test_a_newest_call_beyond_the_bound_leaves_a_line_and_a_system_message_is_cut():
    call = turn("chat", 0, ["written"])
    call[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": LONG})
    seen = fold([user("Write it."), *call], bounds=Bounds(prompt=800))
    assert len(seen) == 1 and seen[0]["content"].startswith('Write it.\n\n<memory>\n- run({"text":')
    system = {"role": "system", "content": LONG}
    seen = fold([system, user("Go."), *turn("chat", 1, ["found"])], bounds=Bounds(prompt=400))
    assert seen[1:] == [user("Go."), *turn("chat", 1, ["found"])] and seen[0]["content"].startswith(LONG[:300])


def test_images_of_the_user_give_way_to_a_line():
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, picture, picture]},
        *turn("chat", 0, ["x"]),
    ]
    gone = {"type": "text", "text": "[an image was left out]"}
    assert fold(messages, bounds=Bounds(prompt=1_500))[0]["content"] == [messages[0]["content"][0], gone, picture]
