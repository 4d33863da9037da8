"""`mem1 serve-recall`: an MCP server over the file of a conversation, which grows while it runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted import Script, calls, said
from terminals import Terminal

import mem1
from mem1.agent import McpServer
from mem1.agent.background import Background
from mem1.errors import UserError
from mem1.extras.agents.recall_server import Log, images_of, recall_server
from mem1.jsonl import write_objects
from mem1.messages import Bounds, fold

SOURCES = Path(mem1.__file__).parents[1]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "300")
    return Terminal(capsys, monkeypatch)


def search(query: str) -> str:
    """Searches."""
    return "".join(f"{query} {i}, " for i in range(400))


def test_a_conversation_that_an_agent_saved_is_read_by_another_through_the_server(tmp_path: Path):
    log = tmp_path / "conversation.jsonl"
    first = mem1.Agent(Script(*[calls(("search", '{"query": "Oslo"}'))] * 2, said("ok")), tools=[search])
    first.run("go").save(log)
    seen = fold(first.messages, "archive(2)", bounds=Bounds(result=200))
    handles = re.findall(r'recall\("(r[0-9a-f]{8})"(?:, start=(\d+))?', json.dumps(seen).replace('\\"', '"'))
    assert len(handles) == 2 and handles[1][1]
    whole = search("Oslo")
    server = McpServer(f"{sys.executable} -m mem1 serve-recall {log}", env={"PYTHONPATH": str(SOURCES)})
    background = Background()
    try:
        (tool,) = server.connect(background).tools
        assert tool.name == "recall" and set(tool.parameters["properties"]) == {"handle", "start"}
        assert tool.parameters["required"] == ["handle"]
        assert tool.call({"handle": handles[0][0]}) == whole
        assert tool.call({"handle": handles[1][0], "start": int(handles[1][1])}) == whole[int(handles[1][1]) :]
        with pytest.raises(Exception, match="no result has the handle 'r00000000'"):
            tool.call({"handle": "r00000000"})
        lines = [json.dumps(message) for message in first.messages]
        later = mem1.Agent(Script(calls(("search", '{"query": "Bergen"}')), said("ok")), tools=[search]).run("go")
        added = [json.dumps(message) for message in later.messages]
        log.write_text("\n".join([*lines, *added]) + '\n{"role": "us', "utf-8")  # another line is being written
        found = fold([*first.messages, *later.messages], "archive(1)")[-2]["content"]
        (handle,) = re.findall(r'recall\("(r[0-9a-f]{8})"\)', found)
        assert tool.call({"handle": handle}) == search("Bergen")
    finally:
        background.close()


class TestTheFile:
    def test_one_that_is_not_there_yet_is_an_error_until_it_is(self, tmp_path: Path):
        log = Log(tmp_path / "later.jsonl")
        with pytest.raises(UserError, match=r"cannot read .*later\.jsonl: No such file"):
            log.messages()
        write_objects(tmp_path / "later.jsonl", [{"role": "user", "content": "go"}])
        assert log.messages() == [{"role": "user", "content": "go"}]
        assert log.messages() is log.messages(), "a file that has not changed is not read again"

    def test_a_broken_line_is_named(self, tmp_path: Path):
        path = tmp_path / "log.jsonl"
        for line in ("7\n", "{]\n", "[" * 100_000 + "\n"):
            path.write_text('{"role": "user", "content": "go"}\n\n' + line)
            with pytest.raises(UserError, match=r"log\.jsonl:3: not a message as a JSON object"):
                Log(path).messages()


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, [("image/png", "AAAA")]),
        ({"type": "input_image", "image_url": "data:image/jpeg;base64,BB=="}, [("image/jpeg", "BB==")]),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "CC=="}},
            [("image/gif", "CC==")],
        ),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, []),
        ({"type": "text", "text": "x"}, []),
    ],
)
def test_images_of_each_form_come_back(part: dict[str, Any], found: list[tuple[str, str]]):
    assert images_of([part]) == found and images_of("x") == images_of(None) == []


def test_what_cannot_be_served_is_refused(terminal: Terminal, tmp_path: Path):
    assert "unknown form" in terminal.error("serve-recall", tmp_path / "x.jsonl", "--form", "xml")
    assert "is a folder; give the file of a conversation" in terminal.error("serve-recall", tmp_path)
    with pytest.raises(UserError, match="unknown form"):
        recall_server(tmp_path / "x.jsonl", "xml")
