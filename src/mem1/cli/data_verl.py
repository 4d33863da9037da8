"""`mem1 data verl`: the tasks of a recipe as the Parquet file that verl's trainer reads (docs/verl.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.options import make_folder_of, work_begins
from mem1.configuration.numbers import LARGEST_SEED, MOST_OBJECTIVES, MOST_TASKS


def command(
    recipe: Annotated[str, typer.Argument(help="A recipe: a file, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option(help="The file, .parquet.")],
    objectives: Annotated[
        list[int], typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions of a task; repeatable, in equal shares.")
    ],
    count: Annotated[int, typer.Option(min=1, max=MOST_TASKS, help="Tasks of each number of questions.")],
    split: Annotated[str, typer.Option(help="train or evaluation: the half that the tasks are of.")] = "train",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of the tasks that are drawn.")] = 0,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, dotted: a key of the recipe to change; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write the tasks of a recipe for verl's trainer."""
    from mem1.api import find_recipe
    from mem1.cli.display import stderr
    from mem1.cli.outputs import new_file
    from mem1.cli.recipes import expanded
    from mem1.configuration import load_toml
    from mem1.errors import UserError
    from mem1.extras.verl.tasks import write_tasks
    from mem1.protocol import vocabulary
    from mem1.training.loop.recipe import TrainConfig

    if split != "train" and split != "evaluation":
        raise UserError(f"--split takes train or evaluation, not {split!r}")
    new_file(out)
    config = load_toml(find_recipe(recipe), TrainConfig, expanded(overrides or []))
    work_begins()
    make_folder_of(out)
    source = config.tasks.source(split, vocabulary(config.vocabulary))
    by_size = [source.tasks(objectives=number, count=count, seed=seed) for number in objectives]
    tasks = [task for together in zip(*by_size, strict=True) for task in together]
    write_tasks(out, tasks, split=split)
    if as_json:
        print(json.dumps({"out": str(out), "tasks": len(tasks), "objectives": objectives, "split": split}))
    else:
        sizes = ", ".join(map(str, objectives))
        stderr().print(f"{len(tasks):,} tasks of {sizes} questions ({split}), written to {out}")
