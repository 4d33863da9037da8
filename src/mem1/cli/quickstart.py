"""`mem1 quickstart`: evaluate the shipped policy, train it by RL on N = 2, evaluate again, write a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.devices import DeviceOption
from mem1.cli.options import Fills, work_begins
from mem1.configuration.numbers import LARGEST_SEED

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.engines.device import Computed
    from mem1.evaluation.metrics import Row
    from mem1.training.loop.recipe import TrainConfig
    from mem1.training.ranks.processes import Ranks
    from mem1.training.weights.policy import Policy

RECIPE = "atlas-quick"


def command(
    invocation: typer.Context,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of tasks, sampling and evaluation."),
        Fills("mem1.training.loop.recipe:TrainConfig.seed"),
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/quickstart-seed<SEED> without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    full_context: Annotated[
        bool, typer.Option("--full-context", help="The same with appended context, for comparison.")
    ] = False,
) -> None:
    """Evaluate the shipped policy, train it by reinforcement learning on two objectives, evaluate again."""
    from mem1.api import find_recipe
    from mem1.cli.devices import chosen, few_workers, with_device
    from mem1.cli.display import stderr
    from mem1.configuration import load_toml
    from mem1.errors import UserError
    from mem1.lock import alone_in
    from mem1.training.loop.recipe import TrainConfig
    from mem1.training.ranks.placement import Placement
    from mem1.training.ranks.processes import Ranks

    context = "full" if full_context else "constant"
    folder = out or Path("runs") / ("quickstart" + ("-full" if full_context else "") + f"-seed{seed}")
    overrides = [f"seed={seed}", f"evaluation.seed={seed}", f"context={context}"]
    config = with_device(load_toml(find_recipe(RECIPE), TrainConfig, overrides), device)
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} exists and is not empty; go on with its run by --resume, or give another --out")
    if resume and not folder.exists():
        raise UserError(f"--resume: {folder} does not exist; start a run without --resume, or give its folder by --out")
    work_begins()
    console = stderr()
    console.print(f"mem1 quickstart, seed {seed}, {context} context; everything is written to {folder}")
    ranks = Ranks(device=chosen(invocation, config.model.device, training=True))
    computed = Placement.of(config, ranks).computed
    for note in (str(computed), *few_workers(ranks.device, config.workers)):
        console.print(note, markup=False, soft_wrap=True)
    with alone_in(folder):
        rows = _run(config, ranks, folder, resume, console)
        result = json.dumps({"rows": [row.as_dict() for row in rows]}, indent=2)
        (folder / "result.json").write_text(result, encoding="utf-8")
        _finish(rows, computed, folder, console, as_json)


def _run(config: TrainConfig, ranks: Ranks, folder: Path, resume: bool, console: Console) -> list[Row]:
    from mem1.cli.display import TrainingBar, bars
    from mem1.cli.pipeline import evaluate_policy, warn_of_nothing_learnt
    from mem1.training.loop.train import train
    from mem1.training.weights.policy import SHIPPED, load_policy

    with bars(console) as progress:

        def measured(policy: Policy, name: str) -> list[Row]:
            return evaluate_policy(
                config, policy, name=name, folder=folder / "evaluation", bars=progress, device=ranks.device
            )[0]

        base = measured(load_policy(SHIPPED, device=ranks.device), "base")
        finished = train(
            config, folder / "train", command=sys.argv, resume=resume, on_step=TrainingBar(progress), ranks=ranks
        )
        if not finished.complete:
            console.print(f"Stopped; a checkpoint is written. Go on with: mem1 quickstart --out {folder} --resume")
            raise typer.Exit(130)
        warn_of_nothing_learnt(config, folder / "train")
        return base + measured(finished.policy, "trained")


def _finish(rows: list[Row], computed: Computed, folder: Path, console: Console, as_json: bool) -> None:
    from mem1.cli.pipeline import show
    from mem1.cli.reporting import write_run_report

    write_run_report(folder)
    show(rows, as_json=as_json, computed=computed)
    console.print(f"Look at {folder / 'report.html'}; the trained policy is in {folder / 'train' / 'policy'}")
