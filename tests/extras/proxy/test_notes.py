"""A writer beside the clients of a proxy: its notes are the states, and no client's model is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from proxies import FORM, SECRET, body, running, task
from upstreams import ANTHROPIC, CHAT

from mem1.messages import check
from mem1.messages.writing import Reading


class Queries:
    """Notes the number of each search that it reads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def write(self, reading: Reading, /) -> Sequence[str]:
        found = re.findall(r'"q": ?(\d+)', reading.exchange)
        self.read += found
        return [f"search {number}: done" for number in found]


class Broken:
    def write(self, reading: Reading, /) -> Sequence[str]:
        raise OSError("no space left")


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC])
def test_notes_are_the_states_and_the_clients_model_is_never_asked(path: str):
    writer = Queries()
    with running(writer=writer) as at:
        for turn in range(20):
            assert at.post(path, body(path, turn)).status_code == 200
            assert at.written()
        assert at.upstream.asked == []
        assert max([len(prompt) for prompt in at.upstream.prompts]) == 1 + 2 * 2
        for prompt in at.upstream.prompts:
            check(prompt, FORM[path])
        last = json.dumps(at.upstream.prompts[-1])
        assert all([f"search {number}: done" in last for number in range(16)])
    assert writer.read == [str(number) for number in range(19)]


def test_while_a_writer_fails_requests_go_on_as_they_came(caplog: pytest.LogCaptureFixture):
    with running(writer=Broken()) as at:
        for turn in range(6):
            answer = at.post(CHAT, body(CHAT, turn))
            assert answer.headers["mem1-prompt"] == "whole" and json.loads(at.last) == body(CHAT, turn)
            at.written()
        assert at.upstream.asked == [] and at.proxy.counts.unchanged == 0
    assert any([re.search("session .*: no new notes: OSError: no space left", line) for line in caplog.messages])


def test_clients_with_other_keys_or_tasks_share_no_notes():
    writer = Queries()
    other = {**body(CHAT, 6), "messages": [task("Another."), *body(CHAT, 6)["messages"][1:]]}
    with running(writer=writer) as at:
        for sent, headers in ((body(CHAT, 6), {}), (body(CHAT, 6), {"x-api-key": f"{SECRET}4"}), (other, {})):
            before = len(writer.read)
            assert at.post(CHAT, sent, **headers).headers["mem1-prompt"] == "whole"
            assert at.written() and len(writer.read) == before + 6
            assert at.post(CHAT, sent, **headers).headers["mem1-prompt"] == "folded"
            assert len(writer.read) == before + 6
