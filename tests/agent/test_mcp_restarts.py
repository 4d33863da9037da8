"""MCP servers that crash, are started again, hang, or change their tools, under one agent; and headers for them."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_over_http import Served, over_http
from pydantic import BaseModel
from scripted import Script, calls, results, said

import mem1
from mem1.agent import McpServer
from mem1.agent.mcp_config import servers_of
from mem1.errors import UserError

SERVER = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'mcp_stdio.py'}"


class Name(BaseModel):
    name: str


UNKNOWN = "whether it was done is not known; the next call connects again"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that do not end with their input are killed soon."""
    monkeypatch.setattr("mem1.agent.mcp_program._GRACE_S", 0.1)


def outcomes(server: McpServer, *names: str, between: Any = None) -> list[str]:
    """Results of calls without arguments, each in a run of its own."""
    model = Script(*[message for name in names for message in (calls((name, "{}")), said("ok"))])
    with mem1.Agent(model, tools=[server], memory="full") as agent:
        for number in range(len(names)):
            agent.run("go")
            if between is not None:
                between(number)
        return results(agent)


def test_a_session_that_is_not_known_any_more_is_opened_again_and_the_call_made_once():
    with Served() as server:
        found = outcomes(McpServer(server.url), "note", "note", between=lambda _: server.sessions.clear())
        assert found == ["note None"] * 2 and server.calls == ["note"] * 2


def test_a_server_that_is_down_for_a_while_is_waited_for_and_the_call_made_once():
    first = Served()
    port, later = first.port, list[Served]()

    def restart(number: int) -> None:
        if number == 0:
            first.__exit__()
            threading.Timer(0.5, lambda: later.append(Served(port))).start()

    found = outcomes(McpServer(first.url, timeout_s=20), "note", "note", between=restart)
    assert found == ["note None"] * 2 and later[0].calls == ["note"]
    later[0].__exit__()


def test_a_server_that_stays_away_is_a_result_within_the_time_of_the_call():
    with Served() as server:
        begun = list[float]()

        def end(_: int) -> None:
            server.__exit__()
            begun.append(time.monotonic())

        first, second = outcomes(McpServer(server.url, timeout_s=1.0), "note", "note", between=end)
        assert first == "note None" and time.monotonic() - begun[0] < 5
    assert second.startswith("error: the MCP server is not back: ") and second.endswith("the next call tries again")


@pytest.mark.parametrize(
    ("fault", "why"), [("drop", "RemoteProtocolError: Server disconnected .*"), (502, "status 502")]
)
def test_a_call_that_may_have_been_done_is_repeated_only_where_the_tool_allows_it(fault: Any, why: str):
    with Served() as server:
        server.next = [fault]
        lost, next_one = outcomes(McpServer(server.url), "note", "note")
        assert next_one == "note None" and server.calls == ["note"] * 2
        assert lost.startswith("error: the connection to the MCP server was lost in this call: ")
        assert lost.endswith(UNKNOWN) and (fault == "drop" or why in lost)
        server.calls, server.next = [], [fault]
        assert outcomes(McpServer(server.url), "look") == ["look None"] and server.calls == ["look"] * 2
        server.calls, server.next = [], [fault] * 9
        (never,) = outcomes(McpServer(server.url), "look")
        assert "no result in 3 tries" in never and server.calls == ["look"] * 3


def test_a_program_that_crashes_in_every_call_is_left_alone_after_a_while(hasty: None):
    found = outcomes(McpServer(SERVER), *["dies"] * 6)
    assert all(result.endswith(UNKNOWN) for result in found[:5])
    assert found[5].startswith(
        "error: the connection to the MCP server was lost 5 times in a row; it is tried again in"
    )


def test_a_program_that_has_ended_is_not_waited_for_where_a_process_of_its_own_holds_its_stdout(hasty: None):
    lost, found = outcomes(McpServer(f"{SERVER} parent", timeout_s=30), "dies", "shout")
    assert lost.endswith(f"MCPError: Connection closed; {UNKNOWN}") and found == "shout {}"


def test_what_a_server_says_in_an_error_that_is_not_to_the_protocol_reaches_the_model(hasty: None):
    found = outcomes(McpServer(f"{SERVER} loose"), "search", "shout")
    assert found == [f"error: the MCP server gives no result: MCPError: {why}" for why in ("boom", "no disk")]


