"""A list of a folder's files with their CRC-32, by which damage shows before anything is loaded.

    manifest.json: {"format": 1, "crc32": {"model/model.safetensors": 3420012277, "state.json": 17750183, ...}}

CRC-32 finds accidents (a cut file, a flipped bit), not forgery.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from mem1.durable import _stays_inside as stays_inside
from mem1.durable import sync
from mem1.errors import UserError

NAME = "manifest.json"
FORMAT = 1
"""Version of the layout of a checkpoint."""


def seal(folder: Path) -> None:
    """Write the manifest and force the folder and everything in it to the disk."""
    paths = sorted(folder.rglob("*"))
    sums = {p.relative_to(folder).as_posix(): _crc32(p) for p in paths if p.is_file()}
    manifest = folder / NAME
    manifest.write_text(json.dumps({"format": FORMAT, "crc32": sums}, indent=1), encoding="utf-8")
    for path in (*paths, manifest, folder):
        sync(path)


def verify(folder: Path) -> None:
    """Raises UserError unless every file is there as it was written."""
    instead = f"remove that folder to go on from the checkpoint before it in {folder.parent}, or start a new run"
    try:
        form, sums = _read(folder)
    except OSError as error:
        raise UserError(
            f"{folder} is not a checkpoint of mem1: it has no readable {NAME}; "
            "give a folder such as runs/quickstart/checkpoints/checkpoint-000040"
        ) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{folder} is damaged: {NAME} cannot be understood; {instead}") from error
    if form != FORMAT:
        raise UserError(f"{folder} has format {form!r}; this mem1 reads format {FORMAT}; use the mem1 that wrote it")
    for name, crc in sums.items():
        file = folder / name
        if not file.is_file() or _crc32(file) != crc:
            raise UserError(f"{folder} is damaged: {name} is missing or not as it was written; {instead}")


def _read(folder: Path) -> tuple[Any, dict[str, int]]:
    """(Format, CRC-32 of each file). Raises OSError, or ValueError and its like where it cannot be understood."""
    manifest = json.loads((folder / NAME).read_bytes())
    sums = dict(manifest["crc32"])
    for name, crc in sums.items():
        if not stays_inside(name) or type(crc) is not int:
            raise ValueError(f"{name!r}: {crc!r} is no file of the folder with its sum")
    return manifest["format"], sums


def foreign(folder: Path) -> list[str]:
    """Files and links below the folder that its manifest does not list; all of them, where it cannot be understood."""
    try:
        _, sums = _read(folder)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        sums = {}
    held = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    return [name for path in held if (name := path.relative_to(folder).as_posix()) not in sums and name != NAME]


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
