"""`mem1 bench`: how much of a long task a model and its memory keep, on tasks that nobody can have memorised."""

from __future__ import annotations

import typer

from mem1.cli import bench_compare
from mem1.cli.options import Command

app = typer.Typer(name="bench", help="Measure what models and memories keep of long tasks.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure what models and memories keep of long tasks."""


app.command("compare", cls=Command)(bench_compare.command)
