"""`mem1 train`: run a recipe, then evaluate what it made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, dotted: rl.learning_rate=1e-4; corpus is tasks.corpus")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<recipe> without it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the folder.")] = False,
    evaluate: Annotated[bool, typer.Option(help="Evaluate the trained policy at the end.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a policy as a recipe says."""
    from mem1.cli.display import TrainingBar, bars, stderr
    from mem1.cli.pipeline import evaluate_policy, show
    from mem1.cli.recipes import expanded, find_recipe
    from mem1.configuration import load_toml
    from mem1.training.config import TrainConfig
    from mem1.training.train import train

    path = find_recipe(recipe)
    config = load_toml(path, TrainConfig, expanded(overrides or []))
    folder = out or Path("runs") / path.stem
    console = stderr()
    console.print(f"Training {path.stem}; everything is written to {folder}")
    with bars(console) as progress:
        finished = train(config, folder, command=sys.argv, resume=resume, on_step=TrainingBar(progress))
    if not finished.complete:
        console.print(f"Stopped; a checkpoint is written. Go on with: mem1 train {recipe} --out {folder} --resume")
        raise typer.Exit(130)
    console.print(f"The trained policy is in {folder / 'policy'}")
    if not evaluate:
        return
    with bars(console) as progress:
        rows, _ = evaluate_policy(config, finished.policy, name="trained", folder=folder / "evaluation", bars=progress)
    (folder / "result.json").write_text(json.dumps({"rows": rows}, indent=2))
    show(rows, as_json=as_json)
