"""Rows of a Parquet file as objects, like the lines of a JSONL file, read and written.

    read_rows("corpus.parquet", ["id", "title", "text"])  ->  (1, {"id": "p0", "title": "Oslo", "text": "..."}), ...

A Parquet file is recognised by its first four bytes, whatever it is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mem1.durable import replacing
from mem1.errors import UserError

_MAGIC = b"PAR1"
_ROWS = 1000
"""Read at a time."""


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """False, too, where there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_rows(
    path: str | os.PathLike[str], columns: Collection[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number, object) of each row, with those of `columns` that the file has, None: all; the first is 1.

    Raises UserError where the file is cut short or damaged, or pyarrow is not installed.
    """
    pyarrow, parquet = import_pyarrow(path)
    try:
        with parquet.ParquetFile(path) as file:
            present = [name for name in file.schema_arrow.names if columns is None or name in columns]
            batches = file.iter_batches(columns=present, batch_size=_ROWS)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: the Parquet data is cut short or damaged ({error})") from error


def import_pyarrow(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet). Raises UserError, naming the file that needs them, where they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"{path} is a Parquet file, which needs pyarrow ({error}): pip install 'mem1-agents[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], schema: Callable[[Any], Any]) -> None:
    """Write the rows as a table, the old file or the whole new one. Raises UserError where it cannot be written.

    `schema` makes the table's schema, given pyarrow.
    """
    pyarrow, parquet = import_pyarrow(path)
    try:
        with replacing(path) as partial:
            parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema(pyarrow)), partial)
    except (pyarrow.ArrowException, OSError, UnicodeEncodeError) as error:
        raise UserError(f"cannot write {path}: {error}; nothing was changed") from error
