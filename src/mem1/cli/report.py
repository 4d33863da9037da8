"""`mem1 report`: write the page of a run again from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a `mem1 quickstart` or `mem1 train`.", show_default=False)],
) -> None:
    """Write RUN/report.html again: table, figures, learning curves, two whole trajectories."""
    from mem1.cli.reporting import write_run_report

    print(write_run_report(run))
