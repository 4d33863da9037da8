"""Agents as others write them, small: for tests of what trains them."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from mem1.endpoint.client import ActionFailed, act
from mem1.envs.base import Outcome
from mem1.records import Task, Trajectory

RELEASED = threading.Event()
"""Lets `hangs` go on."""
LATE: list[str] = []
"""What `hangs` was told after its attempt was over."""


_CLIENT = httpx.Client(trust_env=False, timeout=60, verify=False)
"""One for all calls, as certificates that plain HTTP does not need take 45 ms to load."""


def say(base_url: str, messages: list[Any], **more: Any) -> dict[str, Any]:
    """The policy's next message."""
    answer = _CLIENT.post(f"{base_url}/chat/completions", json={"model": "any", "messages": messages, **more})
    if answer.status_code != 200:
        raise RuntimeError(answer.json()["error"]["message"])
    return answer.json()["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def result(call: Mapping[str, Any], text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def run(task: Task, base_url: str) -> str:
    """Searches with constant memory: the task, what the policy said last, and what came of it."""
    ask = user(task.prompt)
    said = say(base_url, [ask])
    while said.get("tool_calls"):
        call = said["tool_calls"][0]
        found = act(base_url, "search", json.loads(call["function"]["arguments"])["query"])
        said = say(base_url, [ask, said, result(call, found)])
    return said["content"]


async def run_async(task: Task, base_url: str) -> str:
    return run(task, base_url)


def rewards(task: Task, base_url: str) -> int:
    say(base_url, [user(task.prompt)])
    return 2


def outcome(task: Task, base_url: str) -> Outcome:
    return Outcome(float(len(say(base_url, [user(task.prompt)])["content"]) > 0), {"own": 0.5})


def nothing(task: Task, base_url: str) -> None:
    say(base_url, [user(task.prompt)])


def raises(task: Task, base_url: str) -> str:
    raise RuntimeError("no\nidea")


def exits(task: Task, base_url: str) -> str:
    sys.exit(3)


def returns_a_list(task: Task, base_url: str) -> Any:
    return [task]


def returns_nan(task: Task, base_url: str) -> float:
    return float("nan")


def loops(task: Task, base_url: str) -> str:
    while True:
        say(base_url, [user(task.prompt)])


def loops_and_answers(task: Task, base_url: str) -> str:
    try:
        return loops(task, base_url)
    except RuntimeError as error:
        return str(error)


def grows(task: Task, base_url: str) -> str:
    messages = [user(task.prompt)]
    while True:
        messages += [say(base_url, messages), user("a mayor ? " * 40)]


def asks_for_two(task: Task, base_url: str) -> str:
    return say(base_url, [user(task.prompt)], n=2)["content"]


def sends_an_image(task: Task, base_url: str) -> str:
    return say(base_url, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])["content"]


def hangs(task: Task, base_url: str) -> str:
    RELEASED.wait()
    try:
        return say(base_url, [user(task.prompt)])["content"]
    except RuntimeError as error:
        LATE.append(str(error))
        raise


def searches_what_fails(task: Task, base_url: str) -> str:
    try:
        return act(base_url, "search", "x")
    except Exception:
        return "swallowed"


def asks_thrice(task: Task, base_url: str) -> str:
    """What the environment says to three actions, failures too."""
    said = []
    for _ in range(3):
        try:
            said.append(act(base_url, "search", "x"))
        except ActionFailed as error:
            said.append(f"error: {error}")
    return ", ".join(said)


SHOWN: list[tuple[str, bool]] = []
"""What an agent that acts saw, and whether it was told of the end."""


def acts_at_once(task: Task, base_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        SHOWN[:] = [(found, found.ended) for found in pool.map(lambda name: act(base_url, "act", name), "abc")]


def acts_until_it_is_over(task: Task, base_url: str) -> str:
    """Says something in the end, as chat agents do."""
    SHOWN.clear()
    while not SHOWN or not SHOWN[-1][1]:
        found = act(base_url, "act", "a")
        SHOWN.append((found, found.ended))
    return '["not", "what", "it", "did"]'


def acts_without_end(task: Task, base_url: str) -> None:
    while True:
        act(base_url, "act", "a")


def wanders(task: Task, base_url: str) -> str:
    """Appends, rewrites, drops, quotes, changes, and asks two at once, by chance."""
    chance = random.Random(task.prompt)
    messages: list[Any] = [user(task.prompt)]
    for _ in range(8):
        said = say(base_url, messages, max_tokens=chance.choice([3, 12]))
        move = chance.randrange(6)
        if move == 0:
            messages = [user("sub " + task.prompt), said]
        elif move == 1:
            messages = [messages[0], said, user("again ?")]
        elif move == 2:
            messages = [*messages, {**said, "content": said["content"] + " and"}, user("go on")]
        elif move == 3:
            with ThreadPoolExecutor(2) as pool:
                both = list(pool.map(lambda messages: say(base_url, messages), [messages, [user("side")]]))
            messages = [*messages, both[0], user("and " + both[1]["content"])]
        else:
            messages = [*messages, said, user("well ?")]
    return str(len(messages))


def takes_one(task: Task) -> str:
    return task.id


def chance(task: Task, attempt: Trajectory) -> float:
    """Differs between attempts of a model that knows nothing."""
    return float(sum(attempt.turns[0].completion_ids) % 7)
