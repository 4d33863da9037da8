"""`mem1.Agent` against a scripted server: tools, streaming, limits, failures, the report, and going on."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from chat_servers import Reply, chat_server
from pydantic import Field
from scripted import Script, calls, results, said
from tool_callers import ToolCaller, streamed

import mem1
from mem1.agent import Called, Ending, Repeated, Returned, Tool
from mem1.agent.chat import ServedChat
from mem1.agent.report import ModelCall, report
from mem1.errors import UserError
from mem1.memory import Notes
from mem1.messages import Bounds, Event, check
from mem1.messages.transcript import ASK
from mem1.prices import PRICE_CLASSES

QUERY = '{"query": "mayor"}'


def search(query: str, most: Annotated[int, Field(ge=1, description="Results to return.")] = 3) -> str:
    """Searches an encyclopedia."""
    return f"Nothing is known about {query}. " * 100


async def fetch(url: str) -> dict[str, Any]:
    """Opens a page."""
    return {"url": url, "status": 200}


def broken(path: str) -> str:
    """Reads a file."""
    raise FileNotFoundError(f"no file\n{path}")


class TestTools:
    def test_functions_become_tools_by_their_hints_and_docstrings(self):
        model = Script(said("done"))
        with mem1.Agent(model, tools=[search, fetch], bounds=Bounds()) as agent:
            agent.run("go")
        assert model.tools == [
            {
                "type": "function",
                "function": {
                    "name": "search",
                    "description": "Searches an encyclopedia.",
                    "parameters": {
                        "additionalProperties": False,
                        "properties": {
                            "query": {"type": "string"},
                            "most": {
                                "default": 3,
                                "description": "Results to return.",
                                "minimum": 1,
                                "type": "integer",
                            },
                        },
                        "required": ["query"],
                        "type": "object",
                    },
                },
            },
            {
                "type": "function",
                "function": {
                    "name": "fetch",
                    "description": "Opens a page.",
                    "parameters": {
                        "additionalProperties": False,
                        "properties": {"url": {"type": "string"}},
                        "required": ["url"],
                        "type": "object",
                    },
                },
            },
        ]

    def test_calls_of_one_turn_run_at_the_same_time_and_keep_their_order(self):
        together = threading.Barrier(3, timeout=30)

        def meet(name: str) -> str:
            """Waits for the others."""
            together.wait()
            return name

        model = Script(calls(*[("meet", json.dumps({"name": n})) for n in "abc"]), said("met"))
        with mem1.Agent(model, tools=[meet]) as agent:
            assert agent.run("meet").answer == "met"
        assert results(agent) == ["a", "b", "c"]
        assert len({call["id"] for call in agent.messages[1]["tool_calls"]}) == 3

    def test_tools_see_the_context_variables_of_whoever_runs_the_agent(self):
        tenant = ContextVar("tenant", default="nobody")

        def who() -> str:
            """Tells the tenant."""
            return tenant.get()

        async def awaited() -> str:
            """Tells the tenant."""
            return tenant.get()

        model = Script(calls(("who", "{}"), ("awaited", "{}")), said("ok"))
        with mem1.Agent(model, tools=[who, awaited]) as agent:
            token = tenant.set("acme")
            agent.run("go")
            tenant.reset(token)
        assert results(agent) == ["acme", "acme"]

    @pytest.mark.parametrize(
        ("name", "arguments", "result"),
        [
            ("fetch", '{"url": "x"}', '{"url":"x","status":200}'),
            ("broken", '{"path": "a"}', "error: FileNotFoundError: no file\na"),
            ("serch", "{}", "error: there is no tool 'serch'; there are search, fetch, broken, ends, nothing, recall"),
            ("search", "{}", "error: the arguments of search do not fit: query: Missing required argument"),
            ("search", '{"query": "x", "most": 0}', "error: the arguments of search do not fit: most: Input should be"),
            (
                "search",
                '{"query": "x", "top": 1}',
                "error: the arguments of search do not fit: top: Unexpected keyword",
            ),
            (
                "search",
                '{"query": ',
                "error: the arguments are not JSON (Expecting value: line 1",
            ),
            ("search", '["x"]', 'error: the arguments are no JSON object: ["x"]'),
            ("ends", "", "error: SystemExit: 3"),
            ("nothing", "", "done"),
            ("nothing", "null", "done"),
            ("search", "null", "error: the arguments of search do not fit: query: Missing required argument"),
            (
                "recall",
                '{"handle": "r00000000"}',
                "error: no result has the handle 'r00000000'; handles are written as",
            ),
            ("recall", '{"start": "x"}', "error: ValueError: invalid literal for int()"),
        ],
    )
    def test_whatever_a_call_does_becomes_its_result(self, name: str, arguments: str, result: str):
        def ends() -> None:
            """Leaves."""
            raise SystemExit(3)

        def nothing() -> None:
            """Does nothing."""

        model = Script(calls((name, arguments)), said("well"))
        with mem1.Agent(model, tools=[search, fetch, broken, ends, nothing]) as agent:
            agent.run("go")
        (found,) = results(agent)
        assert found.startswith(result)
        assert agent.report().tool_errors == result.startswith("error")

    def test_what_cannot_be_a_tool_is_refused_at_once(self):
        def untold(query: str) -> str:
            return query

        def unhinted(query):  # type: ignore[no-untyped-def]
            """Searches."""

        def starred(*words: str) -> str:
            """Joins words."""
            return "".join(words)

        def größe() -> int:
            """A name that providers refuse."""
            return 1

        def recall(handle: str) -> str:
            """Another one."""
            return handle

        async def pages() -> AsyncIterator[str]:
            """Pages, one by one."""
            yield "a page"

        for tool, why in (
            (untold, "the tool untold needs a docstring"),
            (unhinted, "the tool unhinted needs a type hint for query"),
            (7, "7 cannot be a tool; give a function with a name"),
            (lambda: 1, "cannot be a tool"),
            (starred, r"the tool starred cannot have the parameter \*words: a model"),
            (größe, "cannot be a tool"),
            (pages, "the tool pages yields its results; return them"),
        ):
            with pytest.raises(UserError, match=why):
                mem1.Agent(Script(), tools=[tool])  # type: ignore[list-item]
        with pytest.raises(UserError, match="'a b' cannot name a tool; providers take up to 64 of A-Z a-z 0-9 _ -"):
            Tool(name="a b", description="", parameters={}, call=lambda given: given)
        for twice in ([search, search], [recall]):
            with pytest.raises(UserError, match=f"two tools are called {twice[0].__name__}; rename one"):
                mem1.Agent(Script(), tools=twice).run("go")

    def test_a_tool_of_ones_own_and_recall_only_where_handles_can_show(self):
        echo = Tool(name="echo", description="Echoes.", parameters={"type": "object"}, call=lambda given: [given])
        model = Script(calls(("echo", '{"a": "ü"}')), said("ok"))
        agent = mem1.Agent(model, tools=[echo], bounds=Bounds()).run("go")
        assert results(agent) == ['[{"a":"ü"}]'] and len(model.tools) == 1
        again = Script(said("ok"))
        mem1.Agent(again, tools=[echo], memory=Notes()).run("go")
        assert [tool["function"]["name"] for tool in again.tools] == ["echo", "recall"]

    def test_a_long_result_is_shortened_and_can_be_read_on(self):
        long = "".join(f"{i}," for i in range(1500))
        read = Tool(name="read", description="Reads.", parameters={"type": "object"}, call=lambda _: long)
        shown: list[str] = []

        def model(messages: list[Any], tools: list[Any]) -> Any:
            shown.append(messages[-1]["content"])
            if len(messages) == 2:
                return calls(("read", "{}"))
            _, found, rest = shown[-1].rpartition('recall("')
            if not found:
                return said("read")
            handle, start = rest.split('", start=')
            return calls(("recall", json.dumps({"handle": handle, "start": int(start.split(")")[0])})))

        agent = mem1.Agent(model, instructions="Read.", tools=[read], bounds=Bounds(result=1000)).run("go")
        assert "".join(part.rpartition("\n[")[0] or part for part in shown[1:]) == long
        assert agent.answer == "read" and len(shown) > 4


def test_thirty_turns_stay_bounded_and_the_report_has_the_servers_own_counts():
    script = [
        [("search", json.dumps({"query": f"mayor {turn} {i}"})) for i in range(1 + turn % 2)] for turn in range(30)
    ]
    caller = ToolCaller(script)
    with chat_server(caller) as server, mem1.Agent(
        server.url, name="tiny", tools=[search], instructions="Find it.", prices="hosted-90", bounds=Bounds(result=200)
    ) as agent:  # fmt: skip
        report = agent.run("Who is the mayor of Oslo?").report()
    assert (report.answer, report.ending, report.turns) == (caller.answer, Ending.ANSWERED, 31)
    assert (report.tool_calls, report.tool_errors, report.estimated) == (45, 0, ())
    assert report.states == len(caller.counted) - 31 == 3
    prompt, cached, output = (sum(counts) for counts in zip(*caller.counted, strict=True))
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (prompt, cached, output)
    assert report.peak_tokens == max(prompt + output for prompt, _, output in caller.counted)
    assert max(len(request["messages"]) for request in server.requests) <= 2 + 9 * 2.5 + 1
    assert report.peak_tokens < report.appended_peak_tokens / 2
    assert report.cost is not None and report.appended_cost is not None and report.cost < report.appended_cost
    assert "exchange" in str(report.advice) and "cost" in str(report)
    assert json.loads(json.dumps(report.record()))["ending"] == "answered"
    assert all(body["model"] == "tiny" and "stream" not in body for body in server.requests)


def test_what_appending_costs_is_what_an_agent_without_a_memory_pays():
    """With nothing left out, a run costs what the report says that appending costs, by whatever prices."""
    for prices in PRICE_CLASSES:
        caller = ToolCaller([[("search", QUERY)]] * 12)
        with (
            chat_server(caller) as server,
            mem1.Agent(server.url, name="m", tools=[search], memory="full", bounds=Bounds(), prices=prices) as agent,
        ):
            report = agent.run("go").report()
        assert report.appended_peak_tokens == report.peak_tokens and report.states == 0
        assert report.cost == pytest.approx(report.appended_cost, rel=0.02)


@pytest.mark.parametrize("hits", [0.0, 0.5, 1.0])
def test_what_appending_costs_is_by_the_providers_own_cache_where_nothing_was_left_out(hits: float):
    for prices in PRICE_CLASSES.values():
        grows = [1_000 * number for number in range(1, 9)]
        calls = [
            ModelCall(state=False, prompt=size, cached=int(hits * (size - 1_000)), output=10, appended=size)
            for size in grows
        ]
        told = report(calls, answer="", ending=None, tool_calls=0, tool_errors=0, prices=prices, advice=None)
        assert told.cost == pytest.approx(told.appended_cost)
        folded = [replace(call, prompt=500, cached=int(hits * 400)) for call in calls]
        told = report(folded, answer="", ending=None, tool_calls=0, tool_errors=0, prices=prices, advice=None)
        full = report(calls, answer="", ending=None, tool_calls=0, tool_errors=0, prices=prices, advice=None).cost
        assert hits or told.appended_cost == pytest.approx(full)


def test_without_usage_everything_is_estimated_and_said_to_be():
    counts = []
    for usage in (True, False):
        caller = ToolCaller([[("search", QUERY)]] * 12, usage=usage)
        with chat_server(caller) as server, mem1.Agent(server.url, name="m", tools=[search]) as agent:
            counts.append(agent.run("go").report())
    assert counts[0].estimated == () and counts[1].estimated == ("prompt", "cached", "output")
    assert "estimated  prompt, cached, output: the provider did not count them" in str(counts[1])
    for name in ("prompt_tokens", "cached_tokens", "peak_tokens"):
        four = getattr(counts[0], name) / 4  # the server's token is a character
        assert getattr(counts[1], name) == pytest.approx(four, rel=0.25), name


class TestStreaming:
    def test_text_calls_results_and_folds_come_as_they_happen(self):
        caller = ToolCaller([[("search", QUERY), ("search", '{"query": "Oslo"}')], *[[("search", QUERY)]] * 9])
        with chat_server(caller) as server, mem1.Agent(server.url, name="m", tools=[search]) as agent:
            steps = list(agent.stream("go"))
            streamed_messages = agent.messages
        text = [step for step in steps if isinstance(step, str)]
        assert len(text) == 5 and "".join(text) == agent.answer == caller.answer
        assert [type(step) for step in steps[:4]] == [Called, Called, Returned, Returned]
        assert steps[0] == Called(id="call_0_0", name="search", arguments=QUERY)
        assert steps[2] == Returned(id="call_0_0", name="search", text=search("mayor"), failed=False)
        assert [step.kind for step in steps if isinstance(step, Event)] == ["state"]
        turns = [body for body in server.requests if body.get("stream")]
        assert len(turns) == 11 and turns[0]["stream_options"] == {"include_usage": True}
        with (
            chat_server(ToolCaller(caller.script)) as server,
            mem1.Agent(server.url, name="m", tools=[search]) as agent,
        ):
            assert agent.run("go").messages == streamed_messages

    def test_a_server_that_does_not_stream_is_read_whole(self):
        body = json.dumps({"choices": [{"message": said("Hello")}]}, indent=1).encode()
        with chat_server(lambda *_: Reply(body=body)) as server:
            assert list(mem1.Agent(server.url, name="m").stream("go")) == ["Hello"]

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (b'data: {"error": {"message": "overloaded"}}\n\n', "no reply: .*the server sent an error .*overloaded"),
            (b"data: nonsense\n\n", "no reply: .*the answer is not JSON"),
            (b'data: {"choices": [{"delta": {"tool_calls": 7}}]}', "no reply: .*the server sent {'choices': "),
            (b"data: [DONE]\n\n", "no reply: .*broke off before its first word"),
        ],
    )
    def test_an_answer_that_cannot_be_read_is_one_line(self, body: bytes, why: str):
        with chat_server(lambda *_: Reply(body=body)) as server:
            agent = mem1.Agent(mem1.ModelServer(urls=(server.url,), model="m", tries=1))
            with pytest.raises(UserError, match=rf"^the model(?:'s|) (?:gives )?{why}"):
                list(agent.stream("go"))
        assert agent.messages == [] and agent.report().ending is Ending.FAILED

    def test_an_answer_that_breaks_off_is_asked_for_again_and_after_its_first_text_a_stream_says_so(self):
        error = b'data: {"error": {"message": "overloaded", "code": 529}}\n\n'
        text = b'data: {"choices": [{"delta": {"content": "Os"}}]}\n\n'
        call = b'data: {"choices": [{"delta": {"tool_calls": [{"id": "a", "function": {"name": "search"}}]}}]}\n\n'
        good = streamed({"choices": [{"message": said("Oslo"), "finish_reason": "stop"}]})
        lasting = b'data: {"error": {"message": "no such model", "code": 404}}\n\n'
        bodies = [error, call + error, call, good, text + error, text, good, text + lasting]
        with chat_server(lambda *_: Reply(body=bodies.pop(0))) as server:
            agent = mem1.Agent(mem1.ModelServer(urls=(server.url,), model="m", first_wait_s=0.01), tools=[search])
            assert list(agent.stream("go")) == ["Oslo"] and len(server.requests) == 4
            repeated = [Repeated(why="unreadable", tries=tries) for tries in (1, 2)]
            assert list(agent.stream("and?")) == ["Os", repeated[0], "Os", repeated[1], "Oslo"]
            before, steps = agent.messages, agent.stream("and then?")
            assert next(steps) == "Os"
            with pytest.raises(UserError, match=r"^the model gives no reply: the answer broke off: .*no such model"):
                next(steps)
        assert agent.messages == before and len(server.requests) == 8

    def test_who_stops_reading_interrupts_and_can_go_on(self):
        model = Script(calls(("search", QUERY), ("search", QUERY)), said("found"))
        agent = mem1.Agent(model, tools=[search])
        steps = agent.stream("go")
        next(step for step in steps if isinstance(step, Returned))
        with pytest.raises(UserError, match="already at work"):
            agent.run("another")
        steps.close()  # type: ignore[attr-defined]
        assert agent.report().ending is Ending.INTERRUPTED and agent.answer is None
        assert results(agent)[1].startswith("error: the user interrupted")
        check(agent.messages)
        assert agent.run().answer == "found"


class TestFailures:
    def test_a_refusal_of_the_provider_is_one_line_and_leaves_the_conversation_as_it_was(self):
        refuse = Reply(status=400, body=b'{"error": {"message": "context too long"}}')
        caller = ToolCaller([[("search", QUERY)]])
        replies = iter([None, None, refuse, refuse, None])

        def behave(body: dict[str, Any], number: int) -> Reply:
            return next(replies) or caller(body, number)

        with chat_server(behave) as server, mem1.Agent(server.url, name="m", tools=[search]) as agent:
            agent.run("first")
            before = agent.messages
            for _ in range(2):
                with pytest.raises(UserError, match=r"status 400 Bad Request .*context too long") as raised:
                    agent.run("second")
                assert "\n" not in str(raised.value)
                assert agent.messages == before and agent.answer is None
            assert agent.run("second").answer == caller.answer
        assert [m["content"] for m in agent.messages if m["role"] == "user"] == ["first", "second"]

    def test_a_failure_in_the_middle_keeps_what_was_done_and_is_gone_on_with(self):
        model = Script(calls(("search", QUERY)), RuntimeError("lost\nconnection"), said("found"))
        agent = mem1.Agent(model, tools=[search])
        with pytest.raises(UserError, match="the model gives no reply: RuntimeError: lost"):
            agent.run("go")
        assert len(agent.messages) == 3 and agent.report().ending is Ending.FAILED
        assert agent.run().answer == "found"
        with pytest.raises(UserError, match="there is no task to continue"):
            agent.run()

    def test_ctrl_c_in_a_tool_is_raised_with_a_whole_conversation_and_the_report_so_far(self):
        agent = mem1.Agent(Script(calls(("search", QUERY)), KeyboardInterrupt(), said("found")), tools=[search])
        with pytest.raises(KeyboardInterrupt):
            agent.run("go")
        assert (agent.report().ending, agent.report().turns) == (Ending.INTERRUPTED, 1)
        check(agent.messages)
        assert agent.run().answer == "found"

    def test_turns_and_time_are_limits_after_which_it_can_go_on(self):
        free = threading.Event()

        def wait() -> str:
            """Waits."""
            free.wait()
            return "late"

        model = Script(calls(("search", QUERY)), calls(("search", QUERY)), said("found"))
        agent = mem1.Agent(model, tools=[search], max_turns=1)
        assert agent.run("go").report().ending is Ending.OUT_OF_TURNS
        agent.run()
        assert agent.run().answer == "found"
        slow = mem1.Agent(Script(calls(("wait", "")), said("done")), tools=[wait], timeout_s=0.05)
        try:
            assert slow.run("go").report().ending is Ending.OUT_OF_TIME
            assert results(slow) == ["error: it was not done when the time of the run, 0.05 s, was up"]
        finally:
            free.set()

    def test_time_that_runs_out_while_the_model_thinks_is_no_failure(self):
        with chat_server(lambda *_: Reply(text="late", hangs_s=30)) as server:
            agent = mem1.Agent(server.url, name="m", timeout_s=0.3)
            assert agent.run("go").report().ending is Ending.OUT_OF_TIME

    def test_a_model_that_repeats_calls_that_fail_alike_is_stopped_and_can_be_told_so(self):
        failing = calls(("broken", '{"path": "a"}'), ("serch", "{}"))
        other = calls(("broken", '{"path": "b"}'), ("serch", "{}"))
        mixed = calls(("broken", '{"path": "a"}'), ("search", QUERY))
        script = [*[failing] * 4, other, *[failing] * 4, *[mixed] * 6, *[failing] * 5, said("gave up")]
        agent = mem1.Agent(Script(*script), tools=[search, broken], memory="full").run("go")
        assert (agent.report().ending, agent.report().turns) == (Ending.STUCK, 20)
        assert agent.run("Leave it.").answer == "gave up"

    def test_broken_arguments_and_missing_ids_leave_a_conversation_that_any_server_takes_back(self):
        model = Script(*[calls(("search", '{"query": "unfinished'), ("search", "[]"))] * 2, said("ok"))
        agent = mem1.Agent(model, tools=[search])
        steps = list(agent.stream("go"))
        kept = [call for message in agent.messages for call in message.get("tool_calls", ())]
        assert [call["function"]["arguments"] for call in kept] == ["{}"] * 4
        assert len({call["id"] for call in kept}) == 4, "no id comes twice in the conversation"
        assert [step.arguments for step in steps if isinstance(step, Called)][:2] == ['{"query": "unfinished', "[]"]
        assert results(agent)[0].endswith(': {"query": "unfinished')

    def test_a_thousand_calls_in_one_turn_are_all_answered_in_order(self):
        busy, most, lock = 0, 0, threading.Lock()

        def count(number: int) -> int:
            """Counts."""
            nonlocal busy, most
            with lock:
                busy, most = busy + 1, max(most, busy + 1)
            with lock:
                busy -= 1
            return number

        model = Script(calls(*[("count", f'{{"number": {i}}}') for i in range(1000)]), said("ok"))
        agent = mem1.Agent(model, tools=[count], memory="full").run("go")
        assert results(agent) == [str(i) for i in range(1000)] and 1 <= most <= 32

    @pytest.mark.parametrize(
        ("reply", "why"),
        [
            ({"role": "assistant", "content": 7}, "the reply's content is 7, neither text nor a list of parts"),
            ({"role": "assistant", "content": [7]}, r"the reply's content is \[7\]"),
            ({"content": "x", "tool_calls": "search"}, "the reply's tool_calls are 'search', not a list of calls"),
            ({"choices": []}, "the reply has no message of an assistant"),
            ({"choices": [{"message": {"role": "user", "content": "x"}}]}, "the reply has no message of an assistant"),
            (7, "the reply has no message of an assistant"),
        ],
    )
    def test_a_reply_that_is_none_is_one_line(self, reply: Any, why: str):
        agent = mem1.Agent(Script(reply))
        with pytest.raises(UserError, match=rf"^the model's answer cannot be read: {why}"):
            agent.run("go")
        assert agent.messages == []

    def test_an_answer_that_was_cut_is_said_to_be(self):
        cut = {"choices": [{"message": said("The mayor is"), "finish_reason": "length"}]}
        report = mem1.Agent(Script(cut, cut, cut)).run("go").report()
        assert (report.answer, report.ending, report.turns) == ("The mayor is", Ending.OUT_OF_TOKENS, 3)

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"model": 7}, "7 is no model; give a base URL"),
            ({"model": "qwen"}, "'qwen' is not the address of a model server"),
            ({"model": Script(), "name": "m"}, "go with a base URL"),
            ({"model": Script(), "settings": {"a": 1}}, "settings go with a model on a server"),
            ({"model": Script(), "memory": "fold(auto)"}, "needs prices"),
            ({"model": Script(), "memory": "forget"}, "unknown memory 'forget'"),
            ({"model": Script(), "max_turns": 0}, "max_turns must be at least 1"),
            ({"model": Script(), "memory": 5}, "5 is no memory; give a name"),
            ({"model": Script(), "tools": search}, "tools must be a list"),
            ({"model": Script(), "tools": mem1.McpServer("x")}, "tools must be a list"),
            ({"model": Script(), "events": "/nowhere/events.jsonl"}, "cannot append to /nowhere/events.jsonl"),
            ({"model": "http://x/v1", "name": "m", "settings": {"tools": []}}, "settings must not hold tools"),
            ({"model": "http://x/v1", "name": "m", "api_key_env": "NOT_SET"}, "set the environment variable NOT_SET"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_together_is_refused(self, given: dict[str, Any], why: str):
        with pytest.raises(UserError, match=why):
            mem1.Agent(**given)

    def test_an_empty_task_is_refused(self):
        with pytest.raises(UserError, match="the task is empty"):
            mem1.Agent(Script()).run(" ")


class TestGoingOn:
    def test_a_second_task_continues_the_conversation(self):
        model = Script(said("Oslo"), said("Anne Lindboe"))
        agent = mem1.Agent(model, instructions="Be brief.")
        assert agent.run("Capital of Norway?").run("And its mayor?").answer == "Anne Lindboe"
        assert [message["role"] for message in model.shown[1]] == ["system", "user", "assistant", "user"]
        assert agent.report().turns == 2

    @pytest.mark.parametrize("instructions", [None, "Be brief."])
    def test_an_agent_that_has_no_task_yet_is_saved_and_loaded(self, instructions: str | None, tmp_path: Path):
        mem1.Agent(Script(), instructions=instructions).save(tmp_path / "log.jsonl")
        model = Script(said("Oslo"))
        agent = mem1.Agent(model).load(tmp_path / "log.jsonl")
        with pytest.raises(UserError, match="there is no task to continue"):
            agent.run()
        assert agent.run("Capital of Norway?").answer == "Oslo"
        assert [message["content"] for message in model.shown[0]] == [
            *filter(None, [instructions]),
            "Capital of Norway?",
        ]

    def test_a_saved_conversation_goes_on_in_another_process_with_its_state(self, tmp_path: Path):
        first = mem1.Agent(
            Script(*[calls(("search", QUERY))] * 3, said("state one"), said("ok")), tools=[search], memory="fold(2)"
        )
        first.run("go").save(tmp_path / "log.jsonl")
        model = Script(said("again"))
        second = mem1.Agent(model, tools=[search], memory="fold(2)").load(tmp_path / "log.jsonl")
        assert second.run("go on").answer == "again"
        assert "state one" in json.dumps(model.shown[0]) and len(model.shown[0]) < len(first.messages)
        for text, why in (
            ('{"role": "tool", "tool_call_id": "a", "content": ""}\n', "nothing called"),
            ("{}\n", "role"),
        ):
            (tmp_path / "bad.jsonl").write_text(text)
            with pytest.raises(UserError, match=rf"bad\.jsonl is not a conversation of an agent: .*{why}"):
                second.load(tmp_path / "bad.jsonl")

    def test_a_conversation_that_was_saved_while_a_tool_ran_goes_on_without_its_result(self, tmp_path: Path):
        first = mem1.Agent(Script(calls(("search", QUERY), ("fetch", '{"url": "a"}'))), tools=[search, fetch])
        for step in first.stream("go"):
            if isinstance(step, Returned):
                first.save(tmp_path / "log.jsonl")
                break
        model = Script(said("ok"))
        second = mem1.Agent(model, tools=[search, fetch]).load(tmp_path / "log.jsonl")
        assert second.run().answer == "ok"
        check(model.shown[0])
        assert "ended before this call was done" in model.shown[0][-1]["content"]

    def test_a_conversation_that_was_saved_behind_a_state_goes_on_as_in_its_own_process(self, tmp_path: Path):
        looked = calls(("search", QUERY))
        first = mem1.Agent(
            Script(*[looked] * 3, said("the state"), UserError("down")), tools=[search], memory="fold(2)"
        )
        with pytest.raises(UserError, match="down"):
            first.run("go")
        first.save(tmp_path / "log.jsonl")
        model = Script(said("ok"))
        second = mem1.Agent(model, tools=[search], memory="fold(2)").load(tmp_path / "log.jsonl")
        assert second.messages == first.messages
        assert second.run().answer == "ok" and "the state" in json.dumps(model.shown[0])
        second.save(tmp_path / "again.jsonl")
        assert "the state" in (tmp_path / "again.jsonl").read_text()


class TestServers:
    def test_the_only_model_of_a_server_needs_no_name(self, local):
        from sites import as_json, content

        local.pages["/v1/models"] = as_json({"data": [{"id": "qwen"}]})
        local.pages["/v1/chat/completions"] = content(json.dumps({"choices": [{"message": said("Hi")}]}))
        assert mem1.Agent(f"{local.url}/v1").run("go").answer == "Hi"
        assert json.loads(local.asked[-1][3])["model"] == "qwen"
        local.pages["/v1/models"] = as_json({"data": [{"id": "a"}, {"id": "b"}]})
        with pytest.raises(UserError, match=r"give the model's name; http.* serves a, b"):
            mem1.Agent(f"{local.url}/v1")
        del local.pages["/v1/models"]
        with pytest.raises(UserError, match=r"give the model's name; the server does not tell it: .*404"):
            mem1.Agent(f"{local.url}/v1")

    def test_key_and_settings_are_sent_and_busy_servers_asked_again(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MY_KEY", "sk-abcdefghijklmnop")
        replies = [Reply(status=503), Reply(status=429, headers={"Retry-After": "0"}), Reply(text="Hi")]
        with chat_server(lambda *_: replies.pop(0)) as server:
            config = mem1.ModelServer(urls=(server.url,), model="m", api_key_env="MY_KEY", first_wait_s=0.01)
            assert mem1.Agent(config, settings={"temperature": 0}).run("go").answer == "Hi"
        assert len(server.requests) == 3 and server.requests[-1]["temperature"] == 0
        assert server.headers[-1]["authorization"] == "Bearer sk-abcdefghijklmnop"

    def test_what_would_spoil_a_state_is_no_part_of_its_request(self):
        spoils = {"response_format": {"type": "json_object"}, "stop": ["x"], "tool_choice": "required"}
        with chat_server(ToolCaller([[("search", QUERY)]] * 4)) as server:
            settings = {"temperature": 0, "max_tokens": 300, **spoils}
            report = mem1.Agent(server.url, name="m", tools=[search], memory="fold(2)", settings=settings).run("go")
        asked = [body for body in server.requests if body["messages"][-1]["content"].startswith(ASK)]
        turns = [body for body in server.requests if body not in asked]
        assert report.report().states == len(asked) > 0
        assert all(spoils.keys().isdisjoint(body) and body["max_tokens"] == 2_000 for body in asked)
        assert all(body["temperature"] == 0 and body["tools"] == turns[0]["tools"] for body in asked)
        assert all(settings.items() <= body.items() for body in turns)

    def test_a_limit_on_tokens_holds(self):
        from mem1.net.spending import SpendingLimit

        with chat_server(ToolCaller([[("search", QUERY)]] * 9)) as server:
            config = mem1.ModelServer(urls=(server.url,), model="m", limit=SpendingLimit(tokens=8_000))
            for run in (mem1.Agent.run, lambda *given: list(mem1.Agent.stream(*given))):
                agent = mem1.Agent(config, tools=[search], settings={"max_tokens": 300})
                with pytest.raises(UserError, match="the limit of 8,000 tokens is reached"):
                    run(agent, "go")
                assert agent.report().prompt_tokens + agent.report().output_tokens <= 8_000 and agent.report().turns > 1

    def test_requests_that_nobody_counts_use_up_a_limit_too(self):
        from mem1.net.spending import SpendingLimit

        with chat_server(lambda *_: Reply(text="Hi")) as server:
            config = mem1.ModelServer(urls=(server.url,), model="m", limit=SpendingLimit(tokens=1_000))
            for method in (ServedChat.reply, ServedChat.stream):
                chat, asked = ServedChat(config, {"max_tokens": 400}), len(server.requests)
                ask = partial(method, chat, [{"role": "user", "content": "Hello"}], [])
                for _ in range(2):
                    assert ask() if method is ServedChat.reply else list(ask())  # type: ignore[call-overload]
                with pytest.raises(UserError, match="the limit of 1,000 tokens is reached"):
                    list(ask())  # type: ignore[call-overload]
                assert len(server.requests) == asked + 2

    def test_a_key_in_two_pieces_of_a_stream_is_found(self, monkeypatch: pytest.MonkeyPatch):
        import httpx

        from mem1.engines.servers import EngineFailed, Servers
        from mem1.net.spending import Usage

        class Pieces(httpx.SyncByteStream):
            def __iter__(self):
                yield from (b"data: sk-abcde", b"f" * 100, b"sk-abcdef", b"ghijklmnop\n", b"never")

        monkeypatch.setenv("MY_KEY", "sk-abcdefghijklmnop")
        config = mem1.ModelServer(urls=("http://x/v1",), model="m", api_key_env="MY_KEY")
        servers = Servers(config, transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Pieces())))
        answer = servers.stream("/chat/completions", b"{}", iter, lambda _: Usage(), at_most=Usage())
        assert [next(answer) for _ in range(3)] == [b"data: sk-abcde", b"f" * 100, b"sk-abcdef"]
        with pytest.raises(EngineFailed, match="the answer repeats the API key"):
            next(answer)

    def test_a_stream_that_breaks_off_is_no_answer(self, local):
        import sites

        head = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
        chunk = b'data: {"choices": [{"delta": {"content": "The "}}]}\n\n'
        local.pages["/v1/chat/completions"] = sites.cut(head + chunk)
        chat = ServedChat(mem1.ModelServer(urls=(f"{local.url}/v1",), model="m", first_wait_s=0.01))
        parts = chat.stream([{"role": "user", "content": "go"}], [])
        assert next(parts) == "The "
        with pytest.raises(UserError, match="the model gives no reply: the answer broke off"):
            next(parts)
