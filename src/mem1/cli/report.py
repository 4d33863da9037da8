"""`mem1 report`: a page of one or more runs, or their table for a paper; or a file of MEM1's released code rescored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import make_folder_of, new_file, refuse
from mem1.errors import UserError, printable

if TYPE_CHECKING:
    from mem1.extras.mem1_release.rescore import Rescored


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
            help="File to write. Default: RUN/report.html for a page, report.html for one of several runs; tables are "
            "printed.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the runs' tokenizer.json, if their own have none; with --from-mem1, to count tokens."
        ),
    ] = None,
    from_mem1: Annotated[
        Path | None, typer.Option(help="Rescore this result file of MEM1's released code (.jsonl); takes no RUN.")
    ] = None,
    inference: Annotated[
        str | None, typer.Option(help="With --from-mem1: mem1, normal or amem. Default: as the file's name ends.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --from-mem1: print one JSON object.")] = False,
) -> None:
    """Write a page with table, figures, learning curves and every trajectory; or print the table for a paper."""
    from mem1.evaluation.report.page import write_page
    from mem1.evaluation.report.rows import rows_of
    from mem1.evaluation.report.tables import FORMATS

    if from_mem1 is not None and not runs:
        refuse(invocation, "format", "out", because="--from-mem1 prints its tables; redirect them, or use --json")
        return rescore_file(from_mem1, tokenizer=tokenizer, inference=inference, as_json=as_json)
    if not runs or from_mem1 is not None or inference is not None or as_json:
        raise UserError("give either folders of runs, or --from-mem1 FILE (with --inference and --json)")
    if format != "html" and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; known: html, {', '.join(FORMATS)}")
    if out is not None:
        make_folder_of(out)
        if format != "html":
            new_file(out)
    if missing := [run for run in runs if not run.is_dir()]:
        raise UserError(f"no folder {missing[0]}; give that of a `mem1 quickstart`, `mem1 train` or `mem1 eval --out`")
    from mem1.evaluation.report.run_folders import PAGE, read_runs, write_run_report

    if len(runs) == 1 and format == "html" and out is None:
        print(printable(str(write_run_report(runs[0], tokenizer=tokenizer))))
        return
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


def rescore_file(file: Path, *, tokenizer: Path | None, inference: str | None, as_json: bool) -> None:
    """Print the scores, as tables or as one JSON object; tokens are counted if a tokenizer is given.

    Raises UserError for a file in another format, and for a tokenizer without a known inference type.
    """
    from mem1.engines.codec import Codec
    from mem1.extras.mem1_release.reader import checked_inference, inference_of, read_released
    from mem1.extras.mem1_release.rescore import rescore
    from mem1.training.weights.policy import policy_folder

    if tokenizer is None and inference is not None:
        raise UserError("--inference determines the contexts in which tokens are counted; give --tokenizer FOLDER too")
    attempts = read_released(file)
    codec = kind = None
    if tokenizer is not None:
        codec = Codec.load(policy_folder(tokenizer))
        kind = inference_of(file.name) if inference is None else checked_inference(inference)
    results = rescore(attempts, codec=codec, inference=kind)
    if as_json:
        print(json.dumps({"file": file.name, "inference": kind, "rows": [asdict(result) for result in results]}))
    else:
        _print(results)


def _print(results: Sequence[Rescored]) -> None:
    from rich.console import Console

    from mem1.cli.progress import table

    console = Console(highlight=False)
    for result in results:
        name = f"N = {result.objectives}, {result.attempts} attempts"
        console.print(table((name, "in the file", "released\nevaluator", "mem1"), list(_lines(result))))
        console.print(" ".join(_notes(result)))


def _lines(result: Rescored) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    """(measure, in the file, by the released evaluator, by mem1); None: not given."""
    published = result.published
    interval = f"{result.em:.3f} [{result.em_low:.3f}, {result.em_high:.3f}]"
    yield "exact matches per task", _number(published.exact_match), _number(published.em), _number(result.em_summed)
    yield "F1 summed per task", None, _number(published.f1), _number(result.f1_summed)
    yield "exact match per objective", None, None, interval
    yield "F1 per objective", None, None, _number(result.f1)
    yield "judged correct by a model", _number(published.estimated), None, None
    yield "peak tokens", None, None, _tokens(result.peak_tokens)
    yield "peak without the prompt", None, _tokens(published.peak_tokens), _tokens(result.peak_tokens_without_prompt)
    failed = result.endings["tool_failed"]
    counted, peaks = str(result.attempts - failed), str(published.peak_attempts)
    yield "attempts scored", str(result.attempts), counted, str(result.attempts)
    if result.peak_tokens is not None:
        yield "attempts in the peak", None, peaks, str(result.attempts)


def _notes(result: Rescored) -> Iterator[str]:
    yield (
        "In the file: an answer counts if it contains the first gold alias or is contained in it, and the model's "
        "judgement is 1 for every attempt that did not fail. The released evaluator: no points unless answers and "
        "questions are equally many, ten turns, words as sets; peaks of attempts with a match, the state twice."
    )
    yield "mem1: every attempt, all turns, answers by position, SQuAD's normalisation."
    if result.peak_tokens is None:
        yield "Tokens are not counted: give --tokenizer FOLDER (one with a tokenizer.json)."
    else:
        yield "Both count tokens with the given tokenizer, without the chat template, which the file does not record."
    endings = ", ".join(f"{name} {count}" for name, count in result.endings.items() if count)
    yield f"Endings: {endings}."
    if result.endings["tool_failed"]:
        yield "tool_failed: the line holds only an error; the released evaluator stops at such a line."


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
