"""Streamed chat completions: whatever a server puts into a stream, it reads as the same message does whole."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from mem1.agent.chat import Reply, read_completion
from mem1.agent.streams import completion_parts
from mem1.agent.usage import counted_in
from mem1.net.exchange import TryFailed

OSLO, ROME, UTC = '{"city": "Oslo"}', '{"city": "Rome"}', '{"zone": "UTC"}'
THREE = [("weather", OSLO), ("weather", ROME), ("clock", UTC)]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def part(name: str | None = None, arguments: Any = None, **marks: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments}
    return {**marks, "function": {key: value for key, value in given.items() if value is not None}}


def called(*chunks: Sequence[dict[str, Any]], finish: str = "tool_calls") -> list[tuple[str, str]]:
    """(name, arguments) of the calls that the lists of pieces make, a chunk for each list."""
    return [(c.name, c.arguments) for c in read([*[chunk(tool_calls=list(c)) for c in chunks], chunk(finish)]).calls]


def read(chunks: Sequence[bytes], done: bytes = b"data: [DONE]\n\n") -> Reply:
    *texts, completion = completion_parts([*chunks, done])
    reply = read_completion(completion)
    assert "".join(texts) == (reply.message["content"] or "")  # type: ignore[arg-type]
    return reply


class TestCalls:
    @pytest.mark.parametrize("ids", [("a", "b", "c"), (None, None, None)], ids=["ids", "no ids"])
    @pytest.mark.parametrize("index", [lambda n: n, str, lambda n: 0, lambda n: "0", lambda n: None, None])
    @pytest.mark.parametrize("together", [True, False], ids=["one chunk", "a chunk each"])
    def test_whole_calls_are_told_apart_by_whatever_marks_they_have(self, ids: Any, index: Any, together: bool):
        parts = [
            part(*call, **({"id": ids[n]} if ids[n] else {}), **({"index": index(n)} if index else {}))
            for n, call in enumerate(THREE)
        ]
        assert called(*([parts] if together else [[one] for one in parts])) == THREE

    @pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
    @pytest.mark.parametrize("index", [lambda n: n, lambda n: 0, None], ids=["counted", "0 for all", "none"])
    @pytest.mark.parametrize("again", [True, False], ids=["name in every piece", "name once"])
    def test_calls_in_pieces_one_after_the_other(self, ids: bool, index: Any, again: bool):
        pieces = []
        for n, (name, arguments) in enumerate(THREE):
            marks = {"index": index(n)} if index else {}
            pieces.append([part(name, "", **marks, **({"id": f"c{n}"} if ids else {}))])
            for at in range(0, len(arguments), 5):
                pieces.append([part(name if again else None, arguments[at : at + 5], **marks)])
            if again:
                pieces.append([part(name, "", **marks)])
        assert called(*pieces) == THREE

    @pytest.mark.parametrize(
        ("chunks", "calls"),
        [
            # interleaved by index, and by id where the index says nothing
            (
                [
                    [part("weather", "", index=0, id="a"), part("clock", "", index=1, id="b")],
                    [part(None, '{"zone": ', index=1), part(None, '{"city": ', index=0)],
                    [part(None, '"Oslo"}', index=0), part(None, '"UTC"}', index=1)],
                ],
                [THREE[0], THREE[2]],
            ),
            (
                [
                    [part("weather", "", index=0, id="a")],
                    [part("weather", "", index=0, id="b")],
                    [part(None, OSLO[:7], index=0, id="a")],
                    [part(None, ROME[:9], index=0, id="b")],
                    [part(None, OSLO[7:], index=0, id="a")],
                    [part(None, ROME[9:], index=0, id="b")],
                ],
                THREE[:2],
            ),
            # by name, where an index is all that they share
            (
                [
                    [part("weather", OSLO[:7], index=0)],
                    [part("clock", UTC[:9], index=0)],
                    [part("weather", OSLO[7:], index=0)],
                    [part("clock", UTC[9:], index=0)],
                ],
                [THREE[0], THREE[2]],
            ),
            ([[part("weather", OSLO, index=0, id="a")], [part("clock", UTC, index=0)]], [THREE[0], THREE[2]]),
            # by place, with neither
            ([[part("weather", OSLO[:4]), part("clock", UTC[:4])], [part(None, OSLO[4:]), part(None, UTC[4:])]],
             [THREE[0], THREE[2]]),
            # an id made anew for every piece
            ([[part("weather", "", index=0, id="a")], [part(None, OSLO[:5], index=0, id="b")],
              [part(None, OSLO[5:], index=0, id="c")]], THREE[:1]),
            ([[part("weather", OSLO[:5], id="a")], [part("weather", OSLO[5:], id="b")]], THREE[:1]),
            # id, name or index that come late
            ([[part(None, OSLO[:5], index=0)], [part("weather", OSLO[5:], index=0, id="a")]], THREE[:1]),
            ([[part(None, OSLO, index=0, id="a")], [part("weather", "", index=0)]], THREE[:1]),
            ([[part("weather", OSLO[:5], id="a")], [part(None, OSLO[5:], index=0)]], THREE[:1]),
            # the last chunk repeats what came; an empty object comes before the arguments; an object in place of JSON
            ([[part("weather", OSLO, index=0, id="a")], [part("weather", OSLO, index=0, id="a")]], THREE[:1]),
            ([[part("weather", "{}", index=0, id="a")], [part(None, OSLO, index=0)]], THREE[:1]),
            ([[part("weather", {}, index=0, id="a")], [part(None, OSLO[:3], index=0)], [part(None, OSLO[3:], index=0)]],
             THREE[:1]),
            ([[part("weather", {"city": "Oslo"}, index=0)], [part("weather", {"city": "Rome"}, index=0)]], THREE[:2]),
            # a name in pieces, with the id or without; a name that grows; empty ones
            ([[part("wea", "", index=0, id="a")], [part("ther", "", index=0)], [part(None, OSLO, index=0)]], THREE[:1]),
            ([[part("wea", "", id="a")], [part("ther", "", id="a")], [part("", OSLO, id="a")]], THREE[:1]),
            ([[part("wea", None, index=0, id="a")], [part("weather", OSLO, index=0, id="a")]], THREE[:1]),
            ([[part("weather", "", index=0, id="a")], [part("", OSLO, index=0, id="")]], THREE[:1]),
            # names in place of ids, one id for all
            ([[part("weather", OSLO, index=0, id="weather")], [part("weather", ROME, index=0, id="weather")]],
             THREE[:2]),
            ([[part("weather", OSLO, index=0, id="x"), part("weather", ROME, index=1, id="x")]], THREE[:2]),
            # calls without arguments
            ([[part("now", "", index=0, id="a")], [part("now", "", index=0, id="b")]], [("now", ""), ("now", "")]),
            ([[part("now", "", index=0)], [part("weather", OSLO, index=0)]], [("now", ""), THREE[0]]),
            ([[part("now", None, index=0, id="a")], [part("now", None, index=1, id="b")]], [("now", ""), ("now", "")]),
            # order by index, braces in texts
            ([[part("clock", UTC, index=1, id="b")], [part("weather", OSLO, index=0, id="a")]], [THREE[0], THREE[2]]),
            ([[part("a", '{"x": "}\\"', index=0)], [part("a", '{"}', index=0)], [part("a", '{"y": 1}', index=0)]],
             [("a", '{"x": "}\\"{"}'), ("a", '{"y": 1}')]),
        ],
    )  # fmt: skip
    def test_marks_that_servers_have_been_seen_to_send(self, chunks: Any, calls: Any):
        assert called(*chunks) == calls

    def test_ids_and_what_a_provider_wants_back_of_a_call_are_kept(self):
        signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
        pieces = [
            chunk(tool_calls=[part("weather", "", index=0, id="a", type="function")]),
            chunk(tool_calls=[{**part(None, OSLO, index=0, id=None), **signed, "extra": None}]),
            chunk("tool_calls"),
        ]
        want = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": OSLO}, **signed}
        assert read(pieces).message == {"role": "assistant", "content": None, "tool_calls": [want]}
        whole = {"choices": [{"message": {"content": None, "tool_calls": [{**want, "index": 0, "extra": None}]}}]}
        assert read_completion(whole).message["tool_calls"] == [want]

    def test_the_function_call_of_earlier_protocols_is_a_call(self):
        call = {"name": "weather", "arguments": OSLO}
        streamed = read(
            [chunk(function_call={"name": "weather", "arguments": ""}), chunk(function_call={"arguments": OSLO[:4]}),
             chunk(function_call={"arguments": OSLO[4:]}), chunk("function_call")]
        )  # fmt: skip
        for reply in (streamed, read_completion({"role": "assistant", "content": None, "function_call": call})):
            assert [(c.name, c.arguments) for c in reply.calls] == [THREE[0]]
            assert reply.message["tool_calls"][0]["function"] == call and "function_call" not in reply.message
        both = {"content": None, "function_call": call, "tool_calls": [{"id": "a", "function": call}]}
        assert [c.id for c in read_completion(both).calls] == ["a"]


class TestMessages:
    @pytest.mark.parametrize(
        ("deltas", "message"),
        [
            ([{"refusal": "I "}, {"refusal": "won't."}, {"content": ""}], {"refusal": "I won't."}),
            ([{"reasoning_content": "a"}, {"reasoning_content": "b"}], {"reasoning_content": "ab"}),
            ([{"thoughts": "a"}, {"thoughts": "b"}], {"thoughts": "ab"}),
            ([{"thought_signature": "s"}, {"thought_signature": "s"}], {"thought_signature": "s"}),
            ([{"name": "bot"}, {"name": "bot"}], {"name": "bot"}),
            ([{"extra_content": {"google": {"a": 1}}}, {"extra_content": {"google": {"b": "s"}, "c": [1]}}],
             {"extra_content": {"google": {"a": 1, "b": "s"}, "c": [1]}}),
            ([{"audio": {"id": "x", "data": "QUJD"}}, {"audio": {"id": "x", "data": "REVG", "transcript": "hi"}}],
             {"audio": {"id": "x", "data": "QUJDREVG", "transcript": "hi"}}),
            ([{"annotations": [{"type": "url_citation", "url_citation": {"url": "a"}}]},
              {"annotations": [{"type": "url_citation", "url_citation": {"url": "b"}}]}],
             {"annotations": [{"type": "url_citation", "url_citation": {"url": url}} for url in "ab"]}),
            ([{"reasoning_details": [{"type": "reasoning.text", "text": "Let ", "index": 0}]},
              {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 1}]},
              {"reasoning_details": [{"type": "reasoning.text", "text": "me", "signature": "s", "index": 0}]},
              {"reasoning_details": [{"type": "reasoning.encrypted", "data": "y", "index": 1}]}],
             {"reasoning_details": [{"type": "reasoning.text", "text": "Let me", "signature": "s", "index": 0},
                                    {"type": "reasoning.encrypted", "data": "x", "index": 1},
                                    {"type": "reasoning.encrypted", "data": "y", "index": 1}]}),
            ([{"reasoning_details": [{"type": "reasoning.summary", "summary": "a"}]},
              {"reasoning_details": [{"type": "reasoning.summary", "summary": "b"}]}],
             {"reasoning_details": [{"type": "reasoning.summary", "summary": "ab"}]}),
            ([{"annotations": []}, {"reasoning_details": None}, {"audio": None}], {}),
        ],
    )  # fmt: skip
    def test_what_a_provider_may_want_back_is_put_together(self, deltas: Any, message: Any):
        reply = read([*[chunk(**delta) for delta in deltas], chunk(content="Hi"), chunk("stop")])
        assert reply.message == {"role": "assistant", "content": "Hi", **message}
        assert read_completion({"content": "Hi", **message}).message == reply.message

    def test_content_in_parts_goes_on_as_text(self):
        def thought(text: str) -> list[Any]:
            return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]

        pieces = [chunk(content=thought("h")), chunk(content=thought("m")), chunk(content="Os"), chunk(content="lo")]
        *texts, completion = completion_parts([*pieces, chunk("stop")])
        want = [*thought("hm"), {"type": "text", "text": "Oslo"}]
        assert texts == ["Os", "lo"] and read_completion(completion).message["content"] == want

    @pytest.mark.parametrize(
        ("prompt", "cached", "all_of_it"), [(7, 5, 7), (7, 7, 7), (7, 1_000, 1_007), (0, 1_000, 1_000)]
    )
    def test_a_prompt_of_which_the_server_leaves_out_what_was_cached_is_counted_whole(
        self, prompt: int, cached: int, all_of_it: int
    ):
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": prompt, "completion_tokens": 2, **details}
        counted = read_completion({"choices": [{"message": {"content": "Hi"}}], "usage": usage}).counted
        assert counted is not None and (counted.prompt, counted.cached) == (all_of_it, cached)

    @pytest.mark.parametrize(
        ("total", "thoughts", "output"), [(1_250, 40, 50), (1_290, 40, 90), (None, 40, 50), (1_290, None, 90)]
    )
    def test_thoughts_that_a_provider_counts_apart_are_output(self, total: int | None, thoughts: Any, output: int):
        usage = {"prompt_tokens": 1_200, "completion_tokens": 50, "total_tokens": total}
        found = counted_in({**usage, "completion_tokens_details": {"reasoning_tokens": thoughts}})
        assert found is not None and (found.prompt, found.output) == (1_200, output)

    @pytest.mark.parametrize(("total", "thoughts"), [(1_550, 0), (1_570, 20)])
    def test_what_was_cached_and_is_counted_apart_is_prompt(self, total: int, thoughts: int):
        usage = {"prompt_tokens": 1_000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 500}}
        more = {"total_tokens": total, "completion_tokens_details": {"reasoning_tokens": thoughts}}
        found = counted_in({**usage, **more})
        assert found is not None and (found.prompt, found.output) == (1_500, 50 + thoughts)

    def test_what_is_written_to_a_cache_is_no_output(self):
        usage = {"prompt_tokens": 1_000, "completion_tokens": 50, "total_tokens": 1_450}
        found = counted_in({**usage, "cache_creation_input_tokens": 400})
        assert found is not None and found.output == 50

    def test_what_deepseek_calls_a_hit_is_cached(self):
        found = counted_in({"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 7})
        assert found is not None and found.cached == 7

    @pytest.mark.parametrize(
        "counted",
        [
            [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}],
            [{"choices": None, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}],
            [{"usage": {"prompt_tokens": 7, "completion_tokens": 2}}],
            [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n}} for n in (1, 2)],
            [{"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}]}],
            [{"choices": [], "x_groq": {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}, "usage": None}],
        ],
    )
    def test_usage_stands_in_the_last_chunk_in_every_one_or_in_the_choice(self, counted: list[Any]):
        reply = read([chunk(content="Hi"), chunk("length"), *map(event, counted)])
        assert reply.counted is not None and (reply.counted.prompt, reply.counted.output) == (7, 2)
        assert reply.cut

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
    def test_comments_nulls_names_and_lines_cut_at_any_byte(self, end: bytes):
        body = b"".join(
            [
                b"\xef\xbb\xbf: keep-alive\n\n",
                b'event: chunk\nid: 1\ndata: {"choices": [{"delta": null}], "error": null}\n\n',
                b'data: {"id": "x"}\n\ndata: {"choices": [{"delta": {"content": null, "tool_calls": null}}]}\n\n',
                b'data: {"choices":\ndata: [{"delta": {"content": "b\xc3\xb8"}}]}\n\n: ping\n\nretry: 5\nnonsense\n\n',
                b'data: {"choices": [{"index": 1, "delta": {"content": "another choice"}}]}\n\n',
                b'data:{"choices": [{"delta": {"content": "k"}, "finish_reason": ""}]}\n',
                b'data: {"choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]}',
            ]
        ).replace(b"\n", end)
        for size in (1, 2, 3, 7, len(body)):
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            *texts, completion = completion_parts([b"", *pieces])
            assert texts == ["bø", "k", "!"], size
            assert read_completion(completion).message["content"] == "bøk!"

    def test_a_message_in_one_piece_is_read_whole(self):
        whole = {"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        for body in (json.dumps({**whole, "usage": usage}, indent=1).encode(), event({**whole, "usage": usage}),
                     event(whole) + event({"choices": [], "usage": usage}),
                     chunk(content="Hello") + event(whole) + event({"usage": usage})):  # fmt: skip
            *texts, completion = completion_parts([body])
            reply = read_completion(completion)
            assert (texts, reply.message["content"], bool(reply.counted)) == (["Hello"], "Hello", True)


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "status", "for_good"),
        [
            ({"error": {"message": "busy"}}, None, False),
            ({"error": {"message": "busy", "code": 503}}, 503, False),
            ({"error": {"message": "busy", "code": "429"}, "choices": []}, 429, False),
            ({"error": {"message": "busy", "type": "invalid_request_error", "code": None}}, 400, True),
            ({"object": "error", "message": "busy", "code": 422}, 422, True),
            ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, None, False),
            ({"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "busy"}}]}, 502, False),
            ({"message": "busy"}, None, False),
            ({"error": "busy"}, None, False),
        ],
    )  # fmt: skip
    def test_an_error_in_a_stream_is_one_wherever_it_stands(self, error: Any, status: int | None, for_good: bool):
        for data in (event(error), json.dumps(error).encode()):
            with pytest.raises(TryFailed, match="the server sent an error") as raised:
                list(completion_parts([data]))
            assert "busy" in raised.value.quoted
            assert (raised.value.status, raised.value.for_good) == (status, for_good)
        parts = completion_parts([chunk(content="The "), event(error), chunk(content="end", finish="stop")])
        assert next(parts) == "The "
        with pytest.raises(TryFailed, match="the server sent an error"):
            next(parts)

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ([], "broke off before its first word"),
            ([b": ping\n\n"], "broke off before its first word"),
            ([b"data: [DONE]\n\n"], "broke off before its first word"),
            ([chunk(content="The ")], "the end of the answer is missing"),
            ([chunk(tool_calls=[part("a", OSLO, id="a")])], "the end of the answer is missing"),
            ([chunk(tool_calls=[part("a", OSLO[:9], id="a")]), b"data: [DONE]\n\n"], "in the middle of a call"),
            ([chunk(tool_calls=[part("a", "", id="a")]), b"data: [DONE]\n\n"], "in the middle of a call"),
            ([chunk(function_call={"name": "a", "arguments": "{"}), b"data: [DONE]\n\n"], "in the middle of a call"),
            ([b"data: nonsense\n\n"], "is not JSON"),
            ([b"data: [7]\n\n"], r"the server sent \[7\]"),
            ([event({"choices": {"a": 1}})], "the server sent {'choices': {'a': 1}}"),
            ([event({"choices": [7]})], r"the server sent {'choices': \[7\]}"),
            ([chunk(tool_calls=[7])], "the server sent {'choices': "),
            ([chunk(tool_calls=7)], "the server sent {'choices': "),
            ([chunk(content=[7])], "the server sent {'choices': "),
            ([chunk(tool_calls=[{"function": 7, "index": 0}])], "the server sent {'choices': "),
        ],
    )  # fmt: skip
    def test_what_breaks_off_or_is_no_completion_is_no_answer(self, body: list[bytes], why: str):
        with pytest.raises(TryFailed, match=why):
            list(completion_parts(body))

    def test_usage_alone_in_the_last_chunk_is_an_end_too(self):
        counted = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
        *texts, completion = completion_parts([chunk(content="Oslo"), counted])
        assert texts == ["Oslo"] and read_completion(completion).message["content"] == "Oslo"
        for broken in ([counted], [counted, chunk(content="The ")]):
            with pytest.raises(TryFailed, match=r"end of the answer is missing|broke off before its first word"):
                list(completion_parts(broken))
        with pytest.raises(TryFailed, match="in the middle of a call"):
            list(completion_parts([chunk(tool_calls=[part("a", OSLO[:9], id="a")]), counted]))

    def test_whole_arguments_before_done_are_a_call_without_a_finish(self):
        body = [chunk(tool_calls=[part("weather", OSLO, id="a")]), b"data: [DONE]\n\n"]
        *_, completion = completion_parts(body)
        assert len(read_completion(completion).calls) == 1


def random_text(rng: random.Random, least: int = 1) -> str:
    return "".join(rng.choice('ab {}[]"\\\n\r\u2028øð日🙂:,data: [DONE]') for _ in range(rng.randint(least, 12)))


def random_message(rng: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {"content": random_text(rng) if rng.random() < 0.7 else None}
    for key in ("reasoning_content", "reasoning", "refusal", "thoughts"):
        if rng.random() < 0.3:
            message[key] = random_text(rng)
    if rng.random() < 0.4:
        details = [{"type": "reasoning.text", "index": n, "text": random_text(rng)} for n in range(rng.randint(1, 3))]
        details += [{"type": "reasoning.encrypted", "index": 9, "data": random_text(rng)}]
        message["reasoning_details"] = details
    if rng.random() < 0.3:
        message["extra_content"] = {"google": {"thought_signature": random_text(rng)}}
    if rng.random() < 0.6 or not message["content"]:
        message["tool_calls"] = [
            {
                "id": f"call_{n}",
                "type": "function",
                "function": {
                    "name": rng.choice(("search", "open")),
                    "arguments": json.dumps({"q": random_text(rng, 0)}),
                },
                **(
                    {"extra_content": {"google": {"thought_signature": random_text(rng)}}} if rng.random() < 0.3 else {}
                ),
            }
            for n in range(rng.randint(1, 4))
        ]
    return message


def cut(rng: random.Random, text: str) -> list[str]:
    ends = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 4)))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def call_pieces(rng: random.Random, calls: list[Any]) -> list[list[Any]]:
    """Pieces of each call, in one of the ways in which servers mark them."""
    index = rng.choice((lambda n: n, str, lambda n: 0, None))
    repeat = rng.random() < 0.3
    pieces = []
    for n, call in enumerate(calls):
        marks = {"index": index(n)} if index else {}
        rest = {key: value for key, value in call.items() if key != "function"}
        first, *others = cut(rng, call["function"]["arguments"])
        name = call["function"]["name"]
        again = name if repeat else None
        pieces.append([{**part(name, first, **marks), **rest}, *[part(again, other, **marks) for other in others]])
    if index is None or index(1) == 0:
        return [[piece] for of_call in pieces for piece in of_call]  # one after the other
    mixed = []
    while pieces := [of_call for of_call in pieces if of_call]:
        chosen = rng.sample(pieces, rng.randint(1, len(pieces)))
        mixed.append([of_call.pop(0) for of_call in chosen])
    return mixed


def random_stream(rng: random.Random, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Deltas that make the message; those of one field keep their order."""
    queues: list[list[dict[str, Any]]] = []
    for key, value in message.items():
        if isinstance(value, str):
            queues.append([{key: piece} for piece in cut(rng, value)])
        elif key == "reasoning_details":
            queues.append([{key: [{**entry, **({"text": t} if "text" in entry else {})}]} for entry in value
                           for t in (cut(rng, entry["text"]) if "text" in entry else [""])])  # fmt: skip
        elif key == "tool_calls":
            queues.append([{key: pieces} for pieces in call_pieces(rng, value)])
        elif value is not None:
            queues.append([{key: value}])
    queues.append([rng.choice(({}, {"role": "assistant"}, {"content": None}, {"content": ""})) for _ in range(2)])
    deltas = []
    while queues := [queue for queue in queues if queue]:
        queue = rng.choice(queues)
        delta = queue.pop(0)
        if deltas and not deltas[-1].keys() & delta.keys() and rng.random() < 0.2:
            deltas[-1] |= delta
        else:
            deltas.append(delta)
    return deltas


