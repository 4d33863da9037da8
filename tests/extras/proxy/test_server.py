"""`mem1 proxy` as a process: its arguments, the file of states, and the packages of the two providers as clients."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxies import HTTP, SECRET, body, history, running, task, turn_seen
from readers import CODEC, TAGS
from servers import CommandProcess, app_in_a_thread
from streams import Streams, all_streams
from terminals import Terminal
from terminals import terminal as terminal
from upstreams import ANTHROPIC, CHAT, Said, Upstream

from mem1.errors import UserError
from mem1.extras.proxy import upstream as to_upstream
from mem1.extras.proxy.app import Proxy
from mem1.extras.proxy.states import StateFile
from mem1.messages import Bounds, Memory
from mem1.policy.policy import Policy
from mem1.policy.protocol import ResolvedProtocol
from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel


def test_states_survive_a_restart_and_their_number_is_bounded(tmp_path: Path):
    file = tmp_path / "kept" / "states.sqlite"
    with running(states=StateFile(file)) as at:
        at.post(CHAT, body(CHAT, 3))
        before = at.last
    assert file.stat().st_mode & 0o777 == 0o600
    with running(states=StateFile(file)) as at:
        at.post(CHAT, body(CHAT, 3))
        assert at.last == before and at.upstream.asked == []
    small = StateFile(tmp_path / "small", most=3)
    for number in range(10):
        small[str(number)] = "s" * number
    assert sorted(small) == sorted(StateFile(tmp_path / "small", most=3)) == ["7", "8", "9"]


def test_a_file_that_is_no_store_of_states_is_named(tmp_path: Path):
    (tmp_path / "own").write_text("my notes " * 100)
    with pytest.raises(UserError, match=r"cannot keep states in .*own: file is not a database; give another --states"):
        StateFile(tmp_path / "own")
    assert (tmp_path / "own").read_text().startswith("my notes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", "fold(auto)"], "fold(auto) needs --prices"),
        (["--memory", "fold(0)"], "unknown memory 'fold(0)'; known: constant"),
        (["--prices", "free"], "unknown price class 'free'; known: hosted-90"),
        (["--upstream", "localhost:8000", "--memory", "full"], "--upstream 'localhost:8000' is no address of a server"),
        (["--upstream", "http://a:99999", "--memory", "full"], "is no address of a server"),
        (["--upstream", "http://u:pass@a", "--memory", "full"], "must not contain a password"),
        (["--memory", "full", "--host", "999.9.9.9"], "cannot listen on 999.9.9.9"),
        (["--memory", "full", "--states", "/dev/null/x"], "cannot be made"),
        (["--memory", "full", "--writer", "nowhere"], "full has no states that a writer's notes could be"),
        (["--memory", "fold(8)", "--writer", "nowhere"], "nowhere"),
        (["--memory", "full", "--device", "cpu"], "--device: belongs to --writer"),
    ],
)
def test_wrong_arguments_are_explained_on_one_line(
    arguments: list[str],
    said: str,
    terminal: Terminal,
    tmp_path: Path,
):
    given = arguments if "--upstream" in arguments else ["--upstream", "http://127.0.0.1:9", *arguments]
    where = [] if "--states" in arguments else ["--states", tmp_path / "states"]
    error = terminal.error("proxy", *given, *where)
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("url", "reached"), [("http://models.example", True), ("http://127.0.0.1:9", False), ("https://a.example", False)]
)
def test_the_proxy_of_the_environment_is_used_for_the_addresses_that_it_is_for(
    url: str, reached: bool, monkeypatch: pytest.MonkeyPatch
):
    with app_in_a_thread(Upstream(), accepts=None, allowed=["models.example"]) as there:
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", there)
        monkeypatch.setenv("no_proxy", "127.0.0.1")

        async def answered() -> bool:
            upstream = to_upstream.Upstream(url)
            try:
                response = await upstream.send(upstream.request("GET", b"/v1/models", b"", [], None))
            except httpx.ConnectError:
                return False
            await response.aclose()
            return response.status_code == 200

        assert asyncio.run(answered()) == reached


def test_a_proxy_of_the_environment_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", "ftp://a.example")
    with pytest.raises(UserError, match=r"the environment's proxy to https://b\.example cannot be used"):
        to_upstream.Upstream("https://b.example")


def sent(url: str, head: str, body: bytes = b"") -> bytes:
    """Status line of the answer to a request that no client would write."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{head}\r\nhost: {host}\r\n\r\n".encode() + body)
        return connection.recv(1 << 16).split(b"\r\n")[0]


def test_a_request_with_two_lengths_is_refused_without_a_traceback(caplog: pytest.LogCaptureFixture):
    head = f"POST {CHAT} HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked"
    with running() as at:
        assert sent(at.url, head, b"2\r\n{}\r\n0\r\n\r\n") == b"HTTP/1.1 400 Bad Request"
        assert at.upstream.raw == [] and not [record for record in caplog.records if record.exc_info]


CLIMBING = (
    "/../x", "/v1/../../x", "/a/%2e%2e/%2E%2e/x", "/a/..%2f..%2fx", "/a/%252e%252e/x", "/a/..\\..\\x", "/a/..%5cx",
    "/a/..;a=1/x", "/a/.%2e", "/..",
)  # fmt: skip


