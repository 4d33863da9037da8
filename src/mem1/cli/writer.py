"""The memory writer of a command: computed in this process, or its weights on a server.

mem1 proxy --writer runs/writer/policy ...
mem1 proxy --writer runs/writer/policy --writer-url http://127.0.0.1:8000/v1 --writer-model writer ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import chosen_device, refuse
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.engines.device import Device
    from mem1.engines.servers import ModelServer
    from mem1.extras.writer.note_writer import NoteWriter

WriterUrlOption = Annotated[
    str | None,
    typer.Option(
        "--writer-url",
        help="Server that runs the writer's weights (vLLM, llama.cpp). Default: this process.",
        show_default=False,
    ),
]
WriterModelOption = Annotated[
    str | None, typer.Option("--writer-model", help="The weights' name on that server.", show_default=False)
]


def place(
    invocation: typer.Context, url: str | None, model: str | None, device: str | None, *options: str
) -> ModelServer | Device:
    """Where a writer is computed. Raises UserError for options that do not go together.

    options     those of the command that are for a writer in this process, beside --device
    """
    from mem1.engines.servers import ModelServer

    if (url is None) != (model is None):
        raise UserError("--writer-url and --writer-model go together")
    if url is None or model is None:
        return chosen_device(invocation, device or "auto")
    refuse(invocation, "device", *options, because="is for a writer in this process, not for one on a server")
    return ModelServer(urls=(url,), model=model)


def open_writer(folder: Path, at: ModelServer | Device, *, workers: int = 1) -> NoteWriter:
    """The writer in a folder. Raises UserError as `NoteWriter.load` and `connect`."""
    from mem1.engines.servers import ModelServer
    from mem1.extras.writer.note_writer import NoteWriter

    if isinstance(at, ModelServer):
        return NoteWriter.connect(folder, at)
    return NoteWriter.load(folder, workers=at.workers(workers), device=at)
