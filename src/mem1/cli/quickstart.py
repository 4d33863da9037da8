"""`mem1 quickstart`: evaluate the shipped policy, train it by RL on N = 2, evaluate again, write a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import DeviceOption, Fills, JsonOption, chosen_device, few_workers, with_device, work_begins
from mem1.configuration.model import LARGEST_SEED
from mem1.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.evaluation.metrics import Row
    from mem1.training.loop.recipe import Recipe
    from mem1.training.ranks.processes import Ranks

RECIPE = "atlas-quick"


def command(
    invocation: typer.Context,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of tasks, sampling and evaluation."),
        Fills("mem1.training.loop.recipe:Recipe.seed"),
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/quickstart-seed<SEED>.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
    full_context: Annotated[
        bool, typer.Option("--full-context", help="The same with every turn appended, for comparison.")
    ] = False,
) -> None:
    """Evaluate the shipped policy, train it by reinforcement learning on two objectives, evaluate again."""
    from mem1.api import load_recipe
    from mem1.cli.agents import show
    from mem1.cli.progress import stderr
    from mem1.cli.report_input import write_run_report
    from mem1.lock import alone_in
    from mem1.training.ranks.placement import Placement
    from mem1.training.ranks.processes import Ranks

    context = "full" if full_context else "constant"
    folder = out or Path("runs") / ("quickstart" + ("-full" if full_context else "") + f"-seed{seed}")
    overrides = [f"seed={seed}", f"evaluation.seed={seed}", f"context={context}"]
    config = with_device(load_recipe(RECIPE, *overrides), device)
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} exists and is not empty; resume its run with --resume, or give another --out")
    if resume and not folder.exists():
        raise UserError(f"--resume: {folder} does not exist; start a run without --resume, or give its folder by --out")
    work_begins()
    console = stderr()
    console.print(f"mem1 quickstart, seed {seed}, {context} context; everything is written to {folder}")
    ranks = Ranks(device=chosen_device(invocation, config.model.device, training=True))
    computed = Placement.of(config, ranks).computed
    for note in (str(computed), *few_workers(ranks.device, config.workers)):
        console.print(note, markup=False, soft_wrap=True)
    with alone_in(folder):
        rows = _run(config, ranks, folder, resume, console)
        result = {"rows": [row.as_dict() for row in rows]}
        (folder / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
        write_run_report(folder)
        show(rows, as_json=as_json, computed=computed)
    console.print(f"Look at {folder / 'report.html'}; the trained policy is in {folder / 'train' / 'policy'}")


def _run(config: Recipe, ranks: Ranks, folder: Path, resume: bool, console: Console) -> list[Row]:
    from mem1.cli.agents import evaluate_policy
    from mem1.cli.progress import TrainingBar, bars
    from mem1.cli.train import warn_of_nothing_learnt
    from mem1.training.loop.train import train
    from mem1.training.weights.policy import SHIPPED, load_policy

    shipped = load_policy(SHIPPED, device=ranks.device)
    base, _ = evaluate_policy(config, shipped, ranks.device, name="base", folder=folder / "evaluation")
    with bars(console) as progress:
        finished = train(
            config, folder / "train", command=sys.argv, resume=resume, on_step=TrainingBar(progress), ranks=ranks
        )
    if not finished.complete:
        console.print(f"Stopped; a checkpoint is written. Resume with: mem1 quickstart --out {folder} --resume")
        raise typer.Exit(130)
    warn_of_nothing_learnt(config, folder / "train")
    trained, _ = evaluate_policy(config, finished.policy, ranks.device, name="trained", folder=folder / "evaluation")
    return base + trained
