"""The page of a run, written from what its folder holds; nothing is computed by a model.

runs/quick/                     runs/my-recipe/                 what `mem1 quickstart` and `mem1 train` write
    evaluation/base-2.jsonl         evaluation/trained-2.jsonl      rows of the table, trajectories
    evaluation/trained-2.jsonl      config.toml, metrics.jsonl      facts, learning curves
    train/config.toml, ...          policy/                         its tokenizer, to show tokens as text
    train/policy/

write_run_report(Path("runs/quick"))  ->  runs/quick/report.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError
from mem1.records import Trajectory

if TYPE_CHECKING:
    from mem1.engines.codec import Codec

PAGE = "report.html"
SHOWN_OBJECTIVES = (4, 2)
"""Numbers of objectives whose trajectories are long enough to show something and short enough to read."""

_PROGRAM = {"__main__.py": "mem1"}
"""`python -m mem1` calls itself by the name of its file."""

Evaluations = Mapping[tuple[str, int], Sequence[Trajectory]]
"""(policy, objectives) -> its trajectories."""


def write_run_report(run: Path) -> Path:
    """Write `run/report.html` anew and return its path.

    Raises UserError where `run` is no folder of a run, holds nothing to report yet, or a file in it is damaged.
    """
    from mem1.evaluation.report.page import write_report
    from mem1.training.metrics_log import METRICS, read_metrics

    run = Path(run)
    training = training_folder(run)
    evaluations = read_evaluations(run / "evaluation")
    metrics = read_metrics(training / METRICS) if (training / METRICS).is_file() else []
    if not evaluations and not metrics:
        raise UserError(
            f"{run} holds nothing to report: no evaluation/<policy>-<N>.jsonl and no {METRICS}; "
            "give the folder of a `mem1 quickstart` or `mem1 train`"
        )
    shown = trajectories_to_show(evaluations)
    codec = _codec(training) if shown else None
    write_report(
        run / PAGE,
        title=run.resolve().name,
        rows=rows(evaluations),
        curve=[row for row in metrics if "reward" in row],
        trajectories=shown,
        decode=codec.decode if codec else str,
        facts=facts(training),
    )
    return run / PAGE


def training_folder(run: Path) -> Path:
    """The folder that holds config.toml. Raises UserError where there is none."""
    for folder in (run / "train", run):
        if (folder / "config.toml").is_file():
            return folder
    raise UserError(f"{run} is not the folder of a run: neither config.toml nor train/config.toml is in it")


def read_evaluations(folder: Path) -> Evaluations:
    """All trajectories of a run's evaluations: "base" first, "trained" last, each by rising N."""
    from mem1.evaluation.store import read_trajectories

    named = [(match, path) for path in folder.glob("*.jsonl") if (match := re.fullmatch(r"(.+)-(\d+)", path.stem))]
    found = {(match[1], int(match[2])): path for match, path in named}
    rank = {"base": 0, "trained": 2}
    order = sorted(found, key=lambda key: (rank.get(key[0], 1), key))
    return {key: read_trajectories(found[key]) for key in order}


def rows(evaluations: Evaluations) -> list[dict[str, Any]]:
    """The rows of the table, as `mem1 eval --json` prints them."""
    from mem1.evaluation.metrics import summarize

    return [
        summarize(trajectories, policy=policy, context=trajectories[0].context, objectives=objectives).as_dict()
        for (policy, objectives), trajectories in evaluations.items()
        if trajectories
    ]


def trajectories_to_show(evaluations: Evaluations) -> list[tuple[str, Trajectory]]:
    """The first and the last policy's attempts at one task: the one on which they differ most.

    Of the sizes in `SHOWN_OBJECTIVES` the first that was evaluated, else the smallest.
    """
    sizes = sorted({objectives for _, objectives in evaluations})
    if not sizes:
        return []
    size = next((n for n in SHOWN_OBJECTIVES if n in sizes), sizes[0])
    policies = [policy for policy, objectives in evaluations if objectives == size]
    first, last = (
        {t.task.id: t for t in evaluations[policy, size] if t.task is not None}
        for policy in (policies[0], policies[-1])
    )
    common = [task for task in last if task in first]
    if not common:
        return []
    task = max(common, key=lambda task: (last[task].reward or 0.0) - (first[task].reward or 0.0))
    attempts = dict(zip((policies[0], policies[-1]), (first[task], last[task]), strict=True))
    return [(f"{policy}, {size} objectives", attempt) for policy, attempt in attempts.items()]


def facts(training: Path) -> dict[str, str]:
    """How the run came about, from its config.toml and resolved.json; what they do not say is left out."""
    from mem1.configuration import read_toml

    config = read_toml(training / "config.toml")
    resolved = _resolved(training / "resolved.json")
    command: list[str] = resolved.get("command", [])
    known = {
        "command": " ".join(_PROGRAM.get(word, word) for word in command),
        "seed": str(config.get("seed", "")),
        "context policy": str(config.get("context", "")),
        "tasks": str(config.get("tasks", {}).get("kind", "")),
        "training": _training(config),
        "versions": ", ".join(f"{name} {version}" for name, version in resolved.get("versions", {}).items()),
        "hardware": str(resolved.get("hardware", "")),
    }
    return {name: value for name, value in known.items() if value}


def _training(config: Mapping[str, Any]) -> str:
    """The stages of a recipe in words."""
    stages = [f"{stage}, {config[stage]['steps']} steps" for stage in ("recall", "sft") if stage in config]
    rl = config.get("rl")
    if rl is not None:
        phases = "; then ".join(
            f"{phase['steps']} steps on N = {', '.join(map(str, phase['objectives']))}" for phase in rl["phases"]
        )
        stages.append(f"rl, {phases} ({rl['groups']} tasks, {rl['attempts']} attempts at each, a step)")
    return "; ".join(stages)


def _resolved(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); repair or delete it") from error


def _codec(training: Path) -> Codec:
    """The tokenizer of the run's policy; before it is saved, that of the policy that the run started from."""
    from mem1.configuration import read_toml
    from mem1.engines.codec import Codec

    if (training / "policy" / "tokenizer.json").is_file():
        return Codec.load(training / "policy")
    model = read_toml(training / "config.toml").get("model", {})
    if "new" in model:
        raise UserError(
            f"{training / 'policy'} does not exist yet; the run has a tokenizer of its own, so finish it first"
        )
    from mem1.training.policy import SHIPPED, policy_folder

    return Codec.load(policy_folder(model.get("path", SHIPPED)))
