"""The endpoint of somebody else's agent: every call is a turn with the tokens that were sampled, however it is sent."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from chat_templates import QWEN3_LIKE
from endpoint_agents import result, user
from endpoints import CALL, END, SEARCH, Attempt, Says, attempt, chat_of, in_order, letters
from servers import wait_for
from worlds import CODEC, replay

from mem1.endpoint.recording import Bounds, key_of
from mem1.endpoint.server import Endpoint
from mem1.engines.base import Completion, ScriptedEngine
from mem1.engines.chat_messages import ChatMessages
from mem1.messages import Bounds as MemoryBounds
from mem1.messages import Memory
from mem1.net.requests import ClientGone, unless_gone
from mem1.packing import pack
from mem1.protocol import PAPER
from mem1.records import Ended, Trajectory, Turn
from mem1.training.checks import once_check, reencoded_share

ASK = user("Who is the mayor of Oslo?")
FIRST = f"Let me see.\n{CALL.format('Oslo')}{END}"


def checked(at: Attempt) -> Trajectory:
    """The attempt, every sampled token of which is trained exactly once and stands in contexts as it was sampled."""
    made = Trajectory(turns=at.turns)
    assert once_check([(pack([made]), [made])]).passed
    assert reencoded_share([made]) == 0
    return made


def copied(turn: Turn) -> set[int]:
    """The turns of which its context holds tokens."""
    return {number for number, *_ in turn.context_origins} - {0}


def test_what_the_policy_said_stays_in_later_contexts_as_it_was_sampled():
    with attempt(in_order(FIRST, f"Anne.{END}")) as at:
        said = at.say([ASK], tools=[SEARCH])
        assert said["content"] == "Let me see."
        assert [c["function"] for c in said["tool_calls"]] == [{"name": "search", "arguments": '{"query": "Oslo"}'}]
        last = at.say([ASK, said, result(said["tool_calls"][0], "Oslo is a city.")], tools=[SEARCH])
        assert last == {"role": "assistant", "content": "Anne."}
        first, second = checked(at).turns
    sampled = letters(at.recording.chat, FIRST)
    assert first.completion_ids == sampled != at.recording.chat.codec.encode(FIRST)
    assert second.context_ids[: len(first.context_ids + sampled)] == first.context_ids + sampled
    assert len(pack([Trajectory(turns=(first, second))])) == len(second.context_ids + second.completion_ids)
    assert (first.action, first.content, first.observation) == ("search", "Oslo", "Oslo is a city.")
    assert (second.action, second.content) == ("answer", "Anne.")
    assert first.logprobs == (-0.5,) * len(sampled) and first.weights_versions == ((0, len(sampled)),)


@pytest.mark.parametrize("spelling", ["none", "parts", "blanks", "reasoning"])
def test_a_framework_may_spell_the_message_otherwise(spelling: str):
    with attempt(in_order(f"{CALL.format('Oslo')}{END}", f"Anne.{END}")) as at:
        said = at.say([ASK])
        (call,) = said["tool_calls"]
        if spelling == "none":
            said |= {"content": None, "refusal": None, "audio": None, "annotations": []}
        elif spelling == "parts":
            said["content"] = [{"type": "text", "text": ""}]
        elif spelling == "blanks":
            call["function"]["arguments"] = '{ "query" :"Oslo"}'
        else:
            said["reasoning_content"] = "hm"
        at.say([ASK, said, result(call, "A city.")])
        assert copied(checked(at).turns[1]) == {1}


def test_a_message_that_the_agent_has_changed_is_text():
    with attempt(in_order(f"Let me see.{END}", f"Anne.{END}")) as at:
        said = at.say([ASK])
        at.say([ASK, {**said, "content": "Let me see!"}, user("Well?")])
        second = checked(at).turns[1]
    assert "Let me see!" in at.text(1) and copied(second) == set()


def test_of_equal_messages_the_one_sampled_after_these_messages_is_meant():
    def script(_seed: int, context: str) -> str:
        return f"<think>hm</think>ok{END}" if "two" in context else f"ok{END}"

    with attempt(script, chat=chat_of(QWEN3_LIKE, thoughts="keep")) as at:
        one, two = at.say([user("one")]), at.say([user("two")])
        assert key_of(one) == key_of(two)
        for name in ("two", "one"):
            at.say([user(name), {"role": "assistant", "content": "ok"}, user("go on")])
        turns = checked(at).turns
    assert [copied(turn) for turn in turns[2:]] == [{2}, {1}]


def test_the_order_of_parallel_calls_changes_no_sample():
    tasks = [user(f"task {n}") for n in range(6)] + [user("the same")] * 2

    def samples(order: list[int]) -> dict[str, list[str]]:
        with attempt(lambda seed, _: f"{seed % 1000}{END}") as at, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: at.say([tasks[i]]), order))
            found: dict[str, list[str]] = {}
            for turn in checked(at).turns:
                found.setdefault(at.recording.chat.codec.decode(turn.context_ids), []).append(turn.text)
            return {context: sorted(texts) for context, texts in found.items()}

    forwards = samples(list(range(8)))
    assert samples(list(range(7, -1, -1))) == forwards
    assert len(forwards) == 7 and len(set(next(v for k, v in forwards.items() if "the same" in k))) == 2


def test_calls_that_wait_at_the_same_time_are_sampled_together():
    held, begun = threading.Event(), threading.Event()

    class Slow(Says):
        def complete(self, contexts: Any, **options: Any) -> list[Completion]:
            begun.set()
            assert held.wait(60)
            return super().complete(contexts, **options)

    engine = Slow(chat_of(), lambda seed, _: f"{seed}{END}")
    with attempt(engine) as at, ThreadPoolExecutor(5) as pool:
        first = pool.submit(at.say, [user("first")])
        assert begun.wait(60)
        others = [pool.submit(at.say, [user(str(n))]) for n in range(4)]
        wait_for(lambda: at.recording._begun == 5)
        wait_for(lambda: len(at.recording._times) == 5)
        held.set()
        assert all(future.result() for future in (first, *others))
    assert engine.batches[0] == 1 and sum(engine.batches) == 5


def test_a_streamed_reply_is_the_same_in_chunks():
    with attempt(in_order(f"See.\n{CALL.format('a')}\n{CALL.format('b')}{END}")) as at:
        body = {"model": "m", "messages": [ASK], "stream": True, "stream_options": {"include_usage": True}}
        with at.client.stream("POST", "chat/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        turns = checked(at).turns
    *chunks, done = lines
    read = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]" and {chunk["object"] for chunk in read} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in read[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "See."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(c["index"], c["function"]["arguments"]) for c in calls] == [(0, '{"query": "a"}'), (1, '{"query": "b"}')]
    assert read[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert read[-1]["usage"]["prompt_tokens"] == len(turns[0].context_ids)
    assert turns[0].action == "calls" and turns[0].content == "search 2"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"n": 2}, "n is not supported here: each call is one sample"),
        ({"stop": ["x"]}, "stop is not supported here"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported here"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported here"),
        ({"tool_choice": "required"}, "tool_choice is not supported here: the policy decides"),
        ({"tool_choice": {"type": "function", "function": {"name": "search"}}}, "tool_choice is not supported here"),
        ({"functions": [{"name": "f"}]}, "functions is not supported here: give tools"),
        ({"logprobs": True}, "logprobs is not supported here"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "this model reads text alone"),
    ],
)
def test_what_cannot_be_honoured_is_refused_on_one_line(given: dict[str, Any], why: str):
    with attempt(in_order()) as at:
        status, said = at.refused(given.pop("messages", [ASK]), **given)
        assert status == 400 and why in said and "\n" not in said
        assert at.turns == ()


def test_settings_that_only_shape_a_sample_are_ignored_and_max_tokens_is_honoured():
    with attempt(in_order(f"one two three{END}", f"x{END}")) as at:
        answer = at.post([ASK], temperature=0.1, top_p=0.5, seed=7, presence_penalty=1, max_tokens=4, store=True).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] == "one"
        assert answer["usage"]["completion_tokens"] == 4
        assert at.post([ASK], max_completion_tokens=10**9).json()["choices"][0]["finish_reason"] == "stop"
        assert len(checked(at).turns) == 2


@pytest.mark.parametrize("written", ['<tool_call>{"name": "search"', "<tool_call>no JSON</tool_call>"])
def test_a_call_that_cannot_be_read_is_text_and_is_trained_as_it_is(written: str):
    with attempt(in_order(f"See.\n{CALL.format('a')}\n{written}{END}", f"Anne.{END}")) as at:
        said = at.say([ASK])
        assert said["content"].endswith(written) and "tool_calls" not in said
        at.say([ASK, said, user("That is no call.")])
        first, second = checked(at).turns
    assert first.action == "malformed" and copied(second) == {1}


def test_a_client_that_allows_no_call_gets_none():
    with attempt(in_order(f"See.\n{CALL.format('a')}{END}")) as at:
        said = at.say([ASK], tools=[SEARCH], tool_choice="none")
        assert "tool_calls" not in said and "<tool_call>" in said["content"]
        assert "search" not in at.text(0)


def test_thoughts_are_told_and_dropped_from_later_contexts():
    with attempt(in_order(f"<think>hm</think>See.{END}", f"Anne.{END}"), chat=chat_of(QWEN3_LIKE)) as at:
        said = at.say([ASK])
        assert (said["content"], said["reasoning_content"]) == ("See.", "hm")
        at.say([ASK, {"role": "assistant", "content": "See."}, user("Well?")])
        checked(at)
        assert "hm</think>" not in at.text(1) and "See." in at.text(1)


def test_a_policy_in_tags_calls_tools_too():
    chat = ChatMessages.in_tags(CODEC, PAPER)
    said_1, said_2 = "<IS> Q1 </IS> <query> a mayor </query>", "<IS> Q1 </IS> <answer> Q1 a mayor </answer>"
    with attempt(ScriptedEngine(CODEC, replay(said_1, said_2)), chat=chat) as at:
        said = at.say([user("Q1 a mayor 's author ?")])
        assert said["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query": "a mayor"}'}
        last = at.say([user("Q1 a mayor 's author ?"), said, result(said["tool_calls"][0], "a <answer> b")])
        assert last["content"] == "Q1 a mayor"
        checked(at)
        assert "[UNK]" not in at.text(0) and "<answer>" not in at.text(1)


def test_calls_and_tokens_are_bounded_and_the_reason_is_kept():
    with attempt(lambda *_: f"ok{END}", bounds=Bounds(calls=2, completion=50, context=4000)) as at:
        at.say([ASK])
        at.say([ASK])
        assert at.refused([ASK]) == (400, "the attempt has made its 2 calls (turn limit of the task, or agent.calls)")
        assert at.recording.trouble is not None and at.recording.trouble[0] is Ended.OUT_OF_TURNS
    with attempt(lambda *_: f"ok{END}", bounds=Bounds(calls=2, completion=50, context=100)) as at:
        assert "tokens leaves no room for 50 within 100" in at.refused([user("long " * 100)])[1]
        assert at.recording.trouble is not None and at.recording.trouble[0] is Ended.OUT_OF_TOKENS
        assert at.turns == ()


def test_calls_after_the_end_and_of_strangers_are_refused():
    with attempt(lambda *_: f"ok{END}") as at:
        at.say([ASK])
        assert len(at.turns) == 1
        assert at.refused([ASK])[0] == 409
        for path in ("chat/completions", "act"):  # before the body is read
            half = at.client.post(path, content=b"{", headers={"content-type": "application/json"})
            assert half.status_code == 409
        base = str(at.client.base_url)
    late = httpx.post(f"{base}chat/completions", json={"messages": [ASK]}, trust_env=False)
    assert late.status_code == 409 and "the attempt is over" in late.text
    for path, status in (("x/v1/chat/completions", 404), ("x/v1/models", 405)):
        stranger = httpx.post(f"{Endpoint.here().address}/{path}", json={"messages": [ASK]}, trust_env=False)
        assert stranger.status_code in (status, 404) and "error" in stranger.json()
    assert len(at.recording.end()) == 1


def test_a_call_whose_client_is_gone_is_dropped_and_the_same_call_gets_the_same_sample(monkeypatch: pytest.MonkeyPatch):
    held, begun, noticed = threading.Event(), threading.Event(), threading.Event()

    async def watched(request: Any, work: Any, answered: Any = unless_gone) -> Any:
        try:
            return await answered(request, work)
        except ClientGone:
            noticed.set()
            raise

    monkeypatch.setattr("mem1.endpoint.server.unless_gone", watched)

    async def leaves(base_url: str) -> None:
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60) as client:
            call = asyncio.ensure_future(client.post("chat/completions", json={"messages": [ASK]}))
            await asyncio.to_thread(begun.wait, 60)
            call.cancel()

    class Slow(Says):
        def complete(self, contexts: Any, **options: Any) -> list[Completion]:
            begun.set()
            assert held.wait(60)
            return super().complete(contexts, **options)

    with attempt(Slow(chat_of(), lambda seed, _: f"{seed}{END}")) as at:
        asyncio.run(leaves(str(at.client.base_url)))
        assert noticed.wait(60)
        wait_for(lambda: at.recording._begun == 0)
        held.set()
        again = at.say([ASK])
        turns = checked(at).turns
    with attempt(lambda seed, _: f"{seed}{END}") as at:
        assert at.say([ASK])["content"] == again["content"] and len(turns) == 1


def test_an_engine_that_fails_ends_the_attempt():
    class Fails(Says):
        def complete(self, contexts: Any, **_: Any) -> list[Completion]:
            return [Completion(token_ids=(), failed="the server is down") for _ in contexts]

    with attempt(Fails(chat_of(), in_order())) as at:
        assert at.refused([ASK]) == (503, "the server is down")
        assert at.recording.trouble == (Ended.ENGINE_FAILED, "the server is down") and at.turns == ()


def test_a_template_that_fails_is_named():
    def write(messages: list[Any], tools: list[Any], prompt: bool) -> str:
        raise ValueError("only one user\nmessage")

    with attempt(in_order(), chat=ChatMessages(codec=CODEC, write=write, calls=chat_of().calls)) as at:
        assert at.refused([ASK]) == (400, "the chat template fails: only one user message")


def test_what_a_memory_has_the_policy_write_is_recorded_too():
    def script(_seed: int, context: str) -> str:
        if "Write your memory now" in context.rpartition("<|im_start|>user")[2]:
            return f"Oslo was searched.{END}"
        return f"{CALL.format('Oslo')}{END}"

    memory = Memory("fold(1)", bounds=MemoryBounds(handles=False))
    with attempt(script, memory=memory) as at:
        messages: list[Any] = [ASK]
        for _ in range(4):
            said = at.say(messages, tools=[SEARCH])
            messages += [said, result(said["tool_calls"][0], "A city.")]
        turns = checked(at).turns
        assert [turn.action for turn in turns] == ["search", "search", "summary", "search", "summary", "search"]
        assert "Oslo was searched." in at.text(3) and turns[2].state == "Oslo was searched."
        assert at.text(5).count("<tool_call>\n") <= at.text(1).count("<tool_call>\n") + 1


def test_the_models_are_listed():
    with attempt(in_order()) as at:
        assert [model["id"] for model in at.client.get("models").json()["data"]] == ["policy"]
        assert at.client.get("files").status_code == 404
