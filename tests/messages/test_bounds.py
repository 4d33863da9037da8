"""Sizes of messages counted by hand: what is measured, cached, asked for, shortened and given up first.

A token is a letter here: `count=len`. Each message costs 4 more, an image 1,000.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from transcripts import FORMS, conversation, prefixes

from mem1.memory import memory_policy
from mem1.messages import Bounds, Event, Memory, ask, fold, with_state
from mem1.messages.bounds import common_tokens, cut_state, estimated, remembering, shortened, tokens_of, without_images
from mem1.messages.cost import Sizes, measured
from mem1.messages.folding import folded
from mem1.messages.forms import form_of
from mem1.messages.transcript import Exchange

TASK = {"role": "user", "content": "Find it."}
SYSTEM = {"role": "system", "content": "Be short."}
PICTURE = {"type": "image_url", "image_url": {"url": "x" * 50_000}}
LETTERS = Bounds(count=len)


def said(number: int, *names: str, text: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"c{number}{i}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def told(number: int, content: Any, place: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}{place}", "content": content}


def call(number: int, content: Any = "found", text: str = "") -> list[dict[str, Any]]:
    """An exchange whose call is 8 letters: the name and "{}"."""
    return [said(number, "search", text=text), told(number, content)]


def sizes(messages: list[Any], bounds: Bounds = LETTERS, form: str = "chat") -> Sizes:
    kind = form_of(form)
    return measured(kind.read(messages), kind, bounds)


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"role": "user", "content": "seven.."}, 11),
        ({"role": "user", "content": None}, 4),
        ({"role": "user", "content": [{"type": "text", "text": "abc"}, {"type": "text", "text": "de"}]}, 9),
        ({"role": "user", "content": [{"type": "text", "text": "abc"}, PICTURE, PICTURE]}, 2_007),
        ({"role": "user", "content": [{"type": "image", "source": {"data": "x" * 9_999}}]}, 1_004),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x" * 9_999}]}, 1_004),
        ({"role": "user", "content": [{"type": "document", "source": {"data": "x" * 9_999}}]}, 1_004),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "x" * 9_999}]}, 1_004),
        ({"role": "user", "content": [{"type": "file", "file": {"file_data": "x" * 9_999}}]}, 1_004),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x" * 9_999}}]}, 1_004),
        (said(1, "search", "read", text="hm"), 4 + 2 + 8 + 6),
        ({"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}, 12),
        ({"type": "function_call_output", "call_id": "c1", "output": "found"}, 9),
        ({"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image"}]}, 1_004),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "abc", "signature": "x" * 99}]}, 106),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]},
            1_004,
        ),
    ],
)
def test_tokens_of_a_message(message: dict[str, Any], tokens: int):
    assert tokens_of([message], len) == tokens
    assert tokens_of([message, message], len) == 2 * tokens


def test_the_estimate_is_four_letters_a_token_rounded_up():
    assert [tokens_of([{"role": "user", "content": "x" * n}]) - 4 for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_sizes_of_a_conversation_by_hand():
    later = {"role": "user", "content": "And it."}
    messages = [
        SYSTEM,
        TASK,
        *call(1, "x" * 100, text="hm"),
        later,
        said(2, "a", "b"),
        told(2, "yes"),
        told(2, "no", 1),
    ]
    # system 13, users 12 + 11; the model says 4 + 2 + 8 and 4 + 3 + 3; results 104, 7 and 6
    assert sizes(messages) == Sizes(prompt=36, exchange=(24 + 117) / 2, action=24 / 2, state=500)
    assert sizes([SYSTEM, TASK]) == Sizes(prompt=25, exchange=0, action=0, state=500)
    assert sizes(messages, Bounds(count=len, result=50, state=60)) == Sizes(
        prompt=36, exchange=(24 + 54 + 7 + 6) / 2, action=12, state=30
    )
    shots = [TASK, *call(1, [PICTURE]), *call(2, [{"type": "text", "text": "x"}, PICTURE])]
    assert sizes(shots).exchange == 12 + 1_000 + 4 + 0.5
    items = [
        TASK,
        {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x" * 100},
    ]
    assert sizes(items, form="responses").exchange == 12 + 104
    assert sizes(items, Bounds(count=len, result=60), "responses").exchange == 12 + 64


def brute_common(before: list[Any], after: list[Any]) -> int:
    """Message by message; in the first that differs, of one role, letter by letter."""
    tokens = 0
    for old, new in zip(before, after, strict=False):
        if old == new:
            tokens += tokens_of([new], len)
            continue
        if old["role"] == new["role"]:
            for a, b in zip(old["content"] or "", new["content"] or "", strict=False):
                if a != b:
                    break
                tokens += 1
        break
    return tokens


def test_tokens_that_two_prompts_share_end_where_roles_differ():
    user, assistant = {"role": "user", "content": "Oslo is"}, {"role": "assistant", "content": "Oslo is"}
    assert common_tokens([TASK, user], [TASK, assistant], len) == 12
    assert common_tokens([TASK, user], [TASK, {"role": "user", "content": "Oslo has"}], len) == 12 + 5
    assert common_tokens([TASK], [TASK, user], len) == common_tokens([TASK, user], [TASK], len) == 12
    assert common_tokens([user, TASK], [assistant, TASK], len) == common_tokens([], [TASK], len) == 0
    parts = {"role": "user", "content": [{"type": "text", "text": "Oslo"}, PICTURE]}
    assert common_tokens([parts], [parts], len) == 1_008
    random = Random(0)
    for _ in range(300):
        one, other = (
            [
                {
                    "role": random.choice(["user", "assistant"]),
                    "content": random.choice(["ab", "abc", "abd", "b", None]),
                }
                for _ in range(random.randrange(4))
            ]
            for _ in range(2)
        )
        assert common_tokens(one, other, len) == brute_common(one, other)


def test_an_event_counts_as_cached_what_the_prompt_before_began_with():
    events: list[Event] = []
    memory = Memory("archive(1)", bounds=Bounds(count=len), on_event=events.append)
    history = [SYSTEM, TASK, *(m for n in range(1, 4) for m in call(n, "x" * 100))]
    shown = [memory.prompt(history[:length]) for length in (4, 6, 8)]
    # the system's 13, the task's 12, the first call's 12; of its result, letters gave way to "[result of ..."
    first, second = events
    assert (first.cached_tokens, first.tokens_before) == (37, 25 + 2 * 116)
    # and then this line, which the prompt before had already, and the second call's 12
    line = len('[result of search, 100 tokens, was dropped; recall("r12345678") shows it]')
    assert (second.cached_tokens, second.tokens_before) == (37 + 4 + line + 12, 25 + 3 * 116)
    assert [event.tokens_after for event in events] == [tokens_of(messages, len) for messages in shown[1:]]


@pytest.mark.parametrize(
    ("policy", "state", "words"),
    [
        # a state of 1,000 tokens is 550 words; notes are written anew at half the length at which they are due
        ("fold(1)", 1_000, 550),
        ("fold(1)", 200, 110),
        ("notes(100)", 1_000, 28),
        ("notes(100)", 100, 22),
        ("notes(10)", 1_000, 3),
    ],
)
def test_a_request_asks_for_as_many_words_as_fit(policy: str, state: int, words: int):
    messages = [TASK, *call(1), *call(2), *call(3, text=f"<note>{'oslo ' * 79}</note>"), *call(4), *call(5)]
    request = ask(messages, policy, bounds=Bounds(state=state))
    assert request is not None and re.search(r"in at most (\d+) words", request[-1]["content"])[1] == str(words)  # type: ignore[index]


def test_notes_are_due_at_their_length_and_before_any_is_cut_off():
    def due(policy: str, letters: int, state: int = 100) -> bool:
        messages = [TASK, *call(1, text=f"<note>{'x' * (letters - 2)}</note>"), *call(2, text="<note>ok</note>")]
        return ask(messages, policy, bounds=Bounds(state=state, handles=False, count=len)) is not None

    assert [due("notes(60)", n) for n in (59, 60, 61)] == [False, False, True]
    assert [due("notes", n) for n in (79, 80, 81)] == [False, False, True]  # four fifths of the bound
    assert [due("notes(90)", n) for n in (80, 81)] == [False, True]
    assert [due("notes", n, state=200) for n in (160, 161)] == [False, True]


def exchanges(messages: list[Any]) -> list[int]:
    return [int(m["tool_calls"][0]["id"][1]) for m in messages if m.get("tool_calls")]


def test_a_prompt_gives_up_older_results_first_then_older_exchanges_and_never_the_newest():
    history = [TASK, *(m for n in range(1, 5) for m in call(n, "x" * 500, text="y" * 200))]
    whole = tokens_of(history, len)
    assert whole == 12 + 4 * (212 + 504)
    place = len("[result of search, 500 tokens, was dropped]")
    saved = 500 - place
    found: list[tuple[list[int], list[bool]]] = []
    for prompt in range(whole, 727, -5):
        seen = fold(history, bounds=Bounds(count=len, prompt=prompt, handles=False))
        assert tokens_of(seen, len) <= prompt and seen[-2:] == history[-2:]
        shown = [m["content"] == "x" * 500 for m in seen if m["role"] == "tool"]
        if (now := (exchanges(seen), shown)) not in found:
            found.append(now)
    assert found == [
        ([1, 2, 3, 4], [True, True, True, True]),
        ([1, 2, 3, 4], [False, True, True, True]),
        ([1, 2, 3, 4], [False, False, True, True]),
        ([1, 2, 3, 4], [False, False, False, True]),
        ([2, 3, 4], [False, False, True]),
        ([3, 4], [False, True]),
        ([4], [True]),
    ]
    one = fold(history, bounds=Bounds(count=len, prompt=whole - saved, handles=False))
    assert [m["content"] == "x" * 500 for m in one if m["role"] == "tool"] == [False, True, True, True]
    seen = fold(history, bounds=Bounds(count=len, prompt=12 + 716 - 1, handles=False))
    assert tokens_of(seen, len) <= 727 and seen[:-1] == [TASK, history[-2]] and "more tokens]" in seen[-1]["content"]


@pytest.mark.parametrize("waits", ["pending", "unanswered"])
def test_what_waits_for_a_result_is_given_up_no_more_than_the_newest(waits: str):
    history = [TASK, *call(1, "x" * 300), *call(2, "x" * 300), *call(3, "x" * 300)]
    pending = {"c10"} if waits == "pending" else ()
    kept = history[1:3] if pending else [said(4, "search")]
    if not pending:
        history = [*history, *kept]
    seen = fold(history, bounds=Bounds(count=len, prompt=12 + 2 * 316 + 8, handles=False), pending=pending)
    assert all(message in seen for message in kept)
    assert seen[-1] == history[-1] and exchanges(seen) != [1, 2, 3]


def test_a_bound_on_results_counts_when_a_prompt_is_made_to_fit():
    """Each result shows at most 60 of its 500 letters, so that a handle in its place saves next to nothing."""
    history = [TASK, *(m for n in range(1, 5) for m in call(n, "x" * 500))]
    bounds = Bounds(count=len, result=60, handles=False)
    shown = tokens_of(fold(history, bounds=bounds), len)
    assert shown <= 12 + 4 * (12 + 64)
    for prompt in range(200, shown):
        seen = fold(history, bounds=Bounds(count=len, result=60, handles=False, prompt=prompt))
        assert prompt - 100 < tokens_of(seen, len) <= prompt, "an exchange has at most 76 tokens"


def test_images_count_when_a_prompt_is_made_to_fit():
    shots = [TASK, *(m for n in range(1, 4) for m in call(n, [PICTURE]))]
    seen = fold(shots, bounds=Bounds(prompt=2_200, handles=False))
    assert [m["content"] == [PICTURE] for m in seen if m["role"] == "tool"] == [False, True, True]
    seen = fold(shots, bounds=Bounds(prompt=2_200, handles=False, result=50))
    assert [m["content"] == [PICTURE] for m in seen if m["role"] == "tool"] == [False, True, True]
    *_, newest = fold(shots, bounds=Bounds(prompt=900))
    assert re.fullmatch(r'\[image dropped; recall\("r\w{8}"\) shows it\]', newest["content"][0]["text"])


def test_screenshots_behind_a_bound_on_text_are_counted_whole_as_they_are_shown():
    shots = [TASK, *call(1, [{"type": "text", "text": "x" * 90}, PICTURE])]
    assert sizes(shots, Bounds(count=len, result=60)).exchange == 12 + 1_000 + 60 + 4
    assert sizes(shots, Bounds(count=len, result=100)).exchange == 12 + 1_000 + 90 + 4


def test_short_results_are_not_counted_as_longer_than_they_are_when_a_prompt_is_made_to_fit():
    """A handle is longer than these results, which stay: one exchange of 12 + 6 tokens has to go, or two."""
    history = [TASK, *(m for n in range(1, 10) for m in call(n, "ok"))]
    whole = tokens_of(history, len)
    pinned = {"role": "user", "content": "x" * 400}
    for over, gone in ((0, 0), (1, 1), (18, 1), (19, 2), (36, 2), (37, 3)):
        bounds = Bounds(count=len, handles=False, prompt=404 - 12 + whole - over)
        assert exchanges(fold([pinned, *history[1:]], bounds=bounds)) == list(range(1 + gone, 10))


def test_a_short_result_that_stays_takes_no_longer_one_with_it_when_a_prompt_is_made_to_fit():
    history = [TASK, *(m for n, size in enumerate((2, 300, 300, 2), 1) for m in call(n, "x" * size))]
    shown = fold(history, bounds=Bounds(count=len, prompt=tokens_of(history, len) - 200))
    assert [len(m["content"]) if m["content"].startswith("x") else 0 for m in shown if m["role"] == "tool"] == [
        2,
        0,
        300,
        2,
    ]


def test_a_line_names_the_images_that_were_dropped():
    shots = [TASK, *call(1, [{"type": "text", "text": "two"}, PICTURE, PICTURE]), *call(2), *call(3)]
    assert fold(shots, "archive(1)", bounds=Bounds(count=len, handles=False))[2]["content"] == (
        "[result of search, 3 tokens and 2 images, was dropped]"
    )
    content = [PICTURE, {"type": "text", "text": "a"}, PICTURE, PICTURE]
    gone = {"type": "text", "text": "[image dropped]"}
    for keep, shown in ((3, content), (2, [gone, *content[1:]]), (0, [gone, content[1], gone, gone])):
        assert without_images(content, keep, "r1", Bounds(handles=False), "text") == shown


def test_the_newest_images_of_all_results_stay():
    numbered = [{"type": "image_url", "image_url": {"url": str(n)}} for n in range(5)]
    shots = [TASK, said(1, "a", "b"), told(1, numbered[:2]), told(1, numbered[2:3], 1), *call(2, numbered[3:])]
    for most in range(6):
        seen = fold(shots, bounds=Bounds(images=most, handles=False))
        left = [
            int(p["image_url"]["url"]) for m in seen if m["role"] == "tool" for p in m["content"] if "image_url" in p
        ]
        assert left == list(range(5))[5 - most if most else 5 :]


@pytest.mark.parametrize("limit", [120, 121, 150, 300])
def test_a_shortened_text_fills_its_bound_and_says_how_much_is_missing(limit: int):
    text = "".join(map(str, range(200)))
    for handles in (False, True):
        short = shortened(text, "r12345678", Bounds(count=len, handles=handles), limit, "text")
        assert isinstance(short, str) and limit - 12 <= len(short) <= limit
        kept, _, rest = short.rpartition("\n[")
        assert text.startswith(kept) and rest.startswith(f"{len(text) - len(kept):,} more tokens")
        assert (f'recall("r12345678", start={len(kept)})' in rest) == handles
    assert shortened(text[:limit], "r1", LETTERS, limit, "text") == text[:limit]
    parts = [{"type": "text", "text": text}, PICTURE]
    assert shortened(parts, "r1", Bounds(count=len, handles=False), limit, "text")[0] == PICTURE  # type: ignore[index]


def test_a_state_loses_whole_lines_from_the_side_that_its_policy_names():
    state = "\n".join(["aaaa", "bbbb", "cccc", "dddd"])

    def brute(limit: int, oldest_first: bool) -> str:
        lines = state.split("\n")
        while len("\n".join(lines)) > limit and len(lines) > 1:
            lines = lines[1:] if oldest_first else lines[:-1]
        return "\n".join(lines)[:limit]

    for limit in range(2, 22):
        bounds = Bounds(count=lambda text: len(text) * 50)
        object.__setattr__(bounds, "state", 50 * limit)
        for oldest_first in (False, True):
            assert cut_state(state, bounds, oldest_first=oldest_first) == brute(limit, oldest_first)


@pytest.mark.parametrize("form", FORMS)
def test_random_conversations_keep_their_newest_exchange_within_any_prompt(form: str):
    random, kept = Random(form), 0
    kind = form_of(form)
    for messages in prefixes(conversation(random, form, turns=6)):
        for prompt in (300, 700, 1_500):
            now = folded(
                kind.read(messages), memory_policy("full"), form=kind, bounds=Bounds(prompt=prompt, handles=False)
            )
            assert tokens_of(now.messages) <= prompt
            ends = [
                [(part.said, part.results) for part in kind.read(m).parts if isinstance(part, Exchange)][-1:]
                for m in (fold(messages, form=form, bounds=Bounds(handles=False)), now.messages)
            ]
            assert ends[0] == ends[1] or any("newest" in cut for cut in now.cut)
            kept += bool(ends[0]) and not now.cut
    assert kept > 10


def test_what_was_sent_before_a_state_counts_neither_as_its_exchange_nor_as_its_prompt():
    """`measured` is given a conversation without requests and states."""
    events: list[Event] = []
    memory = Memory("fold(1)", bounds=LETTERS, write=lambda _: "s" * 30, on_event=events.append)
    history = [TASK, *call(1), *call(2), *call(3)]
    memory.prompt(history[:5])
    memory.prompt(history)
    assert [event.tokens_before for event in events] == [12 + 2 * 21, 12 + 3 * 21]
    assert tokens_of(with_state(history, "s" * 30), len) > 12 + 3 * 21 + 30


def test_a_count_reads_each_long_text_once_also_in_later_prompts():
    @dataclass
    class Tokenizer:  # without a hash
        read: int = 0

        def __call__(self, text: str) -> int:
            self.read += 1
            return len(text)

    read: list[str] = []

    def count(text: str) -> int:
        read.append(text)
        return len(text)

    text, tokenizer = "word " * 200, Tokenizer()
    for remembered in (remembering(count), remembering(count)):
        assert [remembered(text), remembered("short")] == [1_000, 5]
    assert read == [text, "short", "short"]
    remembered = remembering(tokenizer)
    assert [remembered(text), remembered(text), tokenizer.read] == [1_000, 1_000, 1]


def test_the_address_of_a_picture_is_text_where_a_model_reads_it_as_text():
    url = "data:image/png;base64," + "iVBORw0KGgo" * 20_000
    called = {"id": "c", "type": "function", "function": {"name": "plot", "arguments": "{}"}}
    messages = [{"role": "user", "content": "Plot it."}, {"role": "assistant", "content": None, "tool_calls": [called]}]
    shown = fold([*messages, {"role": "tool", "tool_call_id": "c", "content": url}], bounds=Bounds(prompt=8_000))
    assert estimated(shown[-1]["content"]) < 8_000 < estimated(url)
    picture = [{"type": "image_url", "image_url": {"url": url}}]
    assert tokens_of([{"role": "user", "content": picture}]) < 2_000
