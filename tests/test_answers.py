"""Numbers and JSON of servers: whatever they say, an answer is read or has failed, and nothing ends a run."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import CODEC, SAMPLING, rollout, shelf, task

from mem1.engines.dialects import TokenIds
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.net.post import number, read_json, retry_after, shown, whole_number
from mem1.net.spending import SpendingLimit, Usage
from mem1.protocol import PAPER
from mem1.records import Ended

HUGE = int("9" * 400)
DIALECT = TokenIds()


def answer(**changed: Any) -> dict[str, Any]:
    """An answer in vLLM's form; `usage` and the fields of its choice may be changed."""
    usage = changed.pop("usage", {"prompt_tokens": 3, "completion_tokens": 2})
    choice = {"text": "a b", "finish_reason": "stop", "token_ids": [1, 2], "prompt_token_ids": [3, 4, 5]}
    return {"choices": [{**choice, "logprobs": {"token_logprobs": [-0.5, -1]}, **changed}], "usage": usage}


def test_numbers_are_those_between_their_bounds():
    assert number(3, least=0.0, most=4.0) == 3.0
    for bad in (HUGE, -HUGE, float("nan"), float("inf"), -0.1, 4.1, True, "3", None, [3]):
        assert number(bad, least=0.0, most=4.0) is None
    assert whole_number(7, most=7) == 7
    for bad in (8, -1, 7.0, True, "7", None, HUGE):
        assert whole_number(bad, most=7) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[" * 200_000, b'{"a":' * 50_000, b"9" * 5000, b'"\\ud8', b"{]", b"-", b"\x00"],
)
def test_what_is_no_json_is_a_value_error(body: bytes):
    with pytest.raises(ValueError, match="the answer is not JSON"):
        read_json(body)


@given(st.recursive(st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_what_is_shown_of_a_value_is_short(value: Any):
    assert len(shown(value)) <= 43 and len(shown(10**5000)) <= 43


@pytest.mark.parametrize(
    "changed",
    [
        {"logprobs": {"token_logprobs": [-HUGE, -1]}},
        {"logprobs": {"token_logprobs": [HUGE, -1]}},
        {"logprobs": {"token_logprobs": [float("-inf"), -1]}},
        {"logprobs": {"token_logprobs": [float("nan"), -1]}},
        {"logprobs": {"token_logprobs": [0.5, -1]}},
        {"usage": {"prompt_tokens": HUGE, "completion_tokens": 2}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": -1}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 1e400}},
        {"usage": {"prompt_tokens": 2.5, "completion_tokens": 1}},
        {"token_ids": [HUGE, 2]},
        {"prompt_token_ids": [HUGE]},
        {"finish_reason": HUGE},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_an_answer_with_a_number_that_cannot_be_has_failed(changed: dict[str, Any]):
    assert DIALECT.read(json.dumps(answer()).encode(), ()).usage == Usage(3, 2)
    with pytest.raises(ValueError, match="the answer"):
        DIALECT.read(json.dumps(answer(**changed)).encode(), ())


def test_an_answer_without_log_probabilities_or_usage_has_none():
    for logprobs in (None, {}, {"token_logprobs": None}, {"token_logprobs": [None, -1]}):
        said = DIALECT.read(json.dumps(answer(logprobs=logprobs, usage=None)).encode(), ())
        assert (said.logprobs, said.usage) == ((), None)


@pytest.mark.parametrize(
    "changed",
    [
        {"logprobs": {"token_logprobs": [-HUGE]}},
        {"usage": {"prompt_tokens": HUGE, "completion_tokens": 1}},
        {"finish_reason": [[[HUGE]]]},
    ],
    ids=["log-probability", "usage", "reason"],
)
def test_an_evaluation_goes_on_where_a_server_answers_with_numbers_of_400_digits(changed: dict[str, Any]):
    def respond(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        said = {"token_ids": [5], "prompt_token_ids": asked["prompt"], "logprobs": {"token_logprobs": [-0.5]}}
        return httpx.Response(200, content=json.dumps(answer(**{**said, **changed})))

    limit = SpendingLimit(tokens=10**9, dollars=1.0, dollars_per_million_input=1.0)
    config = ModelServer(urls=("http://a/v1",), model="m", tries=2, first_wait_s=0.0, limit=limit)
    servers = Servers(config, transport=httpx.MockTransport(respond))
    engine = OpenAIEngine(servers, config, DIALECT, CODEC, PAPER.stop_strings)
    (attempt,) = rollout(engine, shelf("a"), codec=CODEC)([task("x")], sampling=SAMPLING)
    assert attempt.ended is Ended.ENGINE_FAILED and "tried 2 times" in (attempt.detail or "")
    assert engine.spending.used.input_tokens < 10_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None),
        ("Wed, 99999999999999999999 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 99999999999999999999:28:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999999999", None),
        ("Wed, 21 Oct 0000 07:28:00 GMT", 0.0),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
        ("9" * 400, 999_999_999.0),
        ("\u00b2", None),
        ("-7", None),
        ("7", 7.0),
        ("", None),
    ],
)
def test_no_retry_after_is_an_exception(value: str, seconds: float | None):
    assert retry_after(value) == seconds


@given(st.text() | st.from_regex(r"\w{3}, \d{1,30} \w{3} \d{1,30} \d{1,30}:\d\d:\d\d [+-]?\d{1,30}"))
def test_no_retry_after_whatever_it_says_is_an_exception(value: str):
    found = retry_after(value)
    assert found is None or 0 <= found < 1e12
