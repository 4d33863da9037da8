"""What works without torch: runs in an environment that has only what mem1-agents itself needs.

cd .venv-dist && bin/python ../.ci/base.py                   ->  a line for each thing that works; exit code 1 otherwise
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

MEM1 = [sys.executable, "-m", "mem1"]
MESSAGES = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "Who is the mayor of Oslo?"},
    {"role": "assistant", "content": "<note>Oslo is in Norway</note>"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "Anne Lindboe"},
]


class Model(BaseHTTPRequestHandler):
    """A chat server that answers every call alike, and says what it was asked."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": f"{len(body['messages'])} messages"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        found = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def works(what: str, *arguments: str, within: str = "", code: int = 0) -> None:
    done = subprocess.run([*MEM1, *arguments], capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == code and within in said, f"mem1 {' '.join(arguments)}: {done.returncode}\n{said}"
    print(f"{what}: works")


def proxied(upstream: str, states: Path) -> None:
    """A request of a client reaches the model through `mem1 proxy`."""
    command = [*MEM1, "proxy", "--upstream", upstream, "--memory", "window(1)", "--port", "0", "--states", str(states)]
    proxy = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert proxy.stderr is not None
        lines: list[str] = []
        for line in proxy.stderr:
            lines.append(line)
            if "on http://" in line:
                break
        assert lines and "on http://" in lines[-1], "".join(lines)
        address = lines[-1].partition(" on ")[2].split(";")[0].strip()
        body = json.dumps({"model": "m", "messages": [*MESSAGES, {"role": "user", "content": "And?"}]}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/chat/completions", body, headers)) as reply:
            said = json.load(reply)["choices"][0]["message"]["content"]
        assert said == "5 messages", f"the first exchange should be dropped; the model got {said}"
    finally:
        proxy.terminate()
        proxy.wait(30)
    print("mem1 proxy: works")


def main() -> None:
    here = [name for name in ("torch", "transformers", "tensorboard") if find_spec(name) is not None]
    assert not here, f"this environment has {', '.join(here)}"
    from mem1.messages import fold

    assert len(fold(MESSAGES, "window(1)")) == 4
    print("mem1.messages.fold: works")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with TemporaryDirectory() as folder:
        proxied(url.removesuffix("/v1"), Path(folder) / "states")
        small = ("--count", "1", "--exchanges", "20")
        works("mem1 probe", "probe", "full", "archive(2)", "window(2)", *small, within="archive(2)")
        bench = ("bench", "--suite", "quick", "--limit", "1", "--families", "independent")
        works("mem1 bench", *bench, "--script", "200", "--out", f"{folder}/bench", within="constant")
        served = (*bench, "--base-url", url, "--model", "m", "--memory", "full")
        works("mem1 bench --base-url", *served, "--out", f"{folder}/served", within="full")
        asked = ("eval", "atlas-quick", "--base-url", url, "--model", "m", "--tokenizer", "stand-in")
        few = ("evaluation.tasks=1", "evaluation.objectives=[1]", "engine.endpoint=chat")
        works("mem1 eval --base-url", *asked, *few, "--out", f"{folder}/eval", within="constant")
    for command in (
        ["train", "atlas-quick", "--out", "run"],
        ["quickstart"],
        ["verify"],
        ["eval", "--model", "shipped"],
    ):
        works(f"mem1 {command[0]} says what it needs", *command, within="pip install 'mem1-agents[train]'", code=2)


if __name__ == "__main__":
    main()