def test_a_path_never_leaves_the_upstreams_prefix():
    upstream = Upstream()
    with app_in_a_thread(upstream, accepts=None) as there:
        proxy = Proxy(to_upstream.Upstream(f"{there}/tenant/one"), lambda form, on_event: Memory("full", form=form))
        with app_in_a_thread(proxy, accepts=None) as here:
            for path in CLIMBING:
                assert sent(here, f"GET {path} HTTP/1.1") == b"HTTP/1.1 400 Bad Request", path
            assert upstream.paths == []
            for path in ("/v1/files/a..b", "/v1/...", "/v1/.hidden/%2e"):
                assert sent(here, f"GET {path} HTTP/1.1") == b"HTTP/1.1 200 OK", path
            assert all(path.startswith("/tenant/one/v1/") for path in upstream.paths) and len(upstream.paths) == 3


def test_the_command_serves_until_ctrl_c_and_says_what_it_did(tmp_path: Path):
    upstream = Upstream()
    with app_in_a_thread(upstream) as there:
        proxy = CommandProcess(
            "proxy", "--upstream", f"{there}/v1", "--memory", "fold(1)", "--port", "0", "--states", tmp_path / "s"
        )  # fmt: skip
        answer = HTTP.post(proxy.address + CHAT, json=body(CHAT, 2))
        assert answer.headers["mem1-prompt"] == "folded" and upstream.paths == [CHAT, CHAT]
        assert HTTP.get(proxy.address, headers={"host": "evil.example"}).status_code == 421
        code, said = proxy.stop(signal.SIGINT)
    assert code == 0 and "Traceback" not in said
    assert "warning: fold(1) changes prompts that the provider has cached" in said
    assert "Stopped. 1 requests, 1 folded, 0 in doubt; 1 states (1,000 + 20 tokens, 900 cached)." in said


def test_the_command_reads_with_the_writer_in_a_folder(tmp_path: Path):
    shape = TinyModel(hidden_size=32, layers=1, heads=2, feed_forward=32, look_back=())
    model = new_model(shape, vocab_size=CODEC.vocab_size, seed=0)
    Policy(model, CODEC, speaks=ResolvedProtocol(tags=TAGS)).save(tmp_path / "writer")
    upstream = Upstream()
    with app_in_a_thread(upstream) as there:
        proxy = CommandProcess(
            "proxy", "--upstream", f"{there}/v1", "--memory", "fold(1)", "--port", "0", "--states", tmp_path / "s",
            "--writer", tmp_path / "writer",
        )  # fmt: skip
        answer = HTTP.post(proxy.address + CHAT, json=body(CHAT, 2))
        assert answer.headers["mem1-prompt"] == "whole" and upstream.paths == [CHAT]
        code, said = proxy.stop(signal.SIGINT)
    assert code == 0 and "Traceback" not in said
    assert re.search(r"Stopped\. 1 requests, 0 folded, 0 in doubt; the writer read [\d,]+ tokens", said)


def test_many_streams_at_a_time_arrive_as_they_were_sent():
    def memory(form: str, on_event: Any) -> Memory:
        return Memory("fold(2)", form=form, on_event=on_event, bounds=Bounds(handles=False))

    with app_in_a_thread(Streams(open_at_once=60), accepts=None) as there:
        proxy = Proxy(to_upstream.Upstream(there), memory)
        with app_in_a_thread(proxy, accepts=None) as here:
            assert asyncio.run(all_streams(here, 60)) == {}
        assert (proxy.counts.requests, proxy.counts.folded, proxy.counts.unchanged) == (60, 15, 0)


def test_streams_that_are_not_as_they_should_be_are_named():
    with app_in_a_thread(Streams(open_at_once=8), accepts=None) as there:
        wrong = asyncio.run(all_streams(there, 8))
    assert list(wrong) == ["stream-3", "stream-7"], "without a proxy nothing is folded"


class TestClients:
    """The packages of the two providers, as their users call them."""

    @pytest.mark.parametrize("streams", [False, True])
    def test_openai(self, streams: bool):
        openai = pytest.importorskip("openai")
        with running() as at, openai.OpenAI(base_url=f"{at.url}/v1", api_key=SECRET, max_retries=0) as client:
            for turn in range(8):
                made = client.chat.completions.create(model="m", messages=history(CHAT, turn), stream=streams)
                if not streams:
                    assert made.choices[0].message.tool_calls[0].function.name == "search"
                    continue
                deltas = [chunk.choices[0].delta for chunk in made]
                assert "".join(delta.content or "" for delta in deltas) == "Next."
                calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
                assert "".join(call.arguments for call in calls) == f'{{"q": {turn_seen(at)}}}'
            assert max(map(len, at.upstream.prompts)) == 5 and len(at.upstream.asked) == 3
            assert [model for model in client.models.list()] == []

    @pytest.mark.parametrize("streams", [False, True])
    def test_anthropic(self, streams: bool):
        anthropic = pytest.importorskip("anthropic")
        with running() as at, anthropic.Anthropic(base_url=at.url, api_key=SECRET, max_retries=0) as client:
            for turn in range(8):
                asked = {"model": "m", "max_tokens": 100, "messages": history(ANTHROPIC, turn)}
                if streams:
                    with client.messages.stream(**asked) as events:
                        assert "".join(events.text_stream) == "Next."
                        said = events.get_final_message()
                else:
                    said = client.messages.create(**asked)
                assert said.content[-1].input == {"q": turn_seen(at)}
            assert max(map(len, at.upstream.prompts)) == 5 and len(at.upstream.asked) == 3

    def test_an_error_is_raised_as_without_a_proxy(self):
        openai = pytest.importorskip("openai")
        wrong = Said([b'{"error": {"message": "no money"}}'], 402, {"content-type": "application/json"})
        with running(lambda path, body: wrong) as at, openai.OpenAI(base_url=f"{at.url}/v1", api_key="k") as client:
            with pytest.raises(openai.APIStatusError, match="no money") as raised:
                client.chat.completions.create(model="m", messages=[task()])
            assert raised.value.status_code == 402
