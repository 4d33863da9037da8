"""Thoughts that a server left in a text are out of what was said, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

import pytest

from mem1.messages import Bounds, Memory, fold
from mem1.messages.thoughts import _FIRST_OF_ALL, MARKS, Speech, _small, begins_inside, spoken, without_thoughts

THOUGHT = "Is <note>code 1111</note> right?\n" * 20


def ended(closing: str) -> str:
    """The end of a thought as it stands alone: <|end|>, with which any message ends, only before the answer's mark."""
    return f"{closing}<|start|>assistant" if closing == "<|end|>" else f"{closing}\n"


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_a_thought_is_left_out_whole_with_only_its_end_or_cut_off(opening: str, closing: str):
    assert without_thoughts(f"{opening}\n{THOUGHT}{closing}\n\n4711") == "4711"
    assert without_thoughts(f"{THOUGHT}{ended(closing)}4711") == "4711"
    assert without_thoughts(f"{opening}{THOUGHT}") == ""
    several = f"Well.\n{opening}hm{closing}\n4711\n{opening}hm{closing}"
    assert without_thoughts(several) == (several if opening in _FIRST_OF_ALL else "Well.\n\n4711")
    assert without_thoughts(f"{opening}a {opening}b{closing} c {closing} 4711") == "4711"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4711",
        "`<think>` opens a thought and `</think>` closes it.",
        "Between <think> and </think> stands a thought.",
        "`<|im_end|>` ends a message, and so does </s>.",
        "<s>Bergen</s>",
        "A fence:\n```\n<|im_end|>\n```",
        "As XML:\n```\n<think>\nhm\n</think>\n```\nThat is all.",
        "`<Think>` is no `<THINK>`; between <Think> and </Think> stands a thought.",
        "[think](https://example.org) of it",
        "<|start_thinking|> has capitals",
        "<reflection>\nI was late.\n</reflection>\n<reason>\nRain.\n</reason>",
        "<material>\n<reflection>0.4</reflection>\n</material>",
        "<notes>\n<scratchpad>\nmilk\n</scratchpad>\n</notes>",
        "Here it is.\n<scratchpad>milk</scratchpad>\nThat is all.",
        "<scratchpad>milk</scratchpad>",
        "<scratchpad>milk",
        "<scratchpads>milk</scratchpads> and </scratchpad>",
    ],
)
def test_what_only_speaks_of_thoughts_stays(text: str):
    assert without_thoughts(text) is text


@pytest.mark.parametrize("opening", ["<Think>", "<THINK>", "<Thought>", "<ThInKing>", "<REASONING_SCRATCHPAD>"])
def test_marks_in_small_letters_count_in_any_case(opening: str):
    closing = f"</{opening[1:]}"
    for ends in (closing, closing.lower(), closing.upper()):
        assert without_thoughts(f"{opening}\u0130 {THOUGHT}{ends}\n\u0130 4711") == "\u0130 4711"
        assert without_thoughts(f"\u0130\u0130 {THOUGHT}{ends}\n4711") == "4711"


def test_letters_keep_their_places_when_they_are_made_small():
    every = "".join(map(chr, range(0x110000)))
    assert len(_small(every)) == len(every)
    assert _small("<THINK>\u0130</Think>") == "<think>i</think>"


@pytest.mark.parametrize("opening", ["<scratchpad>", "<SCRATCHPAD>"])
def test_a_scratchpad_that_a_text_begins_with_is_a_thought(opening: str):
    closing = f"</{opening[1:]}"
    assert without_thoughts(f"\n{opening}\n{THOUGHT}{closing}\n\n<answer>4711</answer>") == "<answer>4711</answer>"
    assert without_thoughts(f"{opening}hm{closing}<think>hm</think>4711") == "4711"


def test_thoughts_of_several_kinds_and_those_between_two_ends_are_left_out():
    assert without_thoughts("<Think>hm</Think>\n<Thought>hm</Thought>\n<THINKING>hm</THINKING>\n4711") == "4711"
    assert without_thoughts("Well.\n<think>hm</think> hm\n</think> 4711") == "4711"
    assert without_thoughts("<think>```</think>\n```\n<think>\n```\n<think>hm</think>4711") == "```\n<think>\n```\n4711"


