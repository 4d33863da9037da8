"""`mem1 report`: write the page of a run again from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a `mem1 quickstart` or `mem1 train`.", show_default=False)
    ] = None,
    from_mem1: Annotated[
        Path | None, typer.Option(help="Result file of MEM1's released code (.jsonl), to be scored again; no RUN.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with a tokenizer.json, to count tokens (--from-mem1).")
    ] = None,
    inference: Annotated[
        str | None, typer.Option(help="mem1, normal or amem. Without: as the file's name ends (--from-mem1).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (--from-mem1).")] = False,
) -> None:
    """Write RUN/report.html again, or score a result file of MEM1's released code."""
    from mem1.cli.from_mem1 import rescore_file
    from mem1.cli.reporting import write_run_report
    from mem1.errors import UserError

    if from_mem1 is not None and run is None:
        return rescore_file(from_mem1, tokenizer=tokenizer, inference=inference, as_json=as_json)
    if run is None or from_mem1 is not None or tokenizer is not None or inference is not None or as_json:
        raise UserError("give the folder of a run alone, or --from-mem1 FILE with its options")
    print(write_run_report(run))
