"""`mem1 index`: a file of passages, or a folder of documents, as an index that `--corpus` opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.cli.options import DeviceOption, Fills, JsonOption, chosen_device, refuse, work_begins
from mem1.configuration.model import MOST_TASKS
from mem1.errors import UserError, printable
from mem1.interrupts import stopped_while
from mem1.lock import alone_in

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.records import Passage

_NAMED = 20
"""Most skipped files that are listed."""


def command(
    invocation: typer.Context,
    corpus: Annotated[
        Path,
        typer.Argument(
            help="Passages in JSONL (may be gzipped) or Parquet, or a folder of text, Markdown, HTML and PDF.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the index.", show_default=False)],
    kind: Annotated[str, typer.Option(help="bm25 (words) or dense (vectors of --encoder).")] = "bm25",
    k1: Annotated[
        float,
        typer.Option(min=0, help="BM25: how slowly a repeated word saturates."),
        Fills("mem1.retrieval.bm25:BM25.build.k1"),
    ] = 0.9,
    b: Annotated[
        float,
        typer.Option(min=0, max=1, help="BM25: how much long passages are discounted."),
        Fills("mem1.retrieval.bm25:BM25.build.b"),
    ] = 0.4,
    encoder: Annotated[str | None, typer.Option(help="Dense: folder or Hugging Face id.")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="Dense: before a query. Default: the encoder's.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="Dense: before a passage. Default: the encoder's.")] = None,
    batch_size: Annotated[
        int,
        typer.Option(min=1, max=MOST_TASKS, help="Dense: passages per batch."),
        Fills("mem1.retrieval.encoders:load_encoder.batch_size"),
    ] = 32,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index passages or documents, once; `mem1 eval --corpus FOLDER` then searches them."""
    from mem1.cli.progress import stderr
    from mem1.retrieval.index_files import check_replaceable

    if kind not in ("bm25", "dense"):
        raise UserError(f"unknown kind {kind!r}; known: bm25, dense")
    if (kind == "dense") != (encoder is not None):
        raise UserError("--kind dense and --encoder FOLDER go together")
    if kind == "bm25":
        dense = ("query_prefix", "passage_prefix", "batch_size", "device")
        refuse(invocation, *dense, because="goes with --kind dense")
    else:
        refuse(invocation, "k1", "b", because="goes with --kind bm25")
    if corpus.is_dir() and out.resolve().is_relative_to(corpus.resolve()):
        raise UserError(f"--out {out} is inside {corpus}, whose documents it would hide; give a folder beside it")
    work_begins()
    console = stderr()
    check_replaceable(out, kind)
    passages, skipped = _read(corpus, console)
    with alone_in(out):
        if encoder is None:
            from mem1.retrieval import BM25

            with console.status("Indexing"), stopped_while("indexing"):
                BM25.build(passages, k1=k1, b=b).save(out)
        else:
            on = chosen_device(invocation, device)
            console.print(f"device: {on}", markup=False)
            with stopped_while("embedding passages"):
                _embed(passages, encoder, out, (query_prefix, passage_prefix), batch_size, str(on.at))
    if as_json:
        shown: dict[str, Any] = {"index": str(out), "kind": kind, "passages": len(passages), "skipped": skipped}
        print(json.dumps(shown))
    else:
        name = printable(str(out))
        print(f"Indexed {len(passages):,} passages in {name} ({kind}); search them with --corpus {name}")


def _read(corpus: Path, console: Console) -> tuple[Sequence[Passage], dict[str, str]]:
    """The passages of a file, an index or a folder, and file -> the reason why it was skipped."""
    from mem1.retrieval.documents import read_documents
    from mem1.retrieval.index_folder import holds_index, open_passages

    with stopped_while("reading the corpus"), console.status(f"Reading {corpus}") as status:
        if not corpus.is_dir() or holds_index(corpus):
            return open_passages(corpus), {}
        found = read_documents(corpus, on_file=lambda seen: status.update(f"Reading {corpus}: {seen:,} files"))
    if found.skipped:
        console.print(f"Read {found.files:,} files, skipped {len(found.skipped):,}:")
        for name, reason in found.skipped[:_NAMED]:
            console.print(f"  {name}: {reason}", markup=False)
        if len(found.skipped) > _NAMED:
            console.print(f"  and {len(found.skipped) - _NAMED:,} more; --json lists all of them")
    return found.passages, dict(found.skipped)


def _embed(
    passages: Sequence[Passage],
    encoder: str,
    out: Path,
    prefixes: tuple[str | None, str | None],
    batch_size: int,
    device: str,
) -> None:
    from mem1.cli.progress import bars, stderr
    from mem1.retrieval.dense import index_dense
    from mem1.retrieval.encoders import Prefixes, known_prefixes, load_encoder

    query, passage = prefixes
    unsaid = query is None and passage is None
    wanted = known_prefixes(encoder) if unsaid else Prefixes(query=query or "", passage=passage or "")
    loaded = load_encoder(encoder, device=device, batch_size=batch_size)
    with bars(stderr()) as progress:
        bar = progress.add_task("embed", total=len(passages), note="")
        index_dense(
            passages,
            loaded,
            out,
            prefixes=wanted,
            on_progress=lambda done, of: progress.update(bar, completed=done),
        )
