"""A model on a server: what is sent, what is made of the answers, and that no fault of a server loses an attempt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from model_servers import CHAT, COMPLETIONS, Faults, Model, all_faults, content_with, model_site
from pydantic import ValidationError
from servers import FakeTime
from sites import Site, as_json, content, one_after_the_other, site, status
from worlds import CODEC, SAMPLING, SMALL, replay, rollout, shelf, task

from mem1.engines.base import Completion, Sampling, Script
from mem1.engines.dialects import Chat, ContextIds, Text, TokenIds
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import EngineFailed, ModelServer, Servers
from mem1.errors import UserError
from mem1.evaluation.metrics import summarize
from mem1.net.spending import SpendingLimit, Usage
from mem1.protocol import PAPER
from mem1.records import Ended, Trajectory
from mem1.rollout import Budget
from mem1.tasks.atlas import Expert

SOURCE = SMALL.source("evaluation", PAPER)
SENT = list(CODEC.encode("Q1 a city"))
SEARCH = "<IS> now Q1 </IS> <query> city </query>"
ANSWER = "<IS> done </IS> <answer> Q1 city </answer>"
ROOMY = Budget(completion_extra=120)
RECORDED = json.loads((Path(__file__).parents[1] / "support" / "recorded" / "vllm_completions.json").read_text())


def engine(*sites: Site, **options: Any) -> OpenAIEngine:
    """An engine of these servers, which does not wait long."""
    urls = tuple(f"{s.url}/v1" for s in sites)
    quick = {"first_wait_s": 0.002, "longest_wait_s": 0.05, "timeout_s": 10.0}
    return OpenAIEngine.open(ModelServer(urls=urls, model="m", **{**quick, **options}), CODEC, PAPER.stop_strings)


def write(asked: OpenAIEngine, context: str = "Q1 a city", budget: int = 40, **sampling: Any) -> Completion:
    """The completion of one context."""
    (completion,) = asked.complete([CODEC.encode(context)], max_tokens=[budget], sampling=Sampling(**sampling))
    return completion


def text(completion: Completion) -> str:
    assert completion.failed is None, completion.failed
    return CODEC.decode(completion.token_ids)


@pytest.fixture
def serving() -> Iterator[Callable[..., Site]]:
    """Starts servers of a script that live as long as the test."""
    with ExitStack() as stack:

        def start(script: Script = lambda _: SEARCH, faults: Faults | None = None, **options: Any) -> Site:
            chat_only = options.pop("chat_only", False)
            return stack.enter_context(model_site(Model(CODEC, script, **options), faults, chat_only=chat_only))

        yield start


class TestForms:
    def test_with_token_ids_both_ways_nothing_is_encoded_again(self, serving):
        server = serving(vllm=True)
        asked = engine(server)
        assert asked.dialect == TokenIds()
        done = write(asked)
        assert (text(done), done.stopped, done.logprobs) == (SEARCH, True, (-0.5,) * 7)
        body = json.loads(server.asked[-1][3])
        assert body["prompt"] == list(CODEC.encode("Q1 a city")) and body["stop"] == ["</query>", "</answer>"]
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)

    def test_a_server_of_openais_own_fields_is_sent_text_and_the_stop_string_is_put_back(self, serving):
        server = serving()
        asked = engine(server)
        assert asked.dialect == Text()
        done = write(asked)
        assert (text(done), done.stopped, done.logprobs) == (SEARCH, True, ())
        assert json.loads(server.asked[-1][3])["prompt"] == "Q1 a city"
        assert write(asked, budget=6).stopped is False

    def test_a_server_that_answers_with_text_reads_contexts_as_token_ids_where_it_can(self, serving):
        server = serving(by_ids=True)
        asked = engine(server)
        assert asked.dialect == ContextIds()
        done = write(asked)
        assert (text(done), done.stopped, done.logprobs) == (SEARCH, True, ())
        assert json.loads(server.asked[-1][3])["prompt"] == SENT

    @pytest.mark.parametrize("more", [1, -3])
    def test_token_ids_that_a_server_counts_otherwise_are_not_sent(self, more: int):
        """It adds its own beginning to them, or has read a list as something else."""

        class Counts(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                code, said = super().completion(body)
                if code == 200 and isinstance(body["prompt"], list):
                    said["usage"]["prompt_tokens"] += more
                return code, said

        with model_site(Counts(CODEC, lambda _: SEARCH, by_ids=True)) as server:
            assert engine(server).dialect == Text()

    def test_text_after_a_stop_string_is_cut_and_the_completion_counts_as_stopped(self):
        class Unstopped(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                return super().completion({**body, "stop": []})

        with model_site(Unstopped(CODEC, lambda _: f"{SEARCH} <info> {'Oslo ' * 90}")) as server:
            done = write(engine(server))
        assert (text(done), done.stopped) == (SEARCH, True)

    def test_without_completions_the_context_is_the_users_message(self, serving):
        server = serving(chat_only=True)
        asked = engine(server)
        assert asked.dialect == Chat()
        assert text(write(asked)) == SEARCH
        assert json.loads(server.asked[-1][3])["messages"] == [{"role": "user", "content": "Q1 a city"}]

    @pytest.mark.parametrize("prefill", [False, True])
    def test_an_opened_answer_is_the_beginning_of_the_reply(self, serving, prefill):
        server = serving(lambda _: "Q1 city </answer>", chat_only=True, vllm=prefill, prefill=prefill)
        assert text(write(engine(server), "Q1 a city <answer>")) == "Q1 city </answer>"
        body = json.loads(server.asked[-1][3])
        assert body["messages"] == [
            {"role": "user", "content": "Q1 a city"},
            {"role": "assistant", "content": "<answer>"},
        ]
        assert body.get("continue_final_message", False) is prefill

    def test_the_endpoint_can_be_chosen(self, serving):
        server = serving(vllm=True)
        assert engine(server, endpoint="chat").dialect == Chat(extras=True)
        with pytest.raises(UserError, match=r"refuses every form.*/completions: status 404"):
            engine(serving(chat_only=True), endpoint="completions")

    def test_another_tokenizer_than_the_servers_is_refused(self):
        class Other(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                code, said = super().completion(body)
                said["choices"][0]["prompt_token_ids"] = [5, 5]
                return code, said

        with model_site(Other(CODEC, lambda _: SEARCH, vllm=True)) as server:
            with pytest.raises(UserError, match=r"tokenizer is not the one .* makes 2 tokens"):
                engine(server)
            config = ModelServer(urls=(server.url,), model="m")
            stand_in = OpenAIEngine.open(config, CODEC, PAPER.stop_strings, own_tokenizer=False)
            assert stand_in.dialect == Text(extras=True)

    def test_attempts_at_one_task_are_sampled_with_seeds_of_their_own(self, serving):
        server = serving(vllm=True)
        asked = engine(server)
        contexts = [CODEC.encode("Q1 a city")] * 3
        for seed in (0, 1):
            asked.complete(contexts, max_tokens=[40] * 3, sampling=Sampling(seed=seed))
        assert len({json.loads(body)["seed"] for _, _, _, body in server.asked[-6:]}) == 6

    @pytest.mark.parametrize(("temperature", "recorded"), [(1.0, True), (0.0, True), (0.7, False)])
    def test_log_probabilities_are_kept_only_where_they_are_those_of_the_sampler(self, serving, temperature, recorded):
        assert bool(write(engine(serving(vllm=True)), temperature=temperature).logprobs) is recorded


class TestRecorded:
    """Answers in the format that vLLM documents and tests (see the file), made by hand: vLLM itself needs a GPU."""

    @pytest.mark.parametrize("name", [n for n in RECORDED if not n.startswith("_")])
    def test_an_answer_of_vllm_is_read(self, name):
        case = RECORDED[name]
        answer = Text().read(json.dumps(case["answer"]).encode(), ["</search>", "</answer>"])
        for field, expected in case["expected"].items():
            value = getattr(answer, field)
            assert (list(value) if isinstance(value, tuple) else value) == expected, field


class TestFaults:
    @pytest.mark.parametrize("kind", sorted(all_faults(threading.Event(), slow_s=0)))
    def test_a_passing_fault_is_survived(self, serving, kind):
        over = threading.Event()
        first = [all_faults(over, slow_s=60)[kind]]

        class Once(Faults):
            def draw(self):
                return first.pop() if first else None

        asked = engine(serving(vllm=kind != "repeats for ever", faults=Once({}, 0)), timeout_s=1.0)
        done = write(asked)
        over.set()
        assert not first
        if kind == "repeats for ever":  # that is the model's own doing, and stays
            assert (len(done.token_ids), done.stopped, done.failed) == (40, False, None)
        else:
            assert text(done) == SEARCH

    def test_a_server_that_never_answers_rightly_is_an_ending_and_says_why(self, serving):
        server = serving(faults=Faults({"broken": status(500)}, share=1.0))
        run = rollout(engine(server, tries=3), shelf("a book ."), budget=ROOMY)
        (attempt,) = run([task("city")], sampling=SAMPLING)
        assert (attempt.ended, attempt.reward, attempt.turns) == (Ended.ENGINE_FAILED, None, ())
        assert attempt.detail.endswith("/v1/completions: status 500 Internal Server Error; tried 3 times")
        assert not attempt.ended.scorable
        assert summarize([attempt], policy="p", context="constant", objectives=1).endings["engine_failed"] == 1

    def test_one_context_that_fails_does_not_take_the_others_along(self, serving):
        class Short(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                if "city city" in body["prompt"]:
                    return 400, {"message": "This model's maximum context length is 9 tokens"}
                return super().completion(body)

        with model_site(Short(CODEC, lambda _: SEARCH)) as server:
            contexts = [CODEC.encode(c) for c in ("Q1 city", "Q1 city city", "Q1 book")]
            done = engine(server).complete(contexts, max_tokens=[40] * 3, sampling=SAMPLING)
            asked = sum(b"city city" in body for _, _, _, body in server.asked)
        assert [text(done[0]), text(done[2])] == [SEARCH, SEARCH]
        why = done[1].failed or ""
        assert "status 400 Bad Request" in why and "maximum context length is 9" in why
        assert asked == 1, "what is refused for good is not asked again"

    def test_a_server_that_dies_is_passed_over(self, serving):
        good, bad = serving(vllm=True), serving(vllm=True, faults=Faults({"broken": status(500)}, share=1.0))
        asked = engine(bad, good)
        for _ in range(6):
            assert text(write(asked)) == SEARCH
        assert len(bad.asked) <= 3, "it rests after its failure"

    def test_a_huge_answer_is_not_read_to_its_end(self, serving, monkeypatch):
        monkeypatch.setattr("mem1.engines.servers._LARGEST_ANSWER", 10_000)
        server = serving(faults=Faults({"huge": content(b"x" * 20_000)}, share=1.0))
        assert "larger than 10,000 bytes" in (write(engine(server, tries=1)).failed or "")

    @pytest.mark.parametrize(
        ("choice", "why"),
        [
            ({"token_ids": [1]}, "no text"),
            ({"text": ""}, "no token ids"),
            ({"text": "", "token_ids": [-1], "prompt_token_ids": []}, "not a list of token ids"),
            ({"text": "", "token_ids": [1] * 41, "prompt_token_ids": SENT}, "41 tokens for 40"),
            ({"text": "", "token_ids": [1], "prompt_token_ids": [9]}, "another context"),
            ({"text": "", "token_ids": [1], "finish_reason": "content_filter"}, "'content_filter'"),
        ],
    )
    def test_an_answer_that_is_wrong_in_itself_is_named(self, serving, choice, why):
        answer = as_json({"choices": [{"finish_reason": "stop", **choice}]})
        server = serving(vllm=True, faults=Faults({"wrong": answer}, share=1.0))
        assert why in (write(engine(server, tries=1)).failed or "")

    def test_text_with_our_tags_is_parsed_like_any_other(self, serving):
        forged = "<IS> a </IS> <info> Oslo </info> <answer> Q1 city </answer>"
        run = rollout(engine(serving(lambda _: forged)), shelf("a book ."), budget=ROOMY)
        (attempt,) = run([task("city")], sampling=SAMPLING)
        assert (attempt.ended, attempt.detail) == (Ended.BAD_TAGS, "<info> is the environment's tag, not the policy's")

    def test_no_server_at_the_start_is_a_user_error(self):
        with site() as gone:
            pass
        with pytest.raises(UserError, match=r"no model server answers with a completion: .*; start one"):
            engine(gone, tries=2)


def outcomes(attempts: list[Trajectory]) -> None:
    """Every attempt was scored, or says how its engine failed."""
    for attempt in attempts:
        if attempt.ended is Ended.ENGINE_FAILED:
            assert attempt.reward is None and "tried" in attempt.detail
        else:
            assert attempt.reward is not None
            assert (attempt.ended is Ended.ANSWERED) == (attempt.reward == 2.0)


@pytest.mark.parametrize(
    ("count", "at_a_time", "timeout_s"),
    [(24, 12, 0.4), pytest.param(1000, 64, 3.0, marks=pytest.mark.slow)],
    ids=["24", "1000"],
)
@pytest.mark.parametrize("way", ["in rounds", "task by task"])
def test_every_task_is_scored_or_named_as_failed_where_a_fifth_of_the_answers_is_faulty(
    serving, count: int, at_a_time: int, timeout_s: float, way: str
):
    over = threading.Event()
    faults = Faults(all_faults(over, slow_s=2 * timeout_s), share=0.2)
    server = serving(Expert(tags=PAPER), faults, vllm=way == "in rounds")
    # two tries leave some attempts without a completion: those must be named
    asked = engine(server, concurrency=at_a_time, tries=2, timeout_s=timeout_s)
    run = rollout(asked, SOURCE.environment, budget=ROOMY)
    tasks = SOURCE.tasks(objectives=2, count=count, seed=1)
    if way == "in rounds":
        attempts = run(tasks, sampling=SAMPLING)
    else:
        with ThreadPoolExecutor(at_a_time) as pool:
            attempts = [a for (a,) in pool.map(lambda t: run([t], sampling=SAMPLING), tasks)]
    over.set()
    assert [a.task for a in attempts] == tasks, "none lost, none twice"
    outcomes(attempts)
    assert faults.given.total() == faults.answers // 5 and set(faults.given) == set(faults.kinds)
    endings = {ended: sum(a.ended is ended for a in attempts) for ended in Ended}
    assert endings[Ended.ANSWERED] > 0
    assert count < 1000 or endings[Ended.ENGINE_FAILED] > 0


class TestServers:
    @pytest.mark.parametrize("first", [0, 1])
    def test_every_server_is_looked_at_before_any_is_used(self, serving, first: int):
        """As a server of the same name may serve another model."""
        servers = [serving(vllm=True), serving()]
        with pytest.raises(UserError, match="give servers that are alike"):
            engine(servers[first], servers[1 - first])

    def test_one_that_does_not_answer_yet_is_passed_over(self, serving):
        urls = (f"{serving(vllm=True).url}/v1", "http://127.0.0.1:9/v1")
        config = ModelServer(urls=urls, model="m", tries=1, first_wait_s=0.002)
        assert OpenAIEngine.open(config, CODEC, PAPER.stop_strings).dialect == TokenIds()

    def test_one_that_is_busy_for_a_moment_is_not_taken_for_another(self, serving):
        """At its second look, which asks whether it reads token ids."""

        class Busy(Model):
            looked = 0

            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                if isinstance(body["prompt"], list) and self.looked == 0:
                    self.looked = 1
                    return 503, {"error": {"message": "Loading model"}}
                return super().completion(body)

        with model_site(Busy(CODEC, lambda _: SEARCH, by_ids=True)) as busy:
            assert engine(serving(by_ids=True), busy).dialect == ContextIds()
            assert busy.asked


class TestSpending:
    def test_the_usage_that_a_server_reports_is_counted(self, serving):
        limit = SpendingLimit(dollars_per_million_input=2.0, dollars_per_million_output=10.0)
        asked = engine(serving(vllm=True), limit=limit)
        write(asked)
        assert (asked.spending.used.input_tokens, asked.spending.used.output_tokens) == (3, 7)
        assert asked.spending.dollars == pytest.approx((3 * 2 + 7 * 10) / 1e6)

    @pytest.mark.parametrize("limit", [{"tokens": 64}, {"dollars": 64e-6, "dollars_per_million_input": 1.0}])
    def test_a_spent_limit_is_an_ending_and_is_never_passed(self, serving, limit):
        if "dollars" in limit:
            limit = {**limit, "dollars_per_million_output": 1.0}
        server = serving(vllm=True)
        asked = engine(server, limit=SpendingLimit(**limit))
        contexts = [CODEC.encode("Q1 a city")] * 9
        done = asked.complete(contexts, max_tokens=[40] * 9, sampling=SAMPLING)
        #  3 + 7 tokens each; another one, of 3 + 40 at most, is not begun once more than 64 - 43 = 21 are used
        assert sum(c.failed is None for c in done) == 3 == len(server.asked) - 1
        reached = "the limit of 64 tokens is reached" if "tokens" in limit else "the limit of $6.4e-05 is reached"
        assert {c.failed for c in done} == {None, reached}

    def test_a_limit_of_money_needs_prices(self):
        with pytest.raises(ValueError, match="without prices"):
            SpendingLimit(dollars=1.0)


class TestKeys:
    def test_the_key_is_sent_and_appears_nowhere_else(self, serving, monkeypatch, caplog):
        monkeypatch.setenv("MY_KEY", "sk-very-secret")
        told = content_with(401, {"error": "Incorrect API key provided: sk-very-secret"})
        with site({COMPLETIONS: told, CHAT: told}) as server, pytest.raises(UserError) as refused:
            engine(server, api_key_env="MY_KEY")
        assert {headers["authorization"] for _, _, headers, _ in server.asked} == {"Bearer sk-very-secret"}
        assert "provided: ***" in str(refused.value) and "sk-very" not in str(refused.value) + caplog.text
        config = ModelServer(urls=(server.url,), model="m", api_key_env="MY_KEY")
        assert "sk-very" not in repr(config) + config.model_dump_json()

    def test_a_missing_and_a_malformed_key_are_errors_that_do_not_show_it(self, monkeypatch):
        config = ModelServer(urls=("http://127.0.0.1:1",), model="m", api_key_env="MY_KEY")
        with pytest.raises(UserError, match="the server needs a key: set the environment variable MY_KEY"):
            OpenAIEngine.open(config, CODEC, PAPER.stop_strings)
        monkeypatch.setenv("MY_KEY", "two words")
        with pytest.raises(UserError, match="MY_KEY is not an API key") as refused:
            OpenAIEngine.open(config, CODEC, PAPER.stop_strings)
        assert "two words" not in str(refused.value)

    @pytest.mark.parametrize(
        "url", ["ftp://a", "http://", "me:pw@host/v1", "http://me:pw@host/v1", "http://host/v1?key=abc"]
    )
    def test_an_address_must_be_http_without_secrets(self, url):
        with pytest.raises(ValueError, match=r"not the address of a model server|leave it out") as refused:
            ModelServer(urls=(url,), model="m")
        (error,) = cast(ValidationError, refused.value).errors()
        assert "pw" not in error["msg"] and "abc" not in error["msg"]

    def test_a_bare_host_means_its_v1(self):
        urls = ("http://a:8000", "http://a:8000/", "https://b/api/v1/")
        assert ModelServer(urls=urls, model="m").urls == ("http://a:8000/v1", "http://a:8000/v1", "https://b/api/v1")


def test_waiting_is_as_long_as_the_server_asks_and_jittered(serving):
    busy = [status(429, Retry_After="7"), status(503), status(500)]
    time = FakeTime()
    with site({COMPLETIONS: one_after_the_other(*busy)}) as server:
        config = ModelServer(urls=(server.url,), model="m", tries=4, first_wait_s=1.0)
        servers = Servers(config, clock=time.clock)
        with pytest.raises(EngineFailed, match=r"status 500 .* tried 4 times"):
            servers.ask("/completions", b"{}", lambda b: (b, Usage()), at_most=Usage(1, 1))
        assert time.slept == [7 + 0.5, 0.5 * 2, 0.5 * 4]
        server.pages[COMPLETIONS] = status(429, Retry_After="86400")
        with pytest.raises(EngineFailed, match="asks for a wait of 86400 s"):
            servers.ask("/completions", b"{}", lambda b: (b, Usage()), at_most=Usage(1, 1))
    assert len(time.slept) == 3
    assert servers.spending.used == Usage(), "refusals cost nothing"


def asked_until_failed(*pages: Any, tries: int = 2) -> tuple[str, list[float], list[int]]:
    """One request to servers with one page each: why it failed, the waits, and how often each was asked."""
    time = FakeTime()
    with ExitStack() as stack:
        sites = [stack.enter_context(site({COMPLETIONS: page})) for page in pages]
        urls = tuple(f"{s.url}/v1" for s in sites)
        servers = Servers(ModelServer(urls=urls, model="m", tries=tries, first_wait_s=1.0), clock=time.clock)
        with pytest.raises(EngineFailed) as failure:
            servers.ask("/completions", b"{}", lambda b: (b, Usage()), at_most=Usage(1, 1))
        return f"{type(failure.value).__name__}: {failure.value}", time.slept, [len(s.asked) for s in sites]


def test_a_request_is_tried_again_while_one_address_may_yet_answer():
    why, waits, asked = asked_until_failed(status(401), status(503))
    assert why.startswith("EngineFailed: ") and "status 401" in why and "status 503" in why
    assert why.endswith("tried 2 times") and len(waits) == 1 and asked[1] == 2
    why, waits, asked = asked_until_failed(status(401), status(403))
    assert (why.startswith("Refused: "), waits, asked) == (True, [], [1, 1])


def test_of_several_addresses_the_one_that_asks_for_the_shortest_wait_decides():
    _, waits, _ = asked_until_failed(status(429, Retry_After="7"), status(429, Retry_After="3"))
    assert waits == [3 + 0.5]


def test_replayed_turns_of_a_served_model_equal_those_of_the_script(serving):
    scripted = rollout(replay(SEARCH, ANSWER), shelf("a book ."))([task("city")], sampling=SAMPLING)
    served = rollout(engine(serving(replay(SEARCH, ANSWER), vllm=True)), shelf("a book ."))
    (by_server,) = served([task("city")], sampling=SAMPLING)
    assert [t.context_ids for t in by_server.turns] == [t.context_ids for t in scripted[0].turns]
    assert by_server.reward == scripted[0].reward == 1.0
