"""Builds a dense index in its folder, over as many runs as it takes.

index_dense(passages, encoder, Path("wiki.dense"), prefixes=known_prefixes("e5-base-v2"))

.wiki.dense.embedding/   while it embeds; a killed run goes on from it
wiki.dense/              the finished index; another kind of search is added without embedding again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.dense import KIND, Dense, build_nearest
from mem1.retrieval.embedding import Embedded, OnProgress, remove_work
from mem1.retrieval.encoder import Encoder
from mem1.retrieval.folder import index_kind, read_folder, understood
from mem1.retrieval.nearest import NearestKind, check_nearest
from mem1.retrieval.prefixes import Prefixes


def index_dense(
    passages: Sequence[Passage],
    encoder: Encoder,
    out: Path,
    *,
    prefixes: Prefixes,
    kind: NearestKind = "flat",
    on_progress: OnProgress | None = None,
) -> None:
    """Build the index and save it at `out`.

    Raises UserError where a dense index at `out`, or a half-finished embedding beside it, was made by another
    encoder, with another prefix or of other passages: hours of embedding are not overwritten by a slip.
    """
    work = out.with_name(f".{out.name}.embedding")
    if index_kind(out) == KIND:
        dense = _searched_anew(passages, encoder, out, prefixes=prefixes, kind=kind)
    else:
        dense = Dense.build(passages, encoder, prefixes=prefixes, kind=kind, work=work, on_progress=on_progress)
    dense.save(out)
    remove_work(work)


def _searched_anew(
    passages: Sequence[Passage], encoder: Encoder, out: Path, *, prefixes: Prefixes, kind: NearestKind
) -> Dense:
    """The finished index at `out` with this kind of search and this query prefix."""
    check_nearest(kind)
    facts = read_folder(out, kind=KIND)
    with understood(out, kind=KIND):
        earlier = Embedded(**facts["embedded"])
    if different := Embedded.of(passages, encoder, prefixes.passage).difference(earlier):
        raise UserError(f"{out} holds a dense index with {different}; delete it or choose another folder")
    dense = Dense.load(out, encoder)
    return replace(dense, prefixes=prefixes, kind=kind, nearest=build_nearest(dense.vectors, kind))
