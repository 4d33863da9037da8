"""`mem1.Agent` with MCP servers: tools, and servers that die, are late, or write what is no message."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp_over_http import over_http
from mcp_stdio import NAMES
from scripted import Script, calls, results, said
from servers import app_in_a_thread, wait_for

import mem1
from mem1.agent import McpServer
from mem1.agent.mcp_tools import _usable
from mem1.agent.tools import NAME
from mem1.errors import UserError

SERVER = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'mcp_stdio.py'}"


def names(model: Script) -> list[str]:
    return [tool["function"]["name"] for tool in model.tools]


def alive(text: str) -> list[str]:
    """Command lines of processes of this machine that contain a text."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended
    return [line for line in lines if text in line]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that do not end with their input are killed soon."""
    monkeypatch.setattr("mem1.agent.mcp_program._GRACE_S", 0.1)


def test_tools_of_a_server_are_called_in_parallel_and_whatever_they_return_is_a_result():
    model = Script(
        calls(("add", '{"a": 2, "b": 3}'), ("shout", '{"text": "x"}'), ("picture", ""), ("fails", ""), ("shout", "{")),
        calls(("files_read", '{"path": "a"}')),
        calls(("dies", "")),
        calls(("add", '{"a": 2, "b": 3}')),
        said("done"),
    )
    with mem1.Agent(model, tools=[McpServer(SERVER)]) as agent:
        assert agent.run("go").answer == "done"
    found = results(agent)
    assert found[:3] == [
        '{"sum":5}',
        'shout {"text": "x"}',
        "[image, image/png: not text, so it is not shown]\na picture",
    ]
    assert found[3] == "error: the disk\nis full"
    assert found[4].startswith("error: the arguments are not JSON") and found[4].endswith(": {")
    assert found[5] == 'files/read {"path": "a"}'
    lost = "error: the connection to the MCP server was lost in this call: MCPError: Connection closed; "
    assert found[6] == f"{lost}whether it was done is not known; the next call connects again"
    assert found[7:] == ['{"sum":5}']
    assert names(model) == ["recall", *(name.replace("/", "_") for name in NAMES)]
    assert model.tools[1]["function"]["parameters"]["required"] == ["a", "b"]


def test_lines_that_are_no_messages_are_passed_over_without_a_word(capfd: pytest.CaptureFixture[str]):
    with mem1.Agent(
        Script(calls(("add", '{"a": 1, "b": 1}')), said("ok")), tools=[McpServer(f"{SERVER} garbage")]
    ) as a:
        assert a.run("go").answer == "ok" and results(a) == ['{"sum":2}']
    assert capfd.readouterr() == ("", "")


def test_a_list_that_comes_again_under_the_same_cursor_ends():
    model = Script(said("ok"))
    with mem1.Agent(model, tools=[McpServer(f"{SERVER} again")]) as agent:
        agent.run("go")
    assert names(model) == ["recall", *(name.replace("/", "_") for name in NAMES)]


def test_any_name_becomes_one_that_providers_take():
    taken = set[str]()
    for name in ("a b", "a\x1b[31mb", "a_b", "a_b", "", "\n", "größe", "x" * 500, "x" * 70):
        taken.add(_usable(name, taken))
    assert all(NAME.fullmatch(name) for name in taken)
    assert taken == {"a_b", "a_31mb", "a_b_2", "a_b_3", "_", "__2", "gr_e", "x" * 60, f"{'x' * 60}_2"}
    assert _usable("2fa", ()) == "_2fa"


def test_two_servers_with_the_same_tools_and_a_choice_among_them():
    def search(query: str) -> str:
        """Searches."""
        return "own"

    model = Script(calls(("search", '{"query": "x"}'), ("search_2", "{}"), ("search_3", "{}")), said("ok"))
    servers = [McpServer(SERVER, only=("search", "add")), McpServer(SERVER, only=("search",))]
    with mem1.Agent(model, tools=[*servers, search]) as agent:
        agent.run("go")
    assert names(model) == ["search", "recall", "add", "search_2", "search_3"]
    assert results(agent) == ["own", "search {}", "search {}"]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (McpServer(f"{SERVER} broken"), "does not answer: .*; it wrote: No module named 'numpy \\[31m'$"),
        (McpServer(f"{SERVER} silent", timeout_s=0.5), "does not answer: no answer within 0.5 s$"),
        (McpServer(f"{SERVER} mute", timeout_s=0.5), "does not answer: no answer within 0.5 s$"),
        (McpServer(f"{SERVER} endless"), "does not list its tools: ValueError: more than 1,000"),
        (McpServer(f"{SERVER} crowd"), "does not list its tools: ValueError: more than 1,000"),
        (McpServer("no-such-command-7 --x"), "does not answer: FileNotFoundError"),
        (McpServer("http://127.0.0.1:9/mcp", timeout_s=5), "does not answer"),
        (McpServer(SERVER, only=("add", "sub")), "has no tool sub; it has add, shout"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_and_none_is_left_running(server: McpServer, why: str, hasty: None):
    agent = mem1.Agent(Script(said("never")), tools=[McpServer(f"{SERVER} beside-{os.getpid()}"), server])
    with pytest.raises(UserError, match=f"^the MCP server .*{why}") as raised:
        agent.run("go")
    assert "\n" not in str(raised.value)
    assert agent.messages == [] and alive(f"beside-{os.getpid()}") == []


def test_what_is_no_server_is_refused_at_once():
    for text in ("python 'x", " ", ""):
        with pytest.raises(UserError, match="is neither a command nor an http address"):
            McpServer(text)
    for text in ("http://joe:s3cret@a:99999/mcp?k=s3cret", "http://[::1/mcp?k=s3cret", "ftp://a/mcp?k=s3cret"):
        with pytest.raises(UserError, match=r"/mcp' is no http address") as raised:
            McpServer(text)
        assert "s3cret" not in str(raised.value) and "joe" not in str(raised.value)
    more: dict[str, Any]
    for server, more, why in (
        ("http://a/mcp", {"env": {"A": "b"}}, "env goes with a command"),
        ("python x.py", {"env": {"A": 5}}, "env of .* must map names to texts"),
        ("python x.py", {"only": "nap"}, r"is a tuple of names: \('nap',\)"),
    ):
        with pytest.raises(UserError, match=why):
            McpServer(server, **more)
    with pytest.raises(UserError, match="must be above 0"):
        McpServer("x", timeout_s=0)
    with pytest.raises(UserError, match="must be at least 1"):
        McpServer("x", result_chars=0)


def test_a_late_result_is_an_error_and_servers_end_with_their_agent(hasty: None):
    mark = f"late-{os.getpid()}"
    server = McpServer(f"{SERVER} {mark}", timeout_s=1.0)
    with mem1.Agent(Script(calls(("slow", "")), said("well")), tools=[server]) as agent:
        assert agent.run("go").answer == "well"
        (late,) = results(agent)
        assert late.startswith("error: the MCP server gives no result: ") and len(alive(mark)) == 1
    assert alive(mark) == []


def test_connecting_counts_against_the_time_of_the_run_and_leaves_nothing_behind(hasty: None):
    mark = f"mute-{os.getpid()}"
    agent = mem1.Agent(Script(said("never")), tools=[McpServer(f"{SERVER} mute {mark}")], timeout_s=0.5)
    with pytest.raises(UserError, match=r"does not answer: no answer within 0\.\d+ s, all that timeout_s leaves$"):
        agent.run("go")
    assert alive(mark) == []


HUGE = """
import json, resource, sys
from mem1.agent.background import Background
from mem1.agent.mcp_tools import McpServer
from mem1.agent.tools import outcome_of

