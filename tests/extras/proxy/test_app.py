"""What clients send and get through the proxy, folded or in doubt."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from proxies import FORM, HTTP, LONG, SECRET, body, history, running, task, turn_seen
from servers import app_in_a_thread, wait_for
from upstreams import ANTHROPIC, CHAT, Said, is_request_for_state, message, stream

from mem1.extras.proxy import upstream as to_upstream
from mem1.extras.proxy.app import Limits, Proxy
from mem1.messages import Memory, check
from mem1.messages.transcript import ASK


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_of_20_turns_that_sends_its_whole_history_stays_bounded(path: str, streams: bool):
    with running() as at:
        for turn in range(20):
            answer = at.post(path, body(path, turn, stream=streams))
            expected = (stream if streams else message)(path, "Next.", ("search", f'{{"q": {turn_seen(at)}}}'))
            assert answer.status_code == 200 and answer.content == b"".join(expected.pieces)
        lengths = [len(prompt) for prompt in at.upstream.prompts]
        assert len(lengths) == 20 and max(lengths) == 1 + 2 * 2
        for prompt in at.upstream.prompts:
            check(prompt, FORM[path])
        assert len(at.upstream.asked) == 9
        assert "state 9" in json.dumps(at.upstream.prompts[-1][0])
        assert at.proxy.counts.folded == 17 and at.proxy.counts.unchanged == 0


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
def test_a_state_is_asked_for_with_the_clients_own_request_and_keys(path: str):
    spoils: dict[str, Any] = {"stream": True, "stop_sequences": ["x"], "output_format": {}}
    kept: dict[str, Any] = {"tool_choice": {"type": "auto"}, "metadata": {"user_id": "me"}}
    if path == CHAT:
        spoils = {"stream": True, "stream_options": {"include_usage": True}, "stop": ["x"], "response_format": {}}
        kept = {"tool_choice": "auto", "reasoning_effort": "low"}
    with running() as at:
        at.post(path, body(path, 2, **kept))
        answer = at.post(f"{path}?beta=true", body(path, 3, **spoils, **kept), **{"x-api-key": SECRET})
        (asked,) = at.upstream.asked
    assert asked["messages"][:-1] == history(path, 3)
    assert asked["messages"][-1]["content"].startswith(ASK)
    settings = {key: value for key, value in asked.items() if key != "messages"}
    expected = {**body(path, 0, **kept), "max_tokens": 2000}
    del expected["messages"]
    assert settings == expected
    assert at.upstream.headers[-2]["authorization"] == f"Bearer {SECRET}"
    assert at.upstream.headers[-2]["x-api-key"] == at.upstream.headers[-1]["x-api-key"] == SECRET
    assert answer.headers["mem1-prompt"] == "folded"
    usage = json.loads(answer.headers["mem1-state-usage"])
    assert usage == {"calls": 1, "prompt_tokens": 1000, "cached_tokens": 900, "output_tokens": 20}
    assert answer.headers["x-request-id"] == "req_7"


def test_what_needs_no_folding_arrives_byte_by_byte_as_it_was_sent():
    spaced = b'{ "model":"m",\n"messages": [{"content": "Hi \\u00e9", "role":"user"}] }'
    with running() as at:
        answer = at.post(CHAT, spaced, **{"x-own": "1", "connection": "x-hop", "x-hop": "2"})
        assert (at.last, answer.headers["mem1-prompt"]) == (spaced, "whole")
        assert at.upstream.headers[-1]["x-own"] == "1" and "x-hop" not in at.upstream.headers[-1]
        assert at.upstream.headers[-1]["content-length"] == str(len(spaced))


def test_a_text_that_was_cut_in_the_middle_of_an_emoji_is_folded_like_any_other():
    with running(policy="window(1)") as at:
        cut = [task("half \ud83d"), *history(CHAT, 3)[1:]]
        assert at.post(CHAT, {"messages": cut}).headers["mem1-prompt"] == "folded"
        assert json.loads(at.last) == {"messages": [cut[0], *cut[-2:]]}


def test_everything_else_is_handed_through():
    def behave(path: str, given: Any) -> Said:
        return Said(
            [b"abc"], headers={"content-type": "x/y", "content-encoding": "own", "retry-after": "3"}, status=418
        )

    with running(behave) as at:
        with HTTP.stream("GET", at.url + "/v1/models?a=%20b", headers={"accept-encoding": "zstd"}) as answer:
            assert (answer.status_code, b"".join(answer.iter_raw())) == (418, b"abc")
            assert answer.headers["content-encoding"] == "own" and answer.headers["retry-after"] == "3"
        assert at.upstream.paths == ["/v1/models"] and at.upstream.headers[-1]["accept-encoding"] == "zstd"
        assert "transfer-encoding" not in at.upstream.headers[-1]
        files = {"file": ("a.jsonl", b"x" * 100_000)}
        assert HTTP.post(at.url + "/v1/files", files=files).status_code == 418
        assert b"x" * 100_000 in at.last
        assert HTTP.delete(at.url + "/v1/files/7").status_code == 418
        assert HTTP.post(at.url + "/v1/threads/7/messages", json={"role": "user"}).status_code == 418
        assert at.proxy.counts.unchanged == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\xff\xfe\xfd", "the body is not JSON"),
        (b'{"model": "m"}', "the body has no list of messages"),
        (b'{"messages": [7]}', "the body has no list of messages"),
        (json.dumps({"messages": [*history(CHAT, 3), {"role": "critic"}]}).encode(), "unknown role 'critic'"),
        (json.dumps({"messages": history(CHAT, 4)[2:]}).encode(), "a result without the assistant message"),
        (json.dumps({"messages": [{"role": "assistant", "content": "Hi"}]}).encode(), "no message of the user"),
        (json.dumps({**body(CHAT, 3), "seed": 0.5}).replace("0.5", "1e999").encode(), "Out of range float"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_in_doubt_goes_on_as_it_came_and_a_line_says_why(
    given: bytes, why: str, caplog: pytest.LogCaptureFixture
):
    with (
        running(lambda path, body: None if body else Said([b"bad"], 400), wrong=True) as at,
        caplog.at_level(logging.WARNING),
    ):
        answer = at.post(CHAT, given)
        assert at.last == given and answer.status_code in (200, 400)
        assert at.proxy.counts.folded == 0
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("mem1")]
    assert any(why in line for line in lines) and not any("\n" in line for line in lines)


def test_a_compressed_or_huge_request_goes_on_without_being_held(caplog: pytest.LogCaptureFixture):
    with running(limits=Limits(parts=9)) as at:
        at.post(CHAT, body(CHAT, 3))
        assert json.loads(at.last) == body(CHAT, 3)
    huge = json.dumps({"messages": [task("x" * 300_000), *history(CHAT, 3)[1:]]}).encode()
    with running(limits=Limits(body=100_000, bodies=1 << 30)) as at:
        assert at.post(CHAT, huge).status_code == 200 and at.last == huge
        assert at.post(CHAT, b"\x1f\x8b", **{"content-encoding": "gzip"}).status_code == 200 and at.last == b"\x1f\x8b"
    for why in ("more than 9 messages, blocks and calls", "larger than 100,000 bytes", "is compressed"):
        assert why in caplog.text


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Said([f'{{"error": "{SECRET}?"}}'.encode()], 529), 'status 529 for a request for a state: {"error": "***?"}'),
        (Said([b"<html>"]), "a state is not JSON"),
        (Said([b'{"choices": []}']), "has no message (IndexError)"),
        (Said([b'{"choices": [{"message": 7}]}']), "has no message"),
        (Said([b'{"choices": [{"message": {}, "finish_reason": "length"}]}']), "cut off by the limit"),
        (Said([b'{"choices": [{"message": {"content": "Sorry"}, "finish_reason": "content_filter"}]}']), "a filter"),
        (message(CHAT, "", ("search", "{}")), "a call of search"),
        (Said([b"x" * (1 << 21)]), "larger than 1,048,576 bytes"),
        (Said([b"x"], headers={"content-length": "9"}, cut=True), "no answer to a request for a state"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_state_call_that_fails_leaves_the_request_as_it_is(broken: Said, why: str, caplog: pytest.LogCaptureFixture):
    with running(lambda path, body: broken if is_request_for_state(body) else None) as at:
        assert at.post(CHAT, body(CHAT, 3)).status_code == 200
        assert json.loads(at.last) == body(CHAT, 3)
        asked = len(at.upstream.asked)
        assert asked <= 2
        at.post(CHAT, body(CHAT, 4))
        assert len(at.upstream.asked) == asked
    assert why in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
def test_a_state_that_is_cut_beyond_its_bound_is_a_state_since_its_end_would_go_anyway(path: str):
    def cut(state: str) -> Said:
        said = json.loads(b"".join(message(path, state).pieces))
        (said["choices"][0] if path == CHAT else said)["finish_reason" if path == CHAT else "stop_reason"] = (
            "length" if path == CHAT else "max_tokens"
        )
        return Said([json.dumps(said).encode()])

    long = "Oslo is far. " * 400  # 1,300 tokens by estimate, where a state may have 1,000
    for state, folds in ((long, True), (f"<think>{long}", False), ("Oslo is", False)):
        with running(lambda path, body, s=state: cut(s) if is_request_for_state(body) else None) as at:
            assert at.post(path, body(path, 3)).status_code == 200
            assert ("Oslo is far. Oslo is far." in at.last.decode()) is folds
            assert (json.loads(at.last) == body(path, 3)) is not folds


@pytest.mark.parametrize(
    ("status", "why"),
    [(400, b"roles must alternate"), (500, b"roles must alternate"), (400, b"this order will not do")],
)
def test_a_state_is_asked_for_behind_a_pause_where_a_template_refuses_the_user_behind_a_result(status: int, why: bytes):
    refused = Said([b'{"error": {"message": "Jinja Exception: Conversation ' + why + b'"}}'], status)

    def behave(path: str, given: Any) -> Said | None:
        if not is_request_for_state(given):
            return None
        return refused if given["messages"][-2]["role"] == "tool" else message(CHAT, "the state")

    with running(behave) as at:
        assert at.post(CHAT, body(CHAT, 3)).headers["mem1-prompt"] == "folded"
        assert "the state" in json.loads(at.last)["messages"][0]["content"]


@pytest.mark.parametrize("status", [400, 500])
def test_a_template_that_wants_turns_gets_them_and_folding_goes_on(status: int, caplog: pytest.LogCaptureFixture):
    refused = Said([b'{"error": {"message": "Jinja Exception: Conversation roles must ', b'alternate"}}'], status)

    def behave(path: str, given: Any) -> Said | None:
        roles = [message["role"] for message in given["messages"]]
        wrong = any(one in ("user", "tool") and other == "user" for one, other in itertools.pairwise(roles))
        return refused if wrong else message(CHAT, "the state") if is_request_for_state(given) else None

    messages = [{"role": "user", "content": "Task 0."}]
    with running(behave) as at:
        for turn in range(1, 4):
            for _ in range(3):
                called = history(CHAT, len(messages))[-2:]
                messages += called
                answer = at.post(CHAT, {"model": "m", "messages": messages})
                assert answer.status_code == 200
            messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": f"Task {turn}."}]
        refusals = [body for body in at.upstream.bodies if behave(CHAT, body) is refused]
        assert len(refusals) == 1 and at.proxy.counts.folded >= 7, "it is learnt once"
        assert "Task 2." in str(at.upstream.prompts[-1][0]) and "the state" in str(at.upstream.prompts[-1][0])
    assert "refuses the folded prompt" not in caplog.text


def test_another_error_of_the_upstream_to_a_folded_prompt_reaches_the_client_as_it_is():
    packed = gzip.compress(b'{"error": "too busy"}')
    busy = Said([packed[:9], packed[9:]], 503, {"content-encoding": "gzip", "retry-after": "7"})

    def behave(path: str, given: Any) -> Said | None:
        return None if is_request_for_state(given) or "<memory>" not in json.dumps(given) else busy

    with running(behave) as at:
        answer = at.post(CHAT, body(CHAT, 3))
        assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (503, {"error": "too busy"}, "7")
        assert answer.headers["mem1-prompt"] == "folded" and len(at.upstream.prompts) == 1


@pytest.mark.parametrize("changing", ["cookie", "x-portkey-trace-id"])
def test_a_client_is_told_by_its_keys_and_not_by_what_changes_with_each_request(changing: str):
    with running() as at:
        for turn in range(3, 9):
            at.post(CHAT, body(CHAT, turn), **{changing: f"v{turn}"})
        states = len(at.upstream.asked)
        for turn in range(3, 9):
            at.post(CHAT, body(CHAT, turn), **{changing: "v", "x-portkey-api-key": "another"})
        assert len(at.upstream.asked) == 2 * states
    with running() as at:
        for turn in range(3, 9):
            at.post(CHAT, body(CHAT, turn))
        assert len(at.upstream.asked) == states


def test_a_state_that_does_not_come_in_time_leaves_the_request_as_it_is(caplog: pytest.LogCaptureFixture):
    gate = threading.Event()

    def behave(path: str, given: Any) -> Said | None:
        return replace(message(path, "too late"), gate=gate) if is_request_for_state(given) else None

    with running(behave, state_s=0.2) as at:
        assert at.post(CHAT, body(CHAT, 3)).headers["mem1-prompt"] == "whole"
        assert json.loads(at.last) == body(CHAT, 3)
        gate.set()
    assert "no answer to a request for a state: nothing within 0 seconds" in caplog.text


def test_the_first_request_for_a_state_begins_with_what_was_sent_before():
    rules = [{"role": "system", "content": "Be short."}, {"role": "system", "content": "Be exact."}]
    late = {"role": "developer", "content": "From now on, in French."}
    with running() as at:
        for turns in range(1, 5):
            first, *others = history(CHAT, turns)
            others[2:2] = [late]
            at.post(CHAT, {"model": "m", "messages": [*rules, first, *others]})
        before, asked = at.upstream.prompts, at.upstream.asked[0]["messages"]
        whole = [messages for messages in before if messages[:2] == rules]
        assert whole and asked[: len(whole[-1])] == whole[-1] and asked[-1]["content"].startswith(ASK)


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (CHAT, "required"),
        (CHAT, "any"),
        (CHAT, {"type": "function", "function": {"name": "search"}}),
        (ANTHROPIC, {"type": "any"}),
    ],
)
def test_a_model_that_must_call_a_tool_may_write_its_state(path: str, choice: Any):
    with running() as at:
        assert at.post(path, body(path, 5, tool_choice=choice)).headers["mem1-prompt"] == "folded"
        assert ["tool_choice" in asked for asked in at.upstream.asked] == [False]
        assert json.loads(at.last)["tool_choice"] == choice


def test_a_model_that_goes_on_with_its_own_words_is_not_asked():
    with running() as at:
        at.post(CHAT, {"messages": [*history(CHAT, 5), {"role": "assistant", "content": "So"}]})
        assert at.upstream.asked == [] and at.proxy.counts.folded == 0


def test_a_folded_prompt_that_the_upstream_refuses_is_sent_whole_and_no_longer_folded(
    caplog: pytest.LogCaptureFixture,
):
    def behave(path: str, given: Any) -> Said | None:
        folded = "<memory>" in json.dumps(given)
        return Said([b"no such thing"], 400) if folded and not is_request_for_state(given) else None

    with running(behave) as at:
        for turn in (3, 4, 5, 6):
            answer = at.post(CHAT, body(CHAT, turn))
            assert (answer.status_code, answer.headers["mem1-prompt"]) == (200, "whole")
            assert json.loads(at.last) == body(CHAT, turn)
        assert len(at.upstream.asked) == 1 and len(at.upstream.prompts) == 5
    assert "refuses the folded prompt, status 400: no such thing" in caplog.text


def test_errors_of_the_upstream_reach_the_client_as_they_are():
    wrong = Said([b'{"error": "later"}'], 429, {"retry-after": "7", "content-type": "application/json"})
    with running(lambda path, body: wrong) as at:
        answer = at.post(CHAT, body(CHAT, 1, stream=True))
        assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (429, wrong.pieces[0], "7")


def test_a_stream_that_breaks_breaks_for_the_client_too():
    with running(lambda path, body: Said([b"data: 1\n\n"], cut=True)) as at, pytest.raises(httpx.RemoteProtocolError):
        at.post(CHAT, body(CHAT, 1, stream=True))


def test_an_upstream_that_is_not_there_is_a_502_of_one_line():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    proxy = Proxy(to_upstream.Upstream(f"http://127.0.0.1:{port}"), lambda form, tell: Memory("full", form=form))
    with app_in_a_thread(proxy, accepts=None) as here:
        answer = HTTP.post(here + CHAT, json=body(CHAT, 1))
    assert answer.status_code == 502
    assert answer.json()["error"]["message"].startswith("mem1 proxy: the upstream did not answer: ")


def test_when_the_client_hangs_up_the_upstream_stops():
    pieces = [b"data: x\n\n"] * 100_000
    with running(lambda path, body: Said(pieces)) as at:
        place = urlsplit(at.url)
        with socket.create_connection((str(place.hostname), place.port or 0)) as client:
            sent = json.dumps(body(CHAT, 1)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-length: {len(sent)}\r\n\r\n"
            client.sendall(head.encode() + sent)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        wait_for(lambda: at.upstream.hung_up == 1)


def test_what_a_request_for_a_state_cost_is_told_also_where_it_failed():
    cut = [json.loads(message(CHAT, "half a sta").pieces[0])]
    cut[0]["choices"][0]["finish_reason"] = "length"
    with running(
        lambda path, given: Said([json.dumps(cut[0]).encode()]) if is_request_for_state(given) else None
    ) as at:
        answer = at.post(CHAT, body(CHAT, 3))
    assert answer.headers["mem1-prompt"] == "whole"
    assert json.loads(answer.headers["mem1-state-usage"]) == {
        "calls": 2, "prompt_tokens": 2000, "cached_tokens": 1800, "output_tokens": 40
    }  # fmt: skip


def test_a_request_for_a_state_has_not_the_identity_of_the_clients_own():
    def behave(path: str, given: Any) -> Said | None:
        folded = "<memory>" in json.dumps(given)
        return Said([b"no"], 400) if folded and not is_request_for_state(given) else None

    with running(behave) as at:
        at.post(CHAT, body(CHAT, 3), **{"idempotency-key": "7", "expect": "100-continue"})
        assert ["idempotency-key" in headers for headers in at.upstream.headers] == [False, True, False]
        assert not any("expect" in headers for headers in at.upstream.headers)


def test_what_a_provider_ran_itself_and_signed_thinking_stay_as_they_are_or_go_whole():
    signed = {"type": "thinking", "thinking": "Oslo \u00e9", "signature": "c2ln+/=="}
    ran = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Oslo"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"encrypted_content": "x" * 99}],
    }
    uses = [{"type": "tool_use", "id": f"toolu_{n}", "name": "search", "input": {"q": 1.50}} for n in "ab"]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": LONG} for n in "ba"]
    last = [{"role": "assistant", "content": [signed, ran, found, *uses]}, {"role": "user", "content": results}]
    with running() as at:
        at.post(ANTHROPIC, {**body(ANTHROPIC, 0), "messages": [*history(ANTHROPIC, 3), *last]})
        assert len(at.upstream.asked) == 1
        for prompt in (at.upstream.asked[0]["messages"][:-1], at.upstream.prompts[0]):
            assert json.dumps(last[0]) in json.dumps(prompt)
        assert [len(each["content"]) for each in at.upstream.prompts[0][1:]] == [5, 2]


def test_a_turn_that_thinks_only_later_is_folded_all_along():
    messages = history(ANTHROPIC, 12)
    for at, each in enumerate(messages):
        if each["role"] == "assistant" and at > 8:
            signed = {"type": "thinking", "thinking": "hm", "signature": f"c2ln{at}"}
            messages[at] = {**each, "content": [signed, *each["content"]]}
    with running(
        None, "fold(4)", wrong=True
    ) as at:  # the scripted server takes no such turn; models with adaptive thinking do
        sent = {**body(ANTHROPIC, 0, temperature=1), "thinking": {"type": "adaptive"}}
        told = [
            at.post(ANTHROPIC, {**sent, "messages": messages[: 1 + 2 * turn]}).headers["mem1-prompt"]
            for turn in range(1, 13)
        ]
    assert told == ["whole"] * 4 + ["folded"] * 8


def test_marks_for_the_prompt_cache_that_move_make_no_other_conversation(tmp_path: Path):
    mark = {"type": "ephemeral"}
    marked = {"role": "user", "content": [{"type": "text", "text": "Find the mayor.", "cache_control": mark}]}
    plain = {"role": "user", "content": [{"type": "text", "text": "Find the mayor."}]}
    with running(policy="fold(1)", events=tmp_path / "events") as at:
        for first in (marked, plain):
            at.post(ANTHROPIC, {**body(ANTHROPIC, 0), "messages": [first, *history(ANTHROPIC, 2)[1:]]})
        assert len(at.upstream.asked) == 1
        at.post(ANTHROPIC, {**body(ANTHROPIC, 0), "messages": [marked, *history(ANTHROPIC, 3)[1:]]})
    assert len({json.loads(line)["session"] for line in (tmp_path / "events").open()}) == 1


def test_clients_that_repeat_a_request_at_the_same_time_share_its_state():
    gate = threading.Event()

    def behave(path: str, given: Any) -> Said | None:
        return replace(message(path, "the state"), gate=gate) if is_request_for_state(given) else None

    with running(behave) as at, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(at.post, CHAT, body(CHAT, 3)) for _ in range(8)]
        wait_for(lambda: at.proxy.counts.requests == 8)
        gate.set()
        given = [answer.result().headers for answer in answers]
        assert {headers["mem1-prompt"] for headers in given} == {"folded"}
        assert len(at.upstream.asked) == 1 and len({json.dumps(prompt) for prompt in at.upstream.prompts}) == 1
        assert sum("mem1-state-usage" in headers for headers in given) == at.proxy.counts.states.calls == 1


def test_a_client_that_leaves_while_the_model_writes_finds_the_state_when_it_comes_back():
    gate = threading.Event()

    def behave(path: str, given: Any) -> Said | None:
        return replace(message(path, "the state"), gate=gate) if is_request_for_state(given) else None

    with running(behave) as at:
        place = urlsplit(at.url)
        sent = json.dumps(body(CHAT, 3)).encode()
        with socket.create_connection((str(place.hostname), place.port or 0)) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {SECRET}\r\n"
            client.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
            wait_for(lambda: len(at.upstream.asked) == 1)
        gate.set()
        assert at.post(CHAT, body(CHAT, 3)).headers["mem1-prompt"] == "folded"
        assert len(at.upstream.asked) == at.proxy.counts.states.calls == 1


def test_conversations_interleave_and_none_gets_another_ones_state():
    def behave(path: str, given: Any) -> Said | None:
        if not is_request_for_state(given):
            return None
        return message(path, f"about {given['messages'][0]['content'].split()[0]}")

    with running(behave, "fold(1)") as at, ThreadPoolExecutor(8) as pool:

        def converse(name: int) -> None:
            for turn in range(6):
                at.post(CHAT, {"messages": [task(f"{name} is the task"), *history(CHAT, turn)[1:]]})

        list(pool.map(converse, range(8)))
        seen = [prompt[0]["content"] for prompt in at.upstream.prompts]
    with_state = [text for text in seen if "<memory>" in text]
    assert len(with_state) == 8 * 4
    assert all(text.split("about ")[1].split("\n")[0] == text.split()[0] for text in with_state)


def test_folding_that_loses_money_is_refused_and_said(caplog: pytest.LogCaptureFixture):
    with running(policy="fold(auto)", prices="hosted-90") as at:
        for turn in range(12, 16):
            at.post(CHAT, body(CHAT, turn))
            at.post(ANTHROPIC, body(ANTHROPIC, turn, system="Another agent."))
        assert at.upstream.asked == [] and at.proxy.counts.folded == 0
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("mem1")]
    assert len(lines) == len({line.partition(": ")[0] for line in lines}) == 2, "each session is told once"
    why = (
        r"session [0-9a-f]{16}: not folded yet, as appending is cheaper: Folding every (\d+) exchanges is cheaper than "
    )
    assert all(re.fullmatch(why + r"appending from exchange (\d+) on\.", line) for line in lines)


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
def test_states_that_a_clock_keeps_from_being_found_again_are_asked_for_seldom(
    path: str, caplog: pytest.LogCaptureFixture
):
    def sent(turns: int, clock: int) -> dict[str, Any]:
        said = f"Now it is 10:{clock:02}."
        if path == ANTHROPIC:
            return body(path, turns, system=said)
        whole = body(path, turns)
        return {**whole, "messages": [{"role": "system", "content": said}, *whole["messages"]]}

    def asked(ticks: bool, turns: int) -> int:
        with running(None, "fold(auto)", prices="hosted-90-automatic") as at:
            for turn in range(1, turns):
                at.post(path, sent(turn, turn if ticks else 0))
            return len(at.upstream.asked)

    assert asked(False, 60) >= 3 and not [line for line in caplog.messages if "not found again" in line]
    assert 2 <= asked(True, 60) <= 4
    (line,) = [line for line in caplog.messages if "not found again" in line]
    assert "such as a clock in the system prompt: few are asked for" in line


def test_events_say_what_was_folded_in_which_conversation_and_what_the_state_cost(tmp_path: Path):
    with running(events=tmp_path / "events.jsonl") as at:
        for turn in range(6):
            at.post(CHAT, body(CHAT, turn))
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    states = [line for line in lines if line["kind"] == "state"]
    assert [line["state_after"] for line in states] == ["state 1", "state 2"]
    assert len({line["session"] for line in lines}) == 1 and SECRET not in str(lines)
    assert states[0]["state_usage"]["cached_tokens"] == 900 and states[0]["tokens_before"] > states[0]["tokens_after"]


def test_a_client_that_sends_half_a_request_leaves_nothing_behind():
    with running() as at:
        place = urlsplit(at.url)
        with socket.create_connection((str(place.hostname), place.port or 0)) as client:
            client.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-length: 900\r\n\r\n{{".encode())
        assert at.post(CHAT, body(CHAT, 1)).status_code == 200
        wait_for(lambda: at.proxy.counts.requests == 2)
        assert len(at.upstream.bodies) == 1


def test_pages_of_other_sites_are_refused_whatever_they_send():
    with running() as at:
        given = {"origin": "https://evil.example", "content-type": "text/plain"}
        assert at.post(CHAT, body(CHAT, 1), **given).status_code == 403
        assert at.upstream.bodies == []
