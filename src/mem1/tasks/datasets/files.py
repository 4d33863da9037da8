"""The records of a file (JSONL, JSON, CSV, TSV or Parquet, plain or gzipped) or of a data set on the Hugging Face hub.

    nq.jsonl          ("nq.jsonl:1", {"question": "...", "answer": ["..."]}), ("nq.jsonl:2", ...)
    hotpot.json       ("hotpot.json[0]", {"_id": "...", ...})           a list, or the list under "Data"
    popqa.tsv         ("popqa.tsv:2", {"id": "...", "subj": "...", ...})
    train.parquet     ("train.parquet[0]", {"prompt": [...], ...})

    hf:akariasai/PopQA:test                        data set and split
    hf:hotpotqa/hotpot_qa/distractor:validation    data set, configuration and split

The type of a file is recognised from its beginning, not from its name. The `datasets` library loads hub data sets from
its cache or the network.

Records are translated by readers of fields, whose errors name the field:

    text({"question": "Who?"}, "question")          ->  "Who?"
    strings(["A", " "], "the answers")              ->  ("A",)      a blank gold alias would match an empty answer
    passage("hotpotqa", "Oslo", "Oslo is a city.")  ->  Passage("hotpotqa:2f0c…", "Oslo", "Oslo is a city.")
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from mem1.errors import UserError
from mem1.jsonl import read_lines, read_objects, read_start
from mem1.parquet import is_parquet, read_rows
from mem1.records import Passage, Question

_START = 1 << 16
"""Bytes examined; some files are one line of 500 MB."""
_LONGEST_FIELD = 1 << 24
"""Maximum number of characters in a CSV field; the csv module's own limit is 131,072."""


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, record) one by one. Raises UserError, with the location, for unreadable data."""
    if is_parquet(path):
        return ((f"{path}[{number - 1}]", row) for number, row in read_rows(path))
    start = read_start(path, _START).lstrip()
    if start.startswith(b"[") or _is_document(start):
        return _document(path)
    first = start.partition(b"\n")[0]
    if not start.startswith(b"{") and (b"\t" in first or b"," in first):
        return _table(path, "\t" if b"\t" in first else ",")
    return ((f"{path}:{number}", record) for number, record in read_objects(path))


def _is_document(start: bytes) -> bool:
    """Whether a file that begins with a brace is a single object, rather than lines of JSONL."""
    first, line_end, _ = start.partition(b"\n")
    if not first.startswith(b"{"):
        return False
    # the first line of a longer object has only its brace or its first key; a line of JSONL has more
    opens = bool(line_end) and first.rstrip().endswith((b"{", b"[", b","))
    return opens or re.match(rb'\{\s*"(Data|Version|VerifiedEval|Domain)"', first) is not None


def _document(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    content = b"".join(line for _, line in read_lines(path))
    try:
        document = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a complete JSON document ({error}); is the file truncated?") from error
    records = document.get("Data") if isinstance(document, dict) else document
    if not isinstance(records, list):
        raise UserError(f'{path}: a JSON document must be a list of objects, or contain one under "Data"')
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise UserError(f"{path}[{number}]: must be a JSON object, not {type(record).__name__}")
        yield f"{path}[{number}]", record


def _table(path: str | os.PathLike[str], delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(_decoded(path), delimiter=delimiter)
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise UserError(f"{where}: this row does not have as many fields as the header; is it truncated?")
            yield where, dict(row)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not a row of a table ({error})") from error


def _decoded(path: str | os.PathLike[str]) -> Iterator[str]:
    for number, line in read_lines(path):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error


def peek(
    records: Iterator[tuple[str, dict[str, Any]]],
) -> tuple[dict[str, Any] | None, Iterator[tuple[str, dict[str, Any]]]]:
    """The first record (None without records), and an iterator over all of them."""
    for where, record in records:
        return record, chain([(where, record)], records)
    return None, records


PREFIX = "hf:"


def hub_records(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, record). Raises UserError for an invalid address or an unavailable data set."""
    for number, row in enumerate(_hub_rows(address)):
        yield f"{address}[{number}]", dict(row)


def hub_fingerprint(address: str) -> str:
    """The fingerprint of the data set, another one for another commit or split. Raises UserError as `hub_records`."""
    return _hub_rows(address)._fingerprint


def _hub_rows(address: str) -> Any:
    name, configuration, split = _parts(address)
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"{address} needs the datasets library: pip install 'mem1-agents[datasets]'") from error
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the library raises many kinds of errors, its own and the network's
        raise UserError(
            f"cannot load {address} ({type(error).__name__}: {error}); check name, configuration and split"
        ) from error


def _parts(address: str) -> tuple[str, str | None, str]:
    """("akariasai/PopQA", None, "test")"""
    name, colon, split = address.removeprefix(PREFIX).rpartition(":")
    parts = name.split("/")
    if not colon or not split or not all(parts) or not 2 <= len(parts) <= 3:
        raise UserError(
            f"{address!r} is not the address of a data set; write hf:owner/name:split or "
            "hf:owner/name/configuration:split"
        )
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split


Record = Mapping[str, Any]
Aliases = Mapping[str, tuple[str, ...]]
"""Wikidata id of an answer -> its other names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The content of one record of a file."""

    questions: tuple[Question, ...]
    """One question, the hops of a decomposed one, the questions of a composed task, or none if the record is to be
    skipped."""
    passages: tuple[Passage, ...] = ()
    """The paragraphs of the record, gold ones and distractors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to translate records."""

    aliases: Aliases
    decompose: bool = False
    """Replace a question by its single hops."""


def identifier(value: Any) -> str:
    """An id, a string or an integer, as a string. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError("a question needs an id, a string or an integer")
    return str(value)


def text(record: Record, field: str) -> str:
    """A field that must be a string. Raises ValueError if it is not."""
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field!r} must be a string, not {shown(value)}")
    return value


def items(record: Record, field: str) -> list[Any]:
    """A field that must be a list. Raises ValueError if it is not."""
    value = record.get(field)
    if not isinstance(value, list):
        raise ValueError(f"{field!r} must be a list, not {shown(value)}")
    return value


def mapping(value: Any, what: str) -> Record:
    """A value that must be a JSON object. Raises ValueError if it is not."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, not {shown(value)}")
    return value


def strings(values: Any, what: str) -> tuple[str, ...]:
    """A list of strings without blank ones; empty for None. Raises ValueError for anything else."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} must be a list of strings, not {shown(values)}")
    return tuple(value for value in values if value.strip())


def distinct(values: Iterable[str]) -> tuple[str, ...]:
    """The distinct values in their original order, without blank ones."""
    return tuple(dict.fromkeys(value for value in values if value.strip()))


def first(record: Record, names: Iterable[str]) -> Any:
    """The value of the first of `names` that the record has; None without any."""
    return next((record[name] for name in names if name in record), None)


def hashed(source: str, *parts: str) -> str:
    """An id made from content, the same in every file."""
    return f"{source}:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def passage(source: str, title: str, content: str) -> Passage:
    """A passage with an id made from its content. Raises ValueError for an empty text."""
    return Passage(hashed(source, title, content), title, content)


def shown(value: Any) -> str:
    """A value, shortened for an error message."""
    quoted = repr(value)
    return quoted if len(quoted) <= 80 else f"{quoted[:80]} ..."
