"""`mem1 probe`: what memories keep of the facts in long transcripts, at equally many tokens."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.markup import escape

from mem1.cli.options import (
    DeviceOption,
    Fills,
    JsonOption,
    make_folder_of,
    new_file,
    refuse,
    work_begins,
)
from mem1.cli.progress import bars, say, stderr
from mem1.cli.writer import WriterModelOption, WriterUrlOption, open_writer, place
from mem1.errors import UserError, suggestion
from mem1.interrupts import stopped_while
from mem1.net.threads import in_parallel
from mem1.pages.table import printed

if TYPE_CHECKING:
    from mem1.engines.device import Device
    from mem1.engines.servers import ModelServer
    from mem1.extras.probe.exam import Taken
    from mem1.extras.probe.readings import Noting
    from mem1.extras.probe.transcripts import Transcript
    from mem1.extras.probe.writers import Write

_DEFAULT = ("recency", "without-results", "head-tail", "index", "textrank", "archive")
_KINDS = ("atlas", "office")
_SHARE, _CYCLES = 0.1, 20
_SHOWN = 8
"""Words of a memory that are shown as invented, and numbers of transcripts."""
_WORKERS = 2
"""Processes on a CPU that read."""
_REQUESTS = 8
"""Memories at a time that a server's model writes, and so requests."""