import mcp, pydantic_core
background = Background()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tools = {tool.name: tool for tool in McpServer(sys.argv[1], result_chars=1000).connect(background).tools}
add, shout = tools["add"], tools["shout"]
results = [outcome_of(tools, name, "{}") for name in ("search", "fails")]
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
background.close()
function = shout.declared["function"]
print(json.dumps([grown, add.description, function["description"], function["parameters"], [r.text for r in results]]))
"""


def test_results_descriptions_and_schemas_of_many_megabytes_are_cut_and_say_so():
    done = subprocess.run([sys.executable, "-c", HUGE, f"{SERVER} huge"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, description, beside, schema, results = json.loads(done.stdout)
    assert description == f"Does add.{'x' * 3_991}\n[cut: the first 4,000 of 20,971,529 characters]"
    assert beside.startswith("Does shout.\n[the schema of its arguments is left out: it has more than 40,000 bytes")
    assert schema == {"type": "object", "properties": {}}
    cut = f"\u4e2d{'x' * 999}\n[cut: the first 1,000 of 52,428,801 characters; McpServer(result_chars=...) keeps more]"
    assert results == [cut, f"error: {cut}"]
    assert grown < 700, "MB, of a message of 50 MB: its bytes, its text, and what the client's package makes of it"


def test_a_message_beyond_any_limit_ends_the_connection():
    model = Script(calls(("search", "{}")), calls(("add", "{}")), said("well"))
    with mem1.Agent(model, tools=[McpServer(f"{SERVER} flood")]) as agent:
        agent.run("go")
    for result in results(agent):
        assert "was lost in this call: it wrote a message of more than 67,108,864 bytes; " in result
    assert len(results(agent)) == 2


ALONE = """
import sys, time
import mem1
server = mem1.McpServer(sys.argv[1])
agent = mem1.Agent(lambda messages, tools: {"role": "assistant", "content": "well"}, tools=[server])
agent.run("go")
print("ready", flush=True)
time.sleep(60)
"""


def test_no_server_outlives_a_program_that_is_killed_even_one_that_hears_nothing():
    mark = f"deaf-{os.getpid()}"
    command = [sys.executable, "-c", ALONE, f"{SERVER} deaf {mark}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None and ours.stdout.readline() == "ready\n"
        assert any("mcp_stdio" in line and "import mem1" not in line for line in alive(mark))
        ours.kill()
    wait_for(lambda: alive(mark) == [])


def test_an_answer_over_http_beyond_any_limit_is_refused():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        for _ in range(70):
            await send({"type": "http.response.body", "body": b" " * (1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b"{}"})

    with app_in_a_thread(app, accepts=None) as url, pytest.raises(UserError, match="more than 67,108,864 bytes"):
        mem1.Agent(Script(said("never")), tools=[McpServer(url, timeout_s=30)]).run("go")


def test_a_server_over_http_may_be_silent_as_long_as_a_call_may_take(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.agent.mcp_http._SILENT_S", 0.2)
    official = MCPServer("late")

    @official.tool(structured_output=False)
    async def note() -> str:
        """Takes a note."""
        await asyncio.sleep(1)
        return "noted"

    model = Script(calls(("note", "{}")), said("done"))
    with over_http(official) as url, mem1.Agent(model, tools=[McpServer(url, timeout_s=60)]) as agent:
        agent.run("go")
    assert results(agent) == ["noted"]


def test_a_command_inherits_no_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "not for servers")
    server = McpServer(SERVER, env={"MINE": "given"})
    with mem1.Agent(Script(calls(("environment", "")), said("ok")), tools=[server]) as agent:
        agent.run("go")
    assert results(agent) == ["MINE PATH"]


def test_an_official_server_over_http():
    official = MCPServer("notes")

    @official.tool()
    def note(text: str) -> str:
        """Takes a note."""
        return f"noted {text}"

    model = Script(calls(("note", '{"text": "a"}')), said("done"))
    with over_http(official) as url, mem1.Agent(model, tools=[McpServer(url, timeout_s=30)]) as agent:
        assert agent.run("go").answer == "done"
    assert results(agent) == ["noted a"]
    function: dict[str, Any] = model.tools[1]["function"]
    assert function["description"] == "Takes a note." and function["parameters"]["required"] == ["text"]
