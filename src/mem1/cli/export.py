"""`mem1 export`: a checkpoint as a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    checkpoint: Annotated[Path, typer.Argument(help="runs/NAME/checkpoints/checkpoint-000040")],
    out: Annotated[Path, typer.Argument(help="Folder to write, which transformers and mem1 can load.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the folder as one JSON object.")] = False,
) -> None:
    """Write a checkpoint's policy as a transformers folder, with adapters merged and shards joined."""
    from mem1.cli.display import stderr
    from mem1.training.weights.export import export_checkpoint

    export_checkpoint(checkpoint, out)
    stderr().print(f"The policy is in {out}")
    if as_json:
        print(json.dumps({"policy": str(out)}))