def command(
    invocation: typer.Context,
    memories: Annotated[
        list[str] | None,
        typer.Argument(
            help="recency, without-results, head-tail, index, textrank, archive, full; with a model: summary, "
            "summary-sections, writer; fold(k), window(k), ...; langchain, deepagents, ...; module:name.",
            show_default=" ".join(_DEFAULT),
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Kind of transcripts: search, atlas, software, office.", show_default=" ".join(_KINDS)),
    ] = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="Transcripts with facts, one per line. Default: made ones.")
    ] = None,
    split: Annotated[str, typer.Option(help="development or test.")] = "development",
    wordings: Annotated[
        str,
        typer.Option(help="How planted facts are said: usual, as writers are trained on, or other."),
        Fills("mem1.extras.probe.kinds:Settings.wordings"),
    ] = "usual",
    count: Annotated[int, typer.Option(min=1, help="Number of transcripts of each kind.")] = 5,
    exchanges: Annotated[
        int, typer.Option(min=20, help="Exchanges in each."), Fills("mem1.extras.probe.kinds:Settings.exchanges")
    ] = 200,
    corpus: Annotated[Path | None, typer.Option(help="Passages, for transcripts of the kind search.")] = None,
    repository: Annotated[Path, typer.Option(help="Checkout, for the kind software.")] = Path(),
    share: Annotated[
        list[float] | None,
        typer.Option(min=0.001, max=1.0, help="Tokens to keep, as a share.", show_default=str(_SHARE)),
    ] = None,
    cycles: Annotated[
        list[int] | None, typer.Option(min=1, help="How often to shorten.", show_default=str(_CYCLES))
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Chat server whose model writes summaries and notes.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model on the server.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of each of its replies.")] = None,
    writer: Annotated[
        Path | None,
        typer.Option(help="Folder of a policy trained to write notes: adds trained-writer."),
    ] = None,
    device: DeviceOption = None,
    writer_url: WriterUrlOption = None,
    writer_model: WriterModelOption = None,
    model_reads: Annotated[
        bool, typer.Option("--model-reads", help="The model fills in the blanks, not the extractive reader.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write tables and figures to this .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Let memories shorten long transcripts to equally many tokens, and count which facts are left."""
    from mem1.extras.probe.exam import check_cycles, rows
    from mem1.extras.probe.page import probe_page
    from mem1.extras.probe.readings import TRAINED
    from mem1.extras.probe.writers import served
    from mem1.pages.page import write_page

    if transcripts is not None:
        refuse(
            invocation,
            *("kind", "split", "wordings", "count", "exchanges", "corpus", "repository"),
            because="belongs to transcripts that are made, not to a file",
        )
    if (base_url is None) != (model is None):
        raise UserError("--base-url and --model go together")
    if model_reads and base_url is None:
        raise UserError("--model-reads needs a model: give --base-url and --model")
    if base_url is None:
        refuse(invocation, "max_tokens", because="belongs to a model of --base-url")
    at = None
    if writer is None:
        refuse(invocation, "device", "writer_url", "writer_model", because="belongs to --writer")
    else:
        at = place(invocation, writer_url, writer_model, device)
    if plot is not None:
        new_file(plot)
        make_folder_of(plot)
    chosen = tuple(dict.fromkeys(memories or _DEFAULT))
    write = None if base_url is None or model is None else served(base_url, model, max_tokens=max_tokens)
    _check_names([name for name in chosen if writer is None or name != TRAINED], write)
    given = _given(transcripts, kind or _KINDS, split, wordings, count, exchanges, corpus, repository)
    cells = list(itertools.product(dict.fromkeys(share or (_SHARE,)), dict.fromkeys(cycles or (_CYCLES,))))
    check_cycles(given, max(number for _, number in cells))
    notings = None
    if writer is not None and at is not None:
        chosen = tuple(dict.fromkeys((*chosen, TRAINED)))
        notings = _read(writer, given, at)
    taken = _taken(chosen, given, cells, write, write if model_reads else None, notings)
    found = rows(taken)
    by_kind = {name: rows([one for one in taken if one.kind == name]) for name in dict.fromkeys(t.kind for t in given)}
    if plot is not None:
        write_page(plot, probe_page(found, by_kind, writer=model))
    if as_json:
        print(json.dumps({"writer": model, "rows": found, "by_kind": by_kind}))
        return
    console = Console(highlight=False)
    for row in _tables(found, by_kind):
        console.print(row)
    if plot is not None:
        say(f"Tables and figures: {plot}")


def _given(
    path: Path | None,
    kinds: Sequence[str],
    split: str,
    wordings: str,
    count: int,
    exchanges: int,
    corpus: Path | None,
    repository: Path,
) -> list[Transcript]:
    from mem1.extras.probe.kinds import KINDS, Settings, Split, Wordings, make_transcript
    from mem1.extras.probe.transcripts import read_transcripts

    if path is not None:
        found = list(read_transcripts(path))
        if not found:
            raise UserError(f"{path} holds no transcript; docs/memory/probe.md shows one")
        without = [str(number) for number, one in enumerate(found, start=1) if not one.holding(len(one.messages))]
        if len(without) == len(found):
            raise UserError(f"{path}: no transcript has a fact that holds at its end; docs/memory/probe.md shows one")
        if without:
            shown = ", ".join(without[:_SHOWN]) + (", ..." if len(without) > _SHOWN else "")
            say(f"{path}: no fact holds at the end of transcript {shown}, so the recall is that of the others")
        return found
    chosen = ((split, get_args(Split)), (wordings, get_args(Wordings)), *((one, tuple(KINDS)) for one in kinds))
    for name, known in chosen:
        if name not in known:
            raise UserError(f"unknown {name!r}{suggestion(name, known)}; known: {', '.join(known)}")
    settings = Settings(exchanges=exchanges, corpus=corpus, repository=repository, wordings=cast(Any, wordings))
    work_begins()
    with stopped_while("making transcripts"), bars(stderr()) as progress:
        bar = progress.add_task("transcripts", total=len(kinds) * count, note="")
        made: list[Transcript] = []
        for one in dict.fromkeys(kinds):
            for number in range(count):
                progress.update(bar, note=one)
                made.append(make_transcript(one, cast(Any, split), number, settings))
                progress.advance(bar)
    return made


def _check_names(names: Sequence[str], write: Write | None) -> None:
    """Raises UserError for a memory that cannot be made, before transcripts are."""
    from mem1.extras.probe.exam import compressor_of

    begun = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
    for name in names:
        compressor_of(name, begun, 1_000, write)


def _taken(
    names: Sequence[str],
    transcripts: Sequence[Transcript],
    cells: Sequence[tuple[float, int]],
    write: Write | None,
    reads: Write | None,
    notings: Sequence[Noting] | None,
) -> list[Taken]:
    from mem1.extras.probe.exam import examine

    jobs = list(itertools.product(range(len(transcripts)), names, cells))

    def one(job: tuple[int, str, tuple[float, int]]) -> Taken:
        number, name, (share, cycles) = job
        taken = examine(
            transcripts[number],
            name,
            share=share,
            cycles=cycles,
            number=number,
            write=write,
            reads=reads,
            noting=None if notings is None else notings[number],
        )
        progress.update(bar, advance=1, note=name)
        return taken

    with stopped_while("probing"), bars(stderr()) as progress:
        bar = progress.add_task("probe", total=len(jobs), note="")
        return in_parallel(one, jobs, threads=_REQUESTS if write else 1)


def _read(folder: Path, transcripts: Sequence[Transcript], at: ModelServer | Device) -> list[Noting]:
    """What the writer in this folder notes of the transcripts."""
    from mem1.extras.writer.transcripts import number_of_parts, read_all

    writer = open_writer(folder, at, workers=_WORKERS)
    with stopped_while("reading"), bars(stderr()) as progress:
        bar = progress.add_task("reading", total=number_of_parts(transcripts), note="")
        return read_all(writer, transcripts, lambda: progress.advance(bar))


def _tables(rows: Sequence[dict[str, Any]], by_kind: dict[str, list[dict[str, Any]]]) -> list[Any]:
    from mem1.extras.probe.page import kind_columns, narrow_columns

    facts, transcripts = rows[0]["facts"], rows[0]["transcripts"]
    shares = " and ".join(dict.fromkeys(f"{100 * row['share']:g} %" for row in rows))
    cycles = " and ".join(dict.fromkeys(str(row["cycles"]) for row in rows))
    caption = (
        f"{facts} facts that hold at the end, {transcripts} transcripts; {shares} of the tokens may be kept, "
        f"cycles: {cycles}. Shares of the facts that hold; the interval is that of the recall over transcripts."
    )
    tables = [printed(*narrow_columns(rows), caption=caption)]
    if len(by_kind) > 1:
        tables.append(printed(*kind_columns(by_kind), caption="Recall by kind of transcript."))
    new: dict[str, dict[str, None]] = {}
    for row in rows:
        new.setdefault(row["memory"], {}).update(dict.fromkeys(row["invented_words"]))
    tables += [
        escape(f"Invented by {name}: {', '.join(list(found)[:_SHOWN])}{', ...' if len(found) > _SHOWN else ''}")
        for name, found in new.items()
        if found
    ]
    return tables