def test_what_is_reflected_on_in_a_thought_is_part_of_it():
    text = "<thinking>\n1901\n<reflection>\nNo, 1902.\n</reflection>\n</thinking>\n<output>1902</output>"
    assert without_thoughts(text) == "<output>1902</output>"


@pytest.mark.parametrize(
    "end", ["<|im_end|>", "<|eot_id|>\n", "<|end|>", "<end_of_turn>", " </s>", "<|im_end|>\n<|endoftext|>"]
)
def test_the_token_that_ends_a_message_is_none_of_it(end: str):
    assert without_thoughts(f"4711{end}") == "4711"
    assert without_thoughts(f"<think>hm</think>4711{end}") == "4711"


def test_fences_in_a_thought_are_none_of_the_answers():
    assert without_thoughts("<think>```python\n</think>\nA ```x``` b\n<think>hm</think>") == "A ```x``` b"


def test_gpt_oss_answers_on_its_final_channel():
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Oslo"
    assert without_thoughts(text) == "Oslo"


SIGNED = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "<think>a</think>b"}]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("<think>a</think>b", "b"),
        ([{"type": "text", "text": "<think>a</think>b"}], [{"type": "text", "text": "b"}]),
        (
            [{"type": "text", "text": "<think>a</think>"}, {"type": "text", "text": "b"}],
            [{"type": "text", "text": "b"}],
        ),
        (SIGNED, SIGNED),
        ("<think>alone</think>", "<think>alone</think>"),
        (None, None),
    ],
)
def test_a_message_loses_its_thoughts_unless_they_are_signed_or_all_it_has(content: Any, kept: Any):
    message = {"role": "assistant", "content": content}
    assert spoken(message) == {"role": "assistant", "content": kept}
    assert (spoken(message) is message) == (content == kept)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 40_000,
        "</think>" * 40_000,
        "\n<think>`" * 30_000,
        "a`" + "</think> ◁/think▷" * 30_000 + "\n" + "`",
        "x" * 300_000 + "<think></think>" * 20_000,
        "<scratchpad>" * 40_000,
        "<THINK>a</THINK>" * 20_000,
    ],
)
def test_long_texts_take_no_longer_than_their_length(text: str):
    before = process_time()
    without_thoughts(text)
    assert process_time() - before < 2


