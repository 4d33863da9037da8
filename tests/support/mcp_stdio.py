"""An MCP server over stdin and stdout in plain JSON-RPC, which misbehaves as its first argument says.

python mcp_stdio.py            tools add(a, b), shout(text), slow(), picture(), fails(), and so on; "files/read",
                               whose name providers refuse; and dies(), which ends the server
python mcp_stdio.py garbage    writes lines that are no messages before each answer, with the number of its request too
python mcp_stdio.py parent     the same tools; dies() leaves a process that holds its stdout
python mcp_stdio.py loose      its errors are texts, or lack their code
python mcp_stdio.py silent     never answers
python mcp_stdio.py broken     writes to stderr and ends
python mcp_stdio.py endless    its list of tools has another page, always
python mcp_stdio.py again      the same, always under the same cursor
python mcp_stdio.py crowd      its list of tools has 1,001 on one page
python mcp_stdio.py huge       descriptions of 20 MB, a schema of 1 MB, and results of 50 MB
python mcp_stdio.py deep       a schema of 600 levels
python mcp_stdio.py flood      a result of 70 MB, on a line without an end
python mcp_stdio.py deaf       goes on when its input ends, and when it is told to end (SIGTERM)
python tests/support/mcp_stdio.py mute       the same, and never answers
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
NAMES = ("add", "shout", "slow", "picture", "fails", "files/read", "environment", "dies", "search")


def text(words: str, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def called(name: str, given: dict[str, Any], how: str) -> dict[str, Any]:
    if how == "huge":
        return text("\u4e2d" + "x" * (50 << 20), failed=name == "fails")
    if how == "flood":
        sys.stdout.write("x" * (70 << 20))
        sys.stdout.flush()
        time.sleep(60)
    if name == "add":
        return {"content": [], "structuredContent": {"sum": given["a"] + given["b"]}}
    if name == "slow":
        time.sleep(60)
    if name == "picture":
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return {"content": [image, {"type": "text", "text": "a picture"}]}
    if name == "environment":
        return text(" ".join(sorted({"MINE", "SECRET", "PATH"} & os.environ.keys())))
    if name == "dies":
        if how == "parent":
            subprocess.Popen(["sleep", "600"])
        os._exit(3)
    return text("the disk\nis full", failed=True) if name == "fails" else text(f"{name} {json.dumps(given)}")


def answer(method: str, params: dict[str, Any], how: str) -> dict[str, Any] | None:
    if method == "initialize":
        server = {"name": "scripted", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        names = [f"tool{number}" for number in range(1_001)] if how == "crowd" else NAMES
        schemas = {name: {"type": "object"} for name in names} | {"add": NUMBERS}
        tools = [{"name": n, "description": f"Does {n}.", "inputSchema": schema} for n, schema in schemas.items()]
        if how == "huge":
            tools[0]["description"] += "x" * (20 << 20)
            tools[1]["inputSchema"] = {"type": "object", "description": "x" * (1 << 20)}
        if how == "deep":
            for _ in range(300):
                tools[0]["inputSchema"] = {"type": "object", "properties": {"a": tools[0]["inputSchema"]}}
        more = {"endless": f"{params.get('cursor', '')}x", "again": ""}
        return {"tools": tools, **({"nextCursor": more[how]} if how in more else {})}
    return called(params["name"], params.get("arguments") or {}, how) if method == "tools/call" else None


def main(how: str) -> None:
    if how == "broken":
        sys.exit("first line\nNo module named 'numpy\x1b[31m'")
    if how in ("deaf", "mute"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or how in ("silent", "mute"):
            continue
        if how == "garbage":
            print('Loading ...\n{"jsonrpc": 7}\n\x1b[31m[]', flush=True)
            print(json.dumps({"id": request["id"], "result": "logged"}), flush=True)
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "params": "logged"}), flush=True)
            print("a warning", file=sys.stderr, flush=True)
        result = answer(request["method"], request.get("params") or {}, how)
        unknown: dict[str, Any] = {"error": {"code": -32601, "message": "Method not found"}}
        if how == "loose" and request["method"] == "tools/call":
            said = "boom" if request["params"]["name"] == "search" else {"message": "no disk"}
            result, unknown = None, {"error": said}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **({"result": result} if result else unknown)}))
        sys.stdout.flush()
    while how in ("deaf", "mute"):
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
