"""`mem1 real`: a real language model learns to remember: examined, shown how, examined, trained by RL, examined.

    mem1 real                           SmolLM2-135M in invented worlds in English, on two cores within the hour
    mem1 real --corpus notes            clozes of one's own documents
    mem1 real --model Qwen/Qwen3-0.6B   another model: a folder, a Hugging Face id, a GGUF file

    runs/real-seed0/
        evaluation/     untouched-2.jsonl, start-2.jsonl, trained-2.jsonl, ...      every attempt
        start/          the run on demonstrations by a lazy expert                  recipes/smollm2/start.toml
        train/          the run by RL on two questions at a time, from that start   recipes/smollm2/train.toml
        result.json, report.html

The untouched model is spoken to through its chat template, with instructions and a worked example.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import (
    DeviceOption,
    Fills,
    JsonOption,
    check_folder,
    chosen_device,
    machine,
    with_device,
    work_begins,
)
from mem1.configuration.model import LARGEST_SEED
from mem1.configuration.toml import value_text

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.evaluation.metrics import Row
    from mem1.policy.policy import Policy
    from mem1.recipe.recipe import Recipe
    from mem1.training.ranks.processes import Ranks

START, TRAIN, EVAL = "smollm2/start", "smollm2/train", "smollm2/eval"
MODEL = "smollm2"
QUICK: Mapping[str, tuple[str, ...]] = {
    START: ("sft.steps=92", "sft.warmup=6"),
    TRAIN: ("rl.curriculum=[{steps=2, objectives=[2]}]", "evaluation.every=2", "evaluation.validation_tasks=2"),
    EVAL: ("evaluation.objectives=[1,2,4,8]", "evaluation.tasks=8", "evaluation.questions=32"),
}
"""What --quick changes in each recipe."""
UNTOUCHED = ("protocol.kind=auto", "tasks.prompt=null", "budget.completion_extra=160", "evaluation.tasks=8")
"""What an examination of the untouched model changes: its chat template, instructions, longer turns, fewer tasks."""
CLOZES = (
    *("budget.completion_extra=160", "tasks.laziness.diligent=1", "sft.objectives=[1,2,4,10,16,16]"),
    *("sft.tokens=2048", "sft.steps=130", "sft.warmup=5"),
)
"""What --corpus changes: a turn quotes a sentence of a document, so that a step has room for fewer of them, and half of
all demonstrations are too few to learn where a long list ends."""
_OF = {
    **{"sft": START, "tasks.laziness": START},
    **{"rl": TRAIN, "evaluation.every": TRAIN, "evaluation.validation": TRAIN},
}
"""How a key begins -> the only recipe in which it is changed; others are changed in all three."""


def _of(name: str, changes: Sequence[str]) -> list[str]:
    """Those of the changes that are for a recipe."""
    return [c for c in changes if all(name == of for begin, of in _OF.items() if c.startswith(begin))]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of `mem1 real` does: the recipes of its stages."""

    folder: Path
    model: str = MODEL
    corpus: Path | None = None
    """Folder of documents in place of invented worlds."""
    quick: bool = False
    seed: int = 0
    device: str | None = None
    changes: tuple[str, ...] = ()
    """Changes of every recipe: key=value."""

    @property
    def start(self) -> Path:
        """The run on demonstrations."""
        return self.folder / "start"

    @property
    def train(self) -> Path:
        """The run of reinforcement learning; the report looks for it under this name."""
        return self.folder / "train"

    @property
    def policy(self) -> Path:
        """The policy of that run which is examined: the best on development tasks; without any, the last."""
        from mem1.evaluation.report.run_folders import examined_policy

        return examined_policy(self.train)

    @property
    def evaluation(self) -> Path:
        return self.folder / "evaluation"

    def recipe(self, name: str, model: str, *changes: str) -> Recipe:
        """One of the three recipes, for a model.

        Raises UserError as `load_recipe` does, and for a change of what has an option of its own.
        """
        from mem1.api import load_recipe
        from mem1.errors import UserError

        quick = QUICK[name] if self.quick else ()
        clozes = () if self.corpus is None else (self._tasks(name), *_of(name, CLOZES))
        given = (f"seed={self.seed}", f"model.path={value_text(model)}")
        found = load_recipe(name, *given, *clozes, *quick, *changes, *_of(name, self.changes))
        if found.seed != self.seed:
            raise UserError(f"seed={found.seed} has an option of its own: --seed {found.seed}")
        if found.model.path != model:
            raise UserError(f"model.path={found.model.path} has an option of its own: --model {found.model.path}")
        return with_device(found, self.device)

    def _tasks(self, name: str) -> str:
        """The change that makes clozes of the documents of a recipe's tasks, with what both kinds of tasks have."""
        from mem1.api import load_recipe
        from mem1.envs.cloze import ClozeTasks

        given = load_recipe(name).tasks.model_dump(mode="json", exclude_defaults=True)
        kept = {key: value for key, value in given.items() if key in ClozeTasks.model_fields}
        tasks = {**kept, "kind": "cloze", "corpus": str(self.corpus), "prompt": "cloze"}
        return f"tasks={value_text(tasks)}"


