"""The result file of a benchmark run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mem1.bench.results import CANARY, Attempt, Result, Spent, load_result, save_result
from mem1.errors import UserError


def result() -> Result:
    attempts = tuple(
        Attempt(
            task=f"independent-n2-seed0-{number}",
            family="independent",
            level=1,
            objectives=2,
            memory=memory,
            right=(1.0, float(number)),
            ended="answered",
            tokens=Spent(fresh=100, cached=20, output=3),
        )
        for memory in ("full", "notes")
        for number in (0, 1)
    )
    return Result(
        model="qwen", about={"kind": "server"}, suite="quick", seed=0, version="0.1", tasks=1, attempts=attempts
    )


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    save_result(tmp_path / "result.json", result())
    assert load_result(tmp_path / "result.json") == result()
    assert CANARY in (tmp_path / "result.json").read_text()
    assert result().memories == ("full", "notes")
    assert [attempt.accuracy for attempt in result().of("notes")] == [0.5, 1.0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', '{"format": "mem1-bench/1", "canary": ""}'])
def test_another_file_is_an_error(tmp_path: Path, text: str):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match="is not a result of mem1 bench"):
        load_result(tmp_path / "result.json")


def test_a_changed_digit_is_noticed(tmp_path: Path):
    save_result(tmp_path / "result.json", result())
    text = (tmp_path / "result.json").read_text()
    (tmp_path / "result.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(UserError, match=r"is not a result of mem1 bench: it is not as it was written"):
        load_result(tmp_path / "result.json")


WRONG = {
    "right": [[], [2.0, 0.0], [1.0], "10", [None, 1.0]],
    "objectives": [0, -1, 2**60, "two"],
    "tokens": [{"fresh": -1, "cached": 0, "output": 0}, {"fresh": 1}, 3],
    "cost": [-1.0, float("inf"), float("nan")],
    "level": [None, {}],
    "more": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_file_with_numbers_that_are_no_measurement_is_an_error(tmp_path: Path, name: str, value: object):
    save_result(tmp_path / "result.json", result())
    record = json.loads((tmp_path / "result.json").read_text())
    record["attempts"][3][name] = value
    (tmp_path / "result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"is not a result of mem1 bench: attempts\.3"):
        load_result(tmp_path / "result.json")
