"""Many clients of one proxy: what belongs to one conversation is never sent in another, nor under another's key."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from proxies import exchange, history, running, task
from upstreams import ANTHROPIC, CHAT, Said, is_request_for_state, message

from mem1.extras.proxy.states import StateFile

OWN = re.compile(r"own-(\d+)-")
CONVERSATIONS, CLIENTS, RUNS = 200, 8, 2


def key_of(client: int) -> str:
    return f"sk-{client}-abcdefghijklmnop"


def faithful(path: str, body: Any) -> Said:
    """A model that remembers all that it saw, and says little else."""
    return message(path, f"STATE {json.dumps(body)}" if is_request_for_state(body) else "Noted.")


def talk(random: Random, path: str, number: int) -> list[list[dict[str, Any]]]:
    """Turns of a conversation, of few words that many share, and from somewhere on of words of its own, anywhere."""
    at = random.randrange(6)

    def words(turn: int, share: list[str]) -> str:
        common = random.choice(share)
        return (
            f"{common} own-{number}-{turn} {common}" if turn == at or (turn > at and random.random() < 0.3) else common
        )

    first = words(0, ["Hi", "Find the mayor."])
    system = [] if path == ANTHROPIC else [{"role": "system", "content": words(1, ["You are a clerk."])}]
    turns = [[*system, task(first)]]
    for turn in range(2, 6):
        if random.random() < 0.5:
            turns.append(
                [{"role": "assistant", "content": words(turn, ["Hello!", "Noted."])}, task(words(turn, ["Go on."]))]
            )
            continue
        asked, answered = exchange(path, turn, words(turn, ["done " * 60]))
        if at == turn:
            renamed = json.dumps(asked).replace('"search"', f'"own-{number}-{turn}"')
            asked = random.choice([asked, json.loads(renamed)])
        turns.append([asked, answered])
    return turns


def test_no_text_of_one_conversation_reaches_another_whatever_they_share(tmp_path: Path):
    random = Random(47)
    paths = [random.choice([CHAT, ANTHROPIC]) for _ in range(CONVERSATIONS)]
    talks = [talk(random, path, number) for number, path in enumerate(paths)]
    clients = [random.randrange(CLIENTS) for _ in range(CONVERSATIONS)]
    system = [random.choice(["Be brief.", f"Be brief. own-{number}- Be kind."]) for number in range(CONVERSATIONS)]

    def post(at: Any, number: int, turns: int) -> None:
        body = {"model": "ab"[number % 2], "messages": [*chain(*talks[number][:turns])]}
        if paths[number] == CHAT:
            body["user"] = str(number)
        else:
            body |= {"metadata": {"user_id": str(number)}, "max_tokens": 100}
            body["system"] = [
                {"type": "text", "text": system[number]},
                {"type": "text", "text": "You are a clerk. " * 9},
            ]
        key = {"x-api-key": key_of(clients[number]), "authorization": "none"}
        assert at.post(paths[number], body, **key).status_code == 200

    folded = asked = found = 0
    for run in range(1, RUNS + 1):
        with running(faithful, "fold(2)", states=StateFile(tmp_path / "states")) as at, ThreadPoolExecutor(4) as pool:
            order = random.sample(range(CONVERSATIONS), CONVERSATIONS)
            list(pool.map(lambda number, at=at, run=run: post(at, number, run + 3), order))
            for body, headers in zip(at.upstream.bodies, at.upstream.headers, strict=True):
                number = int(body["user"] if "user" in body else body["metadata"]["user_id"])
                text = json.dumps(body)
                assert headers["x-api-key"] == key_of(clients[number])
                assert {int(own) for own in OWN.findall(text)} <= {number}
                found += "STATE" in text and not is_request_for_state(body)
            folded += at.proxy.counts.folded
            asked += len(at.upstream.asked)
            assert at.proxy.counts.unchanged == 0
    assert folded == found == RUNS * CONVERSATIONS and 0.9 * CONVERSATIONS < asked <= CONVERSATIONS
    with closing(sqlite3.connect(tmp_path / "states")) as file:
        assert "sk-" not in str(file.execute("SELECT key, state FROM states").fetchall())


def test_a_state_is_found_by_its_own_client_alone_and_again_after_a_restart(tmp_path: Path):
    def others(body: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
        return [
            (CHAT, body, {"authorization": "Bearer sk-of-another"}),
            (CHAT, body, {"x-api-key": "sk-of-another"}),
            (CHAT, {**body, "model": "another"}, {}),
            (f"/another{CHAT}", body, {}),
            (f"{CHAT}?key=another", body, {}),
        ]

    body = {"model": "m", "messages": history(CHAT, 3)}
    for turn in range(2):
        with running(states=StateFile(tmp_path / "states"), events=tmp_path / "events") as at:
            at.post(CHAT, body)
            assert len(at.upstream.asked) == (turn == 0)
            at.post(CHAT, body, **{"idempotency-key": str(turn)})
            assert len(at.upstream.asked) == (turn == 0), "a name of the request is no key"
            for path, given, headers in others(body):
                before = len(at.upstream.asked)
                at.post(path, given, **headers)
                assert len(at.upstream.asked) == before + (turn == 0), (path, headers)
    sessions = {json.loads(line)["session"] for line in (tmp_path / "events").open()}
    assert len(sessions) == 6
    for file in tmp_path.iterdir():
        assert b"sk-" not in file.read_bytes() and file.stat().st_mode & 0o777 == 0o600


def test_a_system_prompt_beside_the_messages_belongs_to_the_conversation_but_for_the_line_that_changes_each_time():
    common: dict[str, Any] = {"type": "text", "text": "You are a careful agent. " * 20}
    with running() as at:

        def asked(*texts: str, mark: bool = False) -> int:
            blocks = [*({"type": "text", "text": text} for text in texts), dict(common)]
            if mark:
                blocks[-1]["cache_control"] = {"type": "ephemeral"}
            before = len(at.upstream.asked)
            given = {"model": "m", "max_tokens": 9, "system": blocks, "messages": history(ANTHROPIC, 3)}
            at.post(ANTHROPIC, given)
            return len(at.upstream.asked) - before

        line = "x-anthropic-billing-header: cc_version=2.1.177; cc_entrypoint=cli; cch="
        assert [asked("You work for ACME."), asked("You work for Globex.")] == [1, 1]
        assert [asked(f"{line}36ee5;"), asked(f"{line}0aaa9;", mark=True)] == [1, 0]
        assert [asked(f"{line}1;\nYou work for Initech."), asked(f"{line}2;\nYou work for Umbrella.")] == [1, 1]


def test_what_the_upstream_refuses_in_one_conversation_is_folded_in_another_that_began_alike():
    def behave(path: str, given: Any) -> Said | None:
        return Said([b"no"], 400) if given["user"] == "1" and "<memory>" in json.dumps(given) else None

    with running(behave) as at:
        for conversation, key, shown in (
            ("1", "a", "whole"),
            ("2", "a", "folded"),
            ("1", "a", "whole"),
            ("2", "b", "folded"),
        ):
            history_of_it = [*history(CHAT, 2), *exchange(CHAT, 3, f"result {conversation} " * 99)]
            body = {"user": conversation, "messages": history_of_it}
            answer = at.post(CHAT, body, authorization=f"Bearer sk-{key}")
            assert answer.headers["mem1-prompt"] == shown
        assert sum("<memory>" in json.dumps(prompt) for prompt in at.upstream.prompts) == 3, "one was tried in vain"


@pytest.mark.parametrize("left", [False, True])
def test_files_of_states_and_events_are_their_owners_alone_also_where_they_were_not(tmp_path: Path, left: bool):
    states, events = tmp_path / "states.sqlite", tmp_path / "events.jsonl"
    StateFile(states)["old"] = "a state"
    beside = [Path(f"{states}{end}") for end in ("-wal", "-shm")]
    events.touch()
    for file in (states, events, *(beside if left else ())):
        os.chmod(file, 0o644)
    with running(states=StateFile(states), events=events) as at:
        at.post(CHAT, {"messages": history(CHAT, 3)})
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) >= 2 and events.stat().st_size


def test_what_a_file_did_not_take_is_in_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.extras.proxy.states._BUSY_S", 0.01)
    states = StateFile(tmp_path / "states")
    with closing(sqlite3.connect(tmp_path / "states", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        states["a"] = states["gone"] = "a state"
        states["half an emoji"] = "\ud83d"
        other.execute("ROLLBACK")
    states["b"] = "another"
    del states["gone"]
    assert "a" not in StateFile(tmp_path / "states"), "nothing is tried for a while"
    states.close()
    assert {**StateFile(tmp_path / "states")} == {"a": "a state", "b": "another"}


def test_a_file_of_somebody_elses_keeps_its_mode(tmp_path: Path):
    file = tmp_path / "notes"
    file.write_text("my notes " * 100)
    os.chmod(file, 0o644)
    with pytest.raises(Exception, match="file is not a database"):
        StateFile(file)
    assert file.stat().st_mode & 0o777 == 0o644
