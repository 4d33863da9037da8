"""Pages that need a server of a model, run against what mem1 ships: they print what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_programs import program
from servers import CommandProcess, app_in_a_thread

from mem1.engines.policy_sampler import Sampler, ScriptedSampler
from mem1.engines.policy_server import make_app
from mem1.engines.stand_in import stand_in, stand_in_chat
from mem1.policy.policy import load_policy, own_chat

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def stand_in_url() -> Iterator[str]:
    chat = stand_in_chat()
    with app_in_a_thread(make_app(ScriptedSampler(chat.codec, stand_in), chat=chat)) as address:
        yield f"{address}/v1"


def outputs(page: str) -> list[str]:
    """The blocks of a page that are output."""
    return re.findall(r"^```text\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S)


def run(folder: Path, *command: str, url: str) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "MODEL": "policy"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["memory/own-loop.md", "memory/agent.md"])
def test_an_agent_prints_what_its_page_says(page: str, stand_in_url: str, tmp_path: Path):
    name = page.partition("/")[2]
    (tmp_path / "agent.py").write_text(program(name, "agent.py"), "utf-8")
    if name == "agent.md":
        (tmp_path / "notes_server.py").write_text(program(name, "notes_server.py"), "utf-8")
    assert run(tmp_path, "agent.py", url=stand_in_url) == outputs(page)[0]


def test_the_proxys_default_memory_folds_the_agent_of_its_page(stand_in_url: str, tmp_path: Path):
    (tmp_path / "agent.py").write_text(program("proxy.md", "agent.py"), "utf-8")
    proxy = CommandProcess(
        *("proxy", "--upstream", stand_in_url, "--prices", "hosted-90-automatic", "--port", "0"),
        *("--states", tmp_path / "states"),
    )
    answer, says = outputs("memory/proxy.md")
    assert run(tmp_path, "agent.py", url=f"{proxy.address}/v1") == answer
    code, said = proxy.stop()
    warning, stopped = says.splitlines()
    assert code == 0 and stopped in said
    assert warning.partition("not folded yet")[2] in " ".join(said.split())


def test_a_chat_agent_on_the_command_line_answers(stand_in_url: str, tmp_path: Path):
    (tmp_path / "notes_server.py").write_text(program("agent.md", "notes_server.py"), "utf-8")
    server = f"{sys.executable} notes_server.py"
    command = ("run", "--question", "Which of my notes mention Oslo?", "--mcp", server, "--memory", "fold(4)")
    said = run(tmp_path, "-m", "mem1", *command, "--base-url", stand_in_url, "--model", "policy", url=stand_in_url)
    assert "I have read 12 pages. The last one says: 12 notes." in said


def test_a_probe_takes_the_states_of_the_server(stand_in_url: str, tmp_path: Path):
    given = ("--count", "1", "--exchanges", "20", "--json", "--base-url", stand_in_url, "--model", "policy")
    (fold,) = json.loads(run(tmp_path, "-m", "mem1", "probe", "fold(8)", *given, url=""))["rows"]
    assert fold["read"] > 0 < fold["written"]


def test_the_shipped_policy_answers_in_chat_as_the_page_says(tmp_path: Path):
    (code,) = re.findall(
        r'^```python title="chat.py"\n(.*?)^```$', (DOCS / "model-servers.md").read_text("utf-8"), re.M | re.S
    )
    loaded = load_policy("shipped")
    with app_in_a_thread(make_app(Sampler(loaded.model, loaded.codec), chat=own_chat(loaded))) as address:
        (tmp_path / "chat.py").write_text(code.replace("http://127.0.0.1:8001", address), "utf-8")
        assert run(tmp_path, "chat.py", url=address) in outputs("model-servers.md")
