"""`mem1 data cloze`: questions from documents, by blanking out names and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.options import Fills, work_begins
from mem1.configuration.numbers import LARGEST_SEED

_ORDER = "How they are drawn"
_FILTERS = "Which are kept"


def command(
    corpus: Annotated[
        Path,
        typer.Argument(
            help="Passages in JSONL (may be gzipped) or Parquet, an index, or a folder of documents (see mem1 index).",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the questions, their index and a README.", show_default=False)],
    left: Annotated[
        int,
        typer.Option(min=3, help="Words shown before the blank.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.left"),
    ] = 6,
    right: Annotated[
        int,
        typer.Option(min=0, help="Words shown after it.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.right"),
    ] = 4,
    per_passage: Annotated[
        int,
        typer.Option(min=1, help="Questions of a passage at most.", rich_help_panel=_FILTERS),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.per_passage"),
    ] = 6,
    within: Annotated[
        int,
        typer.Option(min=1, help="The passage is among so many results of its question.", rich_help_panel=_FILTERS),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.within"),
    ] = 2,
    development: Annotated[
        float,
        typer.Option(min=0, help="Share of the passages.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.development"),
    ] = 0.05,
    test: Annotated[
        float,
        typer.Option(min=0, help="Share of the passages.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.test"),
    ] = 0.05,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Of the draw in a passage.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.seed"),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as one JSON object.")] = False,
) -> None:
    """Make fill-in questions from a corpus, by blanking out names and numbers."""
    from mem1.cli.display import bars, stderr
    from mem1.cli.index import read
    from mem1.envs.cloze.folder import make_cloze_folder
    from mem1.errors import printable
    from mem1.lock import alone_in
    from mem1.tasks.cloze import ClozeOptions

    options = ClozeOptions(
        left=left,
        right=right,
        per_passage=per_passage,
        within=within,
        development=development,
        test=test,
        seed=seed,
    )
    work_begins()
    console = stderr()
    passages, _ = read(corpus, console)
    with alone_in(out), bars(console) as progress:
        shown = {what: progress.add_task(what, total=None, note="") for what in ("blank", "search")}
        folder = make_cloze_folder(
            passages,
            out,
            options,
            corpus=corpus.name,
            on_progress=lambda what, done, of: progress.update(shown[what], completed=done, total=of),
        )
    known = folder.statistics()
    if as_json:
        print(json.dumps({"out": str(out), **known}))
    else:
        parts = ", ".join(f"{number:,} {part}" for part, number in known["parts"].items())
        name = printable(str(out))
        print(f"{known['counts']['questions']:,} questions ({parts}) of {len(passages):,} passages in {name}")
        print(f"Look at {name}/README.md; evaluate with --task cloze --corpus {name}")
