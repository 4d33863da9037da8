"""`mem1 bench compare`: results of the benchmark side by side, with paired differences on the tasks they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from mem1.cli.options import JsonOption, make_folder_of, new_file, work_begins
from mem1.cli.progress import say
from mem1.errors import UserError, printable
from mem1.pages.table import fitting

if TYPE_CHECKING:
    from mem1.bench.scores import Compared, Side


def command(
    results: Annotated[
        list[str],
        typer.Argument(help="Result files, or folders of runs; FILE:MEMORY takes one memory of several."),
    ],
    plot: Annotated[Path | None, typer.Option(help="Write tables, figures and all tasks to this .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Set results side by side: scores, what they cost, and differences from the first on the same tasks."""
    from mem1.bench.page import bench_page
    from mem1.bench.tables import comparisons
    from mem1.pages.page import write_page

    if plot is not None:
        new_file(plot)
        make_folder_of(plot)
    work_begins()
    sides = _sides(results)
    if len(sides) == 1:
        raise UserError(f"{sides[0].name} is all that {results[0]} holds; give a second result to compare it with")
    compared = comparisons(sides)
    if plot is not None:
        title = " and ".join(dict.fromkeys(side.result.model for side in sides))
        write_page(plot, bench_page(sides, title=title))
        say(str(plot))
    if as_json:
        print(json.dumps(record(sides, compared)))
    else:
        show(sides, compared)


def _sides(results: Sequence[str]) -> list[Side]:
    """In the order given. Raises UserError for a file that is no result, or lacks the memory."""
    from mem1.bench.results import RESULT, load_result
    from mem1.bench.running import told_in
    from mem1.bench.scores import sides_of

    found: list[Side] = []
    for given in results:
        path, memory = _split(given)
        result = load_result(path)
        if not result.attempts:
            raise UserError(f"{path} holds no attempts, so there is nothing to compare")
        if memory is not None and memory not in result.memories:
            raise UserError(f"{path} has no memory {memory!r}; it has {', '.join(result.memories)}")
        told = told_in(path.parent) if path.name == RESULT else {}
        found += [side for side in sides_of(result, told) if memory in (None, side.memory)]
    return found


def _split(given: str) -> tuple[Path, str | None]:
    """The file, and the memory after its last colon; a file's own name may hold colons."""
    path, _, memory = given.rpartition(":")
    if not path or Path(given).exists():
        return _file(Path(given)), None
    return _file(Path(path)), memory


def _file(path: Path) -> Path:
    """The result in a folder; raises UserError where there is none."""
    from mem1.bench.results import RESULT

    file = path / RESULT if path.is_dir() else path
    if not file.exists():
        raise UserError(f"{file} does not exist; give a result of mem1 bench, or the folder of a run that has ended")
    return file


def record(sides: Sequence[Side], compared: Sequence[Compared]) -> dict[str, Any]:
    """As --json prints it."""
    from mem1.bench.scores import names_of, score_of, scores

    return {
        "sides": [
            {
                "name": name,
                "model": side.result.model,
                "memory": side.memory,
                "suite": side.result.suite,
                "seed": side.result.seed,
                "all": asdict(score_of(side.attempts)),
                "families": {family: asdict(score) for family, score in scores(side).items()},
            }
            for name, side in zip(names_of(sides), sides, strict=True)
        ],
        "comparisons": [asdict(one) for one in compared],
    }


def show(sides: Sequence[Side], compared: Sequence[Compared]) -> None:
    """Print the tables: scores, differences where there are several sides, what they cost, and endings."""
    from mem1.bench.tables import difference_table, endings_table, notes, score_table, spent_table

    console = Console(highlight=False)
    for title, found in (
        ("scores [95 % interval]", score_table(sides)),
        *([("differences; * interval excludes 0", difference_table(sides, compared))] * bool(compared)),
        ("tokens and cost", spent_table(sides)),
        ("attempts by ending", endings_table(sides)),
    ):
        for part in fitting(console, found.transposed(), title):
            console.print(part)
    for note in notes(sides, compared):
        console.print(escape(printable(note)))
