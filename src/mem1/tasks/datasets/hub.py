"""A data set of the Hugging Face hub in place of a file.

    hf:akariasai/PopQA:test                        data set and split
    hf:hotpotqa/hotpot_qa/distractor:validation    data set, configuration and split

The `datasets` library loads it, from its cache or from the network; the command line keeps the network off unless
HF_HUB_OFFLINE=0 is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mem1.errors import UserError

PREFIX = "hf:"


def hub_records(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where it stands, record). Raises UserError where the address is faulty or the data set not to be had."""
    name, configuration, split = _parts(address)
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"{address} needs the datasets library: pip install 'mem1[datasets]'") from error
    try:
        rows = datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the library raises errors of many kinds, its own and those of the network
        raise UserError(
            f"cannot load {address} ({type(error).__name__}: {error}); check name, configuration and split, and set "
            "HF_HUB_OFFLINE=0 to let it be downloaded"
        ) from error
    for number, row in enumerate(rows):
        yield f"{address}[{number}]", dict(row)


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
