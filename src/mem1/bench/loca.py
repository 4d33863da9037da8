"""Results of LOCA-bench (arXiv 2602.07962), read from the folder that its own command writes.

    outputs/inf_react_final_8k_set_config_qwen_.../
        results.json                                   metadata: model, elapsed_seconds
        tasks/CanvasArrangeExamS2LEnv/state0/eval.json          status, accuracy, steps, feedback
                                             token_stats.json   usage_tracking: tokens of each call

    read_loca(Path("outputs/inf_react_..."), memory="fold(auto)", level=8)  ->  Result(attempts=(Attempt(...), ...))

Its tasks need its own tool servers, workspaces and checks, so it runs in its own harness; a memory of mem1 comes
between by the address of the model. What it found is compared like every other result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mem1.bench.results import Attempt, Result, Spent
from mem1.errors import UserError
from mem1.version import __version__

FAMILY = "loca-bench"
_TASKS = 1
"""Version of its tasks, in the sense of `Result.tasks`: those of github.com/hkust-nlp/LOCA-bench at 8cd474d."""


def read_loca(folder: Path, *, memory: str, level: int) -> Result:
    """The attempts of one run. `memory` names what stood between agent and model; `level` is the length of its
    environments in thousands of tokens, as in the name of its configuration (8, 16, ... 256).

    Raises UserError for a folder that LOCA-bench did not write, or did not finish.
    """
    summary = _read(folder / "results.json")
    about = summary.get("metadata")
    if not isinstance(about, Mapping) or not isinstance(about.get("model"), str):
        raise UserError(f"{folder / 'results.json'} names no model; is this an output folder of loca run?")
    evaluated = sorted((folder / "tasks").glob("*/state*/eval.json"))
    if not evaluated:
        raise UserError(f"{folder / 'tasks'} has no */state*/eval.json; did loca run finish a task?")
    return Result(
        model=about["model"],
        about={"kind": "loca-bench", "folder": folder.name},
        suite=f"{FAMILY}-{level}k",
        seed=0,
        version=__version__,
        tasks=_TASKS,
        attempts=tuple(_attempt(path, memory, level) for path in evaluated),
        seconds=float(about.get("elapsed_seconds") or 0.0),
    )


def _attempt(path: Path, memory: str, level: int) -> Attempt:
    found, stats = _read(path), path.with_name("token_stats.json")
    calls = _read(stats).get("usage_tracking", []) if stats.exists() else []
    accuracy, steps = found.get("accuracy"), found.get("steps", 0)
    if isinstance(accuracy, bool) or not isinstance(accuracy, (int, float)) or not 0 <= accuracy <= 1:
        raise UserError(f"{path}: accuracy must be a number from 0 to 1, not {accuracy!r}")
    if not isinstance(steps, int) or not isinstance(calls, list):
        raise UserError(f"{path}: steps must be a whole number, and usage_tracking of {stats.name} a list")
    failed = found.get("status") != "success"
    return Attempt(
        task=f"{FAMILY}-{level}k-{path.parent.parent.name}-{path.parent.name}",
        family=FAMILY,
        level=level,
        objectives=1,
        memory=memory,
        right=(float(accuracy),),
        ended="agent_failed" if failed else "answered",
        detail=str(found.get("feedback", "")) if failed else "",
        turns=steps,
        searches=steps,
        tokens=_spent(calls, stats),
        peak=max((_tokens(call, "total_tokens", stats) for call in calls), default=0),
    )


def _spent(calls: Sequence[Any], path: Path) -> Spent:
    cached = sum(_tokens(call, "prompt_cache_hit_tokens", path) for call in calls)
    prompts = sum(_tokens(call, "prompt_tokens", path) for call in calls)
    output = sum(_tokens(call, "completion_tokens", path) for call in calls)
    return Spent(fresh=max(prompts - cached, 0), cached=cached, output=output)


def _tokens(call: Any, name: str, path: Path) -> int:
    value = call.get(name, 0) if isinstance(call, Mapping) else None
    if not isinstance(value, int) or value < 0:
        raise UserError(f"{path}: {name} of every call must be a whole number, not {value!r}")
    return value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; give an output folder of loca run") from error
    if not isinstance(record, Mapping):
        raise UserError(f"{path} is no JSON object; give an output folder of loca run")
    return record
