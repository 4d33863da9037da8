"""`mem1 probe`: what a memory for chat agents keeps of planted facts, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mem1.cli.options import Fills, JsonOption, make_folder_of, new_file, refuse, work_begins
from mem1.cli.progress import bars, say, stderr
from mem1.errors import UserError
from mem1.interrupts import stopped_while
from mem1.pages.table import printed

if TYPE_CHECKING:
    from mem1.extras.probe.probing import Probed, Write
    from mem1.extras.probe.transcripts import Transcript

_DEFAULT = ("full", "archive(3)", "window(3)", "fold(8)", "notes")


def command(
    invocation: typer.Context,
    memories: Annotated[
        list[str] | None,
        typer.Argument(
            help="full, fold(k), notes, notebook(k), archive(k), ...; langchain, deepagents, openai, inspect-summary, "
            "inspect-edit, inspect-trim; module:function.",
            show_default=" ".join(_DEFAULT),
        ),
    ] = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="Transcripts with facts, one per line. Default: invented ones.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of invented transcripts.")] = 3,
    exchanges: Annotated[
        int,
        typer.Option(min=8, help="Calls of tools in each."),
        Fills("mem1.extras.probe.transcripts:make_transcript.exchanges"),
    ] = 60,
    facts: Annotated[
        int,
        typer.Option(min=1, help="Facts planted in each."),
        Fills("mem1.extras.probe.transcripts:make_transcript.facts"),
    ] = 48,
    state: Annotated[
        int, typer.Option(min=50, help="Token limit of a state."), Fills("mem1.messages.bounds:Bounds.state")
    ] = 1_000,
    base_url: Annotated[
        str | None, typer.Option(help="Chat server whose model writes states. Default: a stand-in copies sentences.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model on the server.")] = None,
    prices: Annotated[str, typer.Option(help="Price class for the cost (docs/cost.md).")] = "hosted-90",
    plot: Annotated[Path | None, typer.Option(help="Write tables and figures to this .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plant facts in long transcripts, let memories shorten them, and count what is kept, recoverable or lost."""
    from mem1.extras.probe.compactors import served, stand_in
    from mem1.extras.probe.page import probe_page
    from mem1.extras.probe.probing import summary
    from mem1.extras.probe.transcripts import make_transcript
    from mem1.messages.folding import state_words
    from mem1.pages.page import write_page
    from mem1.prices import price_class

    if transcripts is not None:
        refuse(invocation, "count", "exchanges", "facts", because="belongs to invented transcripts, not to a file")
    if (base_url is None) != (model is None):
        raise UserError("--base-url and --model go together")
    known = price_class(prices)
    if plot is not None:
        new_file(plot)
        make_folder_of(plot)
    chosen = tuple(dict.fromkeys(memories or _DEFAULT))
    write = stand_in(state_words(state)) if base_url is None or model is None else served(base_url, model)
    total, given = (
        (count, (make_transcript(seed, exchanges, facts) for seed in range(count)))
        if transcripts is None
        else _in_file(transcripts)
    )
    _compactors(chosen, write, state)  # a mistake is found before anything runs
    work_begins()
    found = _probed(chosen, write, state, given, total)
    rows = [summary(name, runs, known) for name, runs in found.items()]
    if plot is not None:
        write_page(plot, probe_page(found, known, writer=model or "stand-in"))
    if as_json:
        print(json.dumps({"prices": prices, "writer": model or "stand-in", "memories": rows}))
        return
    Console(highlight=False).print(
        _table(rows, next(iter(found.values())), model or "a stand-in that copies sentences")
    )
    if plot is not None:
        say(f"Tables and figures: {plot}")


def _in_file(path: Path) -> tuple[int, Iterable[Transcript]]:
    from mem1.extras.probe.transcripts import read_transcripts

    found = tuple(read_transcripts(path))
    if not found:
        raise UserError(f"{path} holds no transcript; docs/memory/probe.md shows one")
    return len(found), found


def _compactors(names: Sequence[str], write: Write, state: int) -> list[Any]:
    from mem1.extras.probe.compactors import compactor_of
    from mem1.extras.probe.probing import Calls
    from mem1.messages import Bounds

    made = []
    for name in names:
        calls = Calls(write)
        made.append((compactor_of(name, calls, Bounds(state=state)), calls))
    return made


def _probed(
    names: Sequence[str], write: Write, state: int, transcripts: Iterable[Transcript], total: int
) -> dict[str, list[Probed]]:
    from mem1.extras.probe.probing import probe

    found: dict[str, list[Probed]] = {}
    with stopped_while("probing"), bars(stderr()) as progress:
        bar = progress.add_task("probe", total=len(names) * total, note="")
        for transcript in transcripts:
            for compactor, calls in _compactors(names, write, state):
                progress.update(bar, note=compactor.name)
                found.setdefault(compactor.name, []).append(probe(transcript, compactor, calls))
                progress.advance(bar)
    return found


def _table(rows: Sequence[dict[str, Any]], runs: Sequence[Probed], writer: str) -> Any:
    from mem1.extras.probe.transcripts import Verdict

    headings = ["memory", "retained", "recoverable", "mutated", "stale", "lost", "peak", "prompt", "cost"]
    shown = [
        [
            row["memory"],
            *(f"{100 * row[str(verdict)]:.0f} %" for verdict in Verdict),
            *(f"{row['peak']:,.0f}", f"{row['prompt_tokens']:,.0f}", f"{row['cost_ratio']:.2f}"),
        ]
        for row in rows
    ]
    facts = sum(len(run.outcomes) for run in runs)
    caption = (
        f"Facts: {facts}, transcripts: {len(runs)}; states by {writer}. Tokens of the longest prompt, and of all "
        "prompts of a transcript, are estimated at four characters each; cost is relative to appending."
    )
    return printed(headings, shown, caption=caption)
