"""Reads the folders of runs for a report; no model computes anything.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from mem1.configuration import read_toml
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.report.page import report
from mem1.evaluation.report.rows import Run, read_evaluations, read_kept
from mem1.evaluation.store import read_made_by
from mem1.pages.page import write_page
from mem1.policy.folders import SHIPPED, SHIPPED_FOLDERS, policy_folder, tokenizer_folder
from mem1.records import Trajectory
from mem1.run_folder import (
    BEST,
    METRICS,
    TRAJECTORIES,
    given_warnings,
    pin_model,
    portable,
    read_metrics,
    read_resolved,
)

PAGE = "report.html"

_PROGRAM = {"__main__.py": "mem1"}
"""`python -m mem1` calls itself by the name of its file."""


def write_run_report(run: Path, *, tokenizer: Path | None = None) -> Path:
    """Write `run/report.html` anew and return its path. Raises UserError as `read_runs` does."""
    write_page(run / PAGE, report(read_runs([run], tokenizer=tokenizer), title=run.resolve().name))
    return run / PAGE


def read_runs(folders: Sequence[Path], *, tokenizer: Path | None = None) -> list[Run]:
    """Everything that a page or a table shows of these runs.

    Runs whose config.toml differ only in seeds and memory form a family, named after them without "seed0".
    Raises UserError if a folder is not a run's or has nothing to report yet, or a file in it is damaged.
    """
    runs = [_read(f, n, tokenizer) for f, n in zip(folders, run_names(folders), strict=True)]
    names: dict[str, str] = {}
    for run in runs:
        name = re.sub(r"[-_. ]*seed[-_ ]?\d+", "", run.name) or run.name
        names.setdefault(run.family, run.name if name in names.values() else name)
    return [replace(run, family=names[run.family]) for run in runs]


def run_names(folders: Sequence[Path]) -> list[str]:
    """The end of each path, as long as it takes to tell them apart. Raises UserError if one is given twice."""
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
    training = training_folder(run)
    inside = read_evaluations(run / "evaluation") if (run / "evaluation").is_dir() else []
    evaluations = [*inside, *read_evaluations(run)]
    metrics = read_metrics(training / METRICS) if training and (training / METRICS).is_file() else []
    if not evaluations and not metrics:
        raise UserError(
            f"{run} has nothing to report: no <policy>-<N>.jsonl and no {METRICS}; "
            "give the folder of a `mem1 quickstart`, `mem1 train` or `mem1 eval --out`"
        )
    kept = read_kept(training) if training else []
    made = read_made_by(run)
    evaluations = [
        replace(x, decode=_Tokens(run, lambda x=x: _named(made.get(x.row.policy, {})), x.trajectories, tokenizer))
        if training is None or x.row.policy in made  # which `mem1 eval --out` wrote, perhaps of another model
        else x
        for x in evaluations
    ]
    trajectories = [t for x in (*evaluations, *kept) if x.decode is None for t in x.trajectories]
    return Run(
        name=name,
        family=str(run.resolve()) if training is None else _all_but_seeds(training),
        facts=evaluation_facts(run) if training is None else facts(training),
        curve=[row for row in metrics if "reward" in row],
        attempts=evaluations,
        warnings=given_warnings(training) if training else [],
        kept=kept,
        decode=_Tokens(run, lambda: _folders(training), trajectories, tokenizer),
    )


@dataclass(slots=True)
class _Tokens:
    """Token ids to text, by a tokenizer that is looked for when the first are to be shown: a table shows none."""

    run: Path
    folders: Callable[[], Iterator[Path]]
    trajectories: Sequence[Trajectory]
    tokenizer: Path | None
    _codec: Codec | None = None

    def __call__(self, ids: Sequence[int]) -> str:
        if self._codec is None:
            self._codec = run_codec(self.run, self.folders(), self.trajectories, tokenizer=self.tokenizer)
        return self._codec.decode(ids)


def training_folder(run: Path) -> Path | None:
    """The folder with config.toml; None: the run is only an evaluation."""
    return next((folder for folder in (run / "train", run) if (folder / "config.toml").is_file()), None)


def examined_policy(training: Path) -> Path:
    """The policy of a training that its results are about.

    That is the last. Where the training is part of a larger run, which examines before and after it, it is the one that
    did best on development tasks, if there were any.
    """
    best, part = training / BEST, evaluation_folder(training).parent != training
    return best if part and best.is_dir() else training / "policy"


def evaluation_folder(training: Path) -> Path:
    """Where the results of a training are: in its own folder, or in that of the larger run whose `train` it is."""
    whole, own = training.absolute(), training / "evaluation"
    larger = whole.parent / "evaluation"
    return larger if whole.name == "train" and larger.is_dir() and not own.is_dir() else own


def _all_but_seeds(training: Path) -> str:
    """What the runs of a family share: their configuration without seeds and memory, which every row names."""
    config: dict[str, Any] = dict(read_toml(training / "config.toml"))
    evaluation = {key: value for key, value in config.pop("evaluation", {}).items() if key != "seed"}
    shared = {key: value for key, value in config.items() if key not in ("seed", "memory")}
    return json.dumps({**shared, "evaluation": evaluation}, sort_keys=True, default=str)


def run_codec(
    run: Path, folders: Iterable[Path], trajectories: Sequence[Trajectory], *, tokenizer: Path | None = None
) -> Codec:
    """The first tokenizer that turns every recorded completion into its recorded text: `tokenizer` if given, else one
    of these folders.

    One that nearly fits would show text that no model has seen, so UserError is raised if none fits.
    """
    tried: list[str] = []
    for folder in [tokenizer_folder(str(tokenizer), SHIPPED)] if tokenizer is not None else folders:
        codec = Codec.load(folder)
        if all(codec.decode(turn.completion_ids) == turn.text for t in trajectories for turn in t.turns if turn.text):
            return codec
        tried.append(str(folder))
    raise UserError(
        f"{run}: its recorded tokens are not those of {' or '.join(tried)}; give the folder of its tokenizer: "
        "--tokenizer FOLDER"
    )


def _named(made: Mapping[str, Any]) -> Iterator[Path]:
    """Of an evaluation: the tokenizer that made it, if it is to be had, else one that ships."""
    recipe: Mapping[str, Any] = made.get("recipe", {})
    model, engine = recipe.get("model", {}).get("path"), recipe.get("engine", {})
    with suppress(UserError):
        yield tokenizer_folder(engine.get("tokenizer"), model or engine.get("model") or SHIPPED)
    yield from map(policy_folder, SHIPPED_FOLDERS)


def _folders(training: Path | None) -> Iterator[Path]:
    """Of a run: the tokenizer of its policy, or of the policy that it started from."""
    if training is None:
        yield from map(policy_folder, SHIPPED_FOLDERS)
        return
    if (training / "policy" / "tokenizer.json").is_file():
        yield training / "policy"
        return
    if (training / TRAJECTORIES / "tokenizer.json").is_file():
        yield training / TRAJECTORIES
        return
    model = read_toml(training / "config.toml").get("model", {})
    if "new" in model:
        raise UserError(
            f"{training / 'policy'} does not exist yet; the run makes its own tokenizer, so finish it first"
        )
    pin_model(training)
    yield policy_folder(model.get("path", SHIPPED))


def facts(training: Path) -> dict[str, str]:
    """How the run was made, from its config.toml and resolved.json; what they do not give is left out."""
    config = read_toml(training / "config.toml")
    return _given({**_facts(config, read_resolved(training)), "training": _training(config)})


def evaluation_facts(folder: Path) -> dict[str, str]:
    """The same of a folder of `mem1 eval --out`; where its agents differ, all values."""
    found: dict[str, list[str]] = {}
    for agent, made in read_made_by(folder).items():
        recipe = made.get("recipe", {})
        seed = str(recipe.get("evaluation", {}).get("seed", ""))
        model = portable(recipe.get("model", {}).get("path") or agent)
        for name, value in _given({**_facts(recipe, made), "model": str(model), "seed": seed}).items():
            found.setdefault(name, []).append(value)
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items()}


def _facts(config: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, str]:
    """What a run and an evaluation have in common; empty: not known."""
    command: list[str] = resolved.get("command", [])
    return {
        "command": " ".join(_PROGRAM.get(word, word) for word in command),
        "seed": str(config.get("seed", "")),
        "memory": "" if "agent" in config else str(config.get("memory", "")),
        "agent": _agent(config.get("agent", {})),
        "tasks": str(config.get("tasks", {}).get("kind", "")),
        "model": " at commit ".join(resolved.get("model", {}).values()),
        "versions": ", ".join(f"{name} {version}" for name, version in resolved.get("versions", {}).items()),
        "device": ", ".join(dict.fromkeys(one["device"] for one in resolved.get("computed", []))),
        "hardware": str(resolved.get("hardware", "")),
    }


def _given(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def _agent(config: Mapping[str, Any]) -> str:
    """Who made the attempts, with the memory before the model; empty: mem1. The agent's code need not be here."""
    parts = (config.get("entry") or " ".join(config.get("command", ())), config.get("memory", ""))
    return ", ".join(part for part in parts if part)


def _training(config: Mapping[str, Any]) -> str:
    """The stages of a recipe in words."""
    stages = [f"{stage}, {config[stage]['steps']} steps" for stage in ("recall", "sft") if stage in config]
    rl = config.get("rl")
    if rl is not None:
        phases = "; then ".join(
            f"{phase['steps']} steps on N = {', '.join(map(str, phase['objectives']))}" for phase in rl["curriculum"]
        )
        stages.append(f"rl, {phases} ({rl['tasks_per_step']} tasks, {rl['group_size']} attempts at each, a step)")
    return "; ".join(stages)
