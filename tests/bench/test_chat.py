"""A chat model takes the benchmark: its one tool, its memory, its journal, and what becomes of each failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_chats import PRICES, attempt, completion, drawn, player
from bench_suites import suite

from mem1.bench.chat import ChatPlayer
from mem1.bench.policies import script_player
from mem1.bench.results import Spent
from mem1.bench.running import Call, Journal
from mem1.bench.scripted import estimates, scripted_chat, scripted_player
from mem1.bench.suites import Drawing
from mem1.bench.tools import Tools
from mem1.engines.servers import EngineFailed, Refused
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.messages.transcript import ASK, Message
from mem1.net.spending import LimitReached, Usage


def told(messages: Sequence[Message]) -> str:
    return str(messages[-1]["content"])


@pytest.mark.parametrize("memory", ["full", "masked(1)", "window(1)", "fold(2)", "notes"])
def test_the_script_answers_everything_under_every_memory(memory: str):
    found = attempt(scripted_player("script", state=None, prices=PRICES), memory)
    assert (found.task, found.memory, found.right) == ("independent-1-n2-seed0-0", memory, (1.0, 1.0))
    assert (found.ended, found.searches, found.turns) == ("answered", 3, 4)
    spent = found.tokens
    assert found.cost == pytest.approx((2 * spent.fresh + spent.cached + 10 * spent.output) / 1e6)


def test_tokens_are_those_that_the_provider_counted():
    def answer(messages: list[Message]) -> Any:
        said = completion("Q1 a; Q2 b") if len(messages) > 2 else completion(None, "Alvex")
        details = {"prompt_tokens_details": {"cached_tokens": 100 * (len(messages) // 2)}}
        return {**said, "usage": {"prompt_tokens": 100 * len(messages), "completion_tokens": 7, **details}}

    found = attempt(player(answer))
    #                               1 message, then 3
    assert found.tokens == Spent(fresh=100 + 200, cached=0 + 100, output=14)
    assert (found.peak, found.turns, found.searches, found.right) == (307, 2, 1, (0.0, 0.0))


class TestTheTool:
    def test_it_says_how_many_searches_are_left_and_that_the_answer_is_due(self):
        at, seen = drawn(), list[str]()

        def answer(messages: list[Message]) -> Any:
            seen.append(told(messages))
            due = "No searches are left" in seen[-1]
            return completion("Q1 x; Q2 y") if due else completion(None, "Alvex")

        found = attempt(player(answer))
        most = at.tasks[0].turn_limit - 1
        assert found.searches == most == 8 and found.ended == "answered"
        heads = [text.partition("\n")[0] for text in seen[1:]]
        *several, one, none = heads
        assert several == [f"[{n} searches left]" for n in range(7, 1, -1)]
        assert (one, none) == ("[1 search left]", "[No searches are left; your answers are due now]")

    def test_who_goes_on_searching_is_told_once_and_has_no_answer(self):
        seen = list[str]()

        def answer(messages: list[Message]) -> Any:
            seen.append(told(messages))
            return completion(None, f"query {len(seen)}")

        found = attempt(player(answer))
        assert (found.ended, found.searches, found.turns) == ("out_of_turns", 8, 10)
        assert seen[-1] == "error: no searches are left; write a message with your answers now, and no call"

    def test_calls_of_one_reply_are_answered_in_its_order_whichever_comes_first(self):
        at = drawn()
        tools = Tools(at, at.tasks[0])
        tools.replied(completion(None, "a", "b", "a"))
        said = [tools.call({"query": query}).partition("\n")[0] for query in ("b", "a", "a")]
        assert said == ["[6 searches left]", "[7 searches left]", "[5 searches left]"]

    @pytest.mark.parametrize("arguments", ["{", '"text"', '{"q": "x"}', '{"query": 3}', '{"query": " "}', "null"])
    def test_a_call_without_a_query_is_explained_and_not_counted(self, arguments: str):
        seen = list[str]()

        def answer(messages: list[Message]) -> Any:
            seen.append(told(messages))
            broken = {"id": "c", "function": {"name": "search", "arguments": arguments}}
            said = {"role": "assistant", "tool_calls": [broken]}
            return {"choices": [{"message": said}]} if len(seen) == 1 else completion("Q1 x")

        found = attempt(player(answer))
        assert (found.searches, found.turns, found.ended) == (0, 2, "answered")
        assert seen[1].startswith("error: ")

    def test_an_attempt_that_the_environment_ends_is_scored_as_it_says(self):
        class Ends:
            def observe(self, actions: Sequence[Action]) -> list[Observation]:
                assert [action.history for action in actions] == [()]
                return [Observation(text="This breaks a rule.", answer="Q1 right; Q2 wrong", ended=True)]

            def score(self, task: Any, answer: str) -> Outcome:
                return Outcome(1.0, {"em": (float("right" in answer), 0.0)})

        at, asked = drawn(), list[int]()
        object.__setattr__(at.source, "environment", Ends())

        def answer(messages: list[Message]) -> Any:
            asked.append(len(messages))
            return completion(None, "a", "b")

        ((found, _),) = player(answer).attempts(at, at.tasks[:1], "full", lambda: False)
        assert (found.ended, found.detail, found.right) == ("answered", "This breaks a rule.", (1.0, 0.0))
        assert asked == [1] and (found.turns, found.searches) == (1, 1), "no further turn, and no further search"

    def test_nothing_can_be_recalled(self):
        offered = list[list[Message]]()

        def complete(messages: list[Message], tools: list[Message]) -> tuple[Mapping[str, Any], Usage]:
            offered.append(tools)
            return scripted_chat(drawn())(messages, tools)

        attempt(ChatPlayer("m", {}, lambda drawn, memory: complete), "masked(1)")
        assert {tool["function"]["name"] for tools in offered for tool in tools} == {"search"}


class TestFailures:
    def test_a_server_that_fails_is_no_failure_of_the_model(self):
        found = attempt(player(lambda messages: EngineFailed("http://x: status 503")))
        assert (found.ended, found.detail, found.right) == ("engine_failed", "http://x: status 503", (0.0, 0.0))

    def test_one_that_fails_while_a_state_is_written_ends_the_attempt_too(self):
        script = scripted_chat(drawn())
        asked = list[str]()

        def answer(messages: list[Message]) -> Any:
            asked.append(told(messages))
            if asked[-1].startswith(ASK):
                return EngineFailed("down")
            return script(messages, [{"function": {"name": "search", "parameters": {"properties": {"query": {}}}}}])[0]

        found = attempt(player(answer), "fold(1)")
        assert (found.ended, found.detail) == ("engine_failed", "down")
        assert sum(text.startswith(ASK) for text in asked) == 1, "nothing was asked after the failure"

    def test_a_context_that_has_grown_too_long_is_the_memory_s_doing_and_no_reply(self, tmp_path: Path):
        journal = Journal(tmp_path / "journal.jsonl")

        def answer(messages: list[Message]) -> Any:
            too_long = Refused("status 400 (This model's maximum context length is 4096 tokens)")
            return completion(None, "Alvex") if len(messages) == 1 else too_long

        found = attempt(player(answer, journal))
        assert found.ended == "out_of_tokens" and "maximum context length" in found.detail
        assert len(journal) == 1
        assert attempt(player(lambda messages: Refused("status 401"))).ended == "engine_failed"

    @pytest.mark.parametrize(
        "why",
        [
            "This model's maximum context length is 4096 tokens. However, you requested 4342 tokens (342 in the "
            "messages, 4000 in the completion)",
            "`max_tokens` must be less than or equal to `2048`, it is less than the `context_window` for this model",
        ],
    )
    def test_a_first_request_that_does_not_fit_ends_the_run_and_is_no_reply(self, tmp_path: Path, why: str):
        journal = Journal(tmp_path / "journal.jsonl")
        with pytest.raises(UserError, match=r"first request, of independent-1-n2-seed0-0, .*--setting max_tokens=N"):
            attempt(player(lambda messages: Refused(f"status 400 ({why})"), journal))
        assert len(journal) == 0
        journal.add(Call("another", "full", 1, "x"), {})
        found = attempt(player(lambda messages: Refused(f"status 400 ({why})"), journal))
        assert (found.ended, len(journal)) == ("out_of_tokens", 1), "smaller tasks have fitted"

    @pytest.mark.parametrize(
        ("said", "ended"),
        [
            (completion(""), "bad_tags"),
            (completion("", finish="length"), "out_of_tokens"),
            (completion("Q1 half an ans", finish="length"), "out_of_tokens"),
            ({"choices": []}, "bad_tags"),
            ({"choices": [{"message": {"role": "assistant", "tool_calls": "x"}}]}, "bad_tags"),
        ],
    )
    def test_a_reply_that_is_none_ends_the_attempt_with_its_reason(self, said: Any, ended: str):
        found = attempt(player(lambda messages: said))
        assert (found.ended, found.right) == (ended, (0.0, 0.0))

    def test_a_tool_that_fails_is_no_failure_of_the_model(self):
        class Broken:
            def observe(self, actions: Any) -> Any:
                raise RuntimeError("a fault of ours")

            def score(self, task: Any, answer: str) -> Any:
                raise AssertionError

        at = drawn()
        object.__setattr__(at.source, "environment", Broken())
        with pytest.raises(RuntimeError, match="a fault of ours"):
            player(lambda messages: completion(None, "x")).attempts(at, at.tasks[:1], "full", lambda: False)

    def test_a_limit_ends_the_run_and_a_stop_the_attempt(self):
        at = drawn()
        with pytest.raises(LimitReached, match="reached"):
            attempt(player(lambda messages: LimitReached("the limit is reached")))
        never = player(lambda messages: pytest.fail("asked after a stop"))
        assert never.attempts(at, at.tasks, "full", lambda: True) == []


class TestTheJournal:
    @pytest.mark.parametrize("form", ["tool_calls", "function_call", "text"])
    def test_what_was_answered_is_not_asked_again_even_where_calls_have_no_ids(self, tmp_path: Path, form: str):
        asked = list[int]()

        def answer(messages: list[Message]) -> Any:
            asked.append(len(messages))
            if len(messages) > 4:
                return completion("Q1 x; Q2 y")
            said = completion(None, "a")
            message = said["choices"][0]["message"]
            function = message["tool_calls"][0]["function"]
            if form == "function_call":
                del message["tool_calls"]
                message["function_call"] = function
            elif form == "text":
                del message["tool_calls"]
                message["content"] = (
                    f'<tool_call>{{"name": "search", "arguments": {function["arguments"]}}}</tool_call>'
                )
            return said

        first = attempt(player(answer, Journal(tmp_path / "journal.jsonl")))
        again = Journal(tmp_path / "journal.jsonl")
        second = attempt(player(lambda messages: pytest.fail("asked twice"), again))
        assert asked == [1, 3, 5] and len(again) == 3 and again.money == 1.5
        assert (first.right, first.tokens, first.searches) == (second.right, second.tokens, second.searches)

    def test_a_changed_reply_is_noticed_and_asked_again_once_its_line_is_removed(self, tmp_path: Path):
        path = tmp_path / "journal.jsonl"
        attempt(player(lambda messages: completion("Q1 x; Q2 y"), Journal(path)))
        path.write_text(path.read_text().replace("Q2 y", "Q2 z"))
        with pytest.raises(UserError, match=r"journal.jsonl:1: this reply is not as it was recorded; remove the line"):
            Journal(path)

    def test_another_memory_or_another_request_is_asked(self, tmp_path: Path):
        journal = Journal(tmp_path / "journal.jsonl")
        attempt(player(lambda messages: completion("Q1 x"), journal))
        attempt(player(lambda messages: completion("Q1 x"), journal), "window(1)")
        attempt(player(lambda messages: completion("Q1 x"), journal), "notes")
        assert len(journal) == 3


def test_memories_are_checked_before_anything_runs():
    with pytest.raises(UserError, match="unknown memory 'forget'"):
        scripted_player("script", state=None).check("forget")
    with pytest.raises(UserError, match=r"fold\(auto\) needs prices"):
        scripted_player("script", state=None).check("fold(auto)")
    scripted_player("script", state=None, prices=PRICES).check("fold(auto)")
    with pytest.raises(UserError, match="unknown memory 'forget'"):
        script_player("script", state=None).check("forget")


def test_an_estimate_is_what_the_script_uses():
    cells = suite({1: 2, 2: 3}, ("independent",))
    (keep, fold) = estimates(cells, ["full", "fold(1)"], seed=0, prices=PRICES)
    one, drawing = scripted_player("script", state=None, prices=PRICES), Drawing(cells, seed=0, native=True)
    every = [drawing.of(cell) for cell in cells.cells]
    found = [played.attempt for at in every for played in one.attempts(at, at.tasks, "full", lambda: False)]
    assert keep.tasks == 5 and keep.input == sum(a.tokens.fresh + a.tokens.cached for a in found)
    assert keep.output == sum(a.tokens.output for a in found)
    assert keep.cost == pytest.approx(sum(a.cost or 0.0 for a in found))
    assert fold.output > keep.output, "states are written"


def test_of_large_cells_a_few_tasks_are_played_and_counted_as_all():
    (few,), (many,) = (estimates(suite({2: n}, ("independent",)), ["full"], seed=0) for n in (4, 400))
    assert many.input == pytest.approx(100 * few.input) and many.cost is None


def test_cells_of_long_tasks_are_extrapolated_from_two_smaller_ones():
    cells = suite({8: 1, 16: 1, 64: 2}, ("independent",))
    eight, sixteen = (estimates(replace(cells, cells=(cell,)), ["full"], seed=0)[0] for cell in cells.cells[:2])
    (whole,) = estimates(cells, ["full"], seed=0)
    slope = (sixteen.cached / 16 - eight.cached / 8) / 8
    assert slope > 0 and whole.tasks == 4
    assert whole.cached == pytest.approx(eight.cached + sixteen.cached + 2 * 64 * (sixteen.cached / 16 + slope * 48))
