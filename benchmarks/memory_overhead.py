"""What a call of `Memory` costs in a conversation of 200 messages, in milliseconds, against another source tree.

    git worktree add /tmp/before b51011f
    python benchmarks/memory_overhead.py --before /tmp/before/src
    ->  | memory | bound | before | now | ratio |

99 calls of a tool with results of 80 lines each; the memory has seen all but the last exchange. In the last rows it has
seen another conversation since. Each number is the least of several calls in processes that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS, CALLS = 8, 8
HERE = Path(__file__).parents[1] / "src"
CASES = (
    ("full", {}, False),
    ("fold(4)", {}, False),
    ("notes", {"result": 500}, False),
    ("window(4)", {"prompt": 20_000}, False),
    ("archive(4)", {}, False),
    ("full", {"prompt": 20_000}, False),
    ("full", {}, True),
    ("archive(4)", {}, True),
)
"""(memory, bounds, whether another conversation comes between)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="folder `src` of the tree to compare with")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inner:
        print(json.dumps([measured(*case) for case in CASES]))
        return
    found: dict[Path, list[list[float]]] = {given.before: [], HERE: []}
    for _ in range(ROUNDS):
        for source, times in found.items():
            command = [sys.executable, __file__, "--before", str(given.before), "--inner"]
            out = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(source)}, check=True, stdout=subprocess.PIPE
            )
            times.append(json.loads(out.stdout))
    least = {source: [min(each) for each in zip(*times, strict=True)] for source, times in found.items()}
    print("| memory | bound | before, ms | now, ms | ratio |\n|---|---|--:|--:|--:|")
    for at, (name, bounds, between) in enumerate(CASES):
        before, now = least[given.before][at], least[HERE][at]
        bound = ", ".join(f"{key} {value:,}" for key, value in bounds.items())
        case = f"`{name}`, another between" if between else f"`{name}`"
        print(f"| {case} | {bound} | {before:.2f} | {now:.2f} | {now / before:.2f} |")


def measured(name: str, bounds: dict[str, Any], between: bool) -> float:
    """Least milliseconds of a call."""
    from mem1.messages import Bounds, Memory

    messages = conversation()
    least = float("inf")
    for _ in range(CALLS):
        memory = Memory(name, write=lambda _: "The state.", bounds=Bounds(**bounds))
        memory.prompt(messages[:-2])
        if between:
            memory.prompt([*messages[:1], {"role": "user", "content": "Another task."}])
        begun = time.perf_counter()
        memory.prompt(messages)
        least = min(least, time.perf_counter() - begun)
    return least * 1e3


def conversation() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Find the mayor."},
    ]
    for turn in range(99):
        function = {"name": "look", "arguments": json.dumps({"place": f"P{turn}"})}
        call = {"id": f"call-{turn}", "type": "function", "function": function}
        lines = (
            f"line {at} of {turn}: " + " ".join(f"word{(turn * at + k) % 97}" for k in range(8)) for at in range(80)
        )
        made.append({"role": "assistant", "content": f"Looking at {turn}.", "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)})
    return made


if __name__ == "__main__":
    main()
