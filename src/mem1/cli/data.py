"""`mem1 data`: the tasks of a recipe as a file, or the folder of clozes that they are made of.

mem1 data recipe.toml --limit 500 --out tasks.jsonl      the tasks that `mem1 eval recipe.toml --limit 500` asks
mem1 data own-documents corpus=notes --out clozes        the folder that `corpus=clozes` names
"""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.cli.eval import with_sizes
from mem1.cli.options import Chosen, JsonOption, make_folder_of, new_file, refuse, with_recipe, work_begins
from mem1.errors import UserError, printable

if TYPE_CHECKING:
    from mem1.recipe.recipe import Recipe
    from mem1.records import Task
    from mem1.tasks.compose import Split

_FILES = (".jsonl", ".jsonl.gz", ".parquet")


@with_recipe("questions", "corpus", "objectives", "limit", "seed")
def command(
    invocation: typer.Context,
    chosen: Chosen,
    out: Annotated[
        Path,
        typer.Option(
            help="File of tasks: .jsonl in mem1's own format, .parquet for MEM1's and Search-R1's code. Or a folder of "
            "clozes.",
            show_default=False,
        ),
    ],
    split: Annotated[str, typer.Option(help="Half of the tasks: train or evaluation.")] = "evaluation",
    passages: Annotated[
        Path | None, typer.Option(help="Write the passages that come with the questions here.", show_default=False)
    ] = None,
    verl: Annotated[
        bool, typer.Option("--verl", help="The .parquet is for verl's trainer (recipes/qwen2.5-7b-multihop/verl.md).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tasks of a recipe to a file, as many of each size as `mem1 eval` asks; or make clozes of documents.

    \b
    mem1 data recipe.toml --objectives 2 --limit 8000 --split train --out train.parquet
    mem1 data own-documents corpus=notes --out clozes
    """
    half = _half(split)
    recipe = chosen.load()
    if not out.name.endswith(_FILES):
        refuse(invocation, "split", "passages", "verl", because="is for a file of tasks; --out names none")
        work_begins()
        return _write_folder(recipe, out, as_json=as_json)
    if verl and out.suffix != ".parquet":
        raise UserError("--verl: its trainer reads .parquet; give another --out")
    if passages is not None and passages.resolve() == out.resolve():
        raise UserError("--passages: --out is written there; give another file")
    for written in filter(None, (out, passages)):
        new_file(written)
    recipe = with_sizes(chosen, recipe)
    work_begins()
    for written in filter(None, (out, passages)):
        make_folder_of(written)
    _write_tasks(recipe, half, out, passages, verl=verl, as_json=as_json)


def _half(split: str) -> Split:
    if split == "train" or split == "evaluation":
        return split
    raise UserError(f"--split takes train or evaluation, not {split!r}")


def _write_tasks(recipe: Recipe, half: Split, out: Path, passages: Path | None, *, verl: bool, as_json: bool) -> None:
    from mem1.cli.progress import stderr
    from mem1.evaluation.runner import asked
    from mem1.extras.verl import settings
    from mem1.policy.protocol import resolve
    from mem1.tasks.datasets import write_passages, write_tasks

    speaks = resolve(recipe)
    source = speaks.tasks.source(half, speaks.tags)
    by_size = [asked(source, recipe.evaluation, size) for size in recipe.evaluation.objectives]
    tasks = [task for task in chain.from_iterable(zip_longest(*by_size)) if task is not None]
    found = recipe.tasks.given_passages() if passages is not None else ()
    if passages is not None and not found:
        raise UserError("--passages: these tasks come without passages of their own; leave it out")
    if verl:
        settings.write_tasks(out, tasks, split=half)
    else:
        write_tasks(out, tasks, split=half)
        _note_unscored(tasks, out)
    if passages is not None:
        write_passages(passages, found)
    if as_json:
        sizes = list(recipe.evaluation.objectives)
        written = {"out": str(out), "tasks": len(tasks), "objectives": sizes, "split": half, "passages": len(found)}
        print(json.dumps(written))
    else:
        sizes = ", ".join(map(str, recipe.evaluation.objectives))
        stderr().print(f"{len(tasks):,} tasks of {sizes} questions ({half}), written to {out}", markup=False)


def _note_unscored(tasks: list[Task], out: Path) -> None:
    """Warns of data sources for which the published trainers, which choose their reward by it, have none."""
    from mem1.cli.progress import stderr
    from mem1.tasks.datasets.own import SCORED

    unknown = sorted({task.questions[0].source for task in tasks} - set(SCORED))
    if unknown and out.suffix == ".parquet":
        stderr().print(
            f"Note: MEM1's and Search-R1's trainers have no reward for the source {', '.join(map(repr, unknown))}; to "
            f"use them, give your questions one of theirs as source: {', '.join(SCORED)}",
            markup=False,
        )


def _write_folder(recipe: Recipe, out: Path, *, as_json: bool) -> None:
    from mem1.cli.progress import bars, say, stderr

    with bars(stderr()) as progress:
        shown: dict[str, Any] = {}

        def seen(what: str, done: int, of: int) -> None:
            if what not in shown:
                shown[what] = progress.add_task(what, total=None, note="")
            progress.update(shown[what], completed=done, total=of)

        known = recipe.tasks.write_folder(out, seen)
    if as_json:
        print(json.dumps({"out": str(out), **known}))
    else:
        parts = known.get("parts", {})
        counted = ", ".join(f"{count:,} for {name}" for name, count in parts.items())
        print(
            printable(f"Written to {out}{f': {counted}' if counted else ''}; {out}/README.md has numbers and samples")
        )
        if empty := [name for name, count in parts.items() if not count]:
            say(f"no question for {' and '.join(empty)}: give more text, or another share by tasks.making", "warning")
