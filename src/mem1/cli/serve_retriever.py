"""`mem1 serve-retriever`: a corpus or a saved index as a server that speaks Search-R1's protocol."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import work_begins
from mem1.configuration.numbers import MOST_WORKERS

if TYPE_CHECKING:
    from mem1.retrieval import Retriever

_MOST_WORKERS = 4
"""Without --workers; a trainer on the same machine wants the other cores."""


def command(
    corpus: Annotated[Path, typer.Argument(help="JSONL of passages, may be gzipped, or the folder of a saved index.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which the server may be called besides its address; repeatable.", show_default=False
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=MOST_WORKERS, help="Processes. Without: one a core, at most 4.")
    ] = None,
    top_k: Annotated[
        int, typer.Option(min=1, max=1000, help="Passages a query where a request does not say how many.")
    ] = 3,
) -> None:
    """Answer searches over HTTP, as Search-R1's retrieval server does, until Ctrl-C or SIGTERM."""
    from mem1.cli.display import stderr
    from mem1.retrieval.serve import serve

    work_begins()
    console = stderr()
    number = workers or min(_MOST_WORKERS, _cores())
    serve(
        _opener(corpus, number),
        host=host,
        allow_hosts=allow_host or (),
        port=port,
        workers=number,
        top_k=top_k,
        listening=lambda address: console.print(
            f"Serving {corpus} on {address} ({number} worker{'s'[: number > 1]}); Ctrl-C stops",
            soft_wrap=True,
            markup=False,
        ),
    )
    console.print("Stopped.")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _opener(corpus: Path, workers: int) -> Callable[[], Retriever]:
    """Opens the index; it is built here where need be, so that several workers only map it."""
    from mem1.retrieval.bm25 import BM25
    from mem1.retrieval.open_index import bm25_folder, open_bm25, open_retriever

    if corpus.is_dir():
        return partial(open_retriever, corpus)
    index = open_bm25(corpus)
    return (lambda: index) if workers == 1 else partial(BM25.load, bm25_folder(corpus))
