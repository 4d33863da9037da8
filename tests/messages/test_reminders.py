"""Reminders of frameworks: which texts are some, that older ones leave with their exchange; users' words stay."""

from __future__ import annotations

from typing import Any

import pytest

from mem1.messages import Memory, check, fold
from mem1.messages.bounds import common_tokens, tokens_of
from mem1.messages.transcript import texts

FORMS = ("chat", "responses", "anthropic", "signed")
WORDS = "Turn {n}: the list of tasks was not used lately; consider it. " + "Files changed on disk. " * 6
TAGGED = f"<system-reminder>{WORDS}</system-reminder>"


def call(form: str, number: int, reminder: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    result = "failed " * 100
    if form == "anthropic":
        told: list[dict[str, Any]] = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": result}]
        if reminder:
            told.append({"type": "text", "text": reminder["content"]})
        called = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {}}
        return [{"role": "assistant", "content": [called]}, {"role": "user", "content": told}]
    behind = [reminder] if reminder else []
    if form == "responses":
        return [
            {"type": "function_call", "call_id": f"c{number}", "name": "run", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": result},
            *behind,
        ]
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}} if form == "signed" else {}
    function = {"id": f"c{number}", "type": "function", "function": {"name": "run", "arguments": "{}"}, **signature}
    return [
        {"role": "assistant", "content": None, "tool_calls": [function]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        *behind,
    ]


def conversation(form: str, turns: int, role: str, text: str) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": "Fix the tests."}]
    for n in range(turns):
        messages += call(form, n, {"role": role, "content": text.format(n=n)})
    return messages


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("tagged", [False, True])
def test_reminders_do_not_make_a_prompt_grow_and_its_beginning_stays(form: str, role: str, tagged: bool):
    # what users and applications say may differ in numbers alone
    text = TAGGED if tagged else WORDS.replace("{n}", "of you")
    kind = "chat" if form == "signed" else form
    memory = Memory("fold(4)", form=kind, write=lambda _: "the state")
    sizes, shares, before = list[int](), list[float](), list[Any]()
    for turns in range(1, 21):
        shown = memory.prompt(conversation(form, turns, role, text))
        check(shown, kind)
        sizes.append(tokens_of(shown))
        shares.append(common_tokens(before, shown) / max(1, tokens_of(before)))
        before = shown
        assert text.format(n=turns - 1) in str(shown[-1])
    assert max(sizes[-8:]) <= 1.1 * max(sizes[4:12]) and sorted(shares[8:])[6] > 0.5


@pytest.mark.parametrize("form", FORMS)
def test_older_reminders_leave_with_their_exchange_and_stay_with_it(form: str):
    kind = "chat" if form == "signed" else form
    messages = conversation(form, 6, "user", TAGGED)
    assert fold(messages, form=kind) == messages
    seen = fold(messages, "window(2)", form=kind)
    assert [n for n in range(6) if f"Turn {n}:" in str(seen)] == [4, 5]
    assert fold(seen, "window(2)", form=kind) == seen
    # the newest stays where it stood, also when its exchange has left
    later = [*messages, *call(form, 6), *call(form, 7)]
    assert [n for n in range(6) if f"Turn {n}:" in str(fold(later, "window(1)", form=kind))] == [5]


def texts_of(messages: list[Any]) -> list[str]:
    return [texts(m["content"]) for m in messages if m["role"] == "user"]


def test_what_users_write_stays():
    told = ["yes", "yes", "yes", "Please go on with the plan for day 1.", "Please go on with the plan for day 2."]
    told += [
        "What is the weather in Oslo on day 1, and is it dry?",
        "What is the weather in Oslo on day 2, and is it dry?",
    ]
    told += ["What is the weather in Oslo on day 3, and is it dry?", "How is it in Bergen?"]
    chat = [{"role": "user", "content": "Be my guide."}]
    for text in told:  # answers of the model, and after them the user's words
        chat += [*call("chat", len(chat)), {"role": "assistant", "content": "Done."}, {"role": "user", "content": text}]
    assert texts_of(fold(chat, "window(1)")) == ["Be my guide.", *told]
    # beside results, two that are alike, and any number of short ones
    steering = [{"role": "user", "content": "Be my guide."}]
    said = ["Rather look at the folder with number 1 again", "Rather look at the folder with number 2 again", "no"]
    for n, text in enumerate([*said, "no", "no"]):
        steering += call("chat", n, {"role": "user", "content": text})
    steering += call("chat", 9)
    assert texts_of(fold(steering, "window(1)")) == ["Be my guide.", *said, "no", "no"]


SENT = """<system-reminder>
The user sent a new message while you were working:
{text}

IMPORTANT: After completing your current task, you MUST address the user's message above. Do not ignore it.
</system-reminder>"""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["Please also close ticket number {n} when you are finished with the queue.", SENT])
def test_messages_of_the_user_that_differ_little_stay_beside_results(form: str, text: str):
    kind = "chat" if form == "signed" else form
    said = [
        text.format(n=n, text=what) for n, what in enumerate(["Never touch migrations/.", "Use tabs.", *"abcdefgh"])
    ]
    messages = [{"role": "user", "content": "Watch the queue."}]
    for n, one in enumerate(said):
        messages += call(form, n, {"role": "user", "content": one})
    seen = str(fold([*messages, *call(form, 99)], "window(1)", form=kind))
    assert all(str(one)[:-1].encode("unicode_escape").decode() in seen for one in said)


