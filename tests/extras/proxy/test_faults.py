"""An agent behind the proxy whose model gives three useless replies in ten: it answers right all the same."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from faults import ANSWER, CALL, TASK, FaultyModel, search
from proxies import running
from tool_callers import streamed
from upstreams import Said

import mem1
from mem1.agent import Ending

RUNS = 10


@pytest.mark.parametrize("streaming", [False, True])
def test_three_bad_replies_in_ten_reach_neither_the_answer_nor_a_state(streaming: bool):
    faults = states = 0
    for seed in range(RUNS):
        model = FaultyModel(Random(seed))

        def behave(path: str, body: Any, model: FaultyModel = model) -> Said:
            completion = model.completion(body["messages"])
            if not body.get("stream"):
                return Said([json.dumps(completion).encode()], headers={"content-type": "application/json"})
            message = completion["choices"][0]["message"]
            message["content"] = message["content"] or ""
            return Said([streamed(completion)], headers={"content-type": "text/event-stream"})

        with running(behave, "fold(2)", only_if_cheaper=False) as at:
            agent = mem1.Agent(f"{at.url}/v1", name="m", tools=[search], memory="full")
            list(agent.stream(TASK)) if streaming else agent.run(TASK)
            assert (agent.answer, agent.report().ending) == (ANSWER, Ending.ANSWERED), seed
            assert all(CALL[:20] not in str(prompt[0]) for prompt in at.upstream.prompts)
            assert at.upstream.refused == []
        faults += model.replies["fault"]
        states += at.proxy.counts.states.calls
    assert faults > 3 * RUNS and states > 2 * RUNS
