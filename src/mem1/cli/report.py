"""`mem1 report`: the page of one or more runs, or their table for a paper, from what their folders hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.options import make_folder_of, refuse


def command(
    invocation: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of `mem1 quickstart`, `train` or `eval --out`.", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help="html: a page; md, csv or latex: the table.")] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Without: of a page RUN/report.html, of several runs report.html; a table is printed."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the tokenizer.json of the runs, where their own folders have none; of --from-mem1, to "
            "count tokens."
        ),
    ] = None,
    from_mem1: Annotated[
        Path | None, typer.Option(help="Result file of MEM1's released code (.jsonl), to be scored again; no RUN.")
    ] = None,
    inference: Annotated[
        str | None, typer.Option(help="mem1, normal or amem. Without: as the file's name ends (--from-mem1).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (--from-mem1).")] = False,
) -> None:
    """Write a page with table, figures, learning curves and every trajectory; or print the table for a paper."""
    from mem1.cli.from_mem1 import rescore_file
    from mem1.cli.outputs import new_file
    from mem1.cli.reporting import PAGE, read_runs, write_run_report
    from mem1.errors import UserError, printable
    from mem1.evaluation.report.page import write_page
    from mem1.evaluation.report.rows import rows_of
    from mem1.evaluation.report.tables import FORMATS

    if from_mem1 is not None and not runs:
        refuse(invocation, "format", "out", because="--from-mem1 prints its tables; redirect them, or take --json")
        return rescore_file(from_mem1, tokenizer=tokenizer, inference=inference, as_json=as_json)
    if not runs or from_mem1 is not None or inference is not None or as_json:
        raise UserError("give folders of runs alone, or --from-mem1 FILE with --inference and --json")
    if format != "html" and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; known: html, {', '.join(FORMATS)}")
    if out is not None:
        make_folder_of(out)
    if len(runs) == 1 and format == "html" and out is None:
        print(printable(str(write_run_report(runs[0], tokenizer=tokenizer))))
        return
    if out is not None and format != "html":
        new_file(out)
    read = read_runs(runs, tokenizer=tokenizer)
    if format == "html":
        path = out or Path(PAGE)
        write_page(path, read, title=", ".join(run.name for run in read))
        print(printable(str(path)))
        return
    table = FORMATS[format](rows_of(read))
    if out is None:
        print(table, end="")
        return
    try:
        out.write_text(table, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write the table ({error.strerror}); choose another file") from error
    print(printable(str(out)))