def test_a_program_that_cannot_be_started_again_says_its_last_words(tmp_path: Path, hasty: None):
    link = tmp_path / "server.py"
    link.write_text((Path(__file__).parents[1] / "support" / "mcp_stdio.py").read_text())

    def spoil(_: int) -> None:
        link.write_text("import sys; sys.exit('no module named x')")

    found = outcomes(McpServer(f"{sys.executable} {link}"), "dies", "add", between=spoil)
    assert "is not back: 3 tries" in found[1] and "it wrote: no module named x; the next call tries again" in found[1]


def test_a_program_that_hangs_is_started_again_for_the_next_call(hasty: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.agent.mcp_link._SIGN_S", 0.2)
    found = outcomes(McpServer(SERVER, timeout_s=3.0), "slow", "shout")
    assert found == ["error: the MCP server gives no result: no answer within 3 s", "shout {}"]


def test_a_list_that_cannot_be_read_is_an_error_of_its_request():
    with pytest.raises(UserError, match="does not list its tools: MCPError: its answer cannot be read as JSON"):
        outcomes(McpServer(f"{SERVER} deep", timeout_s=20), "add")


def test_tools_that_a_server_has_later_are_there_at_the_next_turn_and_gone_ones_are_said_to_be():

    official = MCPServer("changing")

    @official.tool()
    async def change(ctx: Context) -> str:
        """Changes the tools."""

        def other() -> str:
            """Another."""
            return "another"

        official.add_tool(other)
        official.remove_tool("change")
        await ctx.notify_tools_changed()
        await asyncio.sleep(0.2)
        return "changed"

    model = Script(calls(("change", "{}")), calls(("other", "{}"), ("change", "{}")), said("ok"))
    with over_http(official) as url, mem1.Agent(model, tools=[McpServer(url)], memory="full") as agent:
        agent.run("go")
        assert results(agent) == ["changed", "another", "error: there is no tool 'change'; there are recall, other"]
        assert [tool["function"]["name"] for tool in model.tools] == ["recall", "other"]


def test_a_server_started_again_with_other_tools_offers_those():
    with Served() as server:
        model = Script(said("ok"), calls(("look", "{}")), said("ok"))
        with mem1.Agent(model, tools=[McpServer(server.url)], memory="full") as agent:
            agent.run("go")
            server.tools = {"new": {}, "look": {}}
            server.sessions.clear()
            agent.run("go on")
        assert [tool["function"]["name"] for tool in model.tools] == ["recall", "new", "look"]


def test_user_and_query_of_an_address_are_shown_nowhere():
    with Served() as server:
        place = f"127.0.0.1:{server.port}"
        address = f"http://joe:s3cret-word@{place}/mcp?api_key=s3cret-key"
        server.text = f"you are at {address} with s3cret-key and s3cret-word"
        assert outcomes(McpServer(address), "note") == [f"you are at http://{place}/mcp with *** and ***"]


class TestHeaders:
    def test_are_sent_with_values_of_variables_and_shown_nowhere(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        monkeypatch.setenv("TOKEN", "s3cret-token")
        caplog.set_level(logging.INFO)
        with Served() as server:
            wanted = McpServer(server.url, headers={"Authorization": "Bearer ${TOKEN}", "X-Team": "blue-team"})
            server.next = [None, 401]
            first, second = outcomes(wanted, "note", "note")
            assert first == "note ***"  # the server sends it back
            assert second == "error: the MCP server gives no result: " + (
                "MCPError: status 401; give McpServer(headers=...) what it asks for"
            )
            assert all(sent["authorization"] == "Bearer s3cret-token" for sent in server.headers)
            assert all(sent["x-team"] == "blue-team" for sent in server.headers)
        with pytest.raises(UserError) as raised:
            outcomes(wanted, "note")
        for text in (repr(wanted), str(raised.value), caplog.text):
            assert "s3cret" not in text and "blue-team" not in text

    @pytest.mark.parametrize(
        ("server", "headers", "why"),
        [
            ("http://a/mcp", {"A b": "s3cret"}, "'A b' cannot name a header"),
            ("http://a/mcp", {"Content-Type": "s3cret"}, "is set by the protocol"),
            ("http://a/mcp", {"Mcp-Session-Id": "s3cret"}, "is set by the protocol"),
            ("python x.py", {"A": "s3cret"}, "headers go with an http address"),
            ("http://a/mcp", {"A": 5}, "headers of the MCP server 'http://a/mcp' must map names to texts"),
            ("http://a/mcp", {"A": "s3cret\r\nB: c"}, "the header A of .* has characters that no header takes"),
            (
                "http://a/mcp",
                {"A": "${NOT_SET_7}"},
                "the header A of .* needs the environment variable NOT_SET_7; set it",
            ),
            ("http://u:s3cret@a/mcp?key=s3cret", {"A": "${NOT_SET_7}"}, "the MCP server 'http://a/mcp' needs"),
        ],
    )
    def test_that_cannot_be_sent_are_refused_without_their_values(self, server: str, headers: Any, why: str):
        with pytest.raises(UserError, match=why) as raised:
            outcomes(McpServer(server, headers=headers), "note")
        assert "s3cret" not in str(raised.value)

    def test_that_hold_no_key_stay_in_results(self):
        with Served() as server:
            server.text = "Norway, of 2024-10-21: s3cret-key"
            headers = {"X-Country": "Norway", "X-Version": "2024-10-21", "X-Api-Key": "s3cret-key"}
            assert outcomes(McpServer(server.url, headers=headers), "note") == ["Norway, of 2024-10-21: ***"]

    def test_of_the_command_line_and_of_a_file_of_servers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("KEY", "k")
        (one,) = servers_of("https://a/mcp", ["Authorization: Bearer ${KEY}", "X: y:z"])
        assert (
            one.headers == {"Authorization": "Bearer ${KEY}", "X": "y:z"}
            and one.filled()["Authorization"] == "Bearer k"
        )
        file = tmp_path / "servers.json"
        file.write_text(
            '{"mcpServers": {"a": {"command": "python", "args": ["my server.py"], "env": {"K": "${KEY}"}},'
            ' "b": {"url": "https://b/mcp", "headers": {"X": "${KEY}"}, "timeout_s": 7},'
            ' "c": {"url": "http://c", "disabled": true}}}'
        )
        a, b = servers_of(str(file))
        assert (a.server, a.env, b.server, b.headers, b.timeout_s) == (
            "python 'my server.py'", {"K": "k"}, "https://b/mcp", {"X": "${KEY}"}, 7,
        )  # fmt: skip
        file.write_text(
            '{"mcpServers": {"a": {"url": "https://${env:HOST}/mcp", "headers": {"X": "${KEY:-none} ${NO_KEY:-none}"}},'
            ' "b": {"url": "https://b/mcp", "headers": {"X": "${input:token}"}}}}'
        )
        monkeypatch.setenv("HOST", "a")
        monkeypatch.delenv("NO_KEY", raising=False)
        a, b = servers_of(str(file))
        assert (a.server, a.filled()) == ("https://a/mcp", {"X": "k none"})
        with pytest.raises(UserError, match=r"X of .* has \$\{input:token\}, which is no environment variable; write"):
            b.filled()
        for text, why in (
            ("{", "cannot be read"),
            ('{"mcpServers": {"a": {"url": "http://${NO_KEY}"}}}', "a: url needs the environment variable NO_KEY"),
            ("{}", "names no servers"),
            ('{"mcpServers": {"a": {}}}', "a: needs|a needs"),
            ('{"mcpServers": {"a": {"command": "python", "args": "x.py --port 1"}}}', "a: args is a list of texts"),
            ('{"mcpServers": {"a": {"url": "/bin/ls"}}}', "a: url is an http address"),
            ('{"mcpServers": {"a": {"url": "http://a", "env": {"B": "c"}}}}', "env goes with a command"),
            ('{"mcpServers": {"a": {"url": "http://a", "type": "stdio"}}}', "a: type is one of http, .*, not 'stdio'"),
            (
                '{"mcpServers": {"a": {"url": "http://a/sse", "type": "sse"}}}',
                "a: sse is a transport that mem1",
            ),
            ('{"mcpServers": {"a": {"command": "a", "type": ["sse"]}}}', "a: type is one of stdio, not"),
        ):
            file.write_text(text)
            with pytest.raises(UserError, match=why):
                servers_of(str(file))
        with pytest.raises(UserError, match="'Name: value'") as raised:
            servers_of("http://a/mcp", ["Bearer s3cret"])
        assert "s3cret" not in str(raised.value)


def test_a_tool_that_asks_the_user_or_the_model_is_refused_in_words_and_progress_is_passed_over():

    official = MCPServer("asking")

    @official.tool()
    async def ask(ctx: Context) -> str:
        """Asks."""
        return str(await ctx.elicit("Your name?", Name))

    @official.tool()
    async def work(ctx: Context) -> str:
        """Works."""
        await ctx.report_progress(1, 2)
        return "worked"

    model = Script(calls(("ask", "{}"), ("work", "{}")), said("ok"))
    with over_http(official) as url, mem1.Agent(model, tools=[McpServer(url)], memory="full") as agent:
        agent.run("go")
    asked, worked = results(agent)
    assert asked.startswith("error: ") and "licit" in asked and worked == "worked"
