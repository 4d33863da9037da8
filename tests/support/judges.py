"""A judge that follows its instructions."""

from __future__ import annotations

import json
import re
from typing import Any

from chat_servers import Reply


def data_of(body: dict[str, Any]) -> dict[str, Any]:
    """What the server was asked to grade."""
    system, user = body["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    return json.loads(user["content"])


def code_of(body: dict[str, Any]) -> str:
    found = re.search(r'"code": "(\w+)"', body["messages"][0]["content"])
    assert found is not None
    return found[1]


def says(body: dict[str, Any], correct: Any) -> Reply:
    return Reply(json.dumps({"code": code_of(body), "correct": correct}))


def honest(body: dict[str, Any], number: int = 0) -> Reply:
    """Right if a gold answer stands in the answer."""
    data = data_of(body)
    return says(body, any(gold in data["answer"] for gold in data["gold_answers"]))