def command(
    invocation: typer.Context,
    model: Annotated[str, typer.Option(help="The model: smollm2, a folder, a Hugging Face id, a GGUF file.")] = MODEL,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Your own documents, of which clozes are made. Default: invented worlds.", show_default=False
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The whole in a quarter of the time.")] = False,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of tasks, demonstrations, sampling."),
        Fills("mem1.recipe.recipe:Recipe.seed"),
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/real-seed<SEED>.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings of all three recipes, as key=value.", show_default=False)
    ] = None,
) -> None:
    """Teach a real language model to remember: untouched, after demonstrations, after RL on two questions."""
    from mem1.policy.folders import policy_folder

    folder = out or Path("runs") / f"real{'-quick' if quick else ''}-seed{seed}"
    check_folder(folder, resume=resume)
    plan = Plan(
        folder=folder,
        model=model,
        corpus=corpus,
        quick=quick,
        seed=seed,
        device=device,
        changes=tuple(overrides or ()),
    )
    first, *_ = (plan.recipe(name, model) for name in (START, TRAIN, EVAL))  # mistakes are said before anything begins
    again = ["mem1", "real", "--model", model, "--seed", str(seed), "--out", str(folder)]
    again += ["--quick"] if quick else []
    again += [] if corpus is None else ["--corpus", str(corpus)]
    again += [] if device is None else ["--device", device]
    again += overrides or []
    work_begins(lambda: f"resume with: {shlex.join([*again, *(['--resume'] if folder.exists() else [])])}")
    policy_folder(model)  # a model that is not there is said before anything is written
    from mem1.cli.eval import show
    from mem1.cli.progress import stderr
    from mem1.cli.train import fitted
    from mem1.engines.device import Machine
    from mem1.evaluation.report.run_folders import write_run_report
    from mem1.lock import alone_in
    from mem1.training.ranks.placement import Placement
    from mem1.training.ranks.processes import Ranks

    console = stderr()
    console.print(f"mem1 real, {model}, seed {seed}; everything is written to {folder}", soft_wrap=True)
    ranks = Ranks(device=chosen_device(invocation, first.model.device, training=True))
    computed = Placement.of(first, ranks).computed
    for note in (str(computed), *ranks.device.worker_warnings(first.workers)):
        console.print(note, markup=False, soft_wrap=True)
    first = fitted(first, machine(invocation) or Machine.here())
    with alone_in(folder):
        rows = _teach(plan, first, ranks, console, resume=resume)
        result = {"model": model, "seed": seed, "rows": [row.as_dict() for row in rows]}
        (folder / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
        write_run_report(folder)
        show(rows, as_json=as_json, computed=computed)
    console.print(f"Look at {folder / 'report.html'}; the trained policy is in {plan.policy}", soft_wrap=True)
    console.print(f"See it work, turn by turn: mem1 run {EVAL} --model {plan.policy}", soft_wrap=True)
    console.print(f"For llama.cpp: mem1 export {plan.policy} policy.gguf", soft_wrap=True)


def _teach(plan: Plan, first: Recipe, ranks: Ranks, console: Console, *, resume: bool) -> list[Row]:
    """Examine, demonstrate, examine, train, examine; what is finished already is not repeated."""
    from mem1.policy.policy import load_policy
    from mem1.policy.protocol import resolve
    from mem1.training.monitoring.validation import development_tasks

    # too few documents are said before the minutes of the first stage
    second = plan.recipe(TRAIN, plan.model)
    development_tasks(second, second.tasks.development().source("evaluation", resolve(second).tags))
    untouched = plan.recipe(EVAL, plan.model, *UNTOUCHED)
    examined = plan.recipe(EVAL, plan.model)
    rows = _examine(untouched, load_policy(plan.model, device=ranks.device), ranks, "untouched", plan, resume)
    _train(first, plan.start, ranks, console, resume=resume)
    started = plan.start / "policy"
    rows += _examine(examined, load_policy(started, device=ranks.device), ranks, "start", plan, resume)
    _train(plan.recipe(TRAIN, str(started)), plan.train, ranks, console, resume=resume)
    return rows + _examine(examined, load_policy(plan.policy, device=ranks.device), ranks, "trained", plan, resume)


def _examine(recipe: Recipe, policy: Policy, ranks: Ranks, name: str, plan: Plan, resume: bool) -> list[Row]:
    from mem1.cli.eval import evaluate_policy

    return evaluate_policy(recipe, policy, ranks.device, name=name, folder=plan.evaluation, overwrite=not resume)


def _train(recipe: Recipe, folder: Path, ranks: Ranks, console: Console, *, resume: bool) -> None:
    from mem1.cli.train import train_to_end
    from mem1.policy.protocol import resolve

    console.print(f"{folder.name}: protocol {resolve(recipe)}", markup=False, soft_wrap=True)
    train_to_end(recipe, folder, ranks, console, resume=resume)