def test_a_random_message_cut_at_random_reads_as_the_whole_does():
    rng = random.Random(0)
    several = 0
    for _ in range(200):
        message = random_message(rng)
        finish = rng.choice(("stop", "length", "tool_calls"))
        usage = {"prompt_tokens": rng.randint(1, 99), "completion_tokens": 3}
        whole = read_completion({"choices": [{"message": message, "finish_reason": finish}], "usage": usage})
        chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in random_stream(rng, message)]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({"choices": [], "usage": usage})
        end = rng.choice((b"\n", b"\r\n", b"\r"))
        ascii_only = rng.random() < 0.5
        body = b"".join(
            rng.choice((b"", b": ping" + end * 2, b"event: x" + end))
            + b"data: " + json.dumps(one, ensure_ascii=ascii_only).encode() + end * rng.choice((1, 2))
            for one in chunks
        ) + rng.choice((b"", b"data: [DONE]", b"data: [DONE]" + end))  # fmt: skip
        ends = sorted(rng.choices(range(len(body) + 1), k=rng.randint(0, 40)))
        pieces = [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]
        *texts, completion = completion_parts(pieces)
        assert read_completion(completion) == whole, body.decode()
        assert "".join(texts) == (message["content"] or "")  # type: ignore[arg-type]
        several += len(whole.calls) > 1
    assert several > 50, "messages with several calls are among them"
