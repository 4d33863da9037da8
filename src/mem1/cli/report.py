"""`mem1 report`: the page of one or more runs, or their table for a paper, from what their folders hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of `mem1 quickstart`, `train` or `eval --out`.", show_default=False),
    ],
    format: Annotated[str, typer.Option(help="html: a page; md, csv or latex: the table.")] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Without: of a page RUN/report.html, of several runs report.html; a table is printed."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with the tokenizer.json of the runs, where their own folders have none."),
    ] = None,
) -> None:
    """Write a page with table, figures, learning curves and every trajectory; or print the table for a paper."""
    from mem1.cli.reporting import PAGE, read_runs, write_run_report
    from mem1.errors import UserError
    from mem1.evaluation.report.formats import FORMATS
    from mem1.evaluation.report.page import write_page
    from mem1.evaluation.report.runs import rows_of

    if format != "html" and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; known: html, {', '.join(FORMATS)}")
    if len(runs) == 1 and format == "html" and out is None:
        print(write_run_report(runs[0], tokenizer=tokenizer))
        return
    read = read_runs(runs, tokenizer=tokenizer)
    if format == "html":
        path = out or Path(PAGE)
        write_page(path, read, title=", ".join(run.name for run in read))
        print(path)
        return
    table = FORMATS[format](rows_of(read))
    if out is None:
        print(table, end="")
        return
    try:
        out.write_text(table, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write the table ({error.strerror}); choose another file") from error
    print(out)