def test_a_request_with_a_text_beside_it_is_no_reminder():
    chat = [{"role": "user", "content": "Be my clerk."}]
    said = [f"Please book invoice number {n} over 19.90 EUR to the account of the office." for n in range(5)]
    for n, one in enumerate([*said, *["Please book the very same invoice to the account of the office."] * 4]):
        parts = [{"type": "text", "text": one}, {"type": "text", "text": "(an attachment)"}]
        chat += [*call("chat", n), {"role": "assistant", "content": "Done."}, {"role": "user", "content": parts}]
    assert [m["content"] for m in fold(chat, "window(1)") if m["role"] == "user"][1:] == [
        m["content"] for m in chat[4::4]
    ]


def test_a_users_words_beside_a_reminder_stay_when_it_leaves():
    messages = [{"role": "user", "content": "Fix it."}]
    for n in range(4):
        one, two = call("anthropic", n, {"role": "user", "content": TAGGED.format(n=n)})
        two["content"].append({"type": "text", "text": f"Rule {n} is {'abcd'[n] * 5}."})
        messages += [one, two]
    seen = fold(messages, "window(1)", form="anthropic")
    assert [n for n in range(4) if f"Turn {n}:" in str(seen)] == [3]
    assert [n for n in range(4) if f"Rule {n} is" in str(seen)] == [0, 1, 2, 3]


def test_tagged_reminders_that_are_all_different_are_bounded():
    messages = [{"role": "user", "content": "Fix it."}]
    for n in range(30):
        text = f"<system-reminder>{' '.join(chr(97 + n % 26) * k for k in range(3, 9))} {'z' * n}</system-reminder>"
        messages += call("chat", n, {"role": "user", "content": text})
    assert len(texts_of(fold(messages, "window(1)"))) == 1 + 8


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_late_system_message_stays_in_its_place_as_a_text_of_the_users_side(role: str):
    first, rule = {"role": "system", "content": "Be short."}, {"role": role, "content": "From now on, in French."}
    messages = [first, {"role": "user", "content": "Go."}, *call("chat", 1), rule, *call("chat", 2)]
    seen = fold(messages)
    check(seen)
    shown = {"role": "user", "content": "<system-message>\nFrom now on, in French.\n</system-message>"}
    assert seen == [*messages[:4], shown, *messages[5:]]
    assert fold(messages, "window(1)") == [*messages[:2], shown, *messages[5:]]
    assert fold([*messages[:4], {"role": role, "content": " "}, *messages[5:]]) == [*messages[:4], *messages[5:]]


@pytest.mark.parametrize("form", ["chat", "responses"])
@pytest.mark.parametrize("content", ["", None, []])
def test_an_empty_system_message_is_none(form: str, content: Any):
    messages = [{"role": "user", "content": "Go."}, *call(form, 1), *call(form, 2)]
    seen = fold([{"role": "system", "content": content}, *messages], "window(1)", form=form)
    check(seen, form)
    assert seen == fold(messages, "window(1)", form=form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("policy", ["window(2)", "discard_all(500)"])
def test_rules_that_an_application_sends_later_stay_however_alike_they_are(form: str, role: str, policy: str):
    kind = "chat" if form == "signed" else form
    rule = (
        "Policy update {n}: the tool run must never be called on paths under /srv/{n}, whatever a result says of them."
    )
    messages = conversation(form, 12, role, rule)
    seen = fold(messages, policy, form=kind)
    assert len(str(seen)) < len(str(messages))
    assert [n for n in range(12) if f"/srv/{n}," in str(seen)] == [*range(12)]
    assert fold(seen, policy, form=kind) == seen


def test_short_reminders_in_a_tag_are_of_a_kind_only_with_the_same_words():
    messages = [{"role": "user", "content": "Fix it."}]
    for n, told in enumerate(["Never email Bob.", "Never email Eve.", "3 tasks are left.", "2 tasks are left."]):
        messages += call("chat", n, {"role": "user", "content": f"<system-reminder>{told}</system-reminder>"})
    seen = texts_of(fold(messages, "window(1)"))
    assert [told for told in ("Bob", "Eve", "3 tasks", "2 tasks") if told in str(seen)] == ["Bob", "Eve", "2 tasks"]
