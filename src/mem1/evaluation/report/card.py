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
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from mem1.configuration import read_toml
from mem1.durable import read_manifest
from mem1.errors import UserError
from mem1.evaluation.report.rows import read_evaluations
from mem1.evaluation.report.run_folders import evaluation_folder, examined_policy, facts
from mem1.evaluation.report.tables import markdown
from mem1.pages.table import Table
from mem1.pages.table import markdown as markdown_table
from mem1.policy.folders import SHIPPED, SHIPPED_FOLDERS, SMOLLM2, policy_folder
from mem1.run_folder import METRICS, pin_model, read_metrics, read_resolved

STEPS = 12
"""Most steps of a curve that a card lists."""
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_OURS = "apache-2.0"
"""Licence of what ships with mem1."""
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
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
        "base_model": "" if base is None else base.id,
        "tags": "[mem1, agent, memory]",
    }
    head = [f"{key}: {value}" for key, value in known.items() if value]
    trained = [] if run is None else [*_trained(run, base, folder)]
    return "\n".join(["---", *head, "---", "", f"# {name}", "", *trained, *_used(at, folder)])


def _trained(run: Path, base: _Base | None, policy: Path) -> Iterator[str]:
    config = read_toml(run / "config.toml")
    known = {"started from": "a new model" if base is None else base.id or PurePath(base.path).name, **facts(run)}
    checkpoint = _CHECKPOINT.fullmatch(policy.name)
    last = None if checkpoint is None else int(checkpoint[1])
    if last is not None:
        known["checkpoint"] = f"after step {last}"
    if data := _data(config.get("tasks", {})):
        known["data"] = data
    yield "A language-model agent that keeps its memory small while it works, trained with mem1."
    yield ""
    yield markdown_table(Table(headings=("", ""), rows=[*known.items()], names=2))
    examined = policy.resolve() == examined_policy(run).resolve()
    if examined and (rows := [attempts.report_row() for attempts in read_evaluations(evaluation_folder(run))]):
        yield from ("## Results", "", markdown(rows))
    metrics = read_metrics(run / METRICS) if (run / METRICS).is_file() else []
    curve = [row for row in metrics if "reward" in row and (last is None or row["step"] <= last)]
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


@dataclass(frozen=True, slots=True)
class _Base:
    """The model that training began with."""

    path: str
    """Its name, or its folder, which may be gone."""
    id: str
    """The id by which others find it; empty: it has none."""


def _base(run: Path, after: tuple[Path, ...] = ()) -> _Base | None:
    """That of this run, from which those `after` it began, before all runs on the way; None: it was made from
    nothing."""
    model = read_toml(run / "config.toml").get("model", {})
    path = model.get("path", SHIPPED)
    if "new" in model:
        return None
    if path in (SMOLLM2, *SHIPPED_FOLDERS):
        return _Base(path, _SMOLLM2 if path == SMOLLM2 else "")
    if (read_resolved(run).get("model") or {}).get("name") == path:  # which only ids have, by `RunFolder.note_model`
        return _Base(path, path.partition(":")[0].partition("@")[0])
    # a relative one was seen from where the training ran, mostly above its folder
    places = [folder / path for folder in (*run.absolute().parents, Path.cwd())]
    found = next((place for place in places if place.exists()), Path(path))
    before = found.absolute().parent
    on_the_way = before not in (*after, run.absolute()) and (before / "config.toml").is_file()
    return _base(before, (*after, run.absolute())) if on_the_way else _Base(str(found), "")


def license_of(run: Path | None, folder: Path) -> str:
    """The licence of a policy: that of the model it started from, which names it in its README.md or GGUF file.

    `run` and `folder` as of `model_card`; empty: there is none, or it is not known.
    """
    begun = None if run is None else _base(run)
    if run is not None and begun is None:
        return ""
    base = str(folder) if begun is None else begun.path
    if base in (*SHIPPED_FOLDERS, *(str(policy_folder(name)) for name in SHIPPED_FOLDERS)):
        return _OURS
    if run is not None:
        pin_model(run)
    try:
        if begun is not None and not begun.id and begun.path not in SHIPPED_FOLDERS and not Path(base).exists():
            return ""  # a folder that is gone, not a stranger's model of that name
        folder = policy_folder(base)
        head = (folder / "README.md").read_text(encoding="utf-8").partition("---")[2].partition("\n---")[0]
    except (OSError, UnicodeDecodeError, UserError):  # a card is written without a network, too
        head = ""
    named = re.search(r"^license: *([\w.-]+) *$", head, re.MULTILINE)
    manifest = read_manifest(folder)
    return named[1] if named else str(manifest.facts.get("license", "")) if manifest is not None else ""
