"""Trajectories on disk: what is written is what is read, and a cut file is never read as a whole one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.records import Ended, Question, Task, Trajectory, Turn, trajectory_to_json
from mem1.trajectory_files import append_trajectories, read_trajectories, write_trajectories


def attempt(answer: str) -> Trajectory:
    question = Question(id="q", text="Where?", answers=("Oslo", "Kristiania"), passage_ids=("p1",))
    return Trajectory(
        turns=(
            Turn(
                context_ids=(1, 2),
                completion_ids=(3, 4),
                logprobs=(-0.1, -1 / 3),
                observation_ids=(5,),
                context_spans={"prompt": (0, 2)},
            ),
        ),
        task=Task(id="t", questions=(question,), prompt="Where?", turn_limit=6),
        ended=Ended.OUT_OF_TURNS,
        answer=answer,
        reward=0.0,
        metrics={"em": (0.0,), "f1": (0.0,)},
        seconds=0.1,
    )


FIRST, SECOND, THIRD = attempt("Bergen"), attempt("Łódź \u2028 \n </script> 😀"), attempt("")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trajectories.jsonl"


def test_what_is_written_is_read_back_equal_to_the_last_bit(path):
    write_trajectories(path, [FIRST, SECOND, THIRD])
    assert read_trajectories(path) == [FIRST, SECOND, THIRD]
    assert path.read_bytes().count(b"\n") == 3


def test_a_line_is_the_record_as_json_whatever_its_texts_say(path):
    posing = '"context_ids": null, \\"completion_ids\\": null, "observation_ids": null \ud800'
    turn = replace(FIRST.turns[0], context_ids=(1, 70_000, 1), text=posing, observation=posing)
    trajectory = replace(FIRST, turns=(turn, replace(turn, observation_ids=())), detail=posing)
    plain = replace(SECOND, turns=())
    append_trajectories(path, [trajectory, plain])
    expected = [json.loads(json.dumps(trajectory_to_json(t))) for t in (trajectory, plain)]
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == expected
    assert read_trajectories(path) == [trajectory, plain]


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.integers() | st.lists(st.text() | st.booleans())))
def test_what_json_writes_and_what_is_written_here_are_read_as_the_same(record):
    line = encode_object(record)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == json.loads(json.dumps(record)) == record


def test_what_is_no_number_stays_that():
    assert json.loads(encode_object({"x": math.inf, "y": [-math.inf]})) == {"x": math.inf, "y": [-math.inf]}
    assert math.isnan(json.loads(encode_object({"x": math.nan}))["x"])


def test_a_gzipped_file_is_read_and_not_appended_to(path):
    zipped = path.with_name("kept.jsonl.gz")
    write_trajectories(zipped, [FIRST, SECOND])
    whole = zipped.read_bytes()
    assert whole[:2] == b"\x1f\x8b" and read_trajectories(zipped) == [FIRST, SECOND]
    with pytest.raises(UserError, match="is gzipped, and lines are appended to plain files"):
        append_trajectories(zipped, [THIRD])
    assert zipped.read_bytes() == whole


def test_a_line_that_is_nested_too_deeply_is_named(path):
    path.write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(UserError, match=":1: not valid JSON"):
        read_trajectories(path)


def test_a_generator_can_be_written(path):
    write_trajectories(path, (t for t in [FIRST, SECOND]))
    assert read_trajectories(path) == [FIRST, SECOND]


def test_appending_makes_the_file_and_then_adds_to_it(path):
    append_trajectories(path, [FIRST])
    append_trajectories(path, [SECOND, THIRD])
    assert read_trajectories(path) == [FIRST, SECOND, THIRD]


def test_appending_nothing_changes_nothing(path):
    write_trajectories(path, [FIRST])
    before = path.read_bytes()
    append_trajectories(path, [])
    assert path.read_bytes() == before


def test_writing_again_replaces_the_file_and_leaves_nothing_beside_it(path):
    write_trajectories(path, [FIRST])
    write_trajectories(path, [SECOND])
    assert read_trajectories(path) == [SECOND]
    assert os.listdir(path.parent) == [path.name]


def test_a_failure_in_the_middle_of_writing_keeps_the_old_file(path):
    write_trajectories(path, [FIRST])

    def broken():
        yield SECOND
        raise RuntimeError("rollout died")

    with pytest.raises(RuntimeError, match="rollout died"):
        write_trajectories(path, broken())
    assert read_trajectories(path) == [FIRST]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_a_cut_last_line_is_reported_with_file_and_line_and_dropped_only_when_asked(path, kept):
    write_trajectories(path, [FIRST])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    with pytest.raises(UserError, match=rf"{path.name}:2: the last line is cut.*drop_cut_line"):
        read_trajectories(path)
    assert read_trajectories(path, drop_cut_line=True) == [FIRST]
    assert len(path.read_bytes()) > len(whole), "reading must not change the file"


def test_a_line_cut_inside_a_character_is_a_cut_line(path):
    write_trajectories(path, [FIRST])
    write_trajectories(path.with_name("other"), [SECOND])
    line = path.with_name("other").read_bytes()
    path.write_bytes(path.read_bytes() + line[: line.index("Ł".encode()) + 1])
    assert read_trajectories(path, drop_cut_line=True) == [FIRST]


def test_nothing_is_appended_behind_a_cut_line(path):
    write_trajectories(path, [FIRST, SECOND])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=rf"{path.name}:2: the last line is cut"):
        append_trajectories(path, [THIRD])
    append_trajectories(path, [THIRD], drop_cut_line=True)
    assert read_trajectories(path) == [FIRST, THIRD]


def test_a_whole_record_without_its_line_break_is_kept_and_appended_to(path):
    write_trajectories(path, [FIRST])
    path.write_bytes(path.read_bytes()[:-1])
    assert read_trajectories(path) == [FIRST]
    append_trajectories(path, [SECOND])
    assert read_trajectories(path) == [FIRST, SECOND]


def test_a_last_line_longer_than_a_block_is_found_from_the_end(path):
    write_trajectories(path, [FIRST, attempt("x" * 200_000)])
    path.write_bytes(path.read_bytes()[:-1])
    append_trajectories(path, [SECOND])
    assert [len(t.answer) for t in read_trajectories(path)][:2] == [6, 200_000]


def test_a_damaged_line_in_the_middle_is_an_error_even_when_a_cut_line_may_be_dropped(path):
    write_trajectories(path, [FIRST, SECOND, THIRD])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:30] + b"\n" + lines[2])
    with pytest.raises(UserError, match=rf"{path.name}:2: not valid JSON"):
        read_trajectories(path, drop_cut_line=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"version": 99, "turns": []}', "version 99"),
        ('{"version": 3}', "turns"),
        ('{"version": 3, "turns": [], "ended": "bored"}', "bored"),
        ('{"version": 3, "turns": [], "ended": "answered", "metrics": {}, "mood": 1}', "mood"),
        ('{"version": 3, "turns": [], "ended": "answered", "rerolled": [0, 1]}', "'rerolled'"),
        ("[1, 2]", "not a trajectory record"),
    ],
)
def test_json_that_is_no_trajectory_is_an_error_with_file_line_and_reason(path, line, reason):
    write_trajectories(path, [FIRST])
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(UserError, match=rf"{path.name}:2: .*{reason}"):
        read_trajectories(path)


def test_blank_lines_are_skipped_but_counted(path):
    write_trajectories(path, [FIRST])
    path.write_bytes(path.read_bytes() + b"\n\n{bad}\n")
    with pytest.raises(UserError, match=rf"{path.name}:4: "):
        read_trajectories(path)


def test_an_empty_file_holds_no_trajectories(path):
    path.touch()
    assert read_trajectories(path) == []


def test_a_missing_file_and_a_missing_folder_are_errors_that_name_them(path):
    with pytest.raises(UserError, match="no such file"):
        read_trajectories(path)
    for write in (write_trajectories, append_trajectories):
        with pytest.raises(UserError, match="nowhere"):
            write(path.parent / "nowhere" / "t.jsonl", [FIRST])


def test_a_file_that_outgrows_the_disk_is_an_error_and_the_old_records_stay(path):
    """A file size limit stands in for the full disk; it needs a process of its own."""
    write_trajectories(path, [FIRST])
    code = f"""
import resource, signal
from mem1.errors import UserError
from mem1.trajectory_files import read_trajectories, write_trajectories
old = read_trajectories({str(path)!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    write_trajectories({str(path)!r}, old * 1000)
except UserError as error:
    print("refused:", error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.startswith("refused:")
    assert path.name in done.stdout
    assert read_trajectories(path) == [FIRST]
    assert os.listdir(path.parent) == [path.name]
