"""Reads what Weights & Biases stores offline: a file of records in LevelDB's log format, with a header of its own."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK, HEADER, RECORD = 32768, 7, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass(frozen=True)
class History:
    """A run as one offline file has it."""

    id: str
    name: str
    config: dict[str, Any]
    rows: dict[int, dict[str, float]]
    """Numbers by step, without those that begin with an underscore."""


def wandb_history(file: Path) -> History:
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    rows: dict[int, dict[str, float]] = {}
    run: Any = None
    for data in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            assert step not in rows
            rows[step] = {key: value for key, value in items.items() if not key.startswith("_")}
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    return History(id=run.run_id, name=run.display_name, config=config, rows=rows)


def records(data: bytes) -> Iterator[bytes]:
    """The records; one may be spread over blocks of 32 KiB, whose last bytes are empty where no head fits."""
    at, parts = HEADER, b""
    while at + RECORD.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < RECORD.size:
            at += left
            continue
        _, size, kind = RECORD.unpack_from(data, at)
        at += RECORD.size
        parts += data[at : at + size]
        at += size
        if kind in (FULL, LAST):
            yield parts
            parts = b""
