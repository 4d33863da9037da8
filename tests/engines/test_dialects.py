"""Dialects: what a server's answer must hold, and stop strings where a model that stops at them writes them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from worlds import CODEC, SAMPLING, rollout, shelf, task

from mem1.engines.dialects import Chat, TokenIds, complete, opened
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.net.spending import SpendingLimit, Usage
from mem1.protocol import PAPER
from mem1.records import Ended

HUGE = int("9" * 400)
DIALECT = TokenIds()
STOPS = ("</query>", "</answer>")


def answer(**changed: Any) -> dict[str, Any]:
    """An answer in vLLM's form; `usage` and the fields of its choice may be changed."""
    usage = changed.pop("usage", {"prompt_tokens": 3, "completion_tokens": 2})
    choice = {"text": "a b", "finish_reason": "stop", "token_ids": [1, 2], "prompt_token_ids": [3, 4, 5]}
    return {"choices": [{**choice, "logprobs": {"token_logprobs": [-0.5, -1]}, **changed}], "usage": usage}


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


def test_a_model_whose_thought_used_its_tokens_up_has_written_nothing():
    choice = {"message": {"content": None, "reasoning_content": "Hm."}, "finish_reason": "length"}
    response = Chat().read(json.dumps({"choices": [choice]}).encode(), PAPER.stop_strings)
    assert (response.text, response.stopped) == ("", False)
    with pytest.raises(ValueError, match="no text, as where a reasoning parser takes it"):
        Chat().read(json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode(), PAPER.stop_strings)


def test_an_answer_without_log_probabilities_or_usage_has_none():
    for logprobs in (None, {}, {"token_logprobs": None}, {"token_logprobs": [None, -1]}):
        said = DIALECT.read(json.dumps(answer(logprobs=logprobs, usage=None)).encode(), ())
        assert (said.logprobs, said.usage) == ((), None)
    nothing_read = {"prompt_tokens": 0, "completion_tokens": 0}
    assert DIALECT.read(json.dumps(answer(usage=nothing_read)).encode(), ()).usage is None


@pytest.mark.parametrize("told", [-9999, -81.0])
def test_a_log_probability_that_no_sampled_token_has_is_refused_where_it_would_be_trained_on(told: float):
    given = answer(logprobs={"token_logprobs": [-0.5, told]}, prompt_token_ids=[5, 6, 7], token_ids=[8, 9])
    said = DIALECT.read(json.dumps(given).encode(), ())
    request = DIALECT.request(
        CODEC, [5, 6, 7], model="m", max_tokens=5, temperature=1.0, seed=0, stops=PAPER.stop_strings
    )
    with pytest.raises(ValueError, match="as the log-probability of a token that was sampled"):
        DIALECT.completion(said, request, CODEC, processed_logprobs=True)
    assert DIALECT.completion(said, request, CODEC, processed_logprobs=False).logprobs == (-0.5, told)


@pytest.mark.parametrize(
    "changed",
    [
        {"logprobs": {"token_logprobs": [-HUGE]}},
        {"usage": {"prompt_tokens": HUGE, "completion_tokens": 1}},
        {"finish_reason": [[[HUGE]]]},
    ],
    ids=["log-probability", "usage", "reason"],
)
def test_an_evaluation_survives_numbers_of_400_digits_in_an_answer(changed: dict[str, Any]):
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
    ("text", "named", "whole"),
    [
        # left out: the server names it, or the tag that is open is closed
        ("<IS> a </IS> <query> Oslo ", "</query>", "<IS> a </IS> <query> Oslo </query>"),
        ("<IS> a </IS> <query> Oslo ", None, "<IS> a </IS> <query> Oslo </query>"),
        ("<answer> Q1 Oslo", None, "<answer> Q1 Oslo</answer>"),
        # the server says that the model ended its text by itself
        ("<query> Oslo", "", "<query> Oslo"),
        # nothing is open
        ("<IS> a </IS>", None, "<IS> a </IS>"),
        ("", None, ""),
        # kept by the server
        ("<query> Oslo </query>", None, "<query> Oslo </query>"),
        ("<query> Oslo </query>", "</query>", "<query> Oslo </query>"),
        # not known to the server: the model went on
        ("<query> a </query> <answer> b </answer>", "", "<query> a </query>"),
    ],
)
def test_a_stop_string_is_put_back_or_cut_after(text: str, named: str | None, whole: str):
    assert complete(text, STOPS, stopped=True, named=named) == whole


def test_a_completion_that_used_its_tokens_is_left_as_it_is_unless_it_had_stopped():
    assert complete("<query> Oslo", STOPS, stopped=False) == "<query> Oslo"
    assert complete("<query> Oslo </query> and", STOPS, stopped=False) == "<query> Oslo </query>"


def test_the_tag_that_the_context_had_opened_is_closed():
    assert complete("Q1 Oslo", STOPS, stopped=True, opening="<answer>") == "Q1 Oslo</answer>"


@pytest.mark.parametrize("named", ["", None, "<|im_end|>"])
def test_a_model_that_ends_its_message_by_itself_has_written_its_end(named: str | None):
    assert complete("Oslo", ("<|im_end|>",), stopped=True, named=named) == "Oslo<|im_end|>"
    assert complete("Oslo", ("<|im_end|>",), stopped=False, named=named) == "Oslo"
    assert complete("a <IS> b", ("<|im_end|>", "</query>"), stopped=True, named=named) == "a <IS> b<|im_end|>"
    assert complete("Q1 Oslo", STOPS, stopped=False, opening="<answer>") == "Q1 Oslo"


@pytest.mark.parametrize(
    ("context", "tag"),
    [
        ("Q1 <answer>", "<answer>"),
        ("Q1 <answer> \n", "<answer>"),
        ("<answer> ... </answer>", ""),
        ("<IS>", ""),
        ("", ""),
    ],
)
def test_an_opened_tag_is_seen_at_the_end_of_a_context(context: str, tag: str):
    assert opened(context, STOPS) == tag
