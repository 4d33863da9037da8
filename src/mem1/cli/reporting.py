"""What a report is made of, read from the folders of runs; nothing is computed by a model.

runs/quick/                     runs/my-recipe/                 runs/eval/          of quickstart, train, eval --out
    evaluation/base-2.jsonl         evaluation/trained-2.jsonl      shipped-2.jsonl     rows, trajectories
    evaluation/trained-2.jsonl      config.toml, metrics.jsonl                          facts, learning curves
    train/config.toml, ...          policy/                                             its tokenizer
    train/policy/

write_run_report(Path("runs/quick"))                        ->  runs/quick/report.html
read_runs([Path("runs/a-seed0"), Path("runs/a-seed1")])     ->  two runs of the family "a"
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.evaluation.report.rows import Run

PAGE = "report.html"


def write_run_report(run: Path, *, tokenizer: Path | None = None) -> Path:
    """Write `run/report.html` anew and return its path. Raises UserError as `read_runs` does."""
    from mem1.evaluation.report.page import write_page

    write_page(run / PAGE, read_runs([run], tokenizer=tokenizer), title=run.resolve().name)
    return run / PAGE


def read_runs(folders: Sequence[Path], *, tokenizer: Path | None = None) -> list[Run]:
    """Everything that a page or a table shows of these runs.

    Runs whose config.toml differ in seeds and context policy alone are of one family, named after them without
    "seed0". Raises UserError where a folder is no run's, holds nothing to report yet, or a file in it is damaged.
    """
    runs = [_read(f, n, tokenizer) for f, n in zip(folders, run_names(folders), strict=True)]
    names: dict[str, str] = {}
    for run in runs:
        name = re.sub(r"[-_. ]*seed[-_ ]?\d+", "", run.name) or run.name
        names.setdefault(run.family, run.name if name in names.values() else name)
    return [replace(run, family=names[run.family]) for run in runs]


def run_names(folders: Sequence[Path]) -> list[str]:
    """The end of each path, as many folders long as it takes to tell them apart.

    Raises UserError where one is given twice.
    """
    resolved = [Path(folder).resolve() for folder in folders]
    for path in resolved:
        if resolved.count(path) > 1:
            raise UserError(f"{path} is given twice; give each run once")
    for length in count(1):
        names = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(names)) == len(names):
            break
    return names


def _read(run: Path, name: str, tokenizer: Path | None) -> Run:
    from mem1.cli.run_codec import run_codec
    from mem1.cli.run_facts import facts
    from mem1.evaluation.report.rows import Run, read_evaluations
    from mem1.training.loop.run_folder import METRICS, read_metrics

    training = training_folder(run)
    evaluations = read_evaluations(run / "evaluation" if (run / "evaluation").is_dir() else run)
    metrics = read_metrics(training / METRICS) if training and (training / METRICS).is_file() else []
    if not evaluations and not metrics:
        raise UserError(
            f"{run} holds nothing to report: no <policy>-<N>.jsonl and no {METRICS}; "
            "give the folder of a `mem1 quickstart`, `mem1 train` or `mem1 eval --out`"
        )
    trajectories = [t for attempts in evaluations for t in attempts.trajectories]
    return Run(
        name=name,
        family=str(run.resolve()) if training is None else _all_but_seeds(training),
        facts={} if training is None else facts(training),
        curve=[row for row in metrics if "reward" in row],
        attempts=evaluations,
        decode=run_codec(run, training, trajectories, tokenizer=tokenizer).decode if trajectories else _no_tokens,
    )


def _no_tokens(ids: Sequence[int]) -> str:
    raise ValueError("a run without trajectories has no tokens to show")


def training_folder(run: Path) -> Path | None:
    """The folder that holds config.toml; None: the run is an evaluation alone."""
    return next((folder for folder in (run / "train", run) if (folder / "config.toml").is_file()), None)


def _all_but_seeds(training: Path) -> str:
    """What runs of one family share: their configuration without seeds and context policy, which every row names."""
    from mem1.configuration import read_toml

    config: dict[str, Any] = dict(read_toml(training / "config.toml"))
    evaluation = {key: value for key, value in config.pop("evaluation", {}).items() if key != "seed"}
    shared = {key: value for key, value in config.items() if key not in ("seed", "context")}
    return json.dumps({**shared, "evaluation": evaluation}, sort_keys=True, default=str)
