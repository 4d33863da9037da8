"""`mem1 train`: run a recipe, then evaluate what it made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.devices import DeviceOption
from mem1.cli.mistakes import say
from mem1.cli.options import refuse, work_begins

if TYPE_CHECKING:
    from mem1.training.loop.recipe import TrainConfig


def command(
    invocation: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, dotted: rl.learning_rate=1e-4; corpus is tasks.corpus")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<recipe> without it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the folder.")] = False,
    device: DeviceOption = None,
    evaluate: Annotated[bool, typer.Option(help="Evaluate the trained policy at the end.")] = True,
    upload: Annotated[
        str | None, typer.Option(help="Command to run on every checkpoint in place of {}: 'rclone copy {} far:runs'.")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Only look whether a run would work; exit code 1 where something lacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a policy as a recipe says; on several processes: torchrun --nproc-per-node N -m mem1 train RECIPE."""
    from mem1.api import find_recipe
    from mem1.cli.devices import few_workers, machine, with_device
    from mem1.cli.display import TrainingBar, bars, stderr
    from mem1.cli.pipeline import evaluate_policy, show, warn_of_nothing_learnt
    from mem1.cli.recipes import expanded
    from mem1.cli.upload import Upload
    from mem1.configuration import load_toml
    from mem1.training.loop.recipe import TrainConfig
    from mem1.training.loop.train import train
    from mem1.training.ranks.placement import Placement
    from mem1.training.ranks.processes import joined

    if dry:
        refuse(invocation, "resume", "evaluate", "upload", because="--dry-run trains nothing; leave it out")
    elif not evaluate:
        refuse(invocation, "as_json", because="prints the evaluation, which --no-evaluate leaves out")
    path = find_recipe(recipe)
    config = with_device(load_toml(path, TrainConfig, expanded(overrides or [])), device)
    folder = out or Path("runs") / path.stem
    work_begins()
    if dry:
        _dry_run(config, folder, as_json=as_json)
        return
    _note_new_run(folder, resume)
    console = stderr()
    on_saved = None if upload is None else Upload(upload, console.print)
    with joined(
        grouped=config.distributed is not None, device=config.model.device, machine=machine(invocation)
    ) as ranks:
        console.quiet = ranks.rank > 0
        console.print(f"Training {path.stem}; everything is written to {folder}")
        computed = Placement.of(config, ranks).computed
        for note in (str(computed), *few_workers(ranks.device, config.workers)):
            console.print(note, markup=False, soft_wrap=True)
        with bars(console) as progress:
            finished = train(
                config,
                folder,
                command=sys.argv,
                resume=resume,
                on_step=TrainingBar(progress),
                on_saved=on_saved,
                ranks=ranks,
            )
    if ranks.rank > 0:  # the first has the policy and its evaluation
        raise typer.Exit(0 if finished.complete else 130)
    if not finished.complete:
        console.print(f"Stopped; a checkpoint is written. Go on with: mem1 train {recipe} --out {folder} --resume")
        raise typer.Exit(130)
    console.print(f"The trained policy is in {folder / 'policy'}")
    warn_of_nothing_learnt(config, folder)
    if not evaluate:
        return
    with bars(console) as progress:
        rows, _ = evaluate_policy(
            config,
            finished.policy,
            name="trained",
            folder=folder / "evaluation",
            bars=progress,
            device=ranks.device,
        )
    (folder / "result.json").write_text(json.dumps({"rows": [row.as_dict() for row in rows]}, indent=2))
    show(rows, as_json=as_json, computed=computed)


def _note_new_run(folder: Path, resume: bool) -> None:
    """torchrun starts a command again as it was, so --resume may stand there from the first start on."""
    if resume and not (folder / "config.toml").is_file():
        say(f"--resume: {folder} holds no run to continue (config.toml is missing); a new one is started", "warning")


def _dry_run(config: TrainConfig, folder: Path, *, as_json: bool) -> None:
    from mem1.cli.plan_tables import show_dry_run
    from mem1.planning.preflight import dry_run

    done = dry_run(config, out=folder)
    if as_json:
        print(json.dumps(done.record()))
    else:
        show_dry_run(done)
    if not done.ready:
        raise typer.Exit(1)