FORMS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "chat": [
        {"role": "assistant", "content": "<think>SECRET</think>Next.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ],
    "responses": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "SECRET\n</think>Next."}]},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ],
    "anthropic": [
        {"role": "assistant", "content": [
            {"type": "text", "text": "<thinking>SECRET</thinking>Next."},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "found"}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_no_thought_in_a_text_reaches_the_next_prompt_in_any_form(form: str):
    user = {"role": "user", "content": "Go."} | ({"type": "message"} if form == "responses" else {})
    shown = str(fold([user, *FORMS[form]], form=form))
    assert "SECRET" not in shown and "Next." in shown


@pytest.mark.parametrize(
    "thought", ["<think>\nhm 1111\n</think>\n\n", "hm 1111\n</think>\n", "<thinking>1111</thinking>"]
)
def test_a_state_is_what_comes_after_the_thoughts(thought: str):
    messages = [{"role": "user", "content": "Open the safe."}, *FORMS["chat"], *FORMS["chat"]]
    memory = Memory("fold(1)", write=lambda _: f"{thought}The code is 4711.", bounds=Bounds(state=50))
    (task, *_) = memory.prompt(messages)
    assert "4711" in task["content"] and "1111" not in task["content"]
    assert "1111" not in str(memory.with_state(messages))


@pytest.mark.parametrize(
    "reply", ['<tool_call>{"name": "search", "arguments": {}}</tool_call>', "<tool_call>{", "<think>hm"]
)
def test_a_call_written_as_text_or_a_thought_alone_is_no_state(reply: str):
    asked, events = list[Any](), list[Any]()
    messages = [{"role": "user", "content": "Go."}, *FORMS["chat"], *FORMS["chat"]]
    memory = Memory("fold(1)", write=lambda request: asked.append(request) or reply, on_event=events.append)
    shown = memory.prompt(messages)
    assert len(asked) == 2 and "<memory>" not in str(shown)
    assert [event.kind for event in events] == ["no_state"]


@pytest.mark.parametrize(
    "text",
    [
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Oslo<|END_RESPONSE|>",
        "<|begin_of_thought|>hm<|end_of_thought|>\n\n<|begin_of_solution|>Oslo<|end_of_solution|>",
        "<|channel>thought\nhm<channel|>Oslo",
        "<unused94>thought\nhm<unused95>Oslo",
        "<mm:think>hm</mm:think>\nOslo",
        "<longcat_think>hm</longcat_think>\nOslo",
    ],
)
def test_thoughts_of_later_models_leave_with_the_marks_around_the_answer(text: str):
    assert without_thoughts(text) == "Oslo"


def in_pieces(text: str, draw: random.Random | None, *, inside: bool = False) -> list[str]:
    """What is said of the pieces of a text, which are of one letter where nothing is drawn."""
    speech, pieces, at = Speech(inside=inside), list[str](), 0
    while at < len(text):
        size = 1 if draw is None else draw.randint(1, 9)
        pieces.append(text[at : at + size])
        at += size
    return [*map(speech.add, pieces), speech.rest()]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["The mayor", " is", " Anne."], ["The mayor", " is", " Anne.", ""]),
        (["<think>", "hm", "</think>", "\n\n", "Oslo", "."], ["", "", "", "", "Oslo", ".", ""]),
        (["<", "b>Oslo</b>"], ["", "<b>Oslo</b>", ""]),
        (["Oslo ", "is", "<|im_", "end|>"], ["Oslo", " is", "", "", ""]),
        (["a <think> b", " </think> c"], ["a <think> b", " </think> c", ""]),
        (["```\n<thi", "nk>\n``", "`"], ["```\n<thi", "nk>", "\n```", ""]),
        (["<scratchpad>1111</scratch", "pad> ", "Oslo"], ["", "", "Oslo", ""]),
        (["<scratchpad>milk", "</scratchpad>"], ["", "", "<scratchpad>milk</scratchpad>"]),
        (["<think>1111"], ["", ""]),
    ],
)
def test_of_a_text_in_pieces_is_said_at_once_what_is_no_thought(pieces: list[str], said: list[str]):
    speech = Speech()
    assert [*map(speech.add, pieces), speech.rest()] == said


def test_what_is_said_of_pieces_is_what_is_said_of_the_whole():
    draw, told = random.Random(0), 0
    parts = [
        *("Oslo", " ", "\n", "\n\n", "a < b", "<b>x</b>", "`<think>`", "x <think> y </think>", "```\n<think>\n```"),
        *("<s>Bergen</s>", "[1]", "\u0130", "```python\nprint(1)\n```\n", "<scratchpad>", "</scratchpad>"),
        *(f"\n{opening}1111 {opening[:-1]} \n{closing}" for opening, closing in MARKS),
    ]
    for _ in range(3_000):
        text = "".join(draw.choices(parts, k=draw.randint(1, 8)))
        text = draw.choice(("", "<scratchpad>1111</scratchpad>", "<think>1111</think>")) + text
        text += draw.choice(("", "<|im_end|>", " \n<|end|>\n"))
        text = text.lstrip()  # blanks before the first word are said before a thought behind it takes them away
        whole = without_thoughts(text)
        assert "".join(in_pieces(text, draw.choice((draw, None)))) == whole, text
        told += whole != text
    assert told > 1_000


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_where_thoughts_are_known_to_begin_in_the_prompt_none_is_said_in_pieces(opening: str, closing: str):
    text = f"Is it 1111?\n{ended(closing)}\n4711"
    assert begins_inside(text) and not begins_inside(f"{opening}{text}")
    assert "".join(in_pieces(text, None, inside=True)) == "4711"
    assert "".join(in_pieces(f"{opening}{text}", None, inside=True)) == "4711"
    assert in_pieces("4711", None, inside=True) == ["", "", "", "", "4711"]


