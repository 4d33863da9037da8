"""`mem1 report`: a page of one or more runs, or their table for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.options import make_folder_of, new_file
from mem1.errors import UserError, printable


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of `mem1 quickstart`, `real`, `train` or `eval --out`.", show_default=False),
    ],
    format: Annotated[str, typer.Option(help="html: a page; md or csv: the table.")] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default: RUN/report.html for a page, report.html for one of several runs; tables are "
            "printed.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with the runs' tokenizer.json, if their own have none.")
    ] = None,
) -> None:
    """Write a page with table, figures, learning curves and every trajectory; or print the table for a paper."""
    from mem1.evaluation.report.page import report
    from mem1.evaluation.report.rows import rows_of
    from mem1.evaluation.report.tables import FORMATS
    from mem1.pages.page import write_page

    if format != "html" and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; known: html, {', '.join(FORMATS)}")
    if out is not None:
        make_folder_of(out)
        if format != "html":
            new_file(out)
    if missing := [run for run in runs if not run.is_dir()]:
        raise UserError(
            f"no folder {missing[0]}; give that of a `mem1 quickstart`, `mem1 real`, `mem1 train` or `mem1 eval --out`"
        )
    from mem1.evaluation.report.run_folders import PAGE, read_runs, write_run_report

    if len(runs) == 1 and format == "html" and out is None:
        print(printable(str(write_run_report(runs[0], tokenizer=tokenizer))))
        return
    read = read_runs(runs, tokenizer=tokenizer)
    if format == "html":
        path = out or Path(PAGE)
        write_page(path, report(read, title=", ".join(run.name for run in read)))
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
