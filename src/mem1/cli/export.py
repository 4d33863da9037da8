"""`mem1 export`: a policy as a model folder or a GGUF file. `mem1 push`: the same on the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from mem1.cli.options import JsonOption, refuse
from mem1.errors import UserError

SourceArgument = Annotated[
    str, typer.Argument(help="A run, a checkpoint (RUN/checkpoints/checkpoint-000040), or a policy by path or name.")
]


def _check_there(source: str) -> None:
    """Before torch is loaded. Raises UserError where there is no such folder, and no policy of this name."""
    from mem1.hub import not_here
    from mem1.policy.folders import policy_folder

    if not policy_folder(source).is_dir():
        raise UserError(
            not_here(source)
            or f"no folder {source}; give a run, a checkpoint such as RUN/checkpoints/checkpoint-000040, or a policy"
        )


def export(
    invocation: typer.Context,
    source: SourceArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write, or a file for llama.cpp: NAME.gguf.")],
    gguf_type: Annotated[
        Literal["f16", "f32", "q8_0"], typer.Option(help="Type of the weights in a GGUF file.")
    ] = "f16",
    as_json: JsonOption = False,
) -> None:
    """Write a policy as a transformers folder with a model card, or as a GGUF file; adapters are merged."""
    _check_there(source)
    from mem1.cli.progress import say
    from mem1.training.runs.export import Source

    if out.suffix == ".gguf":
        Source.of(source).write_gguf(out, kind=gguf_type)
    else:
        refuse(invocation, "gguf_type", because="is for GGUF files; give OUT the ending .gguf")
        Source.of(source).write_folder(out)
    say(f"The policy is in {out}")
    if as_json:
        print(json.dumps({"policy": str(out)}))


def push(
    source: SourceArgument,
    repository: Annotated[str, typer.Argument(help="owner/name on the hub; made if it is new.")],
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it; without, it is private.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a policy with its model card to the Hugging Face hub (token: HF_TOKEN or `hf auth login`)."""
    _check_there(source)
    from mem1.cli.progress import say
    from mem1.training.runs.export import Source

    address = Source.of(source).push(repository, public=public)
    say(f"The policy is at {address}")
    if as_json:
        print(json.dumps({"repository": address}))
