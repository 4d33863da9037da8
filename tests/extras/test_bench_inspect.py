"""The benchmark in Inspect: the tool with its limit, our scorer, a memory, and a result to compare."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("inspect_ai.agent", reason="needs mem1-agents[inspect]")
from inspect_ai import eval
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.solver import generate

from mem1.bench.results import load_result, save_result
from mem1.bench.scores import compare, score_of, sides_of
from mem1.bench.suites import Drawing, suite_of
from mem1.errors import UserError
from mem1.extras.bench_inspect import bench, result_of
from mem1.messages.transcript import ASK

SMALL = "bench_suites:SMALL"
Behave = Callable[[list[Any], int], ModelOutput]
"""(messages, replies so far in this attempt) -> the next reply."""


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect counts with tiktoken, which fetches its vocabulary."""
    words = SimpleNamespace(encode=lambda text, **_: list(range(-(-len(text) // 4))))
    monkeypatch.setattr("tiktoken.get_encoding", lambda name: words)


def gold() -> dict[str, str]:
    """Prompt -> the right answers."""
    suite = suite_of(SMALL)
    drawing = Drawing(suite, seed=0, native=True)
    return {
        task.prompt: "; ".join(f"Q{number} {question.answers[0]}" for number, question in enumerate(task.questions, 1))
        for cell in suite.cells
        for task in drawing.of(cell).tasks
    }


def search(*queries: str) -> ModelOutput:
    output = ModelOutput.for_tool_call("mockllm/model", "search", {"query": queries[0]})
    more = [ModelOutput.for_tool_call("mockllm/model", "search", {"query": query}) for query in queries[1:]]
    for one in more:
        assert output.message.tool_calls is not None and one.message.tool_calls is not None
        output.message.tool_calls += one.message.tool_calls
    return output


def say(text: str) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", text)


def run(folder: Path, behave: Behave, **more: Any) -> Any:
    solver = more.pop("solver", None)

    def outputs(messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
        return behave(messages, sum(message.role == "assistant" for message in messages))

    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    chosen = {"solver": solver} if solver is not None else {}
    (log,) = eval(bench(SMALL, **more), model=model, log_dir=str(folder), display="none", retry_on_error=0, **chosen)
    return log


def knows(answers: dict[str, str]) -> Behave:
    """Searches once, then gives the right answers."""

    def behave(messages: list[Any], replies: int) -> ModelOutput:
        return search("founder") if replies == 0 else say(answers[messages[0].text])

    return behave


def metrics(log: Any) -> dict[str, float]:
    assert log.status == "success", log.error
    (score,) = log.results.scores
    return {name: metric.value for name, metric in score.metrics.items()}


def test_right_answers_score_one_in_every_family(tmp_path: Path):
    log = run(tmp_path, knows(gold()))
    assert metrics(log) == {"independent": 1.0, "chain": 1.0, "all": 1.0}
    assert len(log.samples) == len(gold()) > 5
    results = [message for message in log.samples[0].messages if message.role == "tool"]
    assert len(results) == 1 and results[0].text.startswith("[") and "searches left]" in results[0].text


def test_the_score_is_the_area_of_mem1_bench(tmp_path: Path):
    answers = gold()

    def half(messages: list[Any], replies: int) -> ModelOutput:
        return say(answers[messages[0].text].split(";")[0])

    log = run(tmp_path, half)
    found = metrics(log)
    assert found == pytest.approx({"independent": 0.75, "chain": 0.5, "all": 0.625})
    result = result_of(log)
    assert score_of(result.attempts).area.value == pytest.approx(found["all"])
    save_result(tmp_path / "result.json", result)
    assert load_result(tmp_path / "result.json") == result


def test_no_search_is_answered_beyond_the_limit_and_no_answer_scores_zero(tmp_path: Path):
    log = run(tmp_path, lambda messages, replies: search(f"founder {replies}"), families="independent")
    assert metrics(log) == {"independent": 0.0, "all": 0.0}
    drawing = Drawing(suite_of(SMALL), seed=0, native=True)
    limits = {task.id: task.turn_limit for cell in suite_of(SMALL).cells for task in drawing.of(cell).tasks}
    for sample in log.samples:
        results = [message.text for message in sample.messages if message.role == "tool"]
        answered = [text for text in results if text.startswith("[")]
        assert len(answered) == limits[sample.id] - 1
        assert answered[-1].startswith("[No searches are left") and "no searches are left" in results[-1]
        assert len(results) == limits[sample.id] - 1 + 2
    attempts = result_of(log).attempts
    assert {attempt.ended for attempt in attempts} == {"out_of_turns"}


def test_calls_of_one_reply_are_answered_in_their_order(tmp_path: Path):
    log = run(tmp_path, lambda m, n: search("a", "b", "c") if n == 0 else say("Q1 x"), families="chain")
    left = [m.text.split("]")[0] for m in log.samples[0].messages if m.role == "tool"]
    numbers = [int(text.split()[0].strip("[")) for text in left]
    assert numbers == [numbers[0], numbers[0] - 1, numbers[0] - 2]


def test_a_memory_shortens_prompts_and_the_results_are_compared(tmp_path: Path):
    answers = gold()

    def behave(messages: list[Any], replies: int) -> ModelOutput:
        if messages[-1].text.startswith(ASK):
            return say("Nothing yet.")
        seen.append(sum(len(message.text) for message in messages))
        (key,) = [prompt for prompt in answers if messages[0].text.startswith(prompt)]
        calls[key] = calls.get(key, 0) + 1
        return search(f"founder {calls[key]}") if calls[key] < 8 else say(answers[key])

    seen: list[int] = []
    calls: dict[str, int] = {}
    plain = run(tmp_path / "a", behave, families="chain")
    longest, seen, calls = max(seen), [], {}
    folded = run(tmp_path / "b", behave, families="chain", memory="fold(1)", threshold=420)
    assert metrics(plain) == metrics(folded) == {"chain": 1.0, "all": 1.0}
    assert max(seen) < longest
    sides = [*sides_of(result_of(plain)), *sides_of(result_of(folded))]
    assert [side.memory for side in sides] == ["full", "fold(1)"]
    assert compare(*sides).families[0].difference.value == 0.0


def test_another_solver_finds_the_tool(tmp_path: Path):
    log = run(tmp_path, knows(gold()), solver=generate())
    assert metrics(log)["all"] == 1.0


def test_families_are_given_as_inspects_command_line_gives_them():
    assert len(bench(SMALL, families=["independent", "chain"]).dataset) == len(gold())
    assert len(bench(SMALL, families="independent, chain").dataset) == len(gold())
    assert len(bench(SMALL, families="chain").dataset) == 3


def test_a_failing_sample_has_nothing_right(tmp_path: Path):
    def fails(messages: list[Any], replies: int) -> ModelOutput:
        raise RuntimeError("the server is gone")

    model_log = run(tmp_path, fails, families="independent")
    attempts = result_of(model_log).attempts
    assert attempts and all(attempt.accuracy == 0.0 and attempt.ended == "engine_failed" for attempt in attempts)


def test_what_is_no_log_of_the_benchmark_and_unknown_families_are_refused(tmp_path: Path):
    log = run(tmp_path, lambda messages, replies: say("x"), families="independent")
    log.eval.metadata = {}
    with pytest.raises(UserError, match="not a log of mem1's benchmark"):
        result_of(log)
    with pytest.raises(UserError, match="has no family 'none'"):
        bench(SMALL, families="none")
