"""What a server refuses of a request: fields and options are left out, the user's own settings are not."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import strict_gemini
from chat_servers import Reply, chat_server
from scripted import said
from tool_callers import streamed

import mem1
from mem1.agent.chat import ServedChat
from mem1.agent.refusals import Taken
from mem1.agent.replies import Repeated
from mem1.engines.servers import Refused
from mem1.errors import UserError

THOUGHTS = {"reasoning": "hm", "reasoning_content": "so", "annotations": [{"type": "url_citation"}]}
SIGNED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"g": "s"}}
HISTORY = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [SIGNED], **THOUGHTS}]
WORDINGS = {
    "Mistral": '{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","messages",1,'
    '"assistant","%s"],"msg":"Extra inputs are not permitted","input":"hm"}]}}',
    "Groq": "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property '%s' is "
    "unsupported)]",
    "Cerebras": '{"message":"messages.1.assistant.%s: property is unsupported","type":"invalid_request_error"}',
    "OpenAI": '{"error": {"message": "Unknown parameter: \'messages[1].%s\'.", "code": "unknown_parameter"}}',
    "OpenAI before": "Additional properties are not allowed ('%s' was unexpected) - 'messages.1'",
    "Fireworks": "Extra inputs are not permitted, field: 'messages[1].%s', value: 'hm'",
    "Gemini": "Invalid JSON payload received. Unknown name \\\"%s\\\" at 'messages[1]': Cannot find field.",
    "vLLM": "[{'type': 'extra_forbidden', 'loc': ('body', 'messages', 1, 'ChatCompletionAssistantMessageParam', '%s'), "
    "'msg': 'Extra inputs are not permitted'}]",
    "Rust": "Failed to deserialize the JSON body: messages[1]: unknown field `%s`, expected one of `role`, "
    "`reasoning`, `annotations`",
    "Go": 'json: unknown field "%s"',
    "Together": "Input validation error: messages.1.%s is not a valid field",
    "Cloudflare": "oneOf at '/' not met, unevaluatedProperties '%s' in messages[1]",
    "OpenRouter": '{"error":{"message":"Provider returned error","metadata":{"raw":"{\\"message\\":\\"property \'%s\' '
    'is unsupported\\"}"}}}',
}


def taught(detail: str, settings: dict[str, Any] | None = None, status: int = 400) -> tuple[dict[str, Any], Any]:
    """(what was sent, what is sent after this refusal of it)"""
    taken = Taken("server", settings or {})
    whole = {"messages": HISTORY, "model": "m", "stream": True, "stream_options": {"include_usage": True}}
    sent = taken.part({**whole, **(settings or {})})
    taken.learn(sent, Refused("refused", status=status, detail=detail))
    return sent, taken.part({**whole, **(settings or {})})


@pytest.mark.parametrize("field", THOUGHTS)
@pytest.mark.parametrize("wording", WORDINGS.values(), ids=WORDINGS)
def test_the_field_that_a_refusal_names_is_left_out_and_no_other(wording: str, field: str):
    sent, now = taught(wording % field, {"user": "me"})
    assert now["messages"] == [HISTORY[0], {key: value for key, value in HISTORY[1].items() if key != field}]
    assert {**now, "messages": 0} == {**sent, "messages": 0}


def test_a_field_that_is_to_be_removed_is():
    detail = "The reasoning_content is for display only. Please remove the reasoning_content from the input messages."
    _, now = taught(detail)
    assert now["messages"][1].keys() == HISTORY[1].keys() - {"reasoning_content"}


def test_fields_of_calls_and_of_parts_are_left_out_and_what_a_call_needs_is_not():
    _, now = taught("Unknown parameter: 'messages[1].tool_calls[0].extra_content'.")
    assert now["messages"][1]["tool_calls"] == [{key: SIGNED[key] for key in ("id", "type", "function")}]
    taken = Taken("server", {})
    parts = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "y", "cache_control": {}},
    ]
    sent = {"messages": [{"role": "assistant", "content": parts, "name": "bot"}]}
    for field in ("signature", "cache_control", "name"):
        taken.learn(
            taken.part(sent), Refused("", status=400, detail=f"messages.0.{field}: Extra inputs are not permitted")
        )
    left = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "y"}]
    assert taken.part(sent) == {"messages": [{"role": "assistant", "content": left}]}


def test_a_refusal_that_names_no_field_leaves_out_all_that_no_server_has_to_know():
    _, now = taught('{"detail": "Extra inputs are not permitted"}', status=422)
    assert now["messages"][1].keys() == {"role", "content", "tool_calls"}


@pytest.mark.parametrize(
    ("detail", "status"),
    [
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", 400),
        ("messages[1]: missing reasoning_content", 422),
        ("This model's maximum context length is 8192 tokens", 400),
        ("property 'reasoning' is unsupported", 401),
        ("Unsupported value: 'messages[0].role' does not support 'developer' with this model.", 400),
        ("", 400),
    ],
)
def test_another_refusal_is_raised_as_it_is(detail: str, status: Any):
    with pytest.raises(Refused, match=r"^refused$"):
        taught(detail, status=status)


@pytest.mark.parametrize(
    ("settings", "detail", "gone", "new"),
    [
        ({}, "Unrecognized request argument supplied: stream_options", {"stream_options"}, {}),
        ({}, "Unsupported value: 'stream' does not support true with this model.", {"stream", "stream_options"}, {}),
        (
            {"parallel_tool_calls": False},
            "Unrecognized request argument supplied: parallel_tool_calls",
            {"parallel_tool_calls"},
            {},
        ),
        (
            {"max_tokens": 9},
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            {"max_tokens"},
            {"max_completion_tokens": 9},
        ),
        (
            {"max_completion_tokens": 9},
            '{"detail":[{"loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]}',
            {"max_completion_tokens"},
            {"max_tokens": 9},
        ),
    ],
)
def test_options_without_which_the_answer_is_the_same(settings: Any, detail: str, gone: set[str], new: Any):
    sent, now = taught(detail, settings)
    assert now == {**{key: value for key, value in sent.items() if key not in gone}, **new}


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"temperature": 0}, "Unsupported value: 'temperature' does not support 0 with this model."),
        ({"temperature": 0}, "`temperature` is deprecated for this model."),
        ({"top_k": 5}, "Unrecognized request argument supplied: top_k"),
        ({"reasoning_effort": "low"}, '{"loc":["body","reasoning_effort"],"msg":"Extra inputs are not permitted"}'),
    ],
)
def test_a_setting_of_the_users_is_never_left_out_silently(settings: Any, detail: str):
    (name,) = settings
    with pytest.raises(Refused, match=f"^the server refuses the setting {name}; give it another value, or None"):
        taught(detail, settings)


def test_names_of_limits_are_exchanged_once():
    taken, sent = Taken("server", {"max_tokens": 9}), {"messages": [], "max_tokens": 9}
    for name in ("max_tokens", "max_completion_tokens"):
        refused = Refused("no", status=400, detail=f"Unsupported parameter: '{name}'")
        if name == "max_tokens":
            taken.learn(taken.part(sent), refused)
        else:
            with pytest.raises(Refused):
                taken.learn(taken.part(sent), refused)


def search(query: str) -> str:
    """Searches."""
    return "Oslo"


class TestServed:
    """Over a server that refuses, in OpenAI's wording, all fields that its API does not have."""

    @staticmethod
    def behave(body: dict[str, Any], number: int) -> Reply:
        call = {**SIGNED, "function": {"name": "search", "arguments": '{"query": "x"}', "parsed": 1}}
        message = {**said("Oslo"), **THOUGHTS}
        if body["messages"][-1]["role"] == "user":
            message = {**message, "content": None, "tool_calls": [call]}
        whole = {"choices": [{"message": message, "finish_reason": "stop"}]}
        if not body.get("stream"):
            return Reply(body=json.dumps(whole).encode())
        rest = f"data: {json.dumps({'choices': [{'delta': THOUGHTS}]})}\n\n".encode()
        return Reply(body=rest + streamed(whole))

    @pytest.mark.parametrize("streams", [False, True])
    def test_the_agent_goes_on_and_says_each_thing_once(self, streams: bool, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.WARNING)
        with (
            chat_server(self.behave) as server,
            mem1.Agent(server.url, name="m", tools=[search], memory="full") as agent,
        ):
            for _ in range(2):
                list(agent.stream("go")) if streams else agent.run("go")
                assert agent.answer == "Oslo"
        told = sorted(record.getMessage().split("refuses ")[1].split(" ")[0] for record in caplog.records)
        assert told == sorted([*THOUGHTS, "extra_content", "parsed"])
        assert len(server.requests) == 4 + 5, "each refusal costs one request"
        assert agent.messages[1]["reasoning"] == "hm", "the conversation keeps what came"

    def test_states_are_asked_for_without_what_is_refused(self):
        def behave(body: dict[str, Any], number: int) -> Reply:
            if "Write your memory now." in str(body["messages"][-1]["content"]):
                return Reply(text="state")
            return self.behave(body, number)

        with chat_server(behave) as server:
            agent = mem1.Agent(server.url, name="m", tools=[search], memory="fold(1)")
            for _ in range(3):
                assert agent.run("go").answer == "Oslo"
        assert agent.report().states >= 1

    @pytest.mark.parametrize("streams", [False, True])
    def test_gemini_gets_its_signatures_back_and_tools_without_arguments_without_parameters(self, streams: bool):
        def now() -> str:
            """Tells the time."""
            return "noon"

        def behave(body: dict[str, Any], number: int) -> Reply:
            last = body["messages"][-1]
            message = said("Oslo")
            if "Write your memory now." in str(last["content"]):
                message = said("state")
            elif sum("tool_calls" in each for each in body["messages"]) < 2 and number < 12:
                call = {"id": f"c{number}", "type": "function", "function": {"name": "now", "arguments": "{}"}}
                other = {**call, "id": f"d{number}", "function": {"name": "search", "arguments": '{"query": "x"}'}}
                signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
                message = {**message, "content": None, "tool_calls": [{**call, **signed}, other]}
            whole = {"choices": [{"message": message, "finish_reason": "stop"}]}
            return Reply(body=streamed(whole) if body.get("stream") else json.dumps(whole).encode())

        with (
            chat_server(behave, refuses=lambda path, body: strict_gemini.refusal(body)) as server,
            mem1.Agent(server.url, name="m", tools=[search, now], memory="fold(1)") as agent,
        ):
            for _ in range(2):
                list(agent.stream("go")) if streams else agent.run("go")
                assert agent.answer == "Oslo"
        (refused,) = server.refused
        assert "should be non-empty for OBJECT type" in refused
        declared = [tool["function"] for tool in server.requests[-1]["tools"]]
        assert ["parameters" in function for function in declared if function["name"] in ("search", "now")] == [
            True,
            False,
        ]
        assert agent.report().states >= 1

    @pytest.mark.parametrize("streams", [False, True])
    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (400, {"message": "Failed to call a function. See 'failed_generation'", "code": "tool_use_failed"}),
            (400, {"message": "The output could not be parsed", "code": "output_parse_failed"}),
            (500, {"message": "error parsing tool call: raw='{', err=unexpected end of JSON input"}),
        ],
    )
    def test_a_reply_that_the_server_cannot_read_is_asked_for_again(self, status: int, error: Any, streams: bool):
        good = {"choices": [{"message": said("Oslo"), "finish_reason": "stop"}]}
        bad = Reply(status=status, body=json.dumps({"error": error}).encode())
        replies = [bad, bad, Reply(body=streamed(good) if streams else json.dumps(good).encode())]
        with chat_server(lambda *_: replies.pop(0)) as server:
            agent = mem1.Agent(server.url, name="m")
            seen = list(agent.stream("go")) if streams else agent.run("go")
        assert agent.answer == "Oslo" and len(server.requests) == 3
        assert not streams or seen == [Repeated(why="unreadable", tries=1), Repeated(why="unreadable", tries=2), "Oslo"]

    def test_a_server_that_refuses_everything_is_not_asked_for_ever(self):
        history = [{"role": "user", "content": "x"}, {**said("y"), **{f"field_{n}": 1 for n in range(40)}}]
        with chat_server(lambda *_: Reply(text="Hi")) as server:
            chat = ServedChat(mem1.ModelServer(urls=(server.url,), model="m"))
            with pytest.raises(UserError, match="Unknown parameter"):
                chat.reply(history, [])
        assert len(server.requests) == 16

    @pytest.mark.parametrize("method", [ServedChat.reply, lambda *given: list(ServedChat.stream(*given))[-1]])
    def test_a_setting_of_none_is_left_out(self, method: Any):
        with chat_server(lambda *_: Reply(text="Hi")) as server:
            settings = {"stream_options": None, "temperature": None, "top_p": 1}
            chat = ServedChat(mem1.ModelServer(urls=(server.url,), model="m"), settings)
            assert method(chat, [{"role": "user", "content": "x"}], []).message["content"] == "Hi"
        assert server.requests[0].keys() - {"stream"} == {"messages", "model", "top_p"}

    def test_a_temperature_that_is_refused_ends_the_run_with_what_to_change(self):
        why = b'{"error": {"message": "Unsupported value: \'temperature\' does not support 0 with this model."}}'
        with chat_server(lambda *_: Reply(status=400, body=why)) as server:
            agent = mem1.Agent(server.url, name="m", settings={"temperature": 0})
            for run in (agent.run, lambda task: list(agent.stream(task))):
                with pytest.raises(UserError, match=r"refuses the setting temperature; give it another value, or None"):
                    run("go")
        assert len(server.requests) == 2 and agent.messages == []

    def test_azure_gets_its_key_header_and_version_and_no_message_shows_the_key(
        self, monkeypatch: pytest.MonkeyPatch, local: Any
    ):
        from sites import content, send

        key = "abcdefghij0123456789"
        monkeypatch.setenv("AZURE_KEY", key)
        local.pages["/openai/deployments/gpt/chat/completions"] = content(
            json.dumps({"choices": [{"message": said("Hi")}]})
        )
        server = mem1.ModelServer(
            urls=(f"{local.url}/openai/deployments/gpt",),
            model="gpt",
            headers={"api-key": "$AZURE_KEY", "X-Team": "Bearer $AZURE_KEY", "x-title": "notes"},
            query={"api-version": "2024-10-21"},
            tries=1,
        )
        for run in (mem1.Agent.run, lambda agent, task: list(agent.stream(task))):
            run(mem1.Agent(server), "go")
            _, path, headers, _ = local.asked[-1]
            assert path.endswith("/chat/completions?api-version=2024-10-21")
            sent = {name.lower(): value for name, value in headers.items()}
            assert (sent["api-key"], sent["x-team"], sent["x-title"]) == (key, f"Bearer {key}", "notes")
            assert "authorization" not in sent
        for status, body in ((401, f"bad key {key}"), (200, json.dumps({"choices": [], "key": key}))):
            local.pages["/openai/deployments/gpt/chat/completions"] = lambda handler, status=status, body=body: send(
                handler, body.encode(), status
            )
            with pytest.raises(UserError) as raised:
                mem1.Agent(server).run("go")
            assert key not in str(raised.value) and "2024" not in str(raised.value)
        literal = mem1.ModelServer(urls=("http://x",), model="m", headers={"api-key": key})
        assert key not in repr(literal) and key not in str(literal) and literal.headers["api-key"] == key

    def test_headers_and_parameters_that_cannot_be_or_would_be_logged_are_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.delenv("NOT_SET", raising=False)
        for given, why in (
            ({"headers": {"a b": "x"}}, "cannot be the name of a header"),
            ({"headers": {"x-a": "1\r\nx-b: 2"}}, "the value of x-a contains characters that no header has"),
            ({"query": {"api_key": "x"}}, "query: api_key would put a key into addresses"),
        ):
            with pytest.raises(ValueError, match=why):
                mem1.ModelServer(urls=("http://x/v1",), model="m", **given)  # type: ignore[arg-type]
        server = mem1.ModelServer(urls=("http://x/v1",), model="m", headers={"x-a": "$NOT_SET"})
        with pytest.raises(UserError, match="set the environment variable NOT_SET"):
            mem1.Agent(server)
        from mem1.engines.config import ServedModel

        with pytest.raises(ValueError, match="the value of api-key would be written into every run"):
            ServedModel(urls=("http://x/v1",), headers={"api-key": "abc"})
        assert ServedModel(urls=("http://x/v1",), headers={"api-key": "$ABC", "x-title": "t"}).headers["x-title"] == "t"
