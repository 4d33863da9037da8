"""Files of finished runs: one for each while an experiment goes on, one line for each when its folder is packed.

    python benchmarks/run_files.py benchmarks/results/beyond/runs      packs the folder into beyond/runs.jsonl

    runs/notes-seed0.json  {"commit": "4b18769", "result": {"tokens": {"2": {"em": [0.5, 1.0], "peak": 127.84}}}}
    runs.jsonl             {"run":"notes-seed0",...,"result":{"tokens":{"2":{"solved":[1,2],"peak":127.84}}}}

Scripts that make or show runs read both alike, by the path of the file; where there is a file and a line, the file.
Packing a folder again adds its new files. In a line, exact match of tasks of N objectives is the number that was solved
of each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mem1.durable import write_file

RunFile = Mapping[str, Any]


def run_names(folder: Path) -> list[str]:
    """What the folder has runs of, in order."""
    return sorted({path.stem for path in folder.glob("*.json")} | _packed(folder).keys())


def read_run(path: Path) -> RunFile | None:
    """What is at this path, or was before it was packed; None: the run is not finished."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    return _packed(path.parent).get(path.stem)


def result_at(path: Path) -> Any:
    """What a run of benchmarks/compare.py has found; None: it is not finished."""
    run = read_run(path)
    return None if run is None else run["result"]


def pack(folder: Path) -> Path:
    """Put the folder's files into its lines; returns the path of those."""
    lines = [
        json.dumps({"run": name, **_short(read_run(folder / f"{name}.json"))}, separators=(",", ":"))
        for name in run_names(folder)
    ]
    write_file(_lines(folder), "".join(f"{line}\n" for line in lines).encode())
    for path in folder.glob("*.json"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return _lines(folder)


def _lines(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.jsonl"


def _packed(folder: Path) -> Mapping[str, RunFile]:
    lines = _lines(folder)
    return _read(lines, lines.stat().st_mtime_ns) if lines.is_file() else {}


@cache
def _read(lines: Path, changed_ns: int) -> Mapping[str, RunFile]:
    """By name; read again only when the file has changed."""
    runs = map(json.loads, lines.read_text(encoding="utf-8").splitlines())
    return {run.pop("run"): _long(run) for run in runs}


def _short(value: Any, objectives: int = 0) -> Any:
    """Whole numbers without a point; exact match as the number of solved objectives."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_short(item) for item in value]
    if not isinstance(value, dict):
        return value
    short: dict[str, Any] = {}
    for key, item in value.items():
        if key == "em" and objectives and isinstance(item, list):
            solved = [round(em * objectives) for em in item]
            if _exact_match(solved, objectives) == item:
                short["solved"] = solved
                continue
        short[key] = _short(item, _size(key))
    return short


def _long(value: Any, objectives: int = 0) -> Any:
    if not isinstance(value, dict):
        return value
    long: dict[str, Any] = {}
    for key, item in value.items():
        if key == "solved" and objectives:
            long["em"] = _exact_match(item, objectives)
        else:
            long[key] = _long(item, _size(key))
    return long


def _size(key: str) -> int:
    """The number of objectives that a key stands for; 0: it stands for something else."""
    return int(key) if key.isdecimal() else 0


def _exact_match(solved: Sequence[int], objectives: int) -> list[float]:
    return [round(count / objectives, 4) for count in solved]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    for folder in parser.parse_args(arguments).folders:
        if not run_names(folder):
            parser.error(f"{folder} has no files of runs")
        print(pack(folder))


if __name__ == "__main__":
    main()
