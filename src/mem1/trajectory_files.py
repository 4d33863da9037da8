"""Trajectories on disk, one JSON record per line: the file that training, evaluation and reports read.

    write_trajectories("runs/a/trajectories.jsonl", trajectories)      # atomic: the old file or the new one
    append_trajectories("runs/a/trajectories.jsonl", more)
    read_trajectories("runs/a/trajectories.jsonl") == trajectories + more

A process killed while appending leaves an incomplete last line. It is reported with file and line, and dropped only
where the caller asks for it (`drop_cut_line=True`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from mem1.errors import UserError
from mem1.jsonl import append_lines, cut_line, encode_object, read_lines, write_lines
from mem1.records import Trajectory, trajectory_from_json, trajectory_to_json


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Replace the file atomically. Raises UserError if it cannot be written; the old file is then unchanged."""
    write_lines(path, map(encode_object, map(trajectory_to_json, trajectories)))


def append_trajectories(path: str | Path, trajectories: Iterable[Trajectory], *, drop_cut_line: bool = False) -> None:
    """Append records to the file, creating it if necessary.

    Raises UserError if the file cannot be written, or if its last line is incomplete, unless `drop_cut_line` removes
    that line from the file for good.
    """
    append_lines(path, map(encode_object, map(trajectory_to_json, trajectories)), drop_cut_line=drop_cut_line)


def read_trajectories(path: str | Path, *, drop_cut_line: bool = False) -> list[Trajectory]:
    """All records of a file, in order; blank lines are skipped.

    Raises UserError, naming file and line, for a missing file, a line that is not a trajectory, and an incomplete last
    line; with `drop_cut_line` that line is left out and the file not changed.
    """
    path = Path(path)
    trajectories: list[Trajectory] = []
    for number, line, is_last in _lines(path):
        try:
            trajectories.append(trajectory_from_json(json.loads(line)))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            if not (is_last and not line.endswith(b"\n")):
                raise UserError(f"{path}:{number}: not valid JSON ({error}); repair or delete this line") from error
            if not drop_cut_line:
                raise UserError(cut_line(path, number)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}:{number}: not a trajectory record ({error or type(error).__name__})") from error
    return trajectories


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, line, whether it is the last) of every line that is not blank."""
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise UserError(
            f"{path}: {what}; give a file such as RUN/trajectories/step-000012.jsonl or RUN/evaluation/trained-2.jsonl"
        )
    lines = read_lines(path)
    one = next(lines, None)
    while one is not None:
        following = next(lines, None)
        if one[1].strip():
            yield *one, following is None
        one = following
