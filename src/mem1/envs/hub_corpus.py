"""The passages of a data set of the Hugging Face hub, as a file in the cache.

local_corpus("wiki.jsonl")                                         wiki.jsonl: a file is itself
local_corpus("hf:owner/wiki:train")                                its rows of id, title and text
local_corpus("hf:hotpotqa/hotpot_qa/distractor:validation")        the paragraphs that its questions bring

    ~/.cache/mem1/corpus-1f0c.../passages.jsonl
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

from mem1.cache import cache_folder, open_cached
from mem1.envs.tasks import must_exist
from mem1.errors import UserError, printable
from mem1.records import Passage
from mem1.retrieval.corpus import PASSAGES, passages_of
from mem1.retrieval.index_files import read_folder, save_folder
from mem1.tasks.datasets.files import PREFIX, hub_fingerprint, hub_records, peek
from mem1.tasks.datasets.own import write_passages
from mem1.tasks.datasets.reading import read_dataset


def check_corpus(corpus: str, otherwise: str, then: str) -> str:
    """What a check of a run says of a corpus. Raises UserError, which goes on with `otherwise`, where it is missing.

    check_corpus("notes", "give a folder", "its index is built")    "notes; its index is built when the run begins"
    """
    if corpus.startswith(PREFIX):
        return f"{corpus}; it is fetched, and {then} when the run begins"
    must_exist(corpus, "tasks.corpus", otherwise)
    return f"{corpus}; {then} when the run begins"


def local_corpus(corpus: str) -> str:
    """The path of a corpus; one of the hub is kept until the data set changes there.

    Raises UserError where the hub's cannot be had, has no passages, or has an id twice. Without a network the cache of
    `datasets` says what the hub has.
    """
    if not corpus.startswith(PREFIX):
        return corpus
    version = hub_fingerprint(corpus)
    folder = cache_folder() / f"corpus-{sha256(f'{corpus} {version}'.encode()).hexdigest()[:32]}"

    def make() -> None:
        passages = _passages(corpus)
        facts = {"address": corpus, "fingerprint": version, "passages": len(passages)}
        save_folder(folder, kind="corpus", facts=facts, write=lambda new: write_passages(new / PASSAGES, passages))
        print(printable(f"{len(passages):,} passages of {corpus} are kept in {folder}"), file=sys.stderr)

    return str(open_cached(folder, load=_kept, make=make))


def _kept(folder: Path) -> Path:
    read_folder(folder, kind="corpus")
    return folder / PASSAGES


def _passages(corpus: str) -> list[Passage]:
    head, records = peek(hub_records(corpus))
    if head is not None and "question" in head:
        passages = read_dataset(corpus).passages
    else:
        passages = list(passages_of(records, where=str, before=lambda place: f"in {place}"))
    if not passages:
        raise UserError(f"{corpus} has no passages: its rows need id, title and text, or questions with paragraphs")
    return passages