@pytest.mark.parametrize("text", ["4711", "4711<|end|>", "`</think>` ends it", "<think>a</think>b", "<think>a"])
def test_what_has_the_beginning_of_its_thought_or_none_does_not_begin_inside(text: str):
    assert not begins_inside(text)


@pytest.mark.parametrize(
    "text", ["<think>" * 8_000, "<scratchpad>" * 5_000, "x" * 50_000, "\n<" * 20_000, "`" * 50_000]
)
@pytest.mark.parametrize("inside", [False, True])
def test_long_texts_in_small_pieces_take_no_longer_than_their_length(text: str, inside: bool):
    before = process_time()
    in_pieces(text, random.Random(0), inside=inside)
    assert process_time() - before < 10


@pytest.mark.parametrize(
    "text",
    [
        "Decided: port 8080, never delete /srv.\nThe parser stops at </think>, as in Qwen; next: test it.",
        "The closing tag </think> ends a thought; write it after step 3.\nKey: 99",
        "Here is the prompt:\n\n<thinking>\nFirst check invoice 4711.\n</thinking>\n\n<answer>42</answer>",
        "The config file is:\n<reasoning>\n  <effort>high</effort>\n</reasoning>\nSave it.",
        "It has <thought> in line 3 and </thought> in line 9.",
        "```\n</reasoning>\n```\nis the file.",
        "One <thinking> and\n</thinking> more",
        "Phi-3 writes `<|user|>\\nHello<|end|>\\n<|assistant|>`, so set the stop word to that.",
        "Port 8080, key in /etc/k.\nPhi-3 ends a turn with <|end|> and the next begins.\nLeft: tests.",
        "Phi-3's template is:\n<|user|>\nHello<|end|>\n<|assistant|>\nand so on.",
        "Step 1: pin vLLM.\nStep 2: Magistral closes its thoughts with [/THINK], then it answers.",
        "Gemma ends a thought with <channel|>, Kimi with ◁/think▷, Cohere with <|END_THINKING|> in its text.",
        "First line.\nThe end is `a </think>`\nLast line.",
        "It stops at `</think>\nand goes on.",
        "It has 'a[/THINK]', (◁/think▷) and x=<|END_THINKING|>.",
        "It is `a<|END_THINKING|><|START_RESPONSE|>b` or `c<|END_THINKING|><|START_RESPONSE|>d`.",
    ],
)
def test_a_text_that_speaks_of_marks_stays_whole(text: str):
    assert without_thoughts(text) is text
    assert "".join(in_pieces(text, None)) == text
    task, asked = {"role": "user", "content": "Go."}, {"role": "user", "content": "And?"}
    assert fold([task, {"role": "assistant", "content": text}, asked])[1]["content"] == text
    called = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}  # fmt: skip
    seen = [
        task,
        called,
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        called,
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    assert text in str(Memory("fold(1)", write=lambda _: text).prompt(seen)[0]["content"])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("I search.<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>", "<|START_ACTION|>[]<|END_ACTION|>"),
        ('It said "no"<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>', "<|START_ACTION|>[]<|END_ACTION|>"),
        ("The capital.<|END_THINKING|><|START_TEXT|>Oslo<|END_TEXT|>", "Oslo"),
        ("The capital.[/THINK]Oslo", "Oslo"),
        ("The capital.◁/think▷**Oslo**", "**Oslo**"),
        ("One ` sign.</think>\n\nIt is `Oslo`", "It is `Oslo`"),
        ("One ` sign.\nIt ends `here.</think>", ""),
    ],
)
def test_a_thought_that_the_template_began_ends_inside_a_line_and_behind_a_stray_backquote(text: str, kept: str):
    assert without_thoughts(text) == kept


def test_thoughts_with_which_a_text_begins_are_left_out_in_any_order():
    first, second = "<reasoning>a</reasoning> <thinking>b <thinking>c</thinking> d</thinking>", "<thought>f</thought>"
    assert without_thoughts(f"{first}\n<think>e</think>{second}\nOslo") == "Oslo"
    assert without_thoughts("a\n</reasoning>\nOslo") == without_thoughts("a</thinking>\nOslo") == "Oslo"
    assert without_thoughts("<thinking>cut off") == ""
