"""An MCP server over stdin and stdout in plain JSON-RPC, which misbehaves as its first argument says.

python tests/mcp_stdio.py            tools add(a, b), shout(text), slow(), picture(), fails(), and so on; "files/read",
                                     whose name providers refuse; and dies(), which ends the server
python tests/mcp_stdio.py garbage    writes lines that are no messages before each answer
python tests/mcp_stdio.py silent     never answers
python tests/mcp_stdio.py broken     writes to stderr and ends
python tests/mcp_stdio.py endless    its list of tools has another page, always
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
NAMES = ("add", "shout", "slow", "picture", "fails", "files/read", "environment", "dies", "search")


def text(words: str, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def called(name: str, given: dict[str, Any]) -> dict[str, Any]:
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
        os._exit(3)
    return text("the disk\nis full", failed=True) if name == "fails" else text(f"{name} {json.dumps(given)}")


def answer(method: str, params: dict[str, Any], how: str) -> dict[str, Any] | None:
    if method == "initialize":
        server = {"name": "scripted", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        schemas = {name: {"type": "object"} for name in NAMES} | {"add": NUMBERS}
        tools = [{"name": n, "description": f"Does {n}.", "inputSchema": schema} for n, schema in schemas.items()]
        return {"tools": tools, **({"nextCursor": "more"} if how == "endless" else {})}
    return called(params["name"], params.get("arguments") or {}) if method == "tools/call" else None


def main(how: str) -> None:
    if how == "broken":
        sys.exit("first line\nNo module named 'numpy\x1b[31m'")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or how == "silent":
            continue
        if how == "garbage":
            print('Loading ...\n{"jsonrpc": 7}\n\x1b[31m[]', flush=True)
            print("a warning", file=sys.stderr, flush=True)
        result = answer(request["method"], request.get("params") or {}, how)
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **({"result": result} if result else unknown)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
