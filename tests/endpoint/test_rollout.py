"""Attempts by somebody else's agent: whatever it does, each ends with its reason, and the run goes on."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import endpoint_agents
import pytest
from agent_rollouts import ANSWERED, Down, Steps, attempt, rollout
from chat_templates import QWEN3_LIKE, QWEN25_LIKE
from endpoints import CALL, END, Says, chat_of
from policies import SHAPE, tiny
from servers import wait_for
from worlds import CODEC, SAMPLING, SMALL, task

from mem1.endpoint.client import Reply
from mem1.engines.base import Completion
from mem1.engines.local import LocalEngine
from mem1.errors import UserError
from mem1.packing import pack
from mem1.policy.tiny_model import new_model
from mem1.protocol import PAPER, extended
from mem1.records import Ended, Group, Trajectory, trajectory_from_json, trajectory_to_json
from mem1.rollout import Budget
from mem1.training.verify import verify


def program(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "agent.py"
    path.write_text("import json, os, sys, urllib.request\n" + text)
    return {"command": (sys.executable, str(path))}


@pytest.mark.parametrize("entry", ["run", "run_async"])
def test_the_environment_scores_what_the_agent_answers(entry: str):
    searched = ["<IS> Q1 </IS> <query> mayor </query>", ANSWERED]
    found = attempt(rollout(entry, lambda context: searched["<info>" in context]))
    assert (found.ended, found.answer, found.reward) == (Ended.ANSWERED, "Q1 author", 1.0)
    assert [(turn.action, turn.content) for turn in found.turns] == [("search", "mayor"), ("answer", "Q1 author")]
    assert found.turns[0].observation == "the author ." and found.turns[0].state == "Q1"
    assert found.turns[1].prompt_tokens == len(found.turns[0].context_ids)
    assert trajectory_from_json(trajectory_to_json(found)) == found


@pytest.mark.parametrize(
    ("entry", "reward", "metrics"), [("rewards", 2.0, {}), ("outcome", 1.0, {"own": 0.5}), ("nothing", 0.0, None)]
)
def test_an_agent_may_score_itself(entry: str, reward: float, metrics: Any):
    found = attempt(rollout(entry))
    assert (found.ended, found.reward, found.answer) == (Ended.ANSWERED, reward, "")
    assert metrics is None or found.metrics == metrics


def test_a_reward_of_the_recipe_comes_last():
    made = rollout("run", reward=lambda task, attempt: 10 * attempt.reward + len(attempt.turns))
    assert attempt(made).reward == 11.0


@pytest.mark.parametrize(
    ("entry", "ended", "why"),
    [
        ("raises", Ended.AGENT_FAILED, "the agent raised RuntimeError: no idea"),
        ("exits", Ended.AGENT_FAILED, "the agent raised SystemExit: 3"),
        (
            "returns_a_list",
            Ended.AGENT_FAILED,
            "the agent returned a list; return text, a number, mem1.Outcome or None",
        ),
        ("returns_nan", Ended.AGENT_FAILED, "the agent returned a reward that is nan, not a finite number"),
        ("loops", Ended.OUT_OF_TURNS, "the attempt has made its 4 calls (turn limit of the task, or agent.calls)"),
        ("grows", Ended.OUT_OF_TOKENS, "tokens leaves no room for 40 within 200"),
        (
            "asks_for_two",
            Ended.AGENT_FAILED,
            "n is not supported here: each call is one sample: call again for another",
        ),
        ("sends_an_image", Ended.AGENT_FAILED, "a message has a content other than text; this model reads text alone"),
    ],
)
def test_a_failing_agent_ends_its_attempt_without_an_answer(entry: str, ended: Ended, why: str):
    budget = Budget(completion_per_objective=8, completion_extra=32, context=200)
    found = attempt(rollout(entry, budget=budget))
    assert (found.ended, found.reward, found.answer) == (ended, 0.0, "") and why in found.detail


def test_an_agent_that_survives_a_refusal_has_answered():
    found = attempt(rollout("loops_and_answers", calls=2))
    assert found.ended is Ended.ANSWERED and found.answer.startswith("the attempt has made its 2 calls")
    assert len(found.turns) == 2


def test_an_agent_that_hangs_is_left_alone_and_its_later_calls_are_refused():
    endpoint_agents.RELEASED.clear()
    endpoint_agents.LATE.clear()
    found = attempt(rollout("hangs", time_limit_s=0.2))
    assert (found.ended, found.turns, found.reward) == (Ended.OUT_OF_TIME, (), 0.0)
    assert found.detail == "the agent did not return within 0.2 s" and found.ended.truncated
    endpoint_agents.RELEASED.set()
    wait_for(lambda: bool(endpoint_agents.LATE))
    assert endpoint_agents.LATE == ["the attempt is over; its calls are not answered any more"]


def test_a_tool_that_fails_is_not_the_policys_fault_even_if_the_agent_goes_on():
    found = attempt(rollout("searches_what_fails", environment=Down()))
    assert (found.ended, found.detail, found.reward) == (Ended.TOOL_FAILED, "the search engine is down", None)


EPISODE = extended(PAPER, "act")


def test_actions_that_are_sent_at_the_same_time_are_taken_one_after_the_other():
    found = attempt(rollout("acts_at_once", environment=Steps(3), tags=EPISODE))
    assert sorted(endpoint_agents.SHOWN) == [("1 of 3", False), ("2 of 3", False), ("3 of 3", True)]
    assert (sorted(json.loads(found.answer)), found.reward) == (["a", "b", "c"], 3.0)


@pytest.mark.parametrize(("steps", "turns"), [(3, 9), (9, 3)])
def test_an_agent_is_told_of_the_end_of_an_episode_and_later_actions_change_no_score(steps: int, turns: int):
    found = attempt(rollout("acts_until_it_is_over", environment=Steps(steps), tags=EPISODE), turns=turns)
    shown = [(f"1 of {steps}", False), (f"2 of {steps}", False), (f"3 of {steps}", True)]
    assert shown == endpoint_agents.SHOWN
    assert (found.ended, found.reward) == (Ended.ANSWERED, 3.0)
    found = attempt(rollout("acts_without_end", environment=Steps(steps), tags=EPISODE), turns=turns)
    assert (found.ended, found.reward) == (Ended.AGENT_FAILED, 3.0)
    assert "the episode is over after 3 actions" in found.detail


def test_searches_are_not_bounded_by_the_turn_limit():
    found = attempt(rollout("asks_thrice"), turns=1)
    assert found.answer == "the author ., the author ., the author ."


def test_a_reply_can_be_copied_and_is_a_text():
    reply = copy.deepcopy(Reply("Oslo", ended=True))
    assert (reply, reply.ended, json.dumps(reply)) == ("Oslo", True, '"Oslo"')


def test_what_an_agent_says_is_no_answer_where_its_actions_make_the_answer():
    made = rollout("acts_until_it_is_over", environment=Steps(2), tags=EPISODE)
    assert attempt(made).answer == '["a", "a"]'
    found = attempt(rollout("loops_and_answers", environment=Steps(2), tags=EPISODE, calls=2))
    assert (found.ended, found.answer, found.reward) == (Ended.OUT_OF_TURNS, "", 0.0)


def test_an_engine_that_fails_ends_the_attempt_and_one_that_raises_ends_the_run():
    class Fails:
        def complete(self, contexts: Any, **_: Any) -> list[Completion]:
            return [Completion(token_ids=(), failed="no server") for _ in contexts]

    found = attempt(rollout("run", engine=Fails()))
    assert (found.ended, found.detail, found.reward) == (Ended.ENGINE_FAILED, "no server", None)

    class Raises:
        def complete(self, contexts: Any, **_: Any) -> list[Completion]:
            raise MemoryError("out of memory")

    with pytest.raises(MemoryError, match="out of memory"):
        attempt(rollout("run", engine=Raises()))


ASKS = """
task = json.load(sys.stdin)
body = {"messages": [{"role": "user", "content": task["prompt"]}]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                               {"content-type": "application/json", "authorization": os.environ["OPENAI_API_KEY"]})
said = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked))
said = said["choices"][0]["message"]["content"]
print("a line before")
"""


@pytest.mark.parametrize(
    ("last", "answer", "reward"),
    [
        ("print(said)", "Q1 author", 1.0),
        ("print(json.dumps({'answer': said}))", "Q1 author", 1.0),
        ("print(json.dumps({'reward': 0.25}))", "", 0.25),
    ],
)
def test_a_program_answers_on_its_last_line(last: str, answer: str, reward: float, tmp_path: Path):
    found = attempt(rollout(**program(tmp_path, ASKS + last)))
    assert (found.ended, found.answer, found.reward, len(found.turns)) == (Ended.ANSWERED, answer, reward, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('x'); sys.exit('no\\nidea')", "the agent's program ended with status 1: idea"),
        ("os._exit(7)", "the agent's program ended with status 7: it says nothing on stderr"),
        ("print(json.dumps({'reward': 'much'}))", "the agent returned the reward 'much'; it must be a number"),
        ("print(json.dumps({'answer': True}))", "the agent returned the answer True; it must be text or a number"),
        ("print(json.dumps({'reward': True}))", "the agent returned the reward True; it must be a number"),
    ],
)
def test_a_program_that_fails_says_why(text: str, why: str, tmp_path: Path):
    found = attempt(rollout(**program(tmp_path, text)))
    assert (found.ended, found.detail) == (Ended.AGENT_FAILED, why)


def test_a_program_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path):
    started = tmp_path / "pid"
    text = f"""
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open({str(started)!r}, "w").write(str(child.pid))
time.sleep(1000)
"""
    found = attempt(rollout(**program(tmp_path, text), time_limit_s=3))
    assert (found.ended, found.detail) == (Ended.OUT_OF_TIME, "the agent did not return within 3 s")
    wait_for(lambda: _gone(int(started.read_text())))


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"  # nobody has waited for it


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ({}, "give either entry, a function of yours, or command, a program"),
        (
            {"entry": "endpoint_agents:run", "command": ["x"]},
            "give either entry, a function of yours, or command, a program",
        ),
        ({"entry": "no_such_module:run"}, "cannot import no_such_module"),
        ({"entry": "endpoint_agents:nobody"}, "endpoint_agents has no 'nobody'"),
        ({"entry": "endpoint_agents:LATE"}, "is a list; it must be a function run(task, base_url)"),
        (
            {"entry": "endpoint_agents:takes_one"},
            "must be called as run(task, base_url): too many positional arguments",
        ),
        ({"command": ["no-such-program-of-mine"]}, "there is no program 'no-such-program-of-mine'"),
        ({"entry": "endpoint_agents:run", "memory": "fold"}, "unknown memory 'fold'"),
        ({"entry": "endpoint_agents:run", "memory": "fold(auto)"}, "fold(auto) needs prices"),
    ],
)
def test_an_agent_that_cannot_run_is_refused_before_the_run(agent: dict[str, Any], why: str):
    with pytest.raises((UserError, ValueError), match=re.escape(why)):
        rollout(**agent)


def test_attempts_run_at_the_same_time_up_to_the_concurrency():
    together: list[int] = []
    running, lock, all_in = [0], threading.Lock(), threading.Barrier(3)

    def counted(task: Any, base_url: str) -> float:
        with lock:
            running[0] += 1
            together.append(running[0])
        all_in.wait(60)
        with lock:
            running[0] -= 1
        return 1.0

    endpoint_agents.counted = counted  # type: ignore[attr-defined]
    done: list[int] = []
    made = rollout("counted", concurrency=3)
    found = made([task("Oslo")] * 6, sampling=SAMPLING, progress=done.extend)
    assert [t.attempt for t in found] == [0, 1, 2, 3, 4, 5] and max(together) <= 3
    assert sorted(done) == list(range(6))


def test_what_is_sampled_depends_on_the_attempt_and_not_on_the_others():
    policy = tiny()
    source = SMALL.source("train", PAPER)
    made = rollout("run", engine=LocalEngine(policy, CODEC, PAPER.stop_strings), environment=source.environment)
    tasks = [t for t in source.tasks(objectives=2, count=2, seed=0) for _ in range(3)]

    def said(attempts: list[Trajectory]) -> list[Any]:
        return [[turn.completion_ids for turn in attempt.turns] for attempt in attempts]

    whole = made(tasks, sampling=SAMPLING)
    assert said(made(tasks[::-1], sampling=SAMPLING, numbers=[2, 1, 0] * 2))[::-1] == said(whole)
    assert len({str(one) for one in said(whole)}) == 6
    groups = [Group(trajectories=tuple(whole[i : i + 3])) for i in (0, 3)]
    checks = {check.name: check for check in verify(policy, groups)}
    assert not [name for name, check in checks.items() if check.failed]
    assert checks["tokens trained exactly once"].passed and checks["sampler and trainer, largest"].passed


def test_attempts_of_a_chat_model_share_what_is_common():
    chat = chat_of()

    def script(seed: int, context: str) -> str:
        return f"Oslo{END}" if "<tool_response>\n" in context else f"{CALL.format(seed % 10)}{END}"

    made = rollout("run", engine=Says(chat, script), chat=chat, budget=Budget(completion_extra=99))
    found = made([task("Oslo")] * 4, sampling=SAMPLING)
    assert {t.ended for t in found} == {Ended.ANSWERED} and [t.reward for t in found] == [1.0] * 4
    turns = [turn for t in found for turn in t.turns]
    assert len(turns) == 8 and len(pack(found)) < sum(turn.num_tokens for turn in turns) / 2


@pytest.mark.parametrize("template", [QWEN25_LIKE, QWEN3_LIKE])
def test_however_an_agent_makes_its_contexts_training_is_exact(template: str):
    chat = chat_of(template)
    shape = SHAPE.model_copy(update={"max_positions": 4096})
    policy = new_model(shape, vocab_size=chat.codec.vocab_size, seed=1)
    made = rollout("wanders", engine=LocalEngine(policy, chat.codec, chat.stop_strings), chat=chat, calls=40)
    found = made([task("a", prompt=f"Q1 {n} ?") for n in (1, 1, 2, 2)], sampling=SAMPLING)
    assert {t.ended for t in found} == {Ended.ANSWERED} and min(len(t.turns) for t in found) >= 8
    copied = {number for t in found for turn in t.turns for number, *_ in turn.context_origins}
    assert len(copied) > 4
    checks = verify(policy, [Group(trajectories=tuple(found[i : i + 2])) for i in (0, 2)])
    assert not [(check.name, check.measured) for check in checks if check.failed]


def test_time_is_measured():
    started = time.perf_counter()
    assert 0 < attempt(rollout("run")).seconds <= time.perf_counter() - started
