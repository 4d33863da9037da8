"""The model card of a policy: where it comes from, how it was trained, its curve and its results, as a README.md.

    model_card("atlas", run=Path("runs/quick"), folder=Path("runs/quick/policy"))
    ---
    license: apache-2.0
    base_model: Qwen/Qwen3-0.6B
    ---
    # atlas ...

What a run does not know is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from mem1.configuration import read_toml
from mem1.durable import read_manifest
from mem1.errors import UserError
from mem1.evaluation.report.rows import read_evaluations
from mem1.evaluation.report.run_folders import evaluation_folder, examined_policy, facts
from mem1.evaluation.report.tables import markdown
from mem1.hub import hub_name
from mem1.pages.table import Table
from mem1.pages.table import markdown as markdown_table
from mem1.policy.folders import SHIPPED, SHIPPED_FOLDERS, SMOLLM2, policy_folder
from mem1.run_folder import METRICS, pin_model, read_metrics

STEPS = 12
"""Most steps of a curve that a card lists."""
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_OURS = "apache-2.0"
"""Licence of what ships with mem1."""
_CURVE = {"step": "step", "reward": "reward", "em": "exact match", "peak_tokens": "peak tokens"}


def model_card(name: str, *, run: Path | None, folder: Path, at: str = ".") -> str:
    """The card as Markdown.

    run         the folder with its config.toml; None: it is not known how the policy was trained
    at          how commands name the policy: by its repository, or by the folder that the card is in
    folder      of its files, or of the model that it started from; results are given of the policy that was examined
    """
    base = None if run is None else _base(run)
    known = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": license_of(run, folder),
        "base_model": _hub_id(base),
        "tags": "[mem1, agent, memory]",
    }
    head = [f"{key}: {value}" for key, value in known.items() if value]
    trained = [] if run is None else [*_trained(run, base, folder)]
    return "\n".join(["---", *head, "---", "", f"# {name}", "", *trained, *_used(at, folder)])


def _trained(run: Path, base: str | None, policy: Path) -> Iterator[str]:
    config = read_toml(run / "config.toml")
    known = {"started from": "a new model" if base is None else _hub_id(base) or PurePath(base).name, **facts(run)}
    if data := _data(config.get("tasks", {})):
        known["data"] = data
    yield "A language-model agent that keeps its memory small while it works, trained with mem1."
    yield ""
    yield markdown_table(Table(headings=("", ""), rows=[*known.items()], names=2))
    examined = policy.resolve() == examined_policy(run).resolve()
    if examined and (rows := [attempts.report_row() for attempts in read_evaluations(evaluation_folder(run))]):
        yield from ("## Results", "", markdown(rows))
    metrics = read_metrics(run / METRICS) if (run / METRICS).is_file() else []
    curve = [row for row in metrics if "reward" in row]
    if curve:
        chosen = {round(i * (len(curve) - 1) / (STEPS - 1)) for i in range(STEPS)}
        columns = [key for key in _CURVE if any(key in row for row in curve)]
        lines = [[_number(curve[i].get(key)) for key in columns] for i in sorted(chosen)]
        yield from ("## Training", "")
        yield markdown_table(Table(headings=[_CURVE[key] for key in columns], rows=lines, names=0))


def _used(at: str, folder: Path) -> Iterator[str]:
    where = "In this folder:" if at == "." else ""
    yield from ("## Use", "", *((where, "") if where else ()))
    yield from ("```bash", f"mem1 eval --model {at}", f"mem1 serve-policy {at}", "```", "")
    speaks = "; `protocol.json` says how it was trained to speak" if (folder / "protocol.json").is_file() else ""
    yield f"transformers and vLLM load it as any other model{speaks}."
    yield ""


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def _data(tasks: Mapping[str, Any]) -> str:
    """Files and data sets of the tasks, without folders of this machine."""
    names = ("train_questions", "questions", "corpus")
    given = {name: tasks[name] for name in names if tasks.get(name)}
    listed = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    return "; ".join(
        f"{name} {', '.join(v if v.startswith('hf:') else PurePath(v).name for v in values)}"
        for name, values in listed.items()
    )


def _base(run: Path) -> str | None:
    """The model that training began with, before all runs on the way; None: it was made from nothing."""
    model = read_toml(run / "config.toml").get("model", {})
    path = model.get("path", SHIPPED)
    if "new" in model:
        return None
    before = Path(path).absolute().parent
    return _base(before) if before != run.absolute() and (before / "config.toml").is_file() else path


def license_of(run: Path | None, folder: Path) -> str:
    """The licence of a policy: that of the model it started from, which names it in its README.md or GGUF file.

    `run` and `folder` as of `model_card`; empty: there is none, or it is not known.
    """
    base = str(folder) if run is None else _base(run)
    if base is None:
        return ""
    if base in (*SHIPPED_FOLDERS, *(str(policy_folder(name)) for name in SHIPPED_FOLDERS)):
        return _OURS
    if run is not None:
        pin_model(run)
    try:
        folder = policy_folder(base)
        head = (folder / "README.md").read_text(encoding="utf-8").partition("---")[2].partition("\n---")[0]
    except (OSError, UnicodeDecodeError, UserError):  # a card is written without a network, too
        head = ""
    named = re.search(r"^license: *([\w.-]+) *$", head, re.MULTILINE)
    manifest = read_manifest(folder)
    return named[1] if named else str(manifest.facts.get("license", "")) if manifest is not None else ""


def _hub_id(model: str | None) -> str:
    """The id by which others find a model; empty: it has none."""
    if model == SMOLLM2:
        return _SMOLLM2
    hub = None if model is None else hub_name(model)
    return "" if hub is None else hub.repo
